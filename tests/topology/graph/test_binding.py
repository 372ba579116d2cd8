"""Serdes that ask for their topic are told each one that a topology uses them with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes
from headrace.topology.errors import RegistryError, SchemaRefusedError
from headrace.topology.graph.binding import bound_to_topics
from headrace.topology.serdes import avro
from headrace.topology.topology import Topology

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "city", "type": "string"}, {"name": "amount", "type": "long"}],
}
CONFIG = {"application.id": "shop", "bootstrap.servers": "unused:1"}


def larger(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return max(one, other, key=lambda order: order["amount"])


def bound(topology: Topology, **defaults: Any) -> Topology:
    given = {"default_key": serdes.string, "default_value": serdes.json, **defaults}
    return bound_to_topics(topology, application_id="shop", **given)


def subjects(registry: avro.FileRegistry) -> set[str]:
    return set(json.loads(registry.path.read_text())["subjects"])


@pytest.fixture
def registry(tmp_path: Path) -> avro.FileRegistry:
    return avro.FileRegistry(tmp_path / "schemas.json")


def largest_per_city(registry: avro.FileRegistry, **options: Any) -> Topology:
    orders = avro.registered(ORDER, registry=registry)
    cities = avro.registered("string", registry=registry)
    builder = StreamsBuilder()
    (
        builder.stream("orders", key=cities, value=orders)
        .group_by(lambda _, order: order["city"], key=cities, name="by-city")
        .reduce(larger, store="largest", **options)
        .to_stream()
        .to("largest-orders")
    )
    return builder.build()


def test_one_serde_writes_under_the_subject_of_each_topic_that_it_goes_to(
    registry: avro.FileRegistry,
) -> None:
    with TopologyTestDriver(largest_per_city(registry), CONFIG) as driver:
        orders = driver.input("orders")
        for amount in (3, 9, 5):
            orders.send("o", {"city": "Lyon", "amount": amount})
        out = driver.output("largest-orders").read_all()
        assert driver.store("largest").get("Lyon") == {"city": "Lyon", "amount": 9}
    assert out[-1].key == "Lyon"
    assert out[-1].value == {"city": "Lyon", "amount": 9}
    assert subjects(registry) == {
        "orders-key",
        "orders-value",
        "shop-by-city-repartition-key",
        "shop-by-city-repartition-value",
        "shop-largest-changelog-key",
        "shop-largest-changelog-value",
        "largest-orders-key",
        "largest-orders-value",
    }


def test_a_partial_result_has_the_bytes_of_its_row_and_no_subject_of_its_own(
    registry: avro.FileRegistry,
) -> None:
    """Its schema may be another one than that of the topic's values."""
    words = avro.registered("string", registry=registry, subject_name="topic-name")
    orders = avro.registered(ORDER, registry=registry)
    builder = StreamsBuilder()
    grouped = builder.stream("orders", key=words, value=orders).group_by(
        lambda _, order: order["city"], key=words, name="by-city"
    )
    grouped.aggregate(
        str,
        lambda _, order, text: f"{text} {order['amount']}",
        merger=lambda _, one, other: one + other,
        store="amounts",
        value=words,
    )
    settings = {**CONFIG, "processing.guarantee": "exactly_once_v2"}
    with TopologyTestDriver(builder.build(), settings, commit="manual") as driver:
        for amount in (3, 9):
            driver.input("orders").send("o", {"city": "Lyon", "amount": amount})
        driver.commit()
        (partial,) = driver.output("shop-by-city-repartition").read_all()
        assert partial.value == " 3 9"
        assert driver.store("amounts").get("Lyon") == " 3 9"
    schemas = json.loads(registry.path.read_text())["subjects"]
    assert len(schemas["shop-by-city-repartition-value"]) == 1
    assert "shop-amounts-changelog-value" in schemas


def test_state_is_the_same_after_a_restart(registry: avro.FileRegistry) -> None:
    topology = largest_per_city(registry)
    with TopologyTestDriver(topology, CONFIG) as driver:
        orders = driver.input("orders")
        orders.send("o", {"city": "Lyon", "amount": 9})
        driver.crash()
        orders.send("o", {"city": "Lyon", "amount": 5})
        assert driver.store("largest").get("Lyon") == {"city": "Lyon", "amount": 9}


def test_a_default_serde_is_told_the_topic_too(registry: avro.FileRegistry) -> None:
    builder = StreamsBuilder()
    builder.stream("orders", key=serdes.string).to("copies")
    topology = bound(builder.build(), default_value=avro.registered(ORDER, registry=registry))
    named = [(node.key, node.value.subject) for node in topology.nodes]  # type: ignore[attr-defined]
    assert named == [(serdes.string, "orders-value"), (serdes.string, "copies-value")]


def test_a_topology_without_such_serdes_stays_what_it_is() -> None:
    builder = StreamsBuilder()
    builder.stream("orders", value=serdes.json).group_by_key().count(store="counts")
    topology = builder.build()
    assert bound(topology) is topology


def test_a_sink_that_chooses_its_topic_needs_a_subject(registry: avro.FileRegistry) -> None:
    def run(**options: Any) -> None:
        builder = StreamsBuilder()
        builder.stream("orders", value=serdes.json).to(
            lambda _, order: "east", value=avro.registered(ORDER, registry=registry, **options)
        )
        with TopologyTestDriver(builder.build(), CONFIG) as driver:
            order = {"city": "Lyon", "amount": 1}
            driver.input("orders").send(None, order)

    with pytest.raises(RecordError, match="no subject") as caught:
        run()
    assert isinstance(caught.value.__cause__, RegistryError)
    run(subject_name="record-name")
    assert subjects(registry) == {"Order"}


def test_an_incompatible_schema_stops_the_application_with_the_reason(
    registry: avro.FileRegistry,
) -> None:
    registry.register("copies-value", '"string"')
    builder = StreamsBuilder()
    orders = avro.registered(ORDER, registry=registry)
    builder.stream("orders", value=serdes.json).to("copies", value=orders)
    with TopologyTestDriver(builder.build(), CONFIG) as driver:
        topic = driver.input("orders")
        with pytest.raises(RecordError, match="not BACKWARD compatible") as caught:
            topic.send(None, {"city": "Lyon", "amount": 1})
    assert isinstance(caught.value.__cause__, SchemaRefusedError)
