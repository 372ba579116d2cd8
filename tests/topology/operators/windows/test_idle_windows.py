"""window.close.idle.ms: where it is set, windows on an input that has gone quiet are closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
    serdes,
)
from tests.support.operators import NO_CACHE, driver_of

MS = timedelta(milliseconds=1)
IDLE: dict[str, object] = {**NO_CACHE, "window.close.idle.ms": 1000}
CACHED: dict[str, object] = {"window.close.idle.ms": 1000, "statestore.cache.max.bytes": 10 << 20}
WINDOWS = {
    "time": TimeWindows(size=10 * MS, grace=5 * MS),
    "hopping": TimeWindows(size=10 * MS, advance=5 * MS),
    "sliding": SlidingWindows(time_difference=10 * MS, grace=3 * MS),
    "sessions": SessionWindows(inactivity_gap=10 * MS, grace=7 * MS),
}
KINDS = pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
SETTINGS = pytest.mark.parametrize("chosen", [IDLE, CACHED], ids=["without cache", "with cache"])


def on_close(stream: Any, windows: Any) -> Any:
    windowed = stream.group_by_key().windowed_by(windows, emit="on_window_close")
    return windowed.count(store="counts")


def suppressed(stream: Any, windows: Any) -> Any:
    windowed = stream.group_by_key().windowed_by(windows)
    return windowed.count(store="counts").suppress(Suppressed.until_window_closes(), name="final")


STEPS = pytest.mark.parametrize("step", [on_close, suppressed])


def driver_for(
    step: Callable[[Any, Any], Any], windows: Any, chosen: Mapping[str, object], **options: Any
) -> TopologyTestDriver:
    return driver_of(lambda s: step(s, windows), settings=chosen, **options)


def outputs(driver: TopologyTestDriver) -> list[Any]:
    found: list[Any] = driver.output("out").read_all()
    return [(r.key.key, *r.key.window, r.value) for r in found]


def send(driver: TopologyTestDriver, *records: tuple[str, int]) -> None:
    for key, time in records:
        driver.input("in").send(key, "x", timestamp=time)


@KINDS
@STEPS
@SETTINGS
def test_what_is_open_is_sent_on_once_when_nothing_came_for_so_long(
    step: Any, windows: Any, chosen: dict[str, object]
) -> None:
    driver = driver_for(step, windows, chosen)
    send(driver, ("a", 3), ("b", 7))
    driver.advance(999 * MS)
    assert outputs(driver) == []
    driver.advance(1 * MS)
    found = outputs(driver)
    assert {f[0] for f in found} == {"a", "b"}
    driver.advance(5000 * MS)
    driver.restart()
    driver.advance(5000 * MS)
    driver.advance(5000 * MS)
    assert outputs(driver) == found
    later = driver_for(step, windows, NO_CACHE)
    send(later, ("a", 3), ("b", 7), ("z", 1000))
    assert sorted(found) == sorted(outputs(later))


@KINDS
@STEPS
def test_later_records_for_what_was_closed_are_late(step: Any, windows: Any) -> None:
    driver = driver_for(step, windows, IDLE)
    send(driver, ("a", 3))
    driver.advance(1000 * MS)
    found = outputs(driver)
    send(driver, ("a", 3))
    driver.advance(1000 * MS)
    assert outputs(driver) == found
    assert sum(driver.dropped.values()) == 1


@STEPS
def test_time_goes_no_further_than_it_must(step: Any) -> None:
    driver = driver_for(step, WINDOWS["time"], IDLE)
    send(driver, ("a", 3))
    driver.advance(1000 * MS)
    send(driver, ("a", 12))
    driver.advance(1000 * MS)
    assert outputs(driver) == [("a", 0, 10, 1), ("a", 10, 20, 1)]


@STEPS
def test_each_record_begins_the_time_anew(step: Any) -> None:
    driver = driver_for(step, WINDOWS["time"], IDLE)
    for _ in range(5):
        send(driver, ("a", 3))
        driver.advance(600 * MS)
    assert outputs(driver) == []
    driver.advance(400 * MS)
    assert outputs(driver) == [("a", 0, 10, 5)]


@STEPS
def test_nothing_is_closed_unless_it_is_asked_for(step: Any) -> None:
    driver = driver_for(step, WINDOWS["time"], NO_CACHE)
    send(driver, ("a", 3))
    driver.advance(timedelta(days=9))
    assert outputs(driver) == []


@STEPS
def test_an_abort_after_closing_closes_again(step: Any) -> None:
    """Trap 36: and what was committed is not sent twice."""
    chosen = {**IDLE, "processing.guarantee": "exactly_once_v2"}
    driver = driver_for(step, WINDOWS["time"], chosen, commit="manual")
    send(driver, ("a", 3))
    driver.commit()
    driver.advance(1000 * MS)
    driver.abort()
    driver.run()
    assert outputs(driver) == []
    driver.advance(1000 * MS)
    driver.commit()
    driver.crash()
    driver.advance(3000 * MS)
    driver.advance(3000 * MS)
    driver.commit()
    assert outputs(driver) == [("a", 0, 10, 1)]


def test_partitions_are_closed_each_for_itself() -> None:
    driver = driver_for(on_close, WINDOWS["time"], IDLE, partitions=2)
    driver.input("in").send("a", 1, timestamp=3, partition=0)
    driver.input("in").send("b", 1, timestamp=3, partition=1)
    driver.advance(600 * MS)
    driver.input("in").send("b", 1, timestamp=3, partition=1)
    driver.advance(600 * MS)
    assert outputs(driver) == [("a", 0, 10, 1)]


def test_unlimited_windows_stay_open() -> None:
    driver = driver_for(
        lambda s, w: s.group_by_key().windowed_by(w).count(store="counts"), UnlimitedWindows(), IDLE
    )
    send(driver, ("a", 3))
    driver.advance(2000 * MS)
    send(driver, ("a", 3))
    assert [f[3] for f in outputs(driver)] == [1, 2]


def test_changes_within_a_time_limit_wait_for_stream_time() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", key=serdes.string, value=serdes.string)
    table.suppress(Suppressed.until_time_limit(5 * MS)).to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), IDLE)
    driver.input("in").send("a", "x", timestamp=0)
    driver.advance(9000 * MS)
    assert driver.output("out").read_all() == []


def test_cogroups_are_closed_too() -> None:
    builder = StreamsBuilder()
    left, right = (builder.stream(t, key=serdes.string).group_by_key() for t in ("in", "other"))
    both = left.cogroup(lambda k, v, n: n + 1).cogroup(right, lambda k, v, n: n + 1)
    table = both.windowed_by(WINDOWS["time"]).aggregate(lambda: 0, store="counts")  # type: ignore[call-overload]
    table.suppress(Suppressed.until_window_closes()).to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), IDLE)
    driver.input("other").send("a", "x", timestamp=1)
    driver.advance(1000 * MS)
    driver.input("in").send("a", "x", timestamp=1)
    driver.advance(1000 * MS)
    assert outputs(driver) == [("a", 0, 10, 1)]
