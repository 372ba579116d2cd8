"""Going through the rows of a store, some at a time, over several partitions in one order.

A walk can be left and taken up again at its cursor, so it needs as much memory as a piece of it.
What is committed meanwhile is in the pieces that follow.
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
"""So many are read at once: nobody else reads the task's files meanwhile."""


class Step(NamedTuple):
    """A row of a walk; steps are in the order of what they begin with."""

    sort: bytes
    partition: int
    row_key: bytes
    row: bytes

    @property
    def cursor(self) -> str:
        """To be given to `Cursor.of` to go on behind it."""
        return f"{base64.urlsafe_b64encode(self.sort).decode()}.{self.partition}"


@dataclass(frozen=True, slots=True)
class Cursor:
    """Behind which row a walk goes on."""

    sort: bytes
    partition: int

    @classmethod
    def of(cls, text: str) -> Cursor:
        """Read what a page gave.

        Raises:
            WrongQueryError: it gave something else.
        """
        sort, _, partition = text.rpartition(".")
        try:
            return cls(base64.b64decode(sort, altchars=b"-_", validate=True), int(partition))
        except (ValueError, binascii.Error) as error:
            raise WrongQueryError(
                "after is to be what the page before has there, as it is; or leave it out to begin"
            ) from error

    def excludes(self, partition: int, *, reverse: bool) -> bool:
        """Whether the row at the cursor's place has been passed in a partition, too."""
        return partition >= self.partition if reverse else partition <= self.partition


@dataclass(frozen=True, slots=True)
class Scan:
    """Which rows.

    Args:
        low: the first row key; None for the store's first.
        high: behind the last row key; None for beyond the last.
        times: by time instead: from the first to before the second, in milliseconds.
        keep: tells which of the rows' keys are meant.
    """

    low: bytes | None = None
    high: bytes | None = None
    reverse: bool = False
    times: tuple[int, int] | None = None
    keep: Callable[[bytes], bool] | None = None

    def behind(self, cursor: Cursor, partition: int) -> Scan:
        """What is left of it in a partition."""
        passed = cursor.excludes(partition, reverse=self.reverse)
        return self.after(cursor.sort, passed=passed)

    def after(self, sort: bytes, *, passed: bool = True) -> Scan:
        """What is left of it behind a row, or from it on where that has not passed."""
        low, high = self.low, self.high
        first = sort + b"\0" if passed != self.reverse else sort
        if self.times is None and self.reverse:
            end = sort if passed else sort + b"\0"
            high = end if high is None else min(high, end)
        else:
            first = sort + b"\0" if passed else sort
            low = first if low is None else max(low, first)
        return Scan(low, high, self.reverse, self.times, self.keep)

    def piece(self, rows: CommittedStore, partition: int) -> tuple[list[Step], bytes | None]:
        """Read some rows.

        Returns:
            The rows that are meant, and behind which one to go on; None at the end.
        """
        found = list(islice(self._rows(rows), PIECE_ROWS))
        last = found[-1][0] if len(found) == PIECE_ROWS else None
        keep = self.keep
        steps = [
            Step(sort, partition, key, row)
            for sort, key, row in found
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
                raise WrongQueryError("after is of another query; leave it out to begin")
            time = TIMESTAMP.unpack_from(self.low)[0]
            if time >= start:
                start, begin = time, self.low[TIMESTAMP.size :]
        entries = list(islice(rows.by_time(start, end, begin), PIECE_ROWS))
        held = rows.get_many([key for _, key in entries])
        for (time, key), row in zip(entries, held, strict=True):
            yield TIMESTAMP.pack(time) + key, key, row
