"""A partition's log in memory: records, control markers, high watermark, last stable offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class Decided(Protocol):
    """A transaction, as far as a reader of its records asks."""

    @property
    def committed(self) -> bool | None:
        """What was decided; None while it is open."""


MessageT = TypeVar("MessageT")
TransactionT = TypeVar("TransactionT", bound=Decided)


class PartitionLog(Generic[MessageT, TransactionT]):
    """At each offset a record of a transaction or of none, or None for a marker."""

    __slots__ = ("_writers", "entries", "open", "start")

    def __init__(self) -> None:
        self.entries: list[MessageT | None] = []
        self._writers: list[TransactionT | None] = []
        self.start = 0
        self.open: dict[TransactionT, int] = {}
        """The first offset of each transaction without a marker here, the lowest first."""

    @property
    def end(self) -> int:
        """The high watermark."""
        return len(self.entries)

    @property
    def last_stable(self) -> int:
        """The offset behind everything that is decided here."""
        return next(iter(self.open.values()), self.end)

    def append(self, message: MessageT, transaction: TransactionT | None) -> None:
        """Write a record."""
        if transaction is not None and transaction not in self.open:
            self.open[transaction] = self.end
        self.entries.append(message)
        self._writers.append(transaction)

    def mark(self, transaction: TransactionT) -> None:
        """Write a transaction's marker, unless the topic was made anew since it wrote there."""
        if self.open.pop(transaction, None) is not None:
            self.entries.append(None)
            self._writers.append(transaction)

    def cut(self, entries: Sequence[MessageT | None], start: int) -> None:
        """Go back to what the log had before, when no transaction was open."""
        self.entries[:] = entries
        del self._writers[len(entries) :]
        self.start = start
        self.open.clear()

    def writer(self, offset: int) -> TransactionT | None:
        """The transaction that wrote what is there."""
        return self._writers[offset]

    def is_final(self, offset: int) -> bool:
        """Whether what is there was written for good, below the last stable offset."""
        writer = self._writers[offset]
        return writer is None or writer.committed is True

    def read(self, offset: int, limit: int, *, committed: bool) -> tuple[list[MessageT], int]:
        """Return up to `limit` records from `offset` on, and the offset to go on from.

        Markers are passed over, with `committed` aborted records too, also behind the last record.
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
