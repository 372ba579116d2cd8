"""Keys that lie by another hash than the application's own are told, where they are to meet."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.state.codec import partition_for_key
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import JoinWindows, StreamsBuilder, Topology, serdes
from tests.support.topologies import EXACTLY_ONCE

PARTITIONS = 4
Where = Callable[[str], int | None]


def by_crc32(key: str) -> int:
    """Where librdkafka puts a key by default."""
    return zlib.crc32(key.encode()) % PARTITIONS


def by_kafka(key: str) -> None:
    """Where the cluster puts a key."""


def streams(*, rekeyed: bool) -> Topology:
    builder = StreamsBuilder()
    one, other = (builder.stream(t, key=serdes.string, value=serdes.string) for t in "ab")
    if rekeyed:
        other = other.select_key(lambda _, value: value)
    one.join(other, "{}{}".format, JoinWindows(time_difference=timedelta(hours=1))).to("out")
    return builder.build()


def foreign_keys(**options: Any) -> Topology:
    builder = StreamsBuilder()
    one, other = (builder.table(t, key=serdes.string, value=serdes.string) for t in "ba")
    joined = one.join(other, "{}{}".format, foreign_key=lambda value: value, **options)
    joined.to_stream().to("out")
    return builder.build()


def through_an_output() -> Topology:
    builder = StreamsBuilder()
    one, other = (builder.stream(t, key=serdes.string, value=serdes.string) for t in "ab")
    other.select_key(lambda _, value: value).to("own", key=serdes.string)
    table = builder.table("own", key=serdes.string, value=serdes.string)
    one.join(table, "{}{}".format).to("out")
    return builder.build()


def warned(topology: Topology, where: Where, topic: str = "a") -> list[dict[str, Any]]:
    with TopologyTestDriver(topology, EXACTLY_ONCE, partitions=PARTITIONS) as driver:
        source = driver.input(topic, key=serdes.string, value=serdes.string)
        for number in range(20):
            key = f"secret-{number}"
            source.send(key, "x", partition=where(key))
        return [e for e in driver.events if e["event"] == "keys_partitioned_differently"]


@pytest.mark.parametrize(
    "topology",
    [streams(rekeyed=True), foreign_keys(), through_an_output()],
    ids=["rekeyed", "foreign", "output"],
)
def test_keys_by_another_hash_are_told_once_where_they_meet_ones_that_are_written_here(
    topology: Topology,
) -> None:
    (event,) = warned(topology, by_crc32)
    assert event["level"] == "warning"
    assert event["topic"] == "a"
    assert 0 < event["share"] <= 1
    assert "partitioner=murmur2_random" in event["reason"]
    assert ".repartition()" in event["reason"]
    assert "secret" not in str(event)
    assert warned(topology, by_kafka) == []


def test_key_mismatches_nothing_of_this_application_may_lie_anywhere() -> None:
    assert warned(streams(rekeyed=False), by_crc32) == []
    # What is read anew is partitioned anew; where questions go is the other table's matter.
    assert warned(streams(rekeyed=True), by_crc32, "b") == []
    assert warned(foreign_keys(), by_crc32, "b") == []
    chosen = foreign_keys(other_partitioner=lambda _, key, __, ___: by_crc32(key))
    assert warned(chosen, by_crc32) == []


def test_only_the_first_records_of_a_partition_are_looked_at() -> None:
    with TopologyTestDriver(streams(rekeyed=True), EXACTLY_ONCE, partitions=PARTITIONS) as driver:
        source = driver.input("a", key=serdes.string, value=serdes.string)
        mine = next(
            key for key in map(str, range(99)) if partition_for_key(key.encode(), PARTITIONS) == 0
        )
        for _ in range(300):
            source.send(mine, "x")
        source.send(
            next(k for k in map(str, range(99)) if partition_for_key(k.encode(), PARTITIONS) != 0),
            "x",
            partition=0,
        )
        assert not [e for e in driver.events if e["event"] == "keys_partitioned_differently"]
