"""Tasks that read several topics: the order among them, and what they wait for."""

from __future__ import annotations

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.memory_clients import MemoryTransactionalProducer
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support.topologies import EXACTLY_ONCE


def merged() -> Topology:
    builder = StreamsBuilder()
    a, b = (builder.stream(topic, key=serdes.string, value=serdes.string) for topic in "ab")
    a.merge(b).to("out")
    return builder.build()


def outsider(driver: TopologyTestDriver) -> MemoryTransactionalProducer:
    """Another application that writes to the same cluster in transactions."""
    producer = MemoryTransactionalProducer(driver.cluster, "another application")
    producer.init()
    return producer


def written(driver: TopologyTestDriver) -> list[str]:
    records = driver.output("out", isolation="read_uncommitted").read_all()
    return [str(record.value) for record in records]


@pytest.mark.parametrize("seed", range(4))
def test_the_lowest_timestamp_goes_first_whatever_is_read_first(seed: int) -> None:
    driver = TopologyTestDriver(merged(), commit="manual", seed=seed)
    driver.run()
    for topic, times in (("a", [1, 4, 5]), ("b", [2, 3, 6])):
        for time in times:
            driver.cluster.append(topic, b"%d" % time, None, 0, time, None)
    driver.run()
    assert written(driver) == ["1", "2", "3", "4", "5", "6"]


def test_records_of_one_partition_keep_their_order_whatever_their_timestamps() -> None:
    driver = TopologyTestDriver(merged(), commit="manual")
    for time in (9, 1, 5):
        driver.cluster.append("a", b"%d" % time, None, 0, time, None)
    driver.cluster.append("b", b"3", None, 0, 3, None)
    driver.run()
    assert written(driver) == ["3", "9", "1", "5"]


def test_the_end_of_a_transaction_is_nothing_to_wait_for() -> None:
    """Its marker takes an offset, but no record will ever come of it."""
    driver = TopologyTestDriver(merged(), EXACTLY_ONCE, commit="manual")
    producer = outsider(driver)
    producer.begin()
    producer.send("a", b"1", None, 0, 1, None)
    producer.commit()
    driver.run()
    driver.input("b").send(None, "2", timestamp=2)
    assert written(driver) == ["1", "2"]


def test_aborted_records_are_nothing_to_wait_for() -> None:
    driver = TopologyTestDriver(merged(), EXACTLY_ONCE, commit="manual")
    producer = outsider(driver)
    producer.begin()
    producer.send("a", b"void", None, 0, 1, None)
    producer.abort()
    driver.input("b").send(None, "2", timestamp=2)
    assert written(driver) == ["2"]


def test_records_of_an_open_transaction_are_waited_for() -> None:
    """They may come before those that are there (max.task.idle.ms)."""
    driver = TopologyTestDriver(merged(), EXACTLY_ONCE, commit="manual")
    producer = outsider(driver)
    producer.begin()
    producer.send("a", b"1", None, 0, 1, None)
    driver.input("b").send(None, "2", timestamp=2)
    assert written(driver) == []
    producer.commit()
    driver.run()
    assert written(driver) == ["1", "2"]


def test_nothing_is_waited_for_where_the_settings_say_so() -> None:
    settings = {**EXACTLY_ONCE, "max.task.idle.ms": -1}
    driver = TopologyTestDriver(merged(), settings, commit="manual")
    producer = outsider(driver)
    producer.begin()
    producer.send("a", b"1", None, 0, 1, None)
    driver.input("b").send(None, "2", timestamp=2)
    assert written(driver) == ["2"]


def test_an_input_may_have_fewer_partitions_where_no_state_is_shared() -> None:
    builder = StreamsBuilder()
    builder.stream("a").merge(builder.stream("b")).to("out")
    driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE, partitions={"a": 3, "b": 1})
    for partition in range(3):
        driver.input("a").send("k", partition, partition=partition)
    driver.input("b").send("k", 3)
    assert sorted(r.value for r in driver.output("out").read_all()) == [0, 1, 2, 3]
