"""merge: two streams become one."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes
from tests.support.operators import driver_of, pairs, results


def test_records_of_both_streams_come_out() -> None:
    builder = StreamsBuilder()
    builder.stream("a").merge(builder.stream("b")).to("out")
    driver = TopologyTestDriver(builder.build())
    driver.input("a").send("x", 1)
    driver.input("b").send("y", 2)
    driver.input("a").send("z", 3)
    assert pairs(driver) == [("x", 1), ("y", 2), ("z", 3)]


def test_each_stream_is_read_with_its_own_serdes() -> None:
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=serdes.string, value=serdes.long)
    texts = builder.stream("texts", key=serdes.string, value=serdes.string)
    numbers.map_values(str).merge(texts).to("out", value=serdes.string)
    driver = TopologyTestDriver(builder.build())
    driver.input("numbers").send("a", 1)
    driver.input("texts").send("b", "x")
    assert pairs(driver) == [("a", "1"), ("b", "x")]


def test_two_ways_of_one_stream_meet_again_and_each_record_takes_both() -> None:
    def diamond(stream: Any) -> Any:
        return stream.map_values(lambda v: v + 1).merge(stream.map_values(lambda v: v * 10))

    assert results(diamond, [("a", 1), ("b", 2)]) == [("a", 2), ("a", 10), ("b", 3), ("b", 20)]


def test_a_stream_that_is_merged_with_itself_stays_as_it_is() -> None:
    assert results(lambda s: s.merge(s), [("a", 1)]) == [("a", 1)]


def test_timestamps_decide_the_order_where_both_wait() -> None:
    builder = StreamsBuilder()
    builder.stream("a").merge(builder.stream("b")).to("out")
    driver = TopologyTestDriver(builder.build(), commit="manual")
    driver.run()
    for topic, times in (("a", [1, 4]), ("b", [2, 3])):
        for time in times:
            driver.cluster.append(topic, b"%d" % time, None, 0, time, None)
    driver.commit()
    assert [value for _, value in pairs(driver)] == [1, 2, 3, 4]


@pytest.mark.parametrize("partitions", [1, 3])
def test_what_follows_a_merge_keeps_state_for_both(partitions: int) -> None:
    builder = StreamsBuilder()
    merged = builder.stream("a").merge(builder.stream("b"))
    merged.group_by_key().count(store="counts")
    driver = TopologyTestDriver(builder.build(), partitions=partitions)
    for topic in ("a", "b", "a"):
        driver.input(topic).send_many([("x", 0), ("y", 0)])
    assert dict(driver.store("counts")) == {"x": 3, "y": 3}


def test_a_merge_with_a_changed_key_repartitions_both() -> None:
    def step(stream: Any) -> Any:
        changed = stream.select_key(lambda k, v: v)
        return changed.merge(stream).group_by_key().count(store="counts")

    driver = driver_of(step, partitions=3)
    driver.input("in").send_many([("a", "b"), ("b", "a"), ("a", "a")])
    assert dict(driver.store("counts")) == {"a": 4, "b": 2}
