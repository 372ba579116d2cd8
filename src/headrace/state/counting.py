"""Row counts of stores for status reports: exact for small stores, estimated for large stores.

RocksDB is not imported, because an application with only in-memory stores does not need it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from headrace.state.errors import StateError
from headrace.state.layout import Layout, Versioned
from headrace.state.store import CommittedStore

if TYPE_CHECKING:
    from headrace.state.rocks import RocksStore

COUNTED_ROWS = 4_000
"""Maximum number of rows on disk that are counted; versions and index entries count separately."""
_SKIPPED_MAX = 50_000
"""Maximum number of consecutive deleted rows that counting skips: a few milliseconds."""
_ROWS_PER_CLOCK_CHECK = 64


class _ScanLimitError(Exception):
    pass


class _LimitedScan:
    """View of a RocksDB store that stops a scan after `COUNTED_ROWS` rows or when time is up."""

    def __init__(self, rows: RocksStore, is_late: Callable[[], bool]) -> None:
        self._rows = rows
        self._is_late = is_late

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        assert not reverse
        rows = self._rows.scan(start, end, skipped_max=_SKIPPED_MAX)
        for count, row in enumerate(rows):
            if count == COUNTED_ROWS or (count % _ROWS_PER_CLOCK_CHECK == 0 and self._is_late()):
                raise _ScanLimitError
            yield row


def count_rows(
    rows: CommittedStore, layout: Layout, is_late: Callable[[], bool]
) -> tuple[int, bool]:
    """Return the number of rows, and whether it is exact.

    For large stores it is RocksDB's estimate, which counts a row once for each recent write.
    """
    estimate = layout.view(rows).approximate_count()
    if not _is_on_disk(rows):
        if isinstance(layout, Versioned):
            is_small = rows.approximate_count() <= COUNTED_ROWS
            return (sum(1 for _ in layout.view(rows).scan()) if is_small else estimate), is_small
        return estimate, True
    count = 0
    try:
        limited = cast(CommittedStore, _LimitedScan(cast("RocksStore", rows), is_late))
        for _ in layout.view(limited).scan():
            count += 1
    except (_ScanLimitError, StateError):  # a damaged file is reported by reads of rows
        return max(count, estimate), False
    return count, True


def _is_on_disk(rows: CommittedStore) -> bool:
    rocks = sys.modules.get("headrace.state.rocks")
    return rocks is not None and isinstance(rows, rocks.RocksStore)
