"""The rows of a store, told before its changes, and which of the changes they hold already.

Rows are read some at a time, and what is committed meanwhile is in those that follow. So it is kept
where each piece was read: a change is told if it came behind the piece that its row is in.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from headrace.streams.queries.asked import row_document
from headrace.streams.queries.change import Change
from headrace.streams.queries.readers import StoreReader
from headrace.streams.queries.subscription import Subscription, Turns, shares
from headrace.streams.queries.walk import Scan


@dataclass(slots=True)
class _Held:
    """What the rows of a partition hold: up to which key they were read at which offset."""

    lasts: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def add(self, last: bytes | None, offset: int) -> None:
        if self.offsets and self.offsets[-1] == offset:
            self.lasts.pop()
            self.offsets.pop()
        # Behind the last row there is no key that any piece ends with.
        self.lasts.append(b"\xff" * 1024 if last is None else last)
        self.offsets.append(offset)

    def has(self, change: Change) -> bool:
        piece = min(bisect_left(self.lasts, change.key or b""), len(self.offsets) - 1)
        return change.offset < self.offsets[piece]


@dataclass(frozen=True, slots=True)
class ToldPiece:
    """Some rows of one partition and of one moment, in the order of their keys.

    Args:
        offset: up to where they follow their changelog.
        rows: to be made documents of by who gave them.
        last: the bytes of the last key that was looked at; None for the partition's last piece.
    """

    partition: int
    offset: int
    rows: Sequence[Any]
    last: bytes | None


class Rows(Protocol):
    """Rows of all partitions, wherever they are."""

    def document(self, row: Any) -> Mapping[str, Any]:
        """A row as JSON has it."""

    def require_all(self, partitions: frozenset[int]) -> None:
        """See that all partitions can be read.

        Raises:
            NotReadableError: one cannot.
        """

    def pieces(self, partitions: frozenset[int]) -> Iterator[ToldPiece]:
        """The rows, one partition after the other.

        Raises:
            NotReadableError: one cannot be read now.
        """


class RowsHere:
    """The rows of a store that are all on this host.

    Args:
        scan: which of them.
    """

    def __init__(self, reader: StoreReader[Any, Any], scan: Scan) -> None:
        self._reader = reader
        self._scan = scan

    def document(self, row: Any) -> Mapping[str, Any]:
        """A row as JSON has it."""
        return row_document(row)

    def require_all(self, partitions: frozenset[int]) -> None:
        """See that all partitions can be read here."""
        self._reader.require_all(partitions)

    def pieces(self, partitions: frozenset[int]) -> Iterator[ToldPiece]:
        """From the files of this host."""
        for piece in self._reader.pieces(self._scan, partitions):
            yield ToldPiece(piece.partition, piece.offset, piece.rows, piece.last)


class RowsFirst:
    """Rows of a store before its changes, and the changes that they already contain.

    Args:
        partitions: those that the store has on the cluster.
        turns: those of all who catch up.
    """

    def __init__(self, rows: Rows, partitions: Iterable[int], turns: Turns) -> None:
        self._rows = rows
        self._partitions = frozenset(partitions)
        self._turns = turns
        self._held: dict[int, _Held] = {}

    def tell(self, follower: Subscription) -> bool:
        """Tell the rows, and let the changes begin behind them; whether he still follows.

        Raises:
            NotReadableError: some of the rows cannot be read now, or are not here.
        """
        document = self._rows.document
        for piece in self._rows.pieces(self._partitions):
            held = self._held.setdefault(piece.partition, _Held())
            held.add(piece.last, piece.offset)
            for some in shares(piece.rows):
                with self._turns.one():
                    told = [
                        msgspec.json.encode({**document(row), "offset": piece.offset})
                        for row in some
                    ]
                if not all(follower.tell("row", data) for data in told):
                    return False
        follower.begin(
            {partition: min(held.offsets) for partition, held in self._held.items()},
            untold={partition: max(held.offsets) for partition, held in self._held.items()},
            is_in_rows=lambda change: self._held[change.partition].has(change),
        )
        return True
