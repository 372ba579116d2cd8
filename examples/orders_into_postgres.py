"""Orders into PostgreSQL: each of them is a row, and each customer's sums are one.

It shows `to_sink`: rows that are appended, and rows under keys. The database has them once,
whatever is killed: the place up to which it has read is in the transaction of the rows.

    headrace topics create orders-to-keep
    export ORDERS_DATABASE=postgresql://localhost/shop
    headrace run examples.orders_into_postgres:app

It wants `pip install 'headrace[postgres]'`, and makes both tables. Keys are text, values are JSON:

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
    """Where it is; a password comes from PGPASSWORD or ~/.pgpass."""
    return os.environ.get("ORDERS_DATABASE", "postgresql://localhost/shop")


def each_order() -> ExternalSink:
    """A row for each order; `row` says where its columns are looked for."""
    columns = {"order_id": str, "customer": str, "item": str, "cents": int}
    return PostgresSink(database, "orders", columns, row=order_row, create=True)


def order_row(key: str, order: Order) -> dict[str, str | int]:
    return {"order_id": key, **order}


def each_customer() -> ExternalSink:
    """A row for each customer, under its name."""
    columns = {"customer": str, "orders": int, "cents": int}
    return PostgresSink(database, "customers", columns, key="customer", create=True)


def add(_: str, order: Order, sums: Sums) -> Sums:
    return {"orders": sums["orders"] + 1, "cents": sums["cents"] + int(order["cents"])}


def orders_into_postgres(orders: str = "orders-to-keep") -> Topology:
    """Say what to compute; the argument is a topic."""
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
    """What `headrace run` runs."""
    return KafkaStreams(orders_into_postgres(), SETTINGS)
