"""Progress of the emission of closed windows and sessions, which may take several commits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Literal

from headrace.state.timed import TimedBuffer
from headrace.topology.context.number import Number

NEVER = 2**63
"""Later than the time of every row."""

Emit = Literal["on_window_update", "on_window_close"]


class EmissionProgress:
    """How far the rows of a store were emitted when they closed: by time, then by key.

    It is committed with the input offsets, as two numbers. Closed rows do not change, so a
    restarted task finds the rest in the same order.

    Args:
        emitted: the last time whose rows were all emitted; with `is_exclusive` the time after it.
        rows: number of emitted rows of the next time; -1 if no rows wait for a later commit.
    """

    __slots__ = ("_after", "_at", "_emitted", "_rows", "_shift")

    def __init__(self, emitted: Number, rows: Number, *, is_exclusive: bool = False) -> None:
        self._emitted = emitted
        self._rows = rows
        self._shift = 0 if is_exclusive else 1
        self._at = -1
        """Time of the last emitted row, while rows remain."""
        self._after = b""
        """The key of that row."""

    @property
    def first(self) -> int:
        """Earliest time whose rows may not all have been emitted."""
        return self._emitted.value + self._shift

    @property
    def is_incomplete(self) -> bool:
        """Whether closed rows wait for the next commit."""
        return self._rows.value >= 0

    @property
    def closed_to(self) -> int:
        """Latest time of an emitted row; no row up to it may change."""
        return self.first - (self._rows.value <= 0)

    def rows_up_to(self, buffer: TimedBuffer, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield time and key of the rows up to a time, inclusive, that were not emitted."""
        rows = buffer.by_time(max(self.first, 0), last + 1, after=self._after)
        return rows if self._after else islice(rows, max(self._rows.value, 0), None)

    def on_emitted(self, time: int, row_key: bytes) -> None:
        """Record that a row was emitted."""
        if time != self._at:
            self.stop_at(time)
            self._at = time
        self._rows.value += 1
        self._after = row_key

    def stop_at(self, time: int) -> None:
        """Record that the next row to be emitted has this time."""
        if time > self.first or not self.is_incomplete:
            self._emitted.value = time - self._shift
            self._rows.value, self._after = 0, b""

    def finish(self, last: int) -> None:
        """Record that all rows up to a time, inclusive, were emitted."""
        self._emitted.value = last + 1 - self._shift
        self._rows.value = -1
        self._at, self._after = -1, b""
