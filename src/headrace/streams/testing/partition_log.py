"""A partition's log in memory: records, control markers, high watermark, last stable offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class Decided(Protocol):
    """Transaction with the properties that a reader of its records needs."""

    @property
    def committed(self) -> bool | None:
        """Whether it was committed; None while it is open."""


MessageT = TypeVar("MessageT")
TransactionT = TypeVar("TransactionT", bound=Decided)


class PartitionLog(Generic[MessageT, TransactionT]):
    """Log of a partition: each offset has a record, with or without a transaction, or a marker."""

    __slots__ = ("_writers", "entries", "open", "start")

    def __init__(self) -> None:
        self.entries: list[MessageT | None] = []
        self._writers: list[TransactionT | None] = []
        self.start = 0
        self.open: dict[TransactionT, int] = {}
        """The first offset of each transaction without a marker in this log, the lowest first."""

    @property
    def end(self) -> int:
        """The high watermark."""
        return len(self.entries)

    @property
    def last_stable(self) -> int:
        """The last stable offset: the first offset of the oldest open transaction, or the end."""
        return next(iter(self.open.values()), self.end)

    def append(self, message: MessageT, transaction: TransactionT | None) -> None:
        if transaction is not None and transaction not in self.open:
            self.open[transaction] = self.end
        self.entries.append(message)
        self._writers.append(transaction)

    def mark(self, transaction: TransactionT) -> None:
        if self.open.pop(transaction, None) is not None:
            self.entries.append(None)
            self._writers.append(transaction)

    def cut(self, entries: Sequence[MessageT | None], start: int) -> None:
        """Reset the log to earlier contents, from a time when no transaction was open."""
        self.entries[:] = entries
        del self._writers[len(entries) :]
        self.start = start
        self.open.clear()

    def writer(self, offset: int) -> TransactionT | None:
        return self._writers[offset]

    def is_final(self, offset: int) -> bool:
        """Return whether the record at an offset is committed, or not part of a transaction."""
        writer = self._writers[offset]
        return writer is None or writer.committed is True

    def read(self, offset: int, limit: int, *, committed: bool) -> tuple[list[MessageT], int]:
        """Return up to `limit` records from `offset` on, and the next offset to read.

        Markers are skipped, and with `committed` also aborted records, even after the last record.
        """
        end = self.last_stable if committed else self.end
        found: list[MessageT] = []
        while offset < end:
            entry = self.entries[offset]
            if entry is not None and (not committed or self.is_final(offset)):
                if len(found) == limit:
                    break
                found.append(entry)
            offset += 1
        return found, offset
