"""Equal keys meet: whatever serdes are named, what is joined or folded lies in one partition."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from streams.testing import TopologyTestDriver
from topology import JoinWindows, KStream, StreamsBuilder, Topology, serdes
from topology.graph import Source

Stream = KStream[Any, Any]
KEYS = [f"customer {number}" for number in range(8)]
WITHIN = JoinWindows(time_difference=timedelta(hours=1), grace=timedelta(0))


def pair(one: Any, other: Any) -> list[Any]:
    return [one, other]


def owner(_: Any, order: dict[str, str]) -> str:
    return order["customer"]


def orders(builder: StreamsBuilder, **options: Any) -> Stream:
    """Orders by their own keys, which are strings, given the key of their customer."""
    stream = builder.stream("orders", key=serdes.string)
    return stream.select_key(owner, **options)


def customers(builder: StreamsBuilder) -> Any:
    return builder.table("customers", key=serdes.string)


def matches(topology: Topology, partitions: int, *topics: str) -> list[int]:
    """How many of eight customers' orders find their customer, for each output."""
    with TopologyTestDriver(topology, partitions=partitions) as driver:
        for key in KEYS:
            driver.input("customers").send(key, {"name": key})
        for key in KEYS:
            driver.input("orders").send(f"order of {key}", {"customer": key})
        results = [driver.output(topic).read_all() for topic in topics]
    return [sum(None not in record.value for record in found) for found in results]


def with_a_table(builder: StreamsBuilder, **options: Any) -> None:
    stream = orders(builder).left_join(customers(builder), pair, **options)
    stream.to("out", key=serdes.string)


def with_a_stream(builder: StreamsBuilder, **options: Any) -> None:
    other = builder.stream("customers", key=serdes.string)
    orders(builder).left_join(other, pair, WITHIN, **options).to("out", key=serdes.string)


def as_the_other_side(builder: StreamsBuilder, **options: Any) -> None:
    other = builder.stream("customers", key=serdes.string)
    other.left_join(orders(builder), pair, WITHIN, **options).to("out", key=serdes.string)


def with_a_late_table(builder: StreamsBuilder, **options: Any) -> None:
    from topology import Materialized

    kept = Materialized("customers-rows", history=timedelta(hours=1))
    table = builder.table("customers", key=serdes.string, store=kept)
    grace = timedelta(0)
    orders(builder).left_join(table, pair, grace=grace, **options).to("out", key=serdes.string)


@pytest.mark.parametrize("partitions", [1, 3, 4])
@pytest.mark.parametrize("options", [{}, {"name": "lookup"}, {"key": serdes.string}])
@pytest.mark.parametrize(
    "build", [with_a_table, with_a_stream, as_the_other_side, with_a_late_table]
)
def test_a_stream_with_new_keys_takes_the_key_serde_of_the_other_side(
    build: Callable[..., None], options: dict[str, Any], partitions: int
) -> None:
    builder = StreamsBuilder()
    build(builder, **options)
    topology = builder.build()
    assert matches(topology, partitions, "out")[0] >= len(KEYS)
    (repartition,) = internal(topology)
    assert repartition.key is serdes.string


def test_so_do_two_joins_behind_one_change_of_the_key() -> None:
    """They share one repartition topic, as they did, since its serdes are the same."""
    builder = StreamsBuilder()
    stream, table = orders(builder), customers(builder)
    stream.left_join(table, pair).to("out", key=serdes.string)
    stream.join(table, pair, key=serdes.string).to("again", key=serdes.string)
    topology = builder.build()
    assert matches(topology, 4, "out", "again") == [8, 8]
    assert [source.topics for source in internal(topology)] == [
        ("KSTREAM-KEY-SELECT-0000000001-repartition",)
    ]


def test_a_join_with_a_serde_of_its_own_has_a_topic_of_its_own() -> None:
    builder = StreamsBuilder()
    stream, table = orders(builder), customers(builder)
    rows = builder.table("rows", key=serdes.json)
    stream.left_join(rows, pair).to("others", key=serdes.string)
    stream.left_join(table, pair).to("out", key=serdes.string)
    stream.join(table, pair, key=serdes.string).to("again", key=serdes.string)
    topology = builder.build()
    assert matches(topology, 4, "out", "again") == [8, 8]
    assert [(source.topics, source.key) for source in internal(topology)] == [
        (("KSTREAM-KEY-SELECT-0000000001-repartition",), serdes.json),
        (("KSTREAM-KEY-SELECT-0000000001-2-repartition",), serdes.string),
    ]


def test_a_join_that_names_other_values_has_a_topic_of_its_own_too() -> None:
    builder = StreamsBuilder()
    stream, table = orders(builder), customers(builder)
    stream.map_values(len).to("lengths")
    plain = stream.map_values(str, name="plain")
    plain.left_join(table, pair).to("out", key=serdes.string)
    plain.left_join(table, pair, value=serdes.string).to("again", key=serdes.string)
    assert [source.value for source in internal(builder.build())] == [None, serdes.string]


def test_a_group_without_a_serde_takes_that_of_the_streams_that_it_is_folded_with() -> None:
    builder = StreamsBuilder()
    bought = builder.stream("customers", key=serdes.string).group_by_key()
    ordered = builder.stream("orders", key=serdes.string).group_by(owner)
    both = bought.cogroup(lambda k, v, n: n + 1).cogroup(ordered, lambda k, v, n: n + 10)
    both.aggregate(lambda: 0, store="sums", value=serdes.long)
    with TopologyTestDriver(builder.build(), partitions=4) as driver:
        for key in KEYS:
            driver.input("customers").send(key, {})
            driver.input("orders").send(f"order of {key}", {"customer": key})
        assert dict(driver.store("sums")) == dict.fromkeys(KEYS, 11)


def internal(topology: Topology) -> list[Source]:
    """The sources of repartition topics."""
    return [node for node in topology.nodes if isinstance(node, Source) and node.internal]
