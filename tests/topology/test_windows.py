"""Which windows a record falls into, against the plain definitions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.topology.dsl.steps.folding import windowed_fold
from headrace.topology.errors import TopologyError
from headrace.topology.graph.fold import Counting
from headrace.topology.graph.materialized import Materialized
from headrace.topology.operators.windows.sessions import SessionFold
from headrace.topology.operators.windows.windowed import AlignedFold
from headrace.topology.windows import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Window,
)

TIMES = st.integers(0, 60)


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def starts_of(windows: TimeWindows, timestamp: int) -> list[int]:
    """The windows that an aggregation gives a record."""
    fold, _ = windowed_fold(windows, Counting(), "rows", Materialized())
    assert isinstance(fold, AlignedFold)
    return list(fold.starts_of()(timestamp))


class TestTimeWindows:
    @pytest.mark.parametrize(
        ("timestamp", "starts"), [(21, [10, 15, 20]), (2, [0]), (0, [0]), (12, [5, 10])]
    )
    def test_hopping_windows_are_those_of_kafka_streams(
        self, timestamp: int, starts: list[int]
    ) -> None:
        """Size 12, advance 5: as 4.3.1 assigns them."""
        assert starts_of(TimeWindows(size=ms(12), advance=ms(5)), timestamp) == starts

    @given(size=st.integers(1, 20), advance=st.integers(1, 20), timestamp=TIMES)
    def test_a_record_falls_into_every_window_that_spans_it(
        self, size: int, advance: int, timestamp: int
    ) -> None:
        advance = min(size, advance)
        windows = TimeWindows(size=ms(size), advance=ms(advance))
        spanning = [s for s in range(0, 100, advance) if s <= timestamp < s + size]
        assert starts_of(windows, timestamp) == spanning

    def test_tumbling_windows_do_not_overlap(self) -> None:
        windows = TimeWindows(size=ms(10))
        assert [starts_of(windows, t) for t in (0, 9, 10, 25)] == [[0], [0], [10], [20]]

    def test_a_window_closes_when_stream_time_reaches_its_end_and_the_grace(self) -> None:
        windows = TimeWindows(size=ms(10), grace=ms(5))
        fold, _ = windowed_fold(windows, Counting(), "rows", Materialized())
        assert fold.closes_after_ms == 15

    @pytest.mark.parametrize(
        ("options", "what"),
        [
            ({"size": ms(0)}, "size must be at least 1 ms, not 0 ms"),
            ({"size": ms(5), "advance": ms(6)}, "leave gaps between them"),
            ({"size": ms(5), "advance": ms(0)}, "advance must be at least 1 ms"),
            ({"size": ms(5), "grace": ms(-1)}, "grace must be at least 0 ms, not -1 ms"),
            ({"size": 5}, "size must be a timedelta, not int"),
            ({"size": timedelta(microseconds=1500)}, "whole milliseconds"),
        ],
    )
    def test_windows_that_cannot_be_are_refused_with_the_reason(
        self, options: dict[str, timedelta], what: str
    ) -> None:
        with pytest.raises(TopologyError, match=what):
            TimeWindows(**options)


class TestSessionWindows:
    def test_a_session_closes_one_millisecond_past_its_gap_and_the_grace(self) -> None:
        """Gap 5, end 5: closed at 11, not at 10, as 4.3.1 does it."""
        spec = SessionWindows(inactivity_gap=ms(5))
        assert SessionFold("rows", Counting(), spec, retention_ms=5).close_wait_ms == 6


def test_sliding_windows_close_one_millisecond_later_as_their_end_belongs_to_them() -> None:
    spec = SlidingWindows(time_difference=ms(10), grace=ms(5))
    fold, _ = windowed_fold(spec, Counting(), "rows", Materialized())
    assert fold.closes_after_ms == 16


def test_a_window_tells_its_bounds_as_datetimes_in_utc() -> None:
    window = Window(1_714_564_800_001, 1_714_564_860_000)
    assert window.start == datetime(2024, 5, 1, 12, 0, 0, 1000, tzinfo=UTC)
    assert window.end == datetime(2024, 5, 1, 12, 1, tzinfo=UTC)


def test_the_end_of_a_window_without_one_is_no_datetime() -> None:
    with pytest.raises(OverflowError):
        _ = Window(0, 2**63 - 1).end


def test_unlimited_windows_begin_no_earlier_than_1970() -> None:
    with pytest.raises(TopologyError, match="start_ms must be at least 0"):
        UnlimitedWindows(start_ms=-1)


class TestJoinWindows:
    @given(before=st.integers(-10, 20), after=st.integers(-10, 20))
    def test_the_sides_leave_time_between_them(self, before: int, after: int) -> None:
        if before + after < 0:
            with pytest.raises(TopologyError, match="must be at least 0"):
                JoinWindows(time_difference=ms(0), before=ms(before), after=ms(after))
            return
        spec = JoinWindows(time_difference=ms(0), before=ms(before), after=ms(after))
        assert (spec.before_ms, spec.after_ms) == (before, after)

    def test_both_sides_are_the_time_difference_unless_said_otherwise(self) -> None:
        windows = JoinWindows(time_difference=ms(10))
        assert (windows.before_ms, windows.after_ms) == (10, 10)

    def test_one_side_alone_leaves_nothing_to_the_other(self) -> None:
        assert JoinWindows(before=ms(10)).after_ms == 0
        assert JoinWindows(after=ms(10)).before_ms == 0

    def test_windows_without_any_time_are_refused(self) -> None:
        """They would join records of one millisecond alone, which is hardly ever meant."""
        with pytest.raises(TopologyError, match="takes a time_difference, or before and after"):
            JoinWindows(grace=ms(10))
        assert JoinWindows(time_difference=ms(0)).after_ms == 0

    def test_a_negative_time_difference_is_refused_whatever_the_sides(self) -> None:
        with pytest.raises(TopologyError, match="time_difference must be at least 0 ms"):
            JoinWindows(time_difference=ms(-1), before=ms(1), after=ms(1))
