"""Scheduler with virtual time: only a single thread runs at a time, and a heap selects the next.

Each worker has its own thread, so that it can be interrupted in any call while another worker
continues. A thread gives up its turn only in `sleep`. Events of the cluster and threads are on the
same heap, and the lowest time is next, so equal seeds give equal runs. Nothing waits for the
machine's clock.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

START_MS = 1_700_000_000_000
"""Wall-clock time at the start of a run."""
MS = 1_000
SECOND = 1_000_000
NEVER_US = 1 << 60
HISTORY_LINES = 200_000
MAX_STEPS = 400_000
"""Maximum number of turns in a run, to detect endless loops."""


class CrashError(BaseException):
    """Simulated crash of the process; not an Exception, so that the runtime cannot catch it."""


class StuckError(RuntimeError):
    """Raised if a run does not end, or if nothing is scheduled any more."""


@dataclass(slots=True)
class History:
    """Events of a run, line by line; at least the last `HISTORY_LINES`."""

    lines: list[tuple[int, int, str, str]] = field(default_factory=list)
    count: int = 0

    def add(self, now_us: int, who: str, what: str) -> None:
        self.count += 1
        self.lines.append((self.count, now_us, who, what))
        if len(self.lines) > 2 * HISTORY_LINES:
            del self.lines[:HISTORY_LINES]

    def __iter__(self) -> Iterator[str]:
        for number, now_us, who, what in self.lines:
            yield f"{number:>6} {now_us / SECOND:>10.6f} {who:<9} {what}"

    def __str__(self) -> str:
        return "\n".join(self)


class Actor:
    """Thread that runs only in its turn."""

    __slots__ = ("_turn", "error", "finished", "name", "thread", "version")

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = 0
        self.finished = False
        self.error: BaseException | None = None
        self.thread: threading.Thread | None = None
        self._turn = threading.Lock()
        self._turn.acquire()

    def take(self) -> None:
        self._turn.acquire()

    def give(self) -> None:
        self._turn.release()


class Kernel:
    """Scheduler in virtual time; the thread that creates it is the actor "main"."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(f"kernel/{seed}")  # noqa: S311 - reproducible on purpose
        self.history = History()
        self.now_us = 0
        self.wall_ahead_ms = 0
        """The sum of all jumps of the wall clock."""
        self.steps = 0
        self.main = Actor("main")
        self.current = self.main
        self._failure: BaseException | None = None
        """The error of an event that ran in a finished thread."""
        self._heap: list[tuple[int, int, Actor | None, int, Callable[[], None] | None]] = []
        self._number = 0

    # -- time ----------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return START_MS + self.now_us // MS + self.wall_ahead_ms

    def after(self, delay_us: int, event: Callable[[], None]) -> None:
        """Schedule an event, which must not block."""
        self._number += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._number, None, 0, event))

    def sleep(self, timeout_us: int) -> None:
        """Give up the turn until `wake` or the time-out."""
        me = self.current
        self._schedule(me, timeout_us)
        self._run_until(me)

    def wake(self, actor: Actor, delay_us: int = 0) -> None:
        """Schedule a blocked actor after a delay, if its time-out is not earlier."""
        if not actor.finished:
            self._number += 1
            item = (self.now_us + delay_us, self._number, actor, actor.version, None)
            heapq.heappush(self._heap, item)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def between(self, low_us: int, high_us: int) -> int:
        return low_us + int(self.random.random() * (high_us - low_us))

    def note(self, who: str, what: str) -> None:
        self.history.add(self.now_us, who, what)

    # -- threads -------------------------------------------------------------------------------

    def spawn(self, name: str, body: Callable[[], None]) -> Actor:
        """Start a thread; it gets its first turn after other threads give up theirs."""
        actor = Actor(name)

        def run() -> None:
            actor.take()
            try:
                body()
            except BaseException as error:  # stored in the actor
                actor.error = error
            actor.finished = True
            try:
                self._run_until(actor)
            except BaseException as error:  # of an event: report it in the main thread
                self._failure = error
                self.current = self.main
                self.main.give()

        actor.thread = threading.Thread(target=run, name=name, daemon=True)
        actor.thread.start()
        self._schedule(actor, 0)
        return actor

    def _schedule(self, actor: Actor, delay_us: int) -> None:
        actor.version += 1
        self._number += 1
        item = (self.now_us + delay_us, self._number, actor, actor.version, None)
        heapq.heappush(self._heap, item)

    def _run_until(self, me: Actor) -> None:
        """Run the next events until it is this actor's turn."""
        heap = self._heap
        while True:
            if not heap:
                raise StuckError("nothing is left that could happen")
            time_us, _, actor, version, event = heapq.heappop(heap)
            if actor is not None and (actor.finished or actor.version != version):
                continue
            self.now_us = max(self.now_us, time_us)
            if event is not None:
                event()
                continue
            assert actor is not None
            self.steps += 1
            if self.steps > MAX_STEPS and actor is self.main:
                raise StuckError(f"the run does not end within {MAX_STEPS:,} turns")
            if self.steps > MAX_STEPS:
                # Only the main thread may raise: give it the next turn.
                self._schedule(actor, SECOND)
                actor = self.main
            # This invalidates everything else that is scheduled for the actor.
            actor.version += 1
            if actor is me:
                return
            self.current = actor
            actor.give()
            if me.finished:
                return
            me.take()
            if me is self.main and self._failure is not None:
                raise self._failure
            return


@dataclass(frozen=True, slots=True)
class VirtualClock:
    """Clock of the runtime in virtual time (see `headrace.streams.kafka.protocols.Clock`)."""

    kernel: Kernel
    check: Callable[[], None]
    """Raises if the process of this clock is dead."""

    def now_ms(self) -> int:
        return self.kernel.now_ms()

    def monotonic_s(self) -> float:
        return self.kernel.now_us / SECOND

    def sleep(self, seconds: float) -> None:
        self.check()
        self.kernel.sleep(int(seconds * SECOND))
        self.check()
