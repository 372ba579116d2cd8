"""A run that ends early where it has waited for calls to the outside.

What is left of it stays queued, so that between two waits the worker looks at its clock, its
consumer and its commit: none of them waits for more than the calls that are under way together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.streams.seams.clients import ReceivedMessage
from headrace.streams.task.input_queue import InputQueue
from headrace.topology.context.task_facts import TaskFacts

RUN_MS = 50
"""A run ends behind so many milliseconds in any case: what is beside the calls may be slow, too."""


class Waiting:
    """The records of a run, as long as nobody has waited.

    Args:
        batch: the records.
        facts: tell of waits, and the time.
    """

    __slots__ = ("_batch", "_count", "_facts")

    def __init__(self, batch: Sequence[ReceivedMessage], facts: TaskFacts) -> None:
        self._batch = batch
        self._facts = facts
        self._count = 0

    def __iter__(self) -> Iterator[ReceivedMessage]:
        facts = self._facts
        facts.has_waited = False
        ends_ms = facts.now_ms() + RUN_MS
        for message in self._batch:
            self._count += 1
            yield message
            if facts.has_waited or facts.now_ms() >= ends_ms:
                return

    def ended(self, queue: InputQueue) -> Sequence[ReceivedMessage]:
        """Queue the rest again; returns what was processed."""
        if self._count == len(self._batch):
            return self._batch
        queue.put_back(self._batch[self._count :])
        self._facts.has_waited = True
        return self._batch[: self._count]
