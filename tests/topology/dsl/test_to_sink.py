"""to_sink: a topic of its own, and behind it a step that writes rows outside of Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import MemorySink, StreamsBuilder, TopologyError, serdes
from headrace.topology.graph.optimizer import optimize


def test_each_record_is_a_row() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.long)
    stream.map_values(lambda n: 2 * n).to_sink(MemorySink(), name="keep", value=serdes.long)
    with TopologyTestDriver(builder.build(), partitions=1) as driver:
        driver.input("in").send_many([("a", 1), ("b", 2), (None, 3), ("a", 4)])
        rows = driver.sink("keep").rows
    assert [(row.key, row.value) for row in rows] == [("a", 2), ("b", 4), (None, 6), ("a", 8)]


def test_a_table_writes_and_deletes_rows() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", key=serdes.string, value=serdes.long, store="rows")
    table.to_sink(MemorySink(keyed=True), name="keep")
    with TopologyTestDriver(builder.build(), partitions=2) as driver:
        driver.input("in").send_many([("a", 1), ("b", 2), ("a", 3), ("b", None), ("c", 4)])
        assert driver.sink("keep").as_dict() == {"a": 3, "c": 4}


def test_a_table_needs_a_sink_with_a_key() -> None:
    table = StreamsBuilder().table("in")
    with pytest.raises(TopologyError, match="the sink has no key; give it key=, or write each"):
        table.to_sink(MemorySink(), name="keep")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (MemorySink, "was given the class MemorySink; call it"),
        ("orders", r"takes a sink such as SqliteSink\(...\), and was given a str"),
        (None, "was given None"),
    ],
)
def test_what_is_no_sink_is_refused(given: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        StreamsBuilder().stream("in").to_sink(given, name="keep")


def test_two_steps_of_one_name_behind_others_are_named_as_they_were_given() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to_sink(MemorySink(), name="keep")
    with pytest.raises(TopologyError, match="two nodes are named 'keep'"):
        builder.stream("more").to_sink(MemorySink(), name="keep")


def test_two_steps_of_one_name_are_refused() -> None:
    stream = StreamsBuilder().stream("in")
    stream.to_sink(MemorySink(), name="keep")
    with pytest.raises(TopologyError, match="two nodes are named 'keep'"):
        stream.to_sink(MemorySink(), name="keep")


def test_nothing_else_is_in_its_sub_topology_whatever_the_optimiser_merges() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    grouped = stream.group_by(lambda key, value: value, key=serdes.string)
    grouped.count(store="counts")
    rekeyed = stream.select_key(lambda key, value: value)
    rekeyed.to_sink(MemorySink(), name="keep", key=serdes.string)
    for sub in optimize(builder.build()).sub_topologies:
        if sub.sink_node is not None:
            assert [node.name for node in sub.nodes] == ["keep-repartition-source", "keep"]
            return
    raise AssertionError("no sub-topology writes outside")


def test_a_step_that_is_not_there_is_said_with_those_that_are() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to_sink(MemorySink(), name="keep")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(LookupError, match=r"no operator 'kept' writes to .*: keep"):
        driver.sink("kept")
