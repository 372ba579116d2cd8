"""Operators of time-windowed aggregations, and the retention that they need."""

from __future__ import annotations

from dataclasses import replace

from headrace.state.spec import StoreSpec
from headrace.topology.graph.fold import Fold
from headrace.topology.graph.materialized import Materialized
from headrace.topology.operators.windows.emission import Emit
from headrace.topology.operators.windows.sliding import SlidingFold
from headrace.topology.operators.windows.windowed import AlignedFold
from headrace.topology.serdes.windows_serde import UNLIMITED_MS
from headrace.topology.windows import SlidingWindows, TimeWindows, UnlimitedWindows

TimeSpans = TimeWindows | SlidingWindows | UnlimitedWindows


def size_ms(windows: TimeSpans) -> int:
    """Return the window size in milliseconds, as in the windowed keys."""
    if isinstance(windows, UnlimitedWindows):
        return UNLIMITED_MS
    if isinstance(windows, SlidingWindows):
        return windows.time_difference_ms
    return windows.size_ms


def windowed_fold(
    windows: TimeSpans, fold: Fold, store: str, kept: Materialized, emit: Emit = "on_window_update"
) -> tuple[AlignedFold | SlidingFold, StoreSpec]:
    rows = kept.timed_spec(store, "window", least_ms=_least_ms(windows))
    if emit == "on_window_close":
        rows = replace(rows, cached=False)
    return _fold(windows, fold, store, rows.retention_ms, emit), rows


def _least_ms(windows: TimeSpans) -> int | None:
    """Return the minimum retention of rows after their window's start; None for ever."""
    if isinstance(windows, UnlimitedWindows):
        return None
    if isinstance(windows, SlidingWindows):
        # A record's windows are computed from windows of records up to one window size earlier.
        return 2 * windows.time_difference_ms + windows.grace_ms
    return windows.size_ms + windows.grace_ms


def _fold(
    windows: TimeSpans, fold: Fold, store: str, retention_ms: int | None, emit: Emit
) -> AlignedFold | SlidingFold:
    if isinstance(windows, UnlimitedWindows):
        return AlignedFold(
            store=store,
            fold=fold,
            size_ms=UNLIMITED_MS,
            closes_after_ms=UNLIMITED_MS,
            keep_ms=None,
            advance_ms=None,
            start_ms=windows.start_ms,
        )
    assert retention_ms is not None
    if isinstance(windows, SlidingWindows):
        return SlidingFold(
            store=store,
            fold=fold,
            size_ms=windows.time_difference_ms,
            closes_after_ms=windows.time_difference_ms + windows.grace_ms + 1,
            # The record before the earliest relevant record may have a window that is needed.
            keep_ms=retention_ms + 1,
            emit=emit,
        )
    return AlignedFold(
        store=store,
        fold=fold,
        size_ms=windows.size_ms,
        closes_after_ms=windows.size_ms + windows.grace_ms,
        keep_ms=retention_ms - 1,
        emit=emit,
        advance_ms=windows.advance_ms,
    )
