"""The logs of a simulated cluster: records, control markers, high watermark, last stable offset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import Message

from headrace.state.codec import partition_for_key
from headrace.streams.seams.clients import CommittedOffset, TopicPartition


@dataclass(slots=True, eq=False)
class Txn:
    """One transaction: where it wrote, which offsets it commits, and what became of it."""

    owner: str
    committed: bool | None = None
    """What the coordinator decided; None while it is open."""
    places: dict[TopicPartition, None] = field(default_factory=dict)
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    markers_due: int = 0


class Log:
    """One partition: at each offset a record of a transaction or of none, or None for a marker."""

    __slots__ = ("end", "entries", "open", "start")

    def __init__(self) -> None:
        self.entries: list[tuple[Message, Txn | None] | None] = []
        self.start = 0
        self.end = 0
        """The high watermark."""
        self.open: dict[Txn, int] = {}
        """The first offset of each transaction without a marker here, the lowest first."""

    @property
    def last_stable(self) -> int:
        """The offset behind everything that is decided here."""
        return next(iter(self.open.values()), self.end)

    def append(self, message: Message, txn: Txn | None) -> None:
        """Write a record."""
        if txn is not None and txn not in self.open:
            self.open[txn] = self.end
        self.entries.append((message, txn))
        self.end += 1

    def mark(self, txn: Txn) -> None:
        """Write a transaction's marker, unless the topic was made anew since it wrote there."""
        if self.open.pop(txn, None) is None:
            return
        self.entries.append(None)
        self.end += 1

    def read(self, offset: int, limit: int, *, committed: bool) -> tuple[list[Message], int]:
        """Return up to `limit` records, and the offset behind everything that was passed."""
        end = self.last_stable if committed else self.end
        found: list[Message] = []
        entries = self.entries
        while offset < end:
            entry = entries[offset]
            if entry is not None and not (
                committed and entry[1] is not None and not entry[1].committed
            ):
                if len(found) == limit:
                    break
                found.append(entry[0])
            offset += 1
        return found, offset

    def records(self, *, committed: bool = True) -> list[Message]:
        """Everything that is to be read."""
        return self.read(self.start, 1 << 60, committed=committed)[0]

    def compact(self) -> int:
        """Leave out decided records whose key has a later one; returns how many."""
        last: dict[bytes | None, int] = {}
        bound = self.last_stable
        for offset in range(self.start, bound):
            entry = self.entries[offset]
            if entry is not None and (entry[1] is None or entry[1].committed):
                last[entry[0].key()] = offset
        gone = 0
        # The last entry stays: the end of a log is never compacted away.
        for offset in range(self.start, min(bound, self.end - 1)):
            entry = self.entries[offset]
            if entry is not None and last.get(entry[0].key()) != offset:
                self.entries[offset] = None
                gone += 1
        return gone


@dataclass(slots=True, eq=False)
class Topic:
    """A topic: its partitions, its id and its configs."""

    name: str
    id: str
    logs: list[Log]
    config: Mapping[str, str]

    def partition_of(self, key: bytes | None, turn: int) -> int:
        """Where a record goes: by its key, and without one in turns."""
        count = len(self.logs)
        return turn % count if key is None else partition_for_key(key, count)
