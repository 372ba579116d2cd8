"""Which windows a record falls into, against the plain definitions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.topology.errors import TopologyError
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


class TestTimeWindows:
    @pytest.mark.parametrize(
        ("timestamp", "starts"), [(21, [10, 15, 20]), (2, [0]), (0, [0]), (12, [5, 10])]
    )
    def test_hopping_windows_are_those_of_kafka_streams(
        self, timestamp: int, starts: list[int]
    ) -> None:
        """Size 12, advance 5: as 4.3.1 assigns them."""
        assert list(TimeWindows(size=ms(12), advance=ms(5)).starts(timestamp)) == starts

    @given(size=st.integers(1, 20), advance=st.integers(1, 20), timestamp=TIMES)
    def test_a_record_falls_into_every_window_that_spans_it(
        self, size: int, advance: int, timestamp: int
    ) -> None:
        advance = min(size, advance)
        windows = TimeWindows(size=ms(size), advance=ms(advance))
        spanning = [s for s in range(0, 100, advance) if s <= timestamp < s + size]
        assert list(windows.starts(timestamp)) == spanning

    def test_tumbling_windows_do_not_overlap(self) -> None:
        windows = TimeWindows(size=ms(10))
        assert [list(windows.starts(t)) for t in (0, 9, 10, 25)] == [[0], [0], [10], [20]]

    def test_a_window_closes_when_stream_time_reaches_its_end_and_the_grace(self) -> None:
        windows = TimeWindows(size=ms(10), grace=ms(5))
        assert [windows.is_closed(10, time) for time in (14, 15)] == [False, True]

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
    @given(gap=st.integers(1, 10), times=st.lists(TIMES, max_size=12))
    def test_sessions_are_the_runs_without_a_pause_longer_than_the_gap(
        self, gap: int, times: list[int]
    ) -> None:
        """In whatever order the records come."""
        spec = SessionWindows(inactivity_gap=ms(gap))
        sessions: set[Window] = set()
        for time in times:
            session, taken = spec.merged(sessions, time)
            sessions -= set(taken)
            sessions.add(session)
        expected: list[Window] = []
        for time in sorted(times):
            if expected and time - expected[-1].end_ms <= gap:
                expected[-1] = Window(expected[-1].start_ms, time)
            else:
                expected.append(Window(time, time))
        assert sorted(sessions) == expected

    def test_a_session_closes_one_millisecond_past_its_gap_and_the_grace(self) -> None:
        """Gap 5, end 5: closed at 11, not at 10, as 4.3.1 does it."""
        spec = SessionWindows(inactivity_gap=ms(5))
        assert [spec.is_closed(5, time) for time in (10, 11)] == [False, True]


def test_sliding_windows_close_one_millisecond_later_as_their_end_belongs_to_them() -> None:
    spec = SlidingWindows(time_difference=ms(10), grace=ms(5))
    assert [spec.is_closed(10, time) for time in (15, 16)] == [False, True]


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
    @given(before=st.integers(-10, 20), after=st.integers(-10, 20), mine=TIMES, theirs=TIMES)
    def test_records_match_when_their_times_differ_by_no_more(
        self, before: int, after: int, mine: int, theirs: int
    ) -> None:
        if before + after < 0:
            with pytest.raises(TopologyError, match="leave no time"):
                JoinWindows(time_difference=ms(0), before=ms(before), after=ms(after))
            return
        spec = JoinWindows(time_difference=ms(0), before=ms(before), after=ms(after))
        first, last = spec.around(mine)
        assert (first <= theirs <= last) == (mine - before <= theirs <= mine + after)

    def test_both_sides_are_the_time_difference_unless_said_otherwise(self) -> None:
        assert JoinWindows(time_difference=ms(10)).around(100) == (90, 110)
        assert JoinWindows(time_difference=ms(10)).around(5) == (0, 15)

    def test_one_side_alone_leaves_nothing_to_the_other(self) -> None:
        assert JoinWindows(before=ms(10)).around(100) == (90, 100)
        assert JoinWindows(after=ms(10)).around(100) == (100, 110)

    def test_windows_without_any_time_are_refused(self) -> None:
        """They would join records of one millisecond alone, which is hardly ever meant."""
        with pytest.raises(TopologyError, match="takes a time_difference, or before and after"):
            JoinWindows(grace=ms(10))
        assert JoinWindows(time_difference=ms(0)).around(5) == (5, 5)

    def test_a_negative_time_difference_is_refused_whatever_the_sides(self) -> None:
        with pytest.raises(TopologyError, match="time_difference must be at least 0 ms"):
            JoinWindows(time_difference=ms(-1), before=ms(1), after=ms(1))
