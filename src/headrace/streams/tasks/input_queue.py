"""The records that wait for a task (`in_order` says whose turn it is).

Hot path: batches are handed on as they came; nothing here runs for each record of a single input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.streams.kafka.protocols import ReceivedMessage, TopicPartition
from headrace.topology.context.task_facts import TaskFacts


@dataclass(slots=True)
class InputQueue:
    """The records of one input partition that wait: batches as they came, never copied."""

    batches: deque[Sequence[ReceivedMessage]] = field(default_factory=deque)
    start: int = 0
    """Where the rest of the first batch begins."""
    size: int = 0
    times: list[int] = field(default_factory=list)
    """The timestamps of the first batch, where somebody has asked for one of them."""

    def __len__(self) -> int:
        return self.size

    def extend(self, records: Sequence[ReceivedMessage]) -> None:
        """Queue a batch behind the others."""
        self.batches.append(records)
        self.size += len(records)

    def take(self, count: int) -> Sequence[ReceivedMessage]:
        """Take some records, at most `count` and at most the rest of the first batch."""
        first = self.batches[0]
        batch = (
            first
            if self.start == 0 and count >= len(first)
            else (first[self.start : self.start + count])
        )
        self._went_on(len(batch))
        return batch

    def take_until(self, limit_ms: int, count: int) -> Sequence[ReceivedMessage]:
        """Take one record at least, and what follows it up to that time, as `take` does."""
        times, start = self._first_times(), self.start
        end, stop = start + 1, min(start + count, len(times))
        while end < stop and times[end] <= limit_ms:
            end += 1
        batch = self.batches[0][start:end]
        self._went_on(end - start)
        return batch

    def put_back(self, records: Sequence[ReceivedMessage]) -> None:
        """Have the last ones of what was taken last wait again, in front."""
        if self.start:
            self.start -= len(records)
        else:
            self.batches.appendleft(records)
            self.times = []
        self.size += len(records)

    def head(self) -> ReceivedMessage:
        """The record whose turn it is."""
        return self.batches[0][self.start]

    def head_timestamp(self) -> int:
        """The timestamp of the record whose turn it is."""
        return self._first_times()[self.start]

    def _first_times(self) -> list[int]:
        if not self.times:
            self.times = [record.timestamp()[1] for record in self.batches[0]]
        return self.times

    def _went_on(self, count: int) -> None:
        self.start += count
        self.size -= count
        if self.start == len(self.batches[0]):
            self.batches.popleft()
            self.start = 0
            self.times = []

    def last_offset(self) -> int:
        """The offset of the record that came last."""
        return self.batches[-1][-1].offset()


# Whose turn it is where records of several inputs wait.
#
# Hot path: two inputs of a join may take turns at each record.


Batch = Sequence[ReceivedMessage]


def in_order(
    queues: Mapping[TopicPartition, InputQueue], waiting: Sequence[TopicPartition], count: int
) -> Iterator[tuple[TopicPartition, Batch]]:
    """Take records of several inputs, as long as each of these has some.

    Records of one input keep their order; among inputs the lowest head timestamp goes first, then
    the lowest name.

    Args:
        waiting: the inputs of which records wait, at least two.
        count: how many to take at most.

    Yields:
        The input, and those of its records that come before the others'.
    """
    heads = sorted((queues[place].head_timestamp(), place) for place in waiting)
    while count > 0:
        place, (limit, other) = heads[0][1], heads[1]
        queue = queues[place]
        batch = queue.take_until(limit if place < other else limit - 1, count)
        count -= len(batch)
        yield place, batch
        if not queue:
            return
        heads[0] = (queue.head_timestamp(), place)
        heads.sort()


# A run that ends early where it has waited for calls to the outside.
#
# What is left of it stays queued, so that between two waits the worker looks at its clock, its
# consumer and its commit: none of them waits for more than the calls that are under way together.


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
