"""The records that wait for a task, and whose turn it is.

Hot path: batches are handed on as they came; nothing here runs for each record of a single input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from headrace.streams.seams.clients import ReceivedMessage, TopicPartition


@dataclass(slots=True)
class InputQueue:
    """The records of one input partition that wait: batches as they came, never copied."""

    batches: deque[Sequence[ReceivedMessage]] = field(default_factory=deque)
    start: int = 0
    """Where the rest of the first batch begins."""
    size: int = 0

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
        self.start += len(batch)
        self.size -= len(batch)
        if self.start == len(first):
            self.batches.popleft()
            self.start = 0
        return batch

    def head_timestamp(self) -> int:
        """The timestamp of the record whose turn it is."""
        return self.batches[0][self.start].timestamp()[1]

    def rest_of_first(self) -> Iterable[ReceivedMessage]:
        """What is left of the first batch."""
        return islice(self.batches[0], self.start, None)

    def last_offset(self) -> int:
        """The offset of the record that came last."""
        return self.batches[-1][-1].offset()


def first_run(
    queues: Mapping[TopicPartition, InputQueue], waiting: Sequence[TopicPartition], count: int
) -> tuple[TopicPartition, int]:
    """Choose the partition to go on with, and how many of its records come before others."""
    heads = sorted((queues[place].head_timestamp(), place) for place in waiting)
    (_, place), (limit, other) = heads[0], heads[1]
    queue = queues[place]
    run = 0
    for record in islice(queue.rest_of_first(), count):
        timestamp = record.timestamp()[1]
        if (timestamp, place) > (limit, other):
            break
        run += 1
    return place, max(run, 1)
