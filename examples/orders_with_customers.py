"""Orders with customers: where does each order go, now?

It shows a join of two tables by a foreign key: each order references its customer. A customer who
moves changes all of their orders, and a deleted order deletes its parcel.

    headrace topics create shop-orders shop-customers parcels
    headrace run examples.orders_with_customers:app

It reads two topics. Keys are text, values are JSON, and a null value deletes the row:

    shop-orders      order     {"customer": "c1", "item": "tea"}
    shop-customers   customer  {"name": "Ann", "city": "Rome"}

It writes one. A null value deletes the parcel:

    parcels          order     {"item": "tea", "to": "Ann, Rome"}
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace import KafkaStreams, StreamsBuilder, Topology, serdes

SETTINGS = {
    "application.id": "orders-with-customers",
    "bootstrap.servers": "localhost:9092",
    "processing.guarantee": "exactly_once_v2",
}


@dataclass(frozen=True)
class Order:
    customer: str
    item: str


@dataclass(frozen=True)
class Customer:
    name: str
    city: str


@dataclass(frozen=True)
class Parcel:
    item: str
    to: str


def parcel(order: Order, customer: Customer) -> Parcel:
    return Parcel(order.item, f"{customer.name}, {customer.city}")


def orders_with_customers(
    orders: str = "shop-orders", customers: str = "shop-customers", parcels: str = "parcels"
) -> Topology:
    """Build the topology; the arguments are topics."""
    builder = StreamsBuilder()
    bought = builder.table(orders, key=serdes.string, value=serdes.json_of(Order), store="orders")
    buyers = builder.table(
        customers, key=serdes.string, value=serdes.json_of(Customer), store="customers"
    )
    packed = bought.join(
        buyers,
        parcel,
        foreign_key=lambda order: order.customer,
        store="parcels",
        value=serdes.json_of(Parcel),
        name="buyer",
    )
    packed.to_stream().to(parcels)
    return builder.build()


def app() -> KafkaStreams:
    """Return the application for `headrace run`."""
    return KafkaStreams(orders_with_customers(), SETTINGS)
