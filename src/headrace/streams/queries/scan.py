"""Iteration over the rows of a store in pieces, over several partitions in key order.

An iteration can be stopped and resumed at its cursor, so it needs as much memory as one piece. Rows
committed in the meantime appear in later pieces.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from headrace.state.codec import TIMESTAMP
from headrace.state.layout import TimeIndexed
from headrace.state.store import CommittedStore
from headrace.streams.queries.errors import WrongQueryError

PIECE_ROWS = 500
"""Number of rows read at a time, while other queries of the task's files wait."""


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
        times: a range of times instead, in milliseconds: start inclusive, end exclusive.
        keep: returns whether a row key is selected.
    """

    low: bytes | None = None
    high: bytes | None = None
    reverse: bool = False
    times: tuple[int, int] | None = None
    keep: Callable[[bytes], bool] | None = None

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
        return Scan(low, high, self.reverse, self.times, self.keep)

    def piece(self, rows: CommittedStore, partition: int) -> tuple[list[ScannedRow], bytes | None]:
        """Return selected rows, and the sort key to continue after, or None at the end."""
        page = list(islice(self._rows(rows), PIECE_ROWS))
        last = page[-1][0] if len(page) == PIECE_ROWS else None
        keep = self.keep
        steps = [
            ScannedRow(sort, partition, key, row)
            for sort, key, row in page
            if row is not None and (keep is None or keep(key))
        ]
        return steps, last

    def _rows(self, rows: CommittedStore) -> Iterator[tuple[bytes, bytes, bytes | None]]:
        if self.times is None:
            for row_key, stored in rows.scan(self.low, self.high, reverse=self.reverse):
                yield row_key, row_key, stored
            return
        assert isinstance(rows, TimeIndexed)
        start, end = self.times
        begin = b""
        if self.low is not None:  # the time and the key of the row to go on from
            if len(self.low) < TIMESTAMP.size:
                raise WrongQueryError(
                    "after belongs to another query. Leave it out for the first page"
                )
            time = TIMESTAMP.unpack_from(self.low)[0]
            if time >= start:
                start, begin = time, self.low[TIMESTAMP.size :]
        entries = list(islice(rows.by_time(start, end, begin), PIECE_ROWS))
        found = rows.get_many([key for _, key in entries])
        for (time, key), row in zip(entries, found, strict=True):
            yield TIMESTAMP.pack(time) + key, key, row
