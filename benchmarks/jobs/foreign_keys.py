"""W9, a join by foreign key: each row of a table names a row of another one."""

from __future__ import annotations

from benchmarks.jobs.job import Dataset, Expected, Job, Record, topic
from benchmarks.jobs.shape import NOTES, START_MS, Ranges, Shape
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology


def purchases(shape: Shape) -> Dataset:
    """Generate customers, and purchases of them."""
    rng = shape.generator()
    customers = min(shape.keys, max(1, shape.records // 2))
    notes = shape.notes(rng)
    names: list[Record] = [
        (b'"customer-%06d"' % i, b'{"name":"name-%d"%b}' % (i, notes[i % NOTES]), START_MS + i)
        for i in range(customers)
    ]
    rows: list[Record] = []
    last = {}
    for number, drawn in enumerate(shape.draw_keys(rng, shape.records - customers)):
        key, customer = b'"purchase-%08d"' % number, drawn % customers
        value = b'{"customer":"customer-%06d","price":%d}' % (customer, number)
        rows.append((key, value, START_MS + shape.records + number))
        last[key] = b'{"name":"name-%d","price":%d}' % (customer, number)
    return Dataset({"customers": names, "purchases": rows}, Expected(last, None), len(last))


def foreign_key(source: str, output: str) -> Topology:
    """Add the customer's name to each purchase."""
    builder = StreamsBuilder()
    customers = builder.table(topic(source, "customers"), store="customers")
    purchases = builder.table(topic(source, "purchases"), store="purchases")
    (
        purchases.join(
            customers,
            lambda purchase, customer: {"name": customer["name"], "price": purchase["price"]},
            foreign_key=lambda purchase: purchase["customer"],
            name="by-customer",
            store="named",
        )
        .to_stream()
        .to(output)
    )
    return builder.build()


JOBS = (
    Job(
        "foreign_key",
        "W9 foreign-key join",
        purchases,
        foreign_key,
        (
            Shape("many", 220_000, 20_000),
            Shape("zipf", 220_000, 2_000, skew=1.0),
            Shape("notes", 220_000, 20_000, value_bytes=200),
        ),
        Ranges(220_000, (100, 100_000), value_bytes=200),
        kind="foreign_key",
    ),
)
