"""Queues of a task's input records (`in_order` selects the next input).

Hot path: batches are passed on unchanged; nothing here runs per record of a single input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import length_hint

from headrace.streams.kafka.protocols import ReceivedMessage, TopicPartition
from headrace.topology.context.task_context import TaskContext


@dataclass(slots=True)
class InputQueue:
    """Queued records of an input partition: batches as received, never copied."""

    batches: deque[Sequence[ReceivedMessage]] = field(default_factory=deque)
    start: int = 0
    """Index of the first unprocessed record of the first batch."""
    size: int = 0
    times: list[int] = field(default_factory=list)
    """Timestamps of the first batch; empty until needed."""

    def __len__(self) -> int:
        return self.size

    def extend(self, records: Sequence[ReceivedMessage]) -> None:
        self.batches.append(records)
        self.size += len(records)

    def take(self, count: int) -> Sequence[ReceivedMessage]:
        """Remove and return at most `count` records of the first batch."""
        first = self.batches[0]
        batch = (
            first
            if self.start == 0 and count >= len(first)
            else (first[self.start : self.start + count])
        )
        self._advance(len(batch))
        return batch

    def take_until(self, limit_ms: int, count: int) -> Sequence[ReceivedMessage]:
        """Remove the first record, and following records of the batch up to a time."""
        times, start = self.times or self._first_times(), self.start
        end, stop = start + 1, min(start + count, len(times))
        while end < stop and times[end] <= limit_ms:
            end += 1
        batch = self.batches[0][start:end]
        self.size -= end - start
        if end == len(times):
            self._drop_first()
        else:
            self.start = end
        return batch

    def put_back(self, records: Sequence[ReceivedMessage]) -> None:
        """Return the last records of the previous `take` to the head of the queue."""
        if self.start:
            self.start -= len(records)
        else:
            self.batches.appendleft(records)
            self.times = []
        self.size += len(records)

    def head(self) -> ReceivedMessage:
        return self.batches[0][self.start]

    def head_timestamp(self) -> int:
        return (self.times or self._first_times())[self.start]

    def _first_times(self) -> list[int]:
        self.times = [record.timestamp()[1] for record in self.batches[0]]
        return self.times

    def _advance(self, count: int) -> None:
        self.start += count
        self.size -= count
        if self.start == len(self.batches[0]):
            self._drop_first()

    def _drop_first(self) -> None:
        self.batches.popleft()
        self.start = 0
        self.times = []

    def last_offset(self) -> int:
        return self.batches[-1][-1].offset()


# Selection of the next input if several inputs have queued records.
#
# Hot path: two inputs of a join may alternate at each record.


Batch = Sequence[ReceivedMessage]


def in_order(
    queues: Mapping[TopicPartition, InputQueue], waiting: Sequence[TopicPartition], count: int
) -> Iterator[tuple[TopicPartition, Batch]]:
    """Yield batches of several inputs in timestamp order, until an input is empty.

    Records of an input keep their order; across inputs, the lowest head timestamp is first, then
    the lowest partition. `waiting` has at least two inputs, all with queued records.
    """
    first, *others = sorted((queues[tp].head_timestamp(), tp) for tp in waiting)
    while count > 0:
        tp, (limit, other) = first[1], others[0]
        queue = queues[tp]
        batch = queue.take_until(limit if tp < other else limit - 1, count)
        count -= len(batch)
        yield tp, batch
        if not queue.size:
            return
        first = (queue.head_timestamp(), tp)
        if first > others[0]:
            first, others[0] = others[0], first
            if len(others) > 1:
                others.sort()


class BatchCursor:
    """Iteration over successive batches that counts the records read.

    The number costs nothing per record. The iterator of a batch must have an exact length hint, as
    those of lists have.

    >>> cursor = BatchCursor()
    >>> next(cursor.start(["a", "b", "c"])), cursor.count
    ('a', 1)
    """

    __slots__ = ("_iterator", "batch")

    batch: Sequence[ReceivedMessage]
    _iterator: Iterator[ReceivedMessage]

    def start(self, batch: Sequence[ReceivedMessage]) -> Iterator[ReceivedMessage]:
        """Return the iterator of the next batch."""
        self.batch = batch
        self._iterator = iterator = iter(batch)
        return iterator

    @property
    def count(self) -> int:
        return len(self.batch) - length_hint(self._iterator)


# A run that ends early: after a wait for async calls, or if results have to wait for a commit.
#
# The remaining records stay queued, so that the worker checks its clock, its consumer and its
# commit before them. None of these is delayed by more than one wave of concurrent calls.


RUN_MS = 50
"""Maximum milliseconds of a run with async calls, because its other operators may be slow, too."""


class RecordRun:
    """Records of a run, until the task has to wait."""

    __slots__ = ("_batches", "_context", "batch", "count")

    def __init__(
        self, batch: Sequence[ReceivedMessage], context: TaskContext, *, batches_records: bool
    ) -> None:
        self.batch = batch
        self._context = context
        self._batches = batches_records
        self.count = 0

    def __iter__(self) -> Iterator[ReceivedMessage]:
        context, budget, batches = self._context, self._context.emission, self._batches
        context.run_ended_early = False
        ends_ms = context.now_ms() + RUN_MS if batches else 0
        for message in self.batch:
            self.count += 1
            yield message
            if budget.is_spent or (
                batches and (context.run_ended_early or context.now_ms() >= ends_ms)
            ):
                return

    def ended(self, queue: InputQueue) -> Sequence[ReceivedMessage]:
        """Return the processed records, and queue the rest again."""
        if self.count == len(self.batch):
            return self.batch
        queue.put_back(self.batch[self.count :])
        self._context.run_ended_early = True
        return self.batch[: self.count]
