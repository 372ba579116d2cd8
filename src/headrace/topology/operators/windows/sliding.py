"""Folds over sliding windows: each record opens a window that ends with it, and one right after it.

A key's windows follow from the times of its records (KIP-450). For a record at time t, and a time
difference d, there is

    its left window    [t - d, t]          the record, and those up to d before it
    its right window   [t + 1, t + 1 + d]  those up to d behind that, if there are any

so any two records that are no more than d apart share a window, and no two windows of a key hold
the same records. None begins before 1970: the left windows of all records at times below d are one,
[0, d], which holds those behind them up to d too.

Only values are kept, no records. When a record comes that is earlier than others, the values of its
windows are made of those of windows that hold all of their other records. The timestamp of a row,
the largest of its records, tells whether it holds one behind the new one, and which one is just
before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.state.buffer import ABSENT
from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import RowKind
from headrace.topology.operators.windows.windowed import WindowedFold, WindowedOperator


class _Row(NamedTuple):
    """A window of the key: its start, the largest time of its records, its value as it is held."""

    start: int
    latest: int
    held: Any


class _Around(NamedTuple):
    """The windows of a key that have to do with a new record."""

    left_start: int
    """Where the record's left window begins."""
    before: _Row | None
    """The last one that ends before the left one."""
    left: _Row | None
    """The left one."""
    holding: list[_Row]
    """The others that hold the record, the latest first."""
    has_right: bool
    """Whether the record's right window is there."""

    def previous(self, timestamp: int) -> int:
        """The time of the record just before; below the left window where it does not matter."""
        known = self.left or self.before
        if known is None or known.latest >= timestamp:
            return -1  # its right window is there, as it holds a record
        return known.latest

    @property
    def right_base(self) -> _Row | None:
        """A window that holds the records of the right one, and up to the new one's time others.

        Nothing lies between its own start and the new record: it would begin later. It holds none
        of those if it holds one behind the new record.
        """
        if self.holding:
            return self.holding[0]
        return self.left if self.left_start == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingFold(WindowedFold):
    """The fold of sliding windows."""

    @property
    def row_kind(self) -> RowKind:
        """Where windows lie."""
        grace = self.closes_after_ms - self.size_ms - 1
        spans = {"difference": self.size_ms, "grace": grace}
        return RowKind(f"{self.fold.word} in sliding windows", spans, frozenset({"difference"}))

    def make(self, context: OperatorContext) -> SlidingOperator:
        """Make the operator of one task."""
        return SlidingOperator(context, self)


class SlidingOperator(WindowedOperator):
    """Folds each record into the sliding windows of its key that hold it.

    A null value is left out (trap 5). Windows that are closed are left as they are; a record that
    no window takes is late.
    """

    __slots__ = ("_difference",)

    def __init__(self, context: OperatorContext, spec: SlidingFold) -> None:
        super().__init__(context, spec)
        self._difference = spec.size_ms

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        """Take one record."""
        if value is None:
            self._dropped("null value")
            return
        if timestamp > self._now < self._task.watermark:
            self._pass_time(min(timestamp, self._task.watermark))
        if timestamp <= self._closed_to:  # no window that holds it begins later
            self._too_late(key, value, timestamp, headers)
            return
        key_bytes = self._rows.encode_key(key)
        around = self._look(key_bytes, timestamp)
        taken, missed = self._take(around, key, key_bytes, value, timestamp, headers)
        if not taken:
            self._too_late(key, value, timestamp, headers)
            return
        if missed:
            self._dropped("late for some of its windows")
        right = around.right_base
        if right is not None and right.latest > timestamp and not around.has_right:
            base = self._rows.opened(right.held)
            self._rows.add(key, key_bytes, timestamp + 1, base, right.latest, headers)

    def _look(self, key_bytes: bytes, timestamp: int) -> _Around:
        left_start = max(timestamp - self._difference, 0)
        first = max(timestamp - 2 * self._difference, 0)
        before = left = None
        holding = []
        has_right = False
        for start, latest, held in self._rows.of_key(key_bytes, first, timestamp + 1):
            if start > timestamp:
                has_right = True
            elif start > left_start:
                holding.append(_Row(start, latest, held))
            elif start == left_start:
                left = _Row(start, latest, held)
            else:
                before = _Row(start, latest, held)
                break
        return _Around(left_start, before, left, holding, has_right)

    def _take(
        self,
        around: _Around,
        key: Any,
        key_bytes: bytes,
        value: Any,
        timestamp: int,
        headers: Headers,
    ) -> tuple[int, int]:
        """Fold the record into its windows; returns how many took it, and how many were closed."""
        rows, left_start = self._rows, around.left_start
        known = {row.start: (row.held, row.latest) for row in around.holding}
        starts = list(known)
        behind_previous = around.previous(timestamp) + 1
        # The window right behind the record just before is one of these now, or the left one.
        if behind_previous > left_start and behind_previous not in starts:
            starts.append(behind_previous)
        taken = [start for start in starts if start > self._closed_to]
        for start in taken:
            entry = known.get(start, ABSENT)
            rows.fold(key, key_bytes, start, value, timestamp, headers, entry)
        if left_start <= self._closed_to:
            return len(taken), len(starts) - len(taken) + 1
        if around.left is not None:
            entry = around.left.held, around.left.latest
            rows.fold(key, key_bytes, left_start, value, timestamp, headers, entry)
        else:
            before = around.before
            base = before.held if before is not None and before.latest >= left_start else None
            rows.fold_onto(rows.opened(base), key, key_bytes, left_start, value, timestamp, headers)
        return len(taken) + 1, len(starts) - len(taken)
