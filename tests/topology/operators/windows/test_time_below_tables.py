"""Time reaches final results through filters and mappings, and dropped records do not move it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    KTable,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serdes,
)
from tests.support.topologies import EXACTLY_ONCE, NO_CACHE

MS = timedelta(milliseconds=1)
Counts = KTable[Any, Any]
WINDOWS = {
    "tumbling": TimeWindows(size=10 * MS, grace=0 * MS),
    "sliding": SlidingWindows(time_difference=10 * MS, grace=0 * MS),
    "sessions": SessionWindows(inactivity_gap=5 * MS, grace=0 * MS),
}


class AtLeastTwo:
    """Leaves out counts of one."""

    def transform(self, key: Any, value: int | None) -> int | None:
        del key
        return value if value is not None and value > 1 else None


def _fails_at_one(_: Any, count: int) -> bool:
    if count < 2:
        raise ValueError(count)
    return True


_BETWEEN: dict[str, Callable[[Counts], Counts]] = {
    "filter": lambda t: t.filter(lambda _, n: n > 1),
    "stored filter": lambda t: t.filter(lambda _, n: n > 1, store="f", value=serdes.long),
    "map to null": lambda t: t.map_values(lambda n: n if n > 1 else None),
    "stored map": lambda t: t.map_values(lambda n: n if n > 1 else None, store="f"),
    "transform": lambda t: t.transform_values(AtLeastTwo, name="v", value=serdes.long),
    "chain": lambda t: t.filter(lambda _, n: n > 1).map_values(lambda n: n).filter(lambda *_: True),
    "failing filter": lambda t: t.filter(_fails_at_one),
}


@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("between", _BETWEEN.values(), ids=_BETWEEN)
@pytest.mark.parametrize("caching", [False, True], ids=["each update", "cached"])
def test_final_results_come_when_their_windows_close(
    caching: bool, between: Callable[[Counts], Counts], windows: Any
) -> None:
    """The record that passes the end of the window is dropped by the filter."""
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=serdes.string).group_by_key()
    counts = grouped.windowed_by(windows).count(store="counts")
    final = between(counts).suppress(Suppressed.until_window_closes(), name="final")
    final.to_stream(lambda key, _: key.key).to("out", key=serdes.string)
    settings = {**EXACTLY_ONCE, **({} if caching else NO_CACHE)}
    handler = {"processing.exception.handler": "continue"}
    driver = TopologyTestDriver(builder.build(), {**settings, **handler})
    for key, time in (("a", 1), ("a", 2), ("b", 50)):
        driver.input("in").send(key, 1, timestamp=time)
    output = driver.output("out")
    assert [record.value for record in output.read_all()] == [2]
    driver.input("in").send("b", 1, timestamp=50)
    driver.input("in").send("c", 1, timestamp=99)
    assert [record.value for record in output.read_all()] == [2]


def test_each_stream_of_a_cogroup_moves_the_time_of_final_results() -> None:
    builder = StreamsBuilder()
    one, two = (builder.stream(t, key=serdes.string).group_by_key() for t in ("one", "two"))
    windowed = one.cogroup(lambda k, v, n: n + 1).cogroup(two, lambda k, v, n: n + 1)
    counts = windowed.windowed_by(WINDOWS["tumbling"]).aggregate(int, store="counts")
    final = counts.filter(lambda _, n: n > 1).suppress(Suppressed.until_window_closes(), name="f")
    final.to_stream(lambda key, _: key.key).to("out", key=serdes.string)
    driver = TopologyTestDriver(builder.build(), {**EXACTLY_ONCE, **NO_CACHE})
    for topic, time in (("one", 1), ("two", 2), ("two", 15)):
        driver.input(topic).send("a", 1, timestamp=time)
    assert [record.value for record in driver.output("out").read_all()] == [2]


@pytest.mark.parametrize(("key", "value"), [("b", None), (None, "x")])
def test_a_dropped_record_does_not_move_the_time_of_a_join_with_grace(
    key: str | None, value: str | None
) -> None:
    """As in Kafka Streams 4.0: the next record is not late and waits for the table's row."""
    builder = StreamsBuilder()
    kept = Materialized("v", history=timedelta(hours=1))
    table = builder.table("t", key=serdes.string, store=kept)
    stream = builder.stream("in", key=serdes.string)
    joined = stream.join(table, lambda a, b: a + b, grace=10 * MS, name="j")
    joined.to("out", key=serdes.string)
    settings = {**EXACTLY_ONCE, "null.key.policy": "drop"}
    driver = TopologyTestDriver(builder.build(), settings)
    driver.input("in").send("a", "s", timestamp=5)
    driver.input("in").send(key, value, timestamp=60)
    assert driver.output("out").read_all() == []
    driver.input("in").send("a", "s2", timestamp=7)
    driver.input("t").send("a", "T", timestamp=6)
    driver.input("in").send("a", "s", timestamp=40)
    assert [record.value for record in driver.output("out").read_all()] == ["s2T"]
