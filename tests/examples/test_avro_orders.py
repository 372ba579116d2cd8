"""examples/avro_orders.py: totals of orders, with all schemas in a registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.avro_orders import ORDER, REGISTRY, TOTAL, Order, Total, avro_orders
from headrace.streams import TopologyTestDriver, serdes
from headrace.streams.errors import StreamsError
from headrace.topology.serdes import avro

BEFORE_CURRENCIES = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "customer", "type": "string"}, {"name": "cents", "type": "long"}],
}


def test_orders_are_added_up_by_customer_and_currency() -> None:
    with TopologyTestDriver(avro_orders(avro.MemoryRegistry()), partitions=3) as driver:
        for number, order in enumerate(
            [Order("ann", 250, "EUR"), Order("bob", 100, "EUR"), Order("ann", 300, "NOK")]
        ):
            driver.input("avro-orders").send(f"o{number}", order)
        assert driver.output("order-totals").as_dict() == {
            "ann": Total(2, {"EUR": 250, "NOK": 300}),
            "bob": Total(1, {"EUR": 100}),
        }


def test_orders_of_the_older_schema_are_in_euros() -> None:
    """Records of both schemas stand in one topic."""
    registry = avro.MemoryRegistry()
    older = avro.registered(BEFORE_CURRENCIES, registry=registry)
    with TopologyTestDriver(avro_orders(registry)) as driver:
        old = driver.input("avro-orders", key=serdes.string, value=older)
        old.send("o1", {"customer": "ann", "cents": 250})
        driver.input("avro-orders").send("o2", Order("ann", 100, "NOK"))
        assert driver.output("order-totals").as_dict() == {
            "ann": Total(2, {"EUR": 250, "NOK": 100})
        }


def test_all_topics_are_in_the_registry_those_of_the_state_too() -> None:
    registry = avro.MemoryRegistry()
    with TopologyTestDriver(avro_orders(registry)) as driver:
        driver.input("avro-orders").send("o1", Order("ann", 250, "EUR"))
    order_id = registry.id_of("avro-orders-value", ORDER)
    total_id = registry.id_of("order-totals-value", TOTAL)
    assert order_id != total_id
    assert registry.id_of("test-by-customer-repartition-value", ORDER) == order_id
    assert registry.id_of("test-totals-changelog-value", TOTAL) == total_id


def test_an_order_that_is_no_avro_stops_the_application_at_its_record() -> None:
    driver = TopologyTestDriver(avro_orders(avro.MemoryRegistry()))
    with pytest.raises(StreamsError, match="avro-orders"):
        driver.input("avro-orders").send_bytes(b"o1", json.dumps({"cents": 1}).encode())


def test_the_file_of_the_registry_is_made_with_the_first_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topology = avro_orders()
    assert not REGISTRY.path.exists()
    with TopologyTestDriver(topology) as driver:
        driver.input("avro-orders").send("o1", Order("ann", 250, "EUR"))
    assert "order-totals-value" in json.loads(REGISTRY.path.read_text())["subjects"]
