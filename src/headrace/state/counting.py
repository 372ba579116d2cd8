"""How many rows a store has, for whoever looks now and then: exactly where they are few.

RocksDB is not loaded for it, as an application whose stores are all in memory needs none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from headrace.state.errors import StateError
from headrace.state.layout import Layout
from headrace.state.store import CommittedStore
from headrace.state.versions import Versioned

if TYPE_CHECKING:
    from headrace.state.rocks import RocksStore

COUNTED_ROWS = 4_000
"""So many rows of a store on disk are counted, versions and entries of indexes apart."""
_SKIPPED_MAX = 50_000
"""So many deleted rows in a row are passed over while counting: some milliseconds."""
_LOOKS_AT_ONCE = 64


class _TooManyError(Exception):
    pass


class _Few:
    """What a layout needs of a store to show its rows, as long as they are few."""

    def __init__(self, rows: RocksStore, is_late: Callable[[], bool]) -> None:
        self._rows = rows
        self._is_late = is_late

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        assert not reverse
        found = self._rows.scan(start, end, skipped_max=_SKIPPED_MAX)
        for looked, row in enumerate(found):
            if looked == COUNTED_ROWS or (looked % _LOOKS_AT_ONCE == 0 and self._is_late()):
                raise _TooManyError
            yield row


def count_rows(
    rows: CommittedStore, layout: Layout, is_late: Callable[[], bool]
) -> tuple[int, bool]:
    """How many rows a store has, as `layout` shows them, and whether that is exact.

    Few rows are counted. RocksDB's estimate, which large stores are left with, counts a row each
    time that it was written lately.

    Args:
        is_late: whether counting has taken too long already.
    """
    roughly = layout.view(rows).approximate_count()
    if not _is_on_disk(rows):
        if isinstance(layout, Versioned):
            is_few = rows.approximate_count() <= COUNTED_ROWS
            return (sum(1 for _ in layout.view(rows).scan()) if is_few else roughly), is_few
        return roughly, True
    found = 0
    try:
        for _ in layout.view(cast(CommittedStore, _Few(cast("RocksStore", rows), is_late))).scan():
            found += 1
    except (_TooManyError, StateError):  # whatever is wrong with files is met by who reads rows
        return max(found, roughly), False
    return found, True


def _is_on_disk(rows: CommittedStore) -> bool:
    """Whether the count of all is an estimate; where nobody has loaded RocksDB nothing is."""
    rocks = sys.modules.get("headrace.state.rocks")
    return rocks is not None and isinstance(rows, rocks.RocksStore)
