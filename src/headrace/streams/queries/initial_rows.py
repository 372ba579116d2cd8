"""Snapshot of a store's rows, sent before its changes, and filter of changes contained in it.

Rows are read in pieces, and rows committed in the meantime appear in later pieces. So the offset of
each piece is stored: a change is sent if its offset is not before the piece that contains its row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from headrace.streams.queries.change import DecodedChange
from headrace.streams.queries.parsing import row_document
from headrace.streams.queries.readers import Piece, StoreReader
from headrace.streams.queries.scan import Scan
from headrace.streams.queries.subscription import ChangeSubscription, Turns, shares


@dataclass(slots=True)
class _PieceOffsets:
    """Pieces of a partition's rows: the last key and the changelog offset of each piece."""

    last_keys: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def add(self, last: bytes | None, offset: int) -> None:
        if self.offsets and self.offsets[-1] == offset:
            self.last_keys.pop()
            self.offsets.pop()
        # The last piece contains all larger keys.
        self.last_keys.append(b"\xff" * 1024 if last is None else last)
        self.offsets.append(offset)

    def has(self, change: DecodedChange) -> bool:
        piece = min(bisect_left(self.last_keys, change.key or b""), len(self.offsets) - 1)
        return change.offset < self.offsets[piece]


class SnapshotRows(Protocol):
    """Source of the rows of all partitions, on any host."""

    def document(self, row: Any) -> Mapping[str, Any]:
        """Convert a row to a JSON document."""

    def require_all(self, partitions: frozenset[int]) -> None:
        """Raise NotReadableError if a partition cannot be read."""

    def pieces(self, partitions: frozenset[int]) -> Iterator[Piece[Any]]:
        """Yield rows partition by partition; raise NotReadableError if any is not readable now."""


class LocalRows:
    """Source of rows that are all on this host."""

    def __init__(self, reader: StoreReader[Any, Any], scan: Scan) -> None:
        self._reader = reader
        self._scan = scan

    def document(self, row: Any) -> Mapping[str, Any]:
        return row_document(row)

    def require_all(self, partitions: frozenset[int]) -> None:
        self._reader.require_all(partitions)

    def pieces(self, partitions: frozenset[int]) -> Iterator[Piece[Any]]:
        return self._reader.pieces(self._scan, partitions)


class InitialRows:
    """Rows of a store before its changes, and the changes that they already contain."""

    def __init__(self, rows: SnapshotRows, partitions: Iterable[int], turns: Turns) -> None:
        self._rows = rows
        self._partitions = frozenset(partitions)
        self._turns = turns
        self._pieces: dict[int, _PieceOffsets] = {}

    def emit(self, follower: ChangeSubscription) -> bool:
        """Send the rows, and set the start of the changes; return whether the follower is open."""
        document = self._rows.document
        for piece in self._rows.pieces(self._partitions):
            pieces = self._pieces.setdefault(piece.partition, _PieceOffsets())
            pieces.add(piece.last, piece.offset)
            for some in shares(piece.rows):
                with self._turns.one():
                    events = [
                        msgspec.json.encode({**document(row), "offset": piece.offset})
                        for row in some
                    ]
                if not all(follower.emit("row", data) for data in events):
                    return False
        follower.begin(
            {partition: min(pieces.offsets) for partition, pieces in self._pieces.items()},
            resumable_from={
                partition: max(pieces.offsets) for partition, pieces in self._pieces.items()
            },
            is_in_rows=lambda change: self._pieces[change.partition].has(change),
        )
        return True
