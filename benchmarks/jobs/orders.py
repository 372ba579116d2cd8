"""W3, parse, filter and map: without state."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.jobs.job import Dataset, Expected, Job, Record, topic
from benchmarks.jobs.shape import NOTES, START_MS, Ranges, Shape
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology


def orders(shape: Shape) -> Dataset:
    """Generate orders, half of them paid; each order has its own key, and a user."""
    rows: list[Record] = []
    last = {}
    notes = shape.notes(shape.generator())
    for number, user, price, quantity, paid in fields(shape):
        key = b'"order-%08d"' % number
        value = b'{"user":"user-%05d","price":%d,"quantity":%d,"paid":%s%b}'
        is_paid, note = b"true" if paid else b"false", notes[number % NOTES]
        rows.append((key, value % (user, price, quantity, is_paid, note), START_MS + number))
        if paid:
            last[key] = b'{"total":%d,"user":"user-%05d"}' % (price * quantity, user)
    return Dataset({"in": rows}, Expected(last, len(last)))


def fields(shape: Shape) -> Iterator[tuple[int, int, int, int, bool]]:
    """Yield number, user, price, quantity, and whether it is paid."""
    rng, count = shape.generator(), shape.records
    users = shape.draw_keys(rng, count)
    prices = rng.choices(range(100, 10_000), k=count)
    quantities = rng.choices(range(1, 10), k=count)
    paid = rng.choices((True, False), k=count)
    yield from zip(range(count), users, prices, quantities, paid, strict=True)


def invoices(source: str, output: str) -> Topology:
    """Parse, keep paid orders, and write another document."""
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "in"))
        .filter(lambda _, order: order["paid"])
        .map_values(lambda o: {"total": o["price"] * o["quantity"], "user": o["user"]})
        .to(output)
    )
    return builder.build()


JOBS = (
    Job(
        "stateless",
        "W3 parse, filter, map",
        orders,
        invoices,
        (
            Shape("small", 1_000_000, 50_000),
            Shape("notes", 400_000, 50_000, value_bytes=1_000),
        ),
        Ranges(1_000_000, (100, 99_999), value_bytes=500),
        kind="stateless",
        stateful=False,
    ),
)
