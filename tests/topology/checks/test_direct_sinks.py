"""A table outside of Kafka reads a topic directly only where its position says all of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.plan import plan_application
from headrace.topology import (
    KStream,
    MemorySink,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
    serdes,
)

Stream = KStream[Any, Any]
CONFIG = StreamsConfig.parse({"application.id": "a", "bootstrap.servers": "localhost:1"})


def built(write: Callable[[StreamsBuilder], Any]) -> Topology:
    builder = StreamsBuilder()
    write(builder)
    return builder.build()


def behind(steps: Callable[[Stream], Stream], *, keyed: bool = False) -> Topology:
    return built(
        lambda builder: steps(_read(builder)).to_sink(
            MemorySink(keyed=keyed), name="keep", direct=True
        )
    )


def _read(builder: StreamsBuilder, *topics: str) -> Stream:
    return builder.stream(topics or "in", key=serdes.string, value=serdes.json)


def _merged_branches(stream: Stream) -> Stream:
    branches = (
        stream.split(name="by-")
        .branch(lambda _, v: bool(v), name="full")
        .default_branch(name="empty")
    )
    return branches["by-full"].merge(branches["by-empty"])


@pytest.mark.parametrize(
    "steps",
    [
        lambda stream: stream,
        lambda stream: stream.filter(lambda _, value: value is not None),
        lambda stream: stream.map(lambda key, value: (value, key)),
        lambda stream: stream.flat_map(lambda key, value: [(key, value), (value, key)]),
        lambda stream: stream.select_key(lambda _, value: value).map_values(str),
        lambda stream: stream.peek(lambda *_: None).flat_map_values(str.split),
        lambda stream: stream.sample(0.5),
        _merged_branches,
        lambda stream: stream.repartition(name="elsewhere"),
    ],
)
def test_steps_without_state_stand_between(steps: Callable[[Stream], Stream]) -> None:
    topology = behind(steps)
    assert topology.sub_topologies[-1].sink_node is not None
    assert "keep-repartition" not in topology.describe()
    plan_application(topology, CONFIG)


@pytest.mark.parametrize(
    ("steps", "node"),
    [
        (lambda s: s.group_by_key().count(store="counts").to_stream(), "KSTREAM-AGGREGATE"),
        (
            lambda s: (
                s.group_by_key()
                .windowed_by(TimeWindows(size=timedelta(minutes=1)))
                .count(store="counts")
                .to_stream()
            ),
            "KSTREAM-AGGREGATE",
        ),
        (lambda s: s.to_table(store="rows").to_stream(), "KSTREAM-TOTABLE"),
    ],
)
def test_steps_with_state_do_not(steps: Callable[[Stream], Stream], node: str) -> None:
    with pytest.raises(TopologyError) as caught:
        behind(steps)
    message = str(caught.value)
    assert message.startswith("to_sink('keep', direct=True) reads topic 'in', and so does '" + node)
    assert message.endswith(
        "which is not stateless; leave direct=True out, so that it reads a separate topic"
    )


def _beside(other: Callable[[Stream], Any]) -> Callable[[StreamsBuilder], None]:
    def write(builder: StreamsBuilder) -> None:
        _read(builder).filter(lambda *_: True).to_sink(MemorySink(), name="keep", direct=True)
        other(_read(builder))

    return write


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda s: s.to("out"), r"'in', of which 'KSTREAM-SINK-.*' writes records to another"),
        (lambda s: s.to_sink(MemorySink(), name="more"), r"'in', of which 'more-repartition-sink'"),
        (lambda s: s.group_by_key().count(), r"so does 'KSTREAM-AGGREGATE.*', which is not state"),
        (
            lambda s: s.to_sink(MemorySink(), name="more", direct=True),
            r"'in', and so does to_sink\('more'\), whose position may differ",
        ),
    ],
)
def test_nothing_else_is_made_of_the_topic(other: Callable[[Stream], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        built(_beside(other))


def test_it_reads_one_topic() -> None:
    def two(builder: StreamsBuilder) -> None:
        _read(builder, "in", "more").to_sink(MemorySink(), name="keep", direct=True)

    with pytest.raises(TopologyError, match="reads 'in', 'more', but keeps a position in a single"):
        built(two)


def test_rows_under_keys_keep_those_of_the_topic() -> None:
    behind(lambda stream: stream.map_values(str), keyed=True)
    with pytest.raises(TopologyError, match="rows under keys, which 'turned' changes: the ro"):
        behind(lambda stream: stream.select_key(lambda _, v: v, name="turned"), keyed=True)


def test_there_are_no_serdes_for_a_topic_that_is_not_there() -> None:
    stream = _read(StreamsBuilder())
    with pytest.raises(
        TopologyError, match=r"to_sink\('keep', direct=True\) writes no internal topic"
    ):
        stream.to_sink(MemorySink(), name="keep", value=serdes.json, direct=True)


def test_what_is_added_to_a_topology_node_by_node_is_refused_too() -> None:
    topology = behind(lambda stream: stream)
    (source,) = topology.sources
    with pytest.raises(TopologyError, match="'more' writes records to another topic"):
        plan_application(topology.add_sink("more", "out", source.name), CONFIG)
