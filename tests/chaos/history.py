"""What was observed of a run: logs, offsets, local state. Plain data, without Kafka's types.

Topics go by the names of `application`, without a run's prefix; the topic between the
sub-topologies is ``by-region``. A reader of a live cluster makes a `History`, and so does a
simulation; `checker.check` judges it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from tests.chaos.asked import Asked


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(NamedTuple):
    """A record of a log."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    committed: bool = True


class Log:
    """One partition, from its start to its end, in columns: a run has millions of records.

    Args:
        start: the first offset that the broker still has.
        end: the high watermark.
        stable_end: the last stable offset; below `end` while a transaction is open.
        records: what is between, in the order of offsets, aborted ones included.
    """

    __slots__ = ("committed", "end", "keys", "offsets", "stable_end", "start", "timestamps",
                 "values")  # fmt: skip

    def __init__(
        self,
        records: Iterable[Record] = (),
        *,
        start: int = 0,
        end: int | None = None,
        stable_end: int | None = None,
    ) -> None:
        self.offsets = array("q")
        self.timestamps = array("q")
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.committed = bytearray()
        """One byte for each record: whether a reader of committed records gets it."""
        for record in records:
            self.append(record)
        self.start = start
        self.end = end if end is not None else (self.offsets[-1] + 1 if self.offsets else start)
        self.stable_end = self.end if stable_end is None else stable_end

    def append(self, record: Record) -> None:
        """Add the next record."""
        assert not self.offsets or record.offset > self.offsets[-1], record.offset
        self.offsets.append(record.offset)
        self.timestamps.append(record.timestamp)
        self.keys.append(record.key)
        self.values.append(record.value)
        self.committed.append(record.committed)

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[Record]:
        """Yield all records, aborted ones included."""
        columns = (self.offsets, self.keys, self.values, self.timestamps, self.committed)
        for offset, key, value, timestamp, committed in zip(*columns, strict=True):
            yield Record(offset, key, value, timestamp, bool(committed))

    def read_committed(self) -> Iterator[Record]:
        """Yield the records that a reader of committed records gets."""
        return (record for record in self if record.committed)


class Committed(NamedTuple):
    """What a group committed for a partition."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class StoreDump:
    """The rows of one store of one task, as they lay on a disk.

    Args:
        store: the store's name.
        partition: the task's.
        where: the directory, for messages.
        position: the changelog offset that the rows claim to have reached; None claims nothing.
        rows: timestamp and value by key.
    """

    store: str
    partition: int
    where: str
    position: int | None
    rows: Mapping[bytes, tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Marker:
    """A record written at the very end, and whether a reader of committed records got it."""

    offset: int
    read_back: bool


class Observations:
    """What a reader of committed records saw of a partition while things went wrong.

    Args:
        start: the offset it began at.
    """

    __slots__ = ("digests", "offsets", "start")

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.offsets = array("q")
        self.digests = array("I")

    def see(self, offset: int, digest: int) -> None:
        """Remember a record in the order in which it was handed out."""
        self.offsets.append(offset)
        self.digests.append(digest)


def digest(key: bytes | None, value: bytes | None, timestamp: int) -> int:
    """What a record is known by where its bytes would take too much room."""
    head = b"%d %d %d " % (timestamp, -1 if key is None else len(key), value is None)
    return crc32(value or b"", crc32(key or b"", crc32(head)))


@dataclass(frozen=True, slots=True)
class History:
    """Everything that was observed.

    Args:
        logs: inputs, outputs, and ``by-region``; every partition of them.
        changelogs: the changelog partitions of each store, by `Place` of the store's name.
        committed: the group's offset of each input partition, ``by-region`` included.
        stores: what was found on disks; several of one task where there were several directories.
        markers: by partition that the application writes.
        observed: by output partition.
        asked: what clients were told of stores; None where nobody asked.
    """

    logs: Mapping[Place, Log]
    changelogs: Mapping[Place, Log]
    committed: Mapping[Place, Committed]
    stores: tuple[StoreDump, ...] = ()
    markers: Mapping[Place, Marker] = field(default_factory=dict)
    observed: Mapping[Place, Observations] = field(default_factory=dict)
    asked: Asked | None = None

    def of(self, topic: str) -> dict[int, Log]:
        """The partitions of a topic."""
        return {place.partition: log for place, log in self.logs.items() if place.topic == topic}

    def changelog_of(self, store: str) -> dict[int, Log]:
        """The partitions of a store's changelog."""
        found = self.changelogs.items()
        return {place.partition: log for place, log in found if place.topic == store}
