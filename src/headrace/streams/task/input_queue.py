"""The records that wait for a task (`in_order` says whose turn it is).

Hot path: batches are handed on as they came; nothing here runs for each record of a single input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.streams.seams.clients import ReceivedMessage


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
