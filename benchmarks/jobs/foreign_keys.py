"""W9, a join by foreign key: each row of a table names a row of another one."""

from __future__ import annotations

import random

from benchmarks.jobs.job import SEED, START_MS, Expected, Job, Made, Record, topic
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology


def purchases(count: int) -> Made:
    """Make customers, and ten times as many purchases."""
    rng = random.Random(SEED)
    customers = max(1, count // 10)
    names: list[Record] = [
        (b'"customer-%06d"' % i, b'{"name":"name-%d"}' % i, START_MS + i) for i in range(customers)
    ]
    rows: list[Record] = []
    last = {}
    for number, customer in enumerate(rng.choices(range(customers), k=count - customers)):
        key = b'"purchase-%08d"' % number
        value = b'{"customer":"customer-%06d","price":%d}' % (customer, number)
        rows.append((key, value, START_MS + count + number))
        last[key] = b'{"name":"name-%d","price":%d}' % (customer, number)
    return Made({"customers": names, "purchases": rows}, Expected(last, None))


def foreign_key(source: str, output: str) -> Topology:
    """Put the customer's name to each purchase."""
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
    Job("foreign_key", "W9 foreign-key join", 60_000, purchases, foreign_key, kind="foreign_key"),
)
