"""W5, reduce: the newest value of each key, of 100 bytes, 1 KB and 10 KB."""

from __future__ import annotations

import random
from functools import partial

from benchmarks.jobs.job import SEED, START_MS, Expected, Job, Made, Record, topic
from headrace import serdes
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology

KEYS = 10_000


def versions(count: int, size: int) -> Made:
    """Make values of so many bytes; half of each is what no compression takes away."""
    rng = random.Random(SEED)
    keys = [b'"document-%05d"' % i for i in range(KEYS)]
    noise = [rng.randbytes(size // 2) for _ in range(50)]
    rows: list[Record] = []
    last = {}
    for number, key in enumerate(rng.choices(keys, k=count)):
        value = b"%010d" % number + noise[number % len(noise)]
        last[key] = value.ljust(size, b".")
        rows.append((key, last[key], START_MS + number))
    return Made({"in": rows}, Expected(last, count))


def newest(source: str, output: str) -> Topology:
    """Keep the greater value of two, byte by byte: the newer one, as each begins with a number."""
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "in"), value=serdes.bytes)
        .group_by_key()
        .reduce(max, store="newest")
        .to_stream()
        .to(output)
    )
    return builder.build()


def _of(name: str, size: int, count: int) -> Job:
    make = partial(versions, size=size)
    return Job(f"reduce_{name}", f"W5 reduce at {size:,} B", count, make, newest, kind="reduce")


JOBS = (
    _of("100b", 100, 400_000),
    _of("1kb", 1_000, 100_000),
    _of("10kb", 10_000, 20_000),
)
