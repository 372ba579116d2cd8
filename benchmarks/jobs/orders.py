"""W3, parse, filter and map: no state at all."""

from __future__ import annotations

import random
from collections.abc import Iterator

from benchmarks.jobs.job import SEED, START_MS, Expected, Job, Made, Record, topic
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology

USERS = 50_000


def orders(count: int) -> Made:
    """Make orders of which half are paid; every key is there once."""
    rows: list[Record] = []
    last = {}
    for number, user, price, quantity, paid in fields(count):
        key = b'"order-%08d"' % number
        value = b'{"user":"user-%05d","price":%d,"quantity":%d,"paid":%s}'
        rows.append(
            (key, value % (user, price, quantity, b"true" if paid else b"false"), START_MS + number)
        )
        if paid:
            last[key] = b'{"total":%d,"user":"user-%05d"}' % (price * quantity, user)
    return Made({"in": rows}, Expected(last, len(last)))


def fields(count: int) -> Iterator[tuple[int, int, int, int, bool]]:
    """Number, user, price, quantity, and whether it is paid."""
    rng = random.Random(SEED)
    users = rng.choices(range(USERS), k=count)
    prices = rng.choices(range(100, 10_000), k=count)
    quantities = rng.choices(range(1, 10), k=count)
    paid = rng.choices((True, False), k=count)
    yield from zip(range(count), users, prices, quantities, paid, strict=True)


def invoices(source: str, output: str) -> Topology:
    """Parse, keep what is paid, and write another document."""
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
        1_000_000,
        orders,
        invoices,
        kind="stateless",
        stateful=False,
    ),
)
