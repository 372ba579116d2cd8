"""The watermark of a repartition topic: of whom it is the time, and from when on it holds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace import JoinWindows, StreamsBuilder, TimeWindows, TopologyTestDriver, serdes
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.flow import Upstream, upstream_of
from headrace.streams.plan.plan import plan_application
from headrace.streams.plan.progress import OffsetMetadata
from headrace.streams.tasks.upstream_times import MARKS_MAX, InputTime, Mark, Marks, mark_of
from headrace.topology.topology import Topology

ONE, TWO = TopicPartition("in", 0), TopicPartition("in", 1)


def mark(time: int, end: int, *, is_least: bool = False) -> Mark:
    return Mark(time, is_least=is_least, has_more=not is_least, end=end)


def test_the_slowest_input_decides_unless_it_is_idle() -> None:
    inputs = {ONE: InputTime(5, has_more=True), TWO: InputTime(9, has_more=False)}
    assert mark_of(inputs, []).time == 5
    assert mark_of(inputs, [TWO]).time == 5
    assert mark_of(inputs, [ONE]).time == 9
    everything = mark_of(inputs, [ONE, TWO])
    assert (everything.time, everything.is_least, everything.has_more) == (9, True, False)


def test_a_watermark_is_never_idle_as_it_advances_without_records() -> None:
    chained = InputTime(5, has_more=False, is_watermark=True)
    found = mark_of({ONE: chained, TWO: InputTime(9, has_more=False)}, [ONE, TWO])
    assert (found.time, found.is_least, found.has_more) == (5, False, False)


def test_what_is_held_back_bounds_the_time_for_the_topic_that_it_goes_to() -> None:
    inputs = {ONE: InputTime(50, has_more=True, held={"a": 20}, shifts={"c": 7})}
    assert [mark_of(inputs, [], topic=topic).time for topic in "abc"] == [20, 50, 43]


def test_a_mark_holds_once_its_end_is_reached() -> None:
    marks = Marks()
    marks.add(mark(10, end=3))
    marks.add(mark(20, end=5))
    assert marks.reached(2, latest=99) == -1
    assert marks.reached(4, latest=99) == 10
    assert marks.has_more
    marks.add(mark(30, end=5, is_least=True))
    assert marks.reached(5, latest=99) == 99, "all inputs are idle: what was read counts"
    assert not marks.has_more


def test_many_marks_are_thinned_and_the_latest_one_stays() -> None:
    marks = Marks()
    for number in range(10 * MARKS_MAX):
        marks.add(mark(number, end=number))
        assert len(marks) <= MARKS_MAX
    assert marks.reached(10 * MARKS_MAX, latest=-1) == 10 * MARKS_MAX - 1


def test_members_with_another_setting_are_warned_of_once() -> None:
    """A member with `fastest` commits no watermark; one that has just begun is waited for."""
    builder = StreamsBuilder()
    rows = builder.stream("in", key=serdes.string, value=serdes.string)
    group = rows.group_by(lambda _, v: v, key=serdes.string, name="moved")
    group.windowed_by(TimeWindows(size=timedelta(hours=1))).count(store="counts")
    driver = TopologyTestDriver(builder.build(), partitions=2, commit="manual")

    def warnings() -> int:
        return sum(event["event"] == "stream_time_differs" for event in driver.events)

    with driver:
        driver.input("in").send("k", "a", timestamp=5, partition=0)
        driver.commit()
        driver.advance(timedelta(minutes=5))
        assert warnings() == 0
        # Another member, which goes by the largest timestamp, takes over one of the partitions.
        offsets = driver.cluster.offsets["test"]
        moved = next(p for p in offsets if "moved" in p.topic)
        offsets[moved] = CommittedOffset(offsets[moved].offset, OffsetMetadata(5).encode())
        for _ in range(5):
            driver.advance(timedelta(seconds=20))
        assert warnings() == 1


# -- whom tasks follow -----------------------------------------------------------------------------


def followed(topology: Topology) -> Upstream:
    config = StreamsConfig.parse({"application.id": "app", "bootstrap.servers": "b:1"})
    return upstream_of(plan_application(topology, config))


@pytest.mark.parametrize("windowed", [True, False])
def test_only_what_leads_to_something_that_goes_by_time_is_followed(*, windowed: bool) -> None:
    builder = StreamsBuilder()
    rows = builder.stream("in", key=serdes.string, value=serdes.string)
    first = rows.map(lambda _, v: (v, v)).repartition(key=serdes.string, name="first")
    group = first.group_by(lambda _, v: v, key=serdes.string, name="second")
    if windowed:
        group.windowed_by(TimeWindows(size=timedelta(hours=1))).count(store="counts")
    else:
        group.count(store="counts")
    upstream = followed(builder.build())
    if not windowed:
        assert upstream.writers == {}
        return
    first_topic, second_topic = "app-first-repartition", "app-second-repartition"
    assert upstream.writers[first_topic].topics == ("in",)
    assert upstream.writers[second_topic].topics == (first_topic,)
    partitions = {"in": 1, first_topic: 3, second_topic: 3}
    assert not upstream.writers[first_topic].are_many(partitions)
    assert upstream.writers[second_topic].are_many(partitions)


def test_a_table_that_is_looked_up_does_not_hold_time_back() -> None:
    builder = StreamsBuilder()
    prices = builder.table("prices", key=serdes.string, value=serdes.string)
    rows = builder.stream("in", key=serdes.string, value=serdes.string)
    joined = rows.join(prices, lambda row, price: f"{row}{price}")
    group = joined.group_by(lambda _, v: v, key=serdes.string, name="moved")
    group.windowed_by(TimeWindows(size=timedelta(hours=1))).count(store="counts")
    writers = followed(builder.build()).writers["app-moved-repartition"]
    assert writers.topics == ("in",)
    assert not writers.are_many({"in": 1, "prices": 1})
    assert writers.are_many({"in": 2, "prices": 2})


def test_a_sub_topology_that_reads_what_it_writes_does_not_follow_itself() -> None:
    builder = StreamsBuilder()
    rows = builder.stream("in", key=serdes.string, value=serdes.string)
    moved = rows.map(lambda _, v: (v, v)).repartition(key=serdes.string, name="moved")
    group = rows.merge(moved).group_by_key(key=serdes.string, value=serdes.string)
    group.windowed_by(TimeWindows(size=timedelta(hours=1))).count(store="counts")
    writers = followed(builder.build()).writers
    assert writers["app-moved-repartition"].topics == ("in",)


def test_another_input_of_a_join_bounds_its_time_as_long_as_it_has_records() -> None:
    """Else a record gets its unmatched result before its match is read."""
    second = timedelta(seconds=1)
    texts: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
    builder = StreamsBuilder()
    orders = builder.stream("orders", **texts).filter(lambda _, v: v != "end")
    moved = orders.select_key(lambda _, v: v).repartition(name="by-order", **texts)
    payments = builder.stream("payments", **texts)
    windows = JoinWindows(time_difference=20 * second, grace=5 * second)
    moved.left_join(payments, lambda a, b: f"{a} {b}", windows, key=serdes.string).to(
        "out", value=serdes.string
    )
    config = {"processing.guarantee": "exactly_once_v2", "max.poll.records": 5}
    with TopologyTestDriver(builder.build(), config, partitions=2, commit="manual") as driver:
        orders_in, payments_in = driver.input("orders"), driver.input("payments")
        for number in range(40):
            order = f"o{number}".encode()
            orders_in.append(b"k", order, timestamp=100 * number, partition=number % 2)
            payments_in.append(order, b"paid", timestamp=100 * number + 15_000)
        orders_in.append(b"k", b"unpaid", timestamp=4_000, partition=0)
        for partition in range(2):
            orders_in.append(b"k", b"end", timestamp=900_000, partition=partition)
        driver.commit()
        found = [record.value for record in driver.output("out").read_all()]
    assert sorted(found) == sorted([*(f"o{n} paid" for n in range(40)), "unpaid None"])
