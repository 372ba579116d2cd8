"""What is printed of an object says what it is: to which topics, nodes and stores it belongs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.streams.app import KafkaStreams
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes
from headrace.topology.processors.stores import Stores
from headrace.topology.serdes import avro
from headrace.topology.serdes.schema_registry import MemoryRegistry

SETTINGS = {
    "application.id": "word-count",
    "bootstrap.servers": "localhost:9092",
    "sasl.password": "the-password",
    "sasl.username": "ann",
}
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


class TellingRegistry(MemoryRegistry):
    """As one of somebody's own, which prints how it is reached."""

    def __repr__(self) -> str:
        return "https://ann:the-password@registry"


def builder() -> StreamsBuilder:
    made = StreamsBuilder()
    made.add_state_store(Stores.key_value("seen"))
    lines = made.stream("lines", value=serdes.string)
    counts = lines.group_by(lambda k, v: v, key=serdes.string, name="by").count(store="counts")
    counts.to_stream().to("word-counts")
    return made


def driver() -> TopologyTestDriver:
    return TopologyTestDriver(builder().build(), now=7)


TOPOLOGY = "<Topology: 2 sub-topologies; reads lines; writes word-counts; keeps counts, seen>"
TOLD: list[tuple[Callable[[], Any], str]] = [
    (StreamsBuilder, "<StreamsBuilder: 0 nodes; reads nothing; writes nothing>"),
    (
        builder,
        "<StreamsBuilder: 8 nodes; reads lines; writes word-counts; keeps counts, seen>",
    ),
    (
        lambda: KafkaStreams(builder().build(), SETTINGS),
        f"<KafkaStreams word-count CREATED of {TOPOLOGY}>",
    ),
    (driver, f"<TopologyTestDriver at 7 ms of {TOPOLOGY}>"),
    (lambda: driver().input("lines"), "<TestInput of lines key=json value=string>"),
    (lambda: driver().output("word-counts"), "<TestOutput of word-counts key=string value=long>"),
    (
        lambda: Stores.key_value("seen", value=serdes.long),
        "<StoreBuilder of seen value=long; rocksdb>",
    ),
    (
        lambda: Stores.key_value("seen", key=serdes.string, kind="memory", logged=False),
        "<StoreBuilder of seen key=string; memory; not logged>",
    ),
    (lambda: avro.serde(ORDER), "<AvroSerde avro(Order)>"),
    (
        lambda: avro.registered(ORDER, registry=TellingRegistry()),
        "<RegisteredSerde registered(Order)>",
    ),
    (
        lambda: avro.registered(ORDER, registry=TellingRegistry(), subject="orders-value"),
        "<RegisteredSerde registered(Order) subject=orders-value>",
    ),
    (
        lambda: StreamsBuilder().global_table("rows", store="kept", name="all"),
        "<GlobalKTable of all store=kept>",
    ),
]


@pytest.mark.parametrize(("make", "told"), TOLD, ids=[told[:28] for _, told in TOLD])
def test_what_is_printed_says_what_it_is_and_no_secret(make: Callable[[], Any], told: str) -> None:
    text = repr(make())
    assert text == told
    assert "password" not in text
