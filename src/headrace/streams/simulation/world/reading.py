"""What a simulated consumer reads: its partitions, and what is fetched of them ahead.

What is fetched ahead of a pause or a removal is dropped, and a position moves when a record, or
what was passed over behind it, is handed out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message

from headrace.streams.seams.clients import TopicPartition
from headrace.streams.simulation.world.cluster import Cluster
from headrace.streams.simulation.world.faults import failure
from headrace.streams.simulation.world.process import Process

NO_OFFSET = -1001
FETCH_RECORDS = 40
"""How many records of a partition are fetched ahead."""


@dataclass(slots=True, eq=False)
class _Part:
    """One partition that is read."""

    place: TopicPartition
    next: int
    """Where the next fetch begins."""
    position: int = NO_OFFSET
    paused: bool = False
    fetched: int = 0
    version: int = 0
    """What was fetched under an older one is dropped."""
    high: int = NO_OFFSET


_Fetched = tuple[_Part, int, Message | None, int]


class Reading:
    """See the module.

    Args:
        process: the consumer's, which hears of new records.
        committed_only: whether records of open and aborted transactions are passed over.
    """

    def __init__(self, cluster: Cluster, process: Process, *, committed_only: bool) -> None:
        self._cluster = cluster
        self._committed_only = committed_only
        self._parts: dict[TopicPartition, _Part] = {}
        self._watched: set[TopicPartition] = set()
        self._fetched: deque[_Fetched] = deque()
        self._reader = (process, self._watched)
        cluster.readers.append(self._reader)

    def close(self) -> None:
        """Hear of nothing any more."""
        self._parts.clear()
        # Another reader of the process that watches the same is equal to it.
        readers = self._cluster.readers
        readers[:] = [reader for reader in readers if reader is not self._reader]

    def add(self, place: TopicPartition, offset: int) -> None:
        """Read a partition from an offset on."""
        if place in self._parts:
            raise failure(KafkaError._CONFLICT, f"{place} is assigned already")
        self._parts[place] = _Part(place, offset)
        self._watched.add(place)

    def remove(self, place: TopicPartition) -> None:
        """Read a partition no more."""
        part = self._parts.pop(place, None)
        if part is None:
            raise failure(KafkaError._INVALID_ARG, f"{place} is not assigned")
        part.version += 1
        self._watched.discard(place)

    def pause(self, place: TopicPartition) -> None:
        """Hand out nothing of a partition; what is fetched is dropped."""
        part = self._part(place)
        self._rewind(part)
        part.paused = True

    def resume(self, place: TopicPartition) -> None:
        """Go on behind what was handed out last."""
        self._part(place).paused = False

    def position(self, place: TopicPartition) -> int:
        """The offset behind what was handed out."""
        part = self._parts.get(place)
        return NO_OFFSET if part is None else part.position

    def ends(self, place: TopicPartition) -> tuple[int, int]:
        """The ends as the last fetch saw them, which may be some time ago."""
        part = self._parts.get(place)
        return (NO_OFFSET, NO_OFFSET) if part is None else (0, part.high)

    def fetch(self) -> None:
        """Fetch ahead of what is read."""
        chance = self._cluster.kernel.chance
        for part in self._parts.values():
            if part.paused or part.fetched >= FETCH_RECORDS:
                continue
            log = self._cluster.log(part.place)
            if not log.start <= part.next <= log.end:
                error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "offset out of range")
                topic, partition = part.place
                message = Message(topic=topic, partition=partition, error=error)
                self._fetched.append((part, part.version, message, NO_OFFSET))
                # It is said once.
                part.fetched = FETCH_RECORDS
                continue
            found, after = log.read(
                part.next, FETCH_RECORDS - part.fetched, committed=self._committed_only
            )
            if part.high < log.end and chance(0.7):
                part.high = log.end
            if after == part.next:
                continue
            for message in found:
                offset = message.offset()
                assert offset is not None
                self._fetched.append((part, part.version, message, offset + 1))
            part.fetched += len(found)
            last = found[-1].offset() if found else None
            if last is None or last + 1 < after:
                self._fetched.append((part, part.version, None, after))
            part.next = after

    def take(self, limit: int) -> list[Message]:
        """Hand out at most so many records of what is fetched."""
        taken: list[Message] = []
        fetched = self._fetched
        while fetched and (len(taken) < limit or fetched[0][2] is None):
            part, version, message, after = fetched.popleft()
            if part.version != version:
                continue
            if after != NO_OFFSET:
                part.position = after
            if message is not None:
                part.fetched -= 1
                taken.append(message)
        return taken

    def drop(self) -> None:
        """Hand out nothing more: records are dropped, and markers behind them are passed."""
        while self._fetched:
            part, version, message, after = self._fetched.popleft()
            if part.version == version and message is None and after != NO_OFFSET:
                part.position = after

    def _rewind(self, part: _Part) -> None:
        first = next((e for e in self._fetched if e[0] is part and e[1] == part.version), None)
        if part.position >= 0:
            part.next = part.position
        elif first is not None and first[2] is not None:
            part.next = first[3] - 1
        part.version += 1
        part.fetched = 0

    def _part(self, place: TopicPartition) -> _Part:
        if place not in self._parts:
            raise failure(KafkaError._UNKNOWN_PARTITION, f"{place} is not assigned")
        return self._parts[place]
