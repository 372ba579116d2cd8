"""Aggregation of sliding windows: each record opens a window that ends with it, and another.

The windows of a key follow from the timestamps of its records (KIP-450). For a record at time t and
a time difference d, they are

    its left window    [t - d, t]          the record, and records up to d before it
    its right window   [t + 1, t + 1 + d]  records up to d after that, if any

so two records that are at most d apart share a window, and no two windows of a key contain the same
records. No window starts before 1970: the left windows of all records with timestamps below d are
the same, [0, d], which also contains later records up to d.

Only aggregates are stored, no records. If a record arrives out of order, the aggregates of its
windows are computed from those of windows that contain all of their other records. The timestamp of
a row, the largest of its records, shows whether it contains a record after the new record, and
which record precedes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.state.buffer import ABSENT
from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import RowKind
from headrace.topology.operators.windows.windowed import WindowedFold, WindowedOperator


class _Row(NamedTuple):
    """A window of the key: its start, the largest timestamp of its records, and its held value."""

    start: int
    latest: int
    held: Any


class _Around(NamedTuple):
    """Windows of a key that a new record affects."""

    left_start: int
    """Start of the record's left window."""
    before: _Row | None
    """Last window that starts before the left window."""
    left: _Row | None
    """Left window."""
    holding: list[_Row]
    """Other windows that contain the record, the latest first."""
    has_right: bool
    """Whether the record's right window exists."""

    def previous(self, timestamp: int) -> int:
        """Return the timestamp of the preceding record, or -1 if its right window exists."""
        known = self.left or self.before
        if known is None or known.latest >= timestamp:
            return -1  # its right window exists, because it contains a record
        return known.latest

    @property
    def right_base(self) -> _Row | None:
        """Window that contains all records of the right window, or None.

        If its latest record is after the new record, it contains no record up to the new record's
        timestamp, because the right window of such a record would start later.
        """
        if self.holding:
            return self.holding[0]
        return self.left if self.left_start == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingFold(WindowedFold):
    """Spec of an aggregation of sliding windows."""

    @property
    def row_kind(self) -> RowKind:
        grace = self.closes_after_ms - self.size_ms - 1
        spans = {"difference": self.size_ms, "grace": grace}
        return RowKind(f"{self.fold.word} in sliding windows", spans, frozenset({"difference"}))

    def make(self, context: OperatorContext) -> SlidingOperator:
        return SlidingOperator(context, self)


class SlidingOperator(WindowedOperator):
    """Operator that aggregates each record into the sliding windows of its key that contain it.

    A null value is dropped. Closed windows do not change; a record whose windows are all closed is
    late.
    """

    __slots__ = ("_difference",)

    def __init__(self, context: OperatorContext, spec: SlidingFold) -> None:
        super().__init__(context, spec)
        self._difference = spec.size_ms

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
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
        """Aggregate the record into its windows; return how many were open, and how many closed."""
        rows, left_start = self._rows, around.left_start
        known = {row.start: (row.held, row.latest) for row in around.holding}
        starts = list(known)
        behind_previous = around.previous(timestamp) + 1
        # The preceding record's right window contains the record now; it may be the left window.
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
