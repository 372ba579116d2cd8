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


class _Window(NamedTuple):
    """A window of the key: its start, the largest timestamp of its records, its stored value."""

    start: int
    latest: int
    value: Any


class _AffectedWindows(NamedTuple):
    """Windows of a key that a new record affects."""

    left_start: int
    """Start of the record's left window."""
    before: _Window | None
    """Last window that starts before the left window."""
    left: _Window | None
    """Left window."""
    containing: list[_Window]
    """Other windows that contain the record, the latest first."""
    has_right: bool
    """Whether the record's right window exists."""

    def previous(self, timestamp: int) -> int:
        """Return the timestamp of the preceding record, or -1 if its right window exists."""
        latest_window = self.left or self.before
        if latest_window is None or latest_window.latest >= timestamp:
            return -1  # its right window exists, because it contains a record
        return latest_window.latest

    @property
    def right_base(self) -> _Window | None:
        """Window that contains all records of the right window, or None.

        If its latest record is after the new record, it contains no record up to the new record's
        timestamp, because the right window of such a record would start later.
        """
        if self.containing:
            return self.containing[0]
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
        if timestamp <= self._closed_to:  # no window that contains it starts later
            self._report_late(key, value, timestamp, headers)
            return
        key_bytes = self._rows.encode_key(key)
        windows = self._affected_windows(key_bytes, timestamp)
        opened, closed = self._aggregate(windows, key, key_bytes, value, timestamp, headers)
        if not opened:
            self._report_late(key, value, timestamp, headers)
            return
        if closed:
            self._dropped("late for some of its windows")
        right = windows.right_base
        if right is not None and right.latest > timestamp and not windows.has_right:
            base = self._rows.from_stored_form(right.value)
            self._rows.add(key, key_bytes, timestamp + 1, base, right.latest, headers)

    def _affected_windows(self, key_bytes: bytes, timestamp: int) -> _AffectedWindows:
        left_start = max(timestamp - self._difference, 0)
        first = max(timestamp - 2 * self._difference, 0)
        before = left = None
        containing = []
        has_right = False
        for start, latest, value in self._rows.rows_of_key(key_bytes, first, timestamp + 1):
            if start > timestamp:
                has_right = True
            elif start > left_start:
                containing.append(_Window(start, latest, value))
            elif start == left_start:
                left = _Window(start, latest, value)
            else:
                before = _Window(start, latest, value)
                break
        return _AffectedWindows(left_start, before, left, containing, has_right)

    def _aggregate(
        self,
        windows: _AffectedWindows,
        key: Any,
        key_bytes: bytes,
        value: Any,
        timestamp: int,
        headers: Headers,
    ) -> tuple[int, int]:
        """Aggregate the record; return the numbers of its open windows and closed windows."""
        rows, left_start = self._rows, windows.left_start
        entries = {row.start: (row.value, row.latest) for row in windows.containing}
        starts = list(entries)
        previous_right_start = windows.previous(timestamp) + 1
        # The preceding record's right window contains the record now; it may be the left window.
        if previous_right_start > left_start and previous_right_start not in starts:
            starts.append(previous_right_start)
        opened = [start for start in starts if start > self._closed_to]
        for start in opened:
            entry = entries.get(start, ABSENT)
            rows.fold(key, key_bytes, start, value, timestamp, headers, entry)
        if left_start <= self._closed_to:
            return len(opened), len(starts) - len(opened) + 1
        if windows.left is not None:
            entry = windows.left.value, windows.left.latest
            rows.fold(key, key_bytes, left_start, value, timestamp, headers, entry)
        else:
            before = windows.before
            base = before.value if before is not None and before.latest >= left_start else None
            rows.fold_onto(
                rows.from_stored_form(base), key, key_bytes, left_start, value, timestamp, headers
            )
        return len(opened) + 1, len(starts) - len(opened)
