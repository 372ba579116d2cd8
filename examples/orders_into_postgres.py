"""Orders into PostgreSQL: a row for each order, and a row with the sums of each customer.

It shows `to_sink`: appended rows, and rows under keys. The database has each row exactly once,
even if processes are killed, because the transaction of the rows contains the position.

    headrace topics create orders-to-keep
    export ORDERS_DATABASE=postgresql://localhost/shop
    headrace run examples.orders_into_postgres:app

It requires `pip install 'headrace[postgres]'`, and creates both tables. Keys are text, values are
JSON:

    orders-to-keep     o1  {"customer": "ann", "item": "tea", "cents": 250}
    table orders       o1, ann, tea, 250
    table customers    ann, 1, 250
"""

from __future__ import annotations

import os

from headrace import ExternalSink, KafkaStreams, PostgresSink, StreamsBuilder, Topology, serdes

SETTINGS = {
    "application.id": "orders-into-postgres",
    "bootstrap.servers": "localhost:9092",
    "processing.guarantee": "exactly_once_v2",
}
Order = dict[str, str | int]
Sums = dict[str, int]


def database() -> str:
    """Return the address; a password comes from PGPASSWORD or ~/.pgpass."""
    return os.environ.get("ORDERS_DATABASE", "postgresql://localhost/shop")


def each_order() -> ExternalSink:
    """Return the sink with a row for each order; `row` returns the columns."""
    columns = {"order_id": str, "customer": str, "item": str, "cents": int}
    return PostgresSink(database, "orders", columns, row=order_row, create=True)


def order_row(key: str, order: Order) -> dict[str, str | int]:
    return {"order_id": key, **order}


def each_customer() -> ExternalSink:
    """Return the sink with a row for each customer, under its name."""
    columns = {"customer": str, "orders": int, "cents": int}
    return PostgresSink(database, "customers", columns, key="customer", create=True)


def add(_: str, order: Order, sums: Sums) -> Sums:
    return {"orders": sums["orders"] + 1, "cents": sums["cents"] + int(order["cents"])}


def orders_into_postgres(orders: str = "orders-to-keep") -> Topology:
    """Build the topology; the argument is a topic."""
    builder = StreamsBuilder()
    stream = builder.stream(orders, key=serdes.string, value=serdes.json)
    stream.to_sink(each_order(), name="keep-orders")
    (
        stream.group_by(lambda _, order: order["customer"], key=serdes.string, name="by-customer")
        .aggregate(lambda: {"orders": 0, "cents": 0}, add, store="sums", value=serdes.json_of(Sums))
        .to_sink(each_customer(), name="keep-customers")
    )
    return builder.build()


def app() -> KafkaStreams:
    """Return the application for `headrace run`."""
    return KafkaStreams(orders_into_postgres(), SETTINGS)
