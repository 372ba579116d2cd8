"""Windows that are emitted once, when they are closed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    JoinWindows,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serdes,
)
from tests.support.operators import NO_CACHE
from tests.support.windows import Got, driver_of, got, joined, ms, results, send

MS = timedelta(milliseconds=1)
CLOSE: dict[str, Any] = {"emit": "on_window_close"}
TEN = TimeWindows(size=ms(10))
HOPPING = TimeWindows(size=ms(10), advance=ms(4))
SLIDING = SlidingWindows(time_difference=ms(5))


def test_a_window_is_emitted_once_when_stream_time_has_passed_its_end_by_the_grace_period() -> None:
    """Traps 11 and 13."""
    windows = TimeWindows(size=ms(10), grace=ms(5))
    records = [("a", "x", 1), ("a", "y", 14), ("a", "z", 3)]
    assert results(joined(windows, **CLOSE), *records) == []
    closed = [Got("a", 0, 10, "xz", 3)]
    assert results(joined(windows, **CLOSE), *records, ("b", "w", 15)) == closed
    assert results(joined(windows, **CLOSE), *records, ("b", "w", 15), ("a", "v", 2)) == closed


def test_a_sliding_window_is_emitted_a_moment_later_as_its_end_belongs_to_it() -> None:
    """Trap 11."""
    step = joined(SLIDING, **CLOSE)
    assert results(step, ("a", "x", 10), ("b", "y", 10)) == []
    emitted = results(step, ("a", "x", 10), ("b", "y", 11))
    assert emitted == [Got("a", 5, 10, "x", 10)]


@pytest.mark.parametrize("settings", [{}, NO_CACHE])
@pytest.mark.parametrize("jump_h", [1, 3, 24, 10_000])
def test_no_jump_of_stream_time_loses_a_window(settings: dict[str, Any], jump_h: int) -> None:
    """Trap 13: an hour, no grace, the default retention, with and without a cache."""
    windows = TimeWindows(size=timedelta(hours=1))
    minute = 60_000
    times = [10, 70, 250, 250 + 60 * jump_h]
    with driver_of(joined(windows, **CLOSE), settings=settings) as driver:
        send(driver, [("a", "x", minute * time) for time in times])
        assert [g.start // minute for g in got(driver)] == [0, 60, 240]


@pytest.mark.parametrize("windows", [TEN, HOPPING, SLIDING])
@pytest.mark.parametrize("commit", ["each_record", "manual"])
def test_no_kind_of_window_is_lost_in_a_jump_that_expires_its_row(
    windows: Any, commit: Any
) -> None:
    """Trap 13: tumbling, hopping and sliding; the jump comes before and after a commit."""
    records = [("a", "x", 20), ("b", "y", 22), ("a", "z", 23)]
    with driver_of(joined(windows), commit=commit, settings=NO_CACHE) as driver:
        send(driver, records)
        driver.commit()
        last = {g[:3]: g for g in got(driver)}
    with driver_of(joined(windows, **CLOSE), commit=commit) as driver:
        send(driver, [*records, ("c", "w", 10**9)])
        driver.commit()
        emitted = got(driver)
        assert sorted(emitted) == sorted(last.values())
        assert len(driver.store("s")) == len(results(joined(windows), ("c", "w", 10**9)))


def test_windows_are_emitted_by_their_end_and_then_by_their_key() -> None:
    """Trap 13."""
    records = [("b", "x", 21), ("a", "y", 12), ("b", "z", 13), ("a", "w", 5)]
    windows = TimeWindows(size=ms(10), grace=ms(50))
    with driver_of(joined(windows, **CLOSE)) as driver:
        send(driver, [*records, ("c", "v", 200)])
        assert [(g.start, g.key) for g in got(driver)] == [
            (0, "a"),
            (10, "a"),
            (10, "b"),
            (20, "b"),
        ]


def test_nothing_waits_for_a_commit() -> None:
    """Trap 29: no cache holds back what is final."""
    with driver_of(joined(TEN, **CLOSE), commit="manual") as driver:
        send(driver, [("a", "x", 1), ("a", "y", 10)])
        uncommitted = driver.output("out", isolation="read_uncommitted").read_all()
        assert [r.value for r in uncommitted] == ["x"]


def test_a_row_that_was_deleted_is_not_emitted() -> None:
    def step(group: Any) -> Any:
        windowed = group.windowed_by(TEN, **CLOSE)
        return windowed.reduce(lambda _, value: value, value=serdes.string)

    assert results(step, ("a", "x", 1), ("a", None, 2), ("a", "y", 11), ("a", "z", 30)) == [
        Got("a", 10, 20, "y", 11)
    ]


@pytest.mark.parametrize("crash", [None, "each", "lost"])
def test_neither_an_abort_nor_a_crash_emits_a_window_twice_or_loses_one(crash: str | None) -> None:
    """Trap 36: what was emitted is committed beside the offsets."""
    settings = {"processing.guarantee": "exactly_once_v2"}
    with driver_of(joined(TEN, **CLOSE), commit="manual", settings=settings) as driver:
        for time in range(0, 60, 3):
            send(driver, [("a", "x", time)])
            if time % 2:
                driver.commit()
            elif crash is None:
                driver.abort()
            else:
                driver.crash(keep=crash == "each")
        driver.commit()
        assert [(g.start, g.value) for g in got(driver)] == [
            (0, "xxxx"),
            (10, "xxx"),
            (20, "xxx"),
            (30, "xxxx"),
            (40, "xxx"),
        ]


def test_a_longer_retention_emits_nothing_twice_after_a_restart() -> None:
    """Trap 36: rows that were emitted are still there."""

    def step(group: Any) -> Any:
        kept = Materialized("s", retention=ms(1000))
        return group.windowed_by(TEN, **CLOSE).count(store=kept)

    with driver_of(step) as driver:
        send(driver, [("a", "x", 1), ("a", "y", 11), ("a", "z", 22)])
        assert [g.start for g in got(driver)] == [0, 10]
        driver.restart()
        send(driver, [("a", "w", 35)])
        assert [g.start for g in got(driver)] == [0, 10, 20]
        assert len(driver.store("s")) == 4


class Looks:
    """Counts how often rows are looked for by time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from headrace.state.timed import TimedBuffer

        self.count = 0
        by_time = TimedBuffer.by_time

        def counted(buffer: TimedBuffer, start_ms: int, end_ms: int, **more: Any) -> Any:
            self.count += 1
            return by_time(buffer, start_ms, end_ms, **more)

        monkeypatch.setattr(TimedBuffer, "by_time", counted)


@pytest.mark.parametrize("windows", [TEN, SlidingWindows(time_difference=ms(5), grace=ms(9))])
def test_nothing_is_looked_for_before_stream_time_has_passed_the_earliest_end(
    windows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with driver_of(joined(windows, **CLOSE), commit="manual") as driver:
        send(driver, [("a", "x", 1000)])
        looks = Looks(monkeypatch)
        send(driver, [("a", "y", time) for time in (1001, 1002, 1000)])
        assert looks.count == 0
        send(driver, [("a", "z", 5000)])
        assert looks.count == 1


def test_rows_expire_although_nobody_takes_results() -> None:
    """A table that is only queried."""
    windows = TimeWindows(size=ms(10))
    kept = Materialized("s", retention=ms(10))
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=serdes.string, value=serdes.string).group_by_key()
    grouped.windowed_by(windows, **CLOSE).count(store=kept)
    with TopologyTestDriver(builder.build(), partitions=1) as driver:
        for time in (1, 11, 1000):
            driver.input("in").send("a", "x", timestamp=time)
        assert [key.window.start_ms for key in driver.store("s")] == [1000]


@pytest.mark.parametrize(("before", "after"), [(5, 20), (20, 5)])
def test_another_grace_period_after_a_restart_emits_each_window_once(
    before: int, after: int
) -> None:
    """Trap 36: with a shorter one windows are closed at once, with a longer one none reopens."""

    def driver(grace: int) -> Any:
        windows = TimeWindows(size=ms(10), grace=ms(grace))
        # A changelog that keeps too little is refused; one that keeps too much is not.
        kept = Materialized("s", retention=None if after < before else ms(50))
        return driver_of(lambda group: group.windowed_by(windows, **CLOSE).count(store=kept))

    with driver(before) as first:
        send(first, [("a", "x", 1), ("a", "y", 11), ("a", "z", 26)])
        emitted = [g.start for g in got(first)]
        cluster = first.cluster
    with driver(after) as second:
        second._worker.cluster = cluster
        send(second, [("a", "w", 27), ("a", "v", 5), ("a", "u", 100)])
        everything = [g.start for g in got(second)]
        assert everything[: len(emitted)] == emitted
        assert everything == [0, 10, 20]


def test_a_longer_grace_after_a_restart_opens_no_window_again_that_was_emitted() -> None:
    """Trap 36: its row stays as it was emitted."""

    def driver(grace: int) -> Any:
        windows = TimeWindows(size=ms(10), grace=ms(grace))
        kept = Materialized("s", retention=ms(50))
        return driver_of(lambda group: group.windowed_by(windows, **CLOSE).count(store=kept))

    with driver(0) as first:
        send(first, [("a", "x", 1), ("a", "y", 12)])
        assert [g.start for g in got(first)] == [0]
        cluster = first.cluster
    with driver(30) as second:
        second._worker.cluster = cluster
        send(second, [("a", "late", 5), ("a", "in time", 13)])
        rows = {window.window.start_ms: count for window, count in second.store("s").items()}
        assert rows == {0: 1, 10: 2}
        assert sum(second.dropped.values()) == 1


def test_windows_that_begin_a_moment_apart_are_emitted_a_moment_apart() -> None:
    windows = TimeWindows(size=ms(10), advance=ms(1))
    with driver_of(joined(windows, **CLOSE)) as driver:
        send(driver, [("a", "x", 20), ("a", "y", 21)])
        assert [g.start for g in got(driver)] == [11]
        send(driver, [("b", "z", 22)])
        assert [(g.key, g.start) for g in got(driver)] == [("a", 11), ("a", 12)]


def test_what_stream_time_lets_go_has_no_headers_of_the_record_that_moves_it() -> None:
    """A trace would go on in a result of another key; a suppression keeps those of its own."""

    def keyed(table: Any, topic: str) -> None:
        table.to_stream().map(lambda k, v: (k.key, v)).to(topic, key=serdes.string)

    builder = StreamsBuilder()
    source = builder.stream("in", key=serdes.string, value=serdes.json)
    grouped = source.group_by_key()
    windows, sessions = TimeWindows(size=10 * MS), SessionWindows(inactivity_gap=5 * MS)
    keyed(grouped.windowed_by(windows, emit="on_window_close").count(store="a"), "windows")
    keyed(grouped.windowed_by(sessions, emit="on_window_close").count(store="b"), "sessions")
    final = grouped.windowed_by(windows).count(store="c")
    keyed(final.suppress(Suppressed.until_window_closes()), "suppressed")
    within = JoinWindows(time_difference=5 * MS)
    other = builder.stream("other", key=serdes.string, value=serdes.json)
    source.left_join(other, lambda one, two: [one, two], within, name="j").to("joined")
    settings = {"statestore.cache.max.bytes": 0}
    with TopologyTestDriver(builder.build(), settings, partitions=1) as driver:
        driver.input("in").send("k", 1, timestamp=0, headers=[("trace", b"of k")])
        driver.input("in").send("other", 2, timestamp=100, headers=[("trace", b"of another")])
        found = {
            topic: [
                (r.key, list(r.headers)) for r in driver.output(topic, key=serdes.string).read_all()
            ]
            for topic in ("windows", "sessions", "suppressed", "joined")
        }
    assert found == {
        "windows": [("k", [])],
        "sessions": [("k", [])],
        "suppressed": [("k", [("trace", b"of k")])],
        "joined": [("k", [])],
    }


def test_closed_windows_are_emitted_again_after_a_takeover_from_kafka_streams() -> None:
    """Its offsets do not say which windows it has emitted; docs/compatibility.md says so."""
    driver = driver_of(joined(TEN, **CLOSE), settings=NO_CACHE, partitions=1)
    send(driver, [("a", "x", 1), ("b", "y", 15)])
    first = Got("a", 0, 10, "x", 1)
    assert got(driver) == [first]
    driver.crash(keep=False)
    for offsets in driver.cluster.offsets.values():
        for place, committed in offsets.items():
            offsets[place] = replace(committed, metadata="")
    send(driver, [("b", "z", 25)])
    assert got(driver) == [first, first, Got("b", 10, 20, "y", 15)]
