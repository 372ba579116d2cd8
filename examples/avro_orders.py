"""Orders in Avro: how many orders has each customer made, and what did they come to?

It shows Avro in the wire format of schema registries, in its input, output and changelog topics.
The registry is a file, so that you need no server; for a real one use
`headrace.SchemaRegistry("http://localhost:8081")` instead.

    headrace topics create avro-orders order-totals
    headrace run examples.avro_orders:app

It reads one topic and writes one. Keys are text, values are records of these schemas:

    avro-orders   order     ORDER; older ones, that have no currency, are taken to be in euros
    order-totals  customer  TOTAL; the last one of each customer counts
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace import KafkaStreams, StreamsBuilder, Topology, avro, serdes

ORDER = """{"type": "record", "name": "Order", "fields": [
    {"name": "customer", "type": "string"},
    {"name": "cents", "type": "long"},
    {"name": "currency", "type": "string", "default": "EUR"}]}"""
TOTAL = """{"type": "record", "name": "Total", "fields": [
    {"name": "orders", "type": "int"},
    {"name": "cents", "type": {"type": "map", "values": "long"}}]}"""
REGISTRY = avro.FileRegistry(Path(".headrace", "schemas.json"))
SETTINGS = {
    "application.id": "avro-orders",
    "bootstrap.servers": "localhost:9092",
    "processing.guarantee": "exactly_once_v2",
}


@dataclass(frozen=True)
class Order:
    customer: str
    cents: int
    currency: str


@dataclass(frozen=True)
class Total:
    orders: int
    cents: dict[str, int]


def add(_: str, order: Order, total: Total) -> Total:
    cents = total.cents.get(order.currency, 0) + order.cents
    return Total(total.orders + 1, {**total.cents, order.currency: cents})


def avro_orders(
    registry: avro.SchemaRegistry = REGISTRY,
    orders: str = "avro-orders",
    totals: str = "order-totals",
) -> Topology:
    """Build the topology; the arguments are a schema registry and topics."""
    order_serde = avro.registered(ORDER, registry=registry, into=Order)
    total_serde = avro.registered(TOTAL, registry=registry, into=Total)
    builder = StreamsBuilder()
    (
        builder.stream(orders, key=serdes.string, value=order_serde)
        .group_by(lambda _, order: order.customer, key=serdes.string, name="by-customer")
        .aggregate(lambda: Total(0, {}), add, store="totals", value=total_serde)
        .to_stream()
        .to(totals)
    )
    return builder.build()


def app() -> KafkaStreams:
    """Return the application for `headrace run`."""
    return KafkaStreams(avro_orders(), SETTINGS)
