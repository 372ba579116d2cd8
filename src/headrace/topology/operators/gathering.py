"""Gathering the records of a run, and letting their results go on in order.

    process ─► pending ─► joined ─► result ─► the nodes below
               until enough is there, the run ends, or a flush

What is gathered is called for together, so that waiting for one call is waiting for all. Nothing
is held over a flush, so nothing is under way at a commit, and there is nothing to restore: a run
that is void is called for again, with the same idempotency keys.

Hot path: `process` runs for each record; all else runs once for many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.topology.context.calls import Call
from headrace.topology.context.context import Headers, OperatorContext


class Gathered:
    """A record that waits for its result.

    Args:
        message: what it comes from, as it was read; None behind a cache or a punctuator.
        record: key, value, timestamp and headers.
        number: which of those that come from the message.
        task_time: the time at hand in the task when it came.
    """

    __slots__ = ("error", "message", "number", "record", "task_time", "value")

    def __init__(
        self, message: Any, record: tuple[Any, Any, int, Headers], number: int, task_time: int
    ) -> None:
        self.message = message
        self.record = record
        self.number = number
        self.task_time = task_time
        self.value: Any = None
        self.error: BaseException | None = None

    def result(self) -> Any:
        """What has come of it.

        Raises:
            BaseException: what the function raised.
        """
        if self.error is not None:
            raise self.error
        return self.value

    def call(self, context: OperatorContext, attempt: int) -> Call:
        """Which call it is."""
        message = self.message
        known = message is not None
        return Call(
            application_id=context.task.application_id,
            node=context.node,
            topic=message.topic() if known else None,
            partition=message.partition() if known else None,
            offset=message.offset() if known else None,
            number=self.number,
            attempt=attempt,
        )


class Gathering:
    """What the operators have in common that gather records.

    Args:
        limit: how many are gathered at most.
        at_once: whether none is: each is called for by itself.
        wait_ms: how long what is gathered may wait for more in further runs; None for not at all.
    """

    __slots__ = (
        "_context",
        "_facts",
        "_last",
        "_limit",
        "_number",
        "_release",
        "_wait_ms",
        "is_full",
        "pending",
    )

    def __init__(
        self,
        context: OperatorContext,
        limit: int,
        *,
        at_once: bool,
        wait_ms: int | None = None,
    ) -> None:
        self._context = context
        self._facts = context.task
        self._limit = 1 if at_once or not context.task.calls.gathers else limit
        self._wait_ms = None if context.in_runs else wait_ms
        self._last: Any = None
        self._number = 0
        self._release: Any = None
        self.pending: dict[int, Gathered] = {}
        self.is_full = False
        """Whether what is gathered is to be released now; looked at behind each record."""

    def released_by(self, release: Any) -> None:
        """Be told what lets the results go on."""
        self._release = release

    @property
    def ends_with_run(self) -> bool:
        """Whether what is gathered is to be released at the end of the run."""
        return bool(self.pending) and self._wait_ms is None

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        """Gather one record."""
        facts, pending = self._facts, self.pending
        message = facts.record
        count = len(pending)
        # Those of one message come one behind the other, unless some of them were released.
        if message is not None and message is self._last:
            self._number += 1
        else:
            self._last, self._number = message, 0
        record = (key, value, timestamp, headers)
        pending[count] = Gathered(message, record, self._number, facts.timestamp)
        if count == 0 and self._wait_ms is not None:
            facts.release_at(self._context.node, facts.now_ms() + self._wait_ms, self._release)
        self.is_full = count + 1 >= self._limit

    def joined(self) -> Iterator[Gathered]:
        """Call for all that is gathered, and yield each with the task as it was when it came."""
        if not self.pending:
            return
        facts = self._facts
        facts.released(self._context.node)
        if self._limit > 1:
            facts.has_waited = True
        held = list(self.pending.values())
        self.pending.clear()
        self.is_full = False
        held = self._called(held)
        outer = facts.record, facts.timestamp
        try:
            for one in held:
                facts.record, facts.timestamp = one.message, one.task_time
                yield one
        finally:
            facts.record, facts.timestamp = outer

    def _called(self, held: list[Gathered]) -> list[Gathered]:
        """Call for some records; returns them in the order in which they are to go on."""
        raise NotImplementedError

    def flush(self) -> None:
        """Let all of it go on."""
        self._release()
