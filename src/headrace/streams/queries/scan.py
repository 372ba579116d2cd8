"""Iteration over the rows of a store in pieces, over several partitions in key order.

An iteration can be stopped and resumed at its cursor, so it needs as much memory as one piece. Rows
committed in the meantime appear in later pieces.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, cast

from headrace.state.codec import TIMESTAMP
from headrace.state.layout import TimedRows
from headrace.state.segments import SORTED_ROWS, Segments
from headrace.state.store import CommittedStore
from headrace.streams.queries.answers import PartitionPosition
from headrace.streams.queries.errors import WrongQueryError

PIECE_ROWS = 500
"""Number of rows read at a time, while other queries of the task's files wait."""
ORDER_MAX_MS = 10_000
"""Maximum time for which keys that were sorted by time are used by later pages."""
_OTHER_QUERY = "after belongs to another query. Leave it out for the first page"


class TimeOrder:
    """Keys of a store's rows in the order of time, which are read once for many pages.

    A store with segments reads all keys of a segment to return the first by time. The pages that
    continue an iteration use the keys that an earlier page has read up to `ORDER_MAX_MS` ago. Such
    a page may lack rows that were added since, so it has the earlier page's position.
    """

    __slots__ = ("_end_ms", "_entries", "_first", "_is_complete", "_position", "_read_ms")

    def __init__(self) -> None:
        self._entries: list[tuple[int, bytes]] = []
        self._first = (0, b"")
        self._end_ms = -1
        self._is_complete = False
        self._position: PartitionPosition | None = None
        self._read_ms = 0

    def drop_before(self, time_ms: float) -> None:
        """Drop keys that were read before a time by the wall clock."""
        if self._read_ms < time_ms:
            self._end_ms = -1

    def position(self, current: PartitionPosition, now_ms: int) -> PartitionPosition:
        """Return the position of the last page, which was returned at position `current`."""
        if self._position is None:
            self._position, self._read_ms = current, now_ms
        read = self._position
        if read.offset >= current.offset:
            return current
        age_ms = current.age_ms + now_ms - self._read_ms
        return replace(
            current,
            offset=read.offset,
            commit_id=read.commit_id,
            committed_ms=read.committed_ms,
            age_ms=age_ms,
        )

    def page(
        self, rows: TimedRows, first: tuple[int, bytes], end_ms: int, *, continues: bool
    ) -> list[tuple[int, bytes]]:
        """Return time and key of a page of rows, from a time and a key on.

        Args:
            continues: whether an earlier page of the same iteration was returned.
        """
        if not isinstance(rows, Segments):
            return list(islice(rows.by_time(first[0], end_ms, first[1]), PIECE_ROWS))
        if not (continues and self._has_page(first, end_ms)):
            self._first, self._end_ms, self._position = first, end_ms, None
            self._entries = list(islice(rows.by_time(first[0], end_ms, first[1]), SORTED_ROWS))
            self._is_complete = len(self._entries) < SORTED_ROWS
        index = bisect_left(self._entries, first)
        return self._entries[index : index + PIECE_ROWS]

    def _has_page(self, first: tuple[int, bytes], end_ms: int) -> bool:
        if end_ms != self._end_ms or first < self._first:
            return False
        left = len(self._entries) - bisect_left(self._entries, first)
        return self._is_complete or left >= PIECE_ROWS


class ScannedRow(NamedTuple):
    """Row of an iteration; rows are ordered by `sort`, then by partition."""

    sort: bytes
    partition: int
    row_key: bytes
    row: bytes

    @property
    def cursor(self) -> str:
        return f"{base64.urlsafe_b64encode(self.sort).decode()}.{self.partition}"


@dataclass(frozen=True, slots=True)
class Cursor:
    """Row after which an iteration continues."""

    sort: bytes
    partition: int

    @classmethod
    def of(cls, text: str) -> Cursor:
        """Parse the cursor of a page, or raise WrongQueryError."""
        sort, _, partition = text.rpartition(".")
        try:
            return cls(base64.b64decode(sort, altchars=b"-_", validate=True), int(partition))
        except (ValueError, binascii.Error) as error:
            raise WrongQueryError(
                "after is not the value of a previous page. Leave it out for the first page"
            ) from error

    def excludes(self, partition: int, *, reverse: bool) -> bool:
        """Return whether the row with the cursor's key has been passed in a partition."""
        return partition >= self.partition if reverse else partition <= self.partition


@dataclass(frozen=True, slots=True)
class Scan:
    """Selection of rows.

    Args:
        low: the first row key; None is the store's first.
        high: the first row key after the range; None is after the store's last.
        key: the only key whose rows are selected, in a window or session store.
        times: a range of times instead, in milliseconds: start inclusive, end exclusive.
        keep: returns whether a row key is selected.
    """

    low: bytes | None = None
    high: bytes | None = None
    reverse: bool = False
    times: tuple[int, int] | None = None
    keep: Callable[[bytes], bool] | None = None
    key: bytes | None = None

    def rest(self, cursor: Cursor, partition: int) -> Scan:
        passed = cursor.excludes(partition, reverse=self.reverse)
        return self.after(cursor.sort, passed=passed)

    def after(self, sort: bytes, *, passed: bool = True) -> Scan:
        """Return the rest after a row, or including it if `passed` is False."""
        low, high = self.low, self.high
        if self.times is None and self.reverse:
            end = sort if passed else sort + b"\0"
            high = end if high is None else min(high, end)
        else:
            first = sort + b"\0" if passed else sort
            low = first if low is None else max(low, first)
        return replace(self, low=low, high=high)

    def piece(
        self, rows: CommittedStore, partition: int, order: TimeOrder
    ) -> tuple[list[ScannedRow], bytes | None]:
        """Return selected rows, and the sort key to continue after, or None at the end."""
        page = list(islice(self._rows(rows, order), PIECE_ROWS))
        last = page[-1][0] if len(page) == PIECE_ROWS else None
        keep = self.keep
        steps = [
            ScannedRow(sort, partition, key, row)
            for sort, key, row in page
            if row is not None and (keep is None or keep(key))
        ]
        return steps, last

    def _in_order(self, rows: CommittedStore) -> Iterator[tuple[bytes, bytes]]:
        key, low, high = self.key, self.low, self.high
        if key is None:
            return rows.scan(low, high, reverse=self.reverse)
        assert low is not None, key
        assert high is not None, key
        if not (low.startswith(key) and high.startswith(key)):
            raise WrongQueryError(_OTHER_QUERY)
        size = len(key)
        return cast(TimedRows, rows).scan_key(key, low[size:], high[size:], reverse=self.reverse)

    def _rows(
        self, rows: CommittedStore, order: TimeOrder
    ) -> Iterator[tuple[bytes, bytes, bytes | None]]:
        if self.times is None:
            for row_key, stored in self._in_order(rows):
                yield row_key, row_key, stored
            return
        start, end = self.times
        begin = b""
        if self.low is not None:  # the time and the key of the row to go on from
            if len(self.low) < TIMESTAMP.size:
                raise WrongQueryError(_OTHER_QUERY)
            time = TIMESTAMP.unpack_from(self.low)[0]
            if time >= start:
                start, begin = time, self.low[TIMESTAMP.size :]
        timed = cast(TimedRows, rows)
        entries = order.page(timed, (start, begin), end, continues=self.low is not None)
        found = rows.get_many([key for _, key in entries])
        for (time, key), row in zip(entries, found, strict=True):
            yield TIMESTAMP.pack(time) + key, key, row
