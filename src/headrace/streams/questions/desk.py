"""Where a worker takes questions: other threads put them there, and its own answers them.

    any thread:       ask ─► queue ─┐                         ┌─► answer
    worker's thread:  poll ─► process ─► commit ─► answers some ─► poll …

The worker answers between two batches, and for `TURN_S` at most, so that it goes on with its work.
While it is asked, it waits less long for records, which nobody can interrupt.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from headrace.streams.questions.question import Awaited, Outcome, Question, Refused, Told

WAITING_MAX = 64
TURN_S = 0.005
"""So long a worker answers at a time; what it has begun it ends."""
ASKED_S = 1.0
"""So long after a question the next one is likely."""
POLL_S = 0.005
"""How long a worker waits for records that is asked."""
_CLOSED = Refused("its worker is not at work; ask again later")
_TOO_MANY = Refused(f"{WAITING_MAX} others wait for this worker's answers; ask again later")

Answer = Callable[[Question], Outcome | None]
"""Answers a question in the worker's thread; None says that it is to be asked again."""


class _Waiting:
    """A question, and who waits for what is said."""

    __slots__ = ("done", "is_left", "question")

    def __init__(self, question: Question, done: Callable[[Outcome], None]) -> None:
        self.question = question
        self.done = done
        self.is_left = False
        """Whether nobody waits any more."""


class Desk:
    """See the module.

    Args:
        monotonic_s: seconds of a clock that never goes back.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        self._is_open = False
        self._answered_s: float | None = None

    # -- any thread ------------------------------------------------------------------------------

    def submit(self, question: Question, done: Callable[[Outcome], None]) -> _Waiting | None:
        """Have a question answered.

        Args:
            done: called with what is said, in this thread or in the worker's; not to wait.

        Returns:
            What to `leave` when nobody waits any more; None where it was refused at once.
        """
        waiting = _Waiting(question, done)
        with self._lock:
            refused = _CLOSED if not self._is_open else None
            if len(self._waiting) >= WAITING_MAX:
                refused = _TOO_MANY
            if refused is None:
                self._waiting.append(waiting)
        if refused is None:
            return waiting
        done(refused)
        return None

    def ask(self, question: Question, within_s: float) -> Told:
        """Ask, and wait for the answer.

        Raises:
            UnansweredError: there is none.
        """
        awaited = Awaited()
        waiting = self.submit(question, awaited.bring)
        try:
            return awaited.wait(within_s)
        finally:
            if waiting is not None:
                waiting.is_left = True

    # -- the worker's thread ---------------------------------------------------------------------

    def open(self) -> None:
        """Take questions."""
        with self._lock:
            self._is_open = True

    def close(self) -> None:
        """Take none any more, and refuse those that wait."""
        with self._lock:
            self._is_open = False
            left = tuple(self._waiting)
            self._waiting.clear()
        for one in left:
            one.done(_CLOSED)

    def turn(self, answer: Answer) -> None:
        """Answer some of the questions; the first turn opens."""
        if not self._is_open:
            self.open()
        if not self._waiting:
            return
        begun_s = now_s = self._monotonic_s()
        for _ in range(len(self._waiting)):
            waiting = self._waiting.popleft()
            if waiting.is_left:
                continue
            outcome = answer(waiting.question)
            if outcome is None:
                self._waiting.append(waiting)
            else:
                waiting.done(outcome)
            now_s = self._monotonic_s()
            if now_s - begun_s >= TURN_S:
                break
        self._answered_s = now_s

    def bounded(self, wait_s: float) -> float:
        """How long a worker may wait for records, which would wait so long without questions."""
        if self._waiting:
            return 0.0
        if self._answered_s is None:
            return wait_s
        if self._monotonic_s() - self._answered_s > ASKED_S:
            self._answered_s = None
            return wait_s
        return min(wait_s, POLL_S)
