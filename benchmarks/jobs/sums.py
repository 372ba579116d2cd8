"""W2, a running sum per key, on few keys, many, and more than fit a commit's caches."""

from __future__ import annotations

import random
from functools import partial

import orjson

from benchmarks.jobs.job import SEED, START_MS, Expected, Job, Made, Record, topic
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology


def bookings(count: int, accounts: int) -> Made:
    """Make bookings on so many accounts, evenly spread."""
    rng = random.Random(SEED)
    totals: dict[bytes, int] = {}
    rows: list[Record] = []
    keys = [b'"account-%07d"' % i for i in range(accounts)]
    drawn = rng.choices(keys, k=count)
    amounts = rng.choices(range(1, 1000), k=count)
    for number, (key, amount) in enumerate(zip(drawn, amounts, strict=True)):
        rows.append((key, b'{"amount":%d}' % amount, START_MS + number))
        totals[key] = totals.get(key, 0) + amount
    last = {key: orjson.dumps(total) for key, total in totals.items()}
    return Made({"in": rows}, Expected(last, count))


def running_sum(source: str, output: str) -> Topology:
    """Add up the amounts of each key."""
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "in"))
        .group_by_key()
        .aggregate(lambda: 0, lambda _, booking, total: total + booking["amount"], store="sums")
        .to_stream()
        .to(output)
    )
    return builder.build()


def _of(name: str, accounts: int) -> Job:
    make = partial(bookings, accounts=accounts)
    title = f"W2 sum of {accounts:,} keys"
    return Job(f"sum_{name}", title, 1_000_000, make, running_sum, kind="sum")


JOBS = (_of("10k", 10_000), _of("100k", 100_000), _of("1m", 1_000_000))
