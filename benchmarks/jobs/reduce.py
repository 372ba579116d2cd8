"""W5, reduce: the newest value of each key, of 100 bytes, 1 KB and 10 KB."""

from __future__ import annotations

from benchmarks.jobs.job import Dataset, Expected, Job, Record, topic
from benchmarks.jobs.shape import START_MS, Ranges, Shape
from headrace import serdes
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology

NUMBER_BYTES = 10


def versions(shape: Shape) -> Dataset:
    """Generate values that begin with a number; half of each is random bytes."""
    rng = shape.generator()
    size = max(shape.value_bytes, NUMBER_BYTES)
    keys = [b'"document-%06d"' % i for i in range(shape.keys)]
    noise = [rng.randbytes(size // 2) for _ in range(50)]
    rows: list[Record] = []
    last = {}
    for number, document in enumerate(shape.draw_keys(rng, shape.records)):
        key, value = keys[document], b"%010d" % number + noise[number % len(noise)]
        last[key] = value.ljust(size, b".")
        rows.append((key, last[key], START_MS + number))
    return Dataset({"in": rows}, Expected(last, shape.records))


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


JOBS = (
    Job(
        "reduce",
        "W5 reduce",
        versions,
        newest,
        (
            Shape("100b", 400_000, 10_000, value_bytes=100),
            Shape("zipf", 400_000, 200_000, skew=1.0, value_bytes=100),
            Shape("1kb", 100_000, 10_000, value_bytes=1_000),
            Shape("10kb", 20_000, 10_000, value_bytes=10_000),
        ),
        Ranges(200_000, (100, 100_000), value_bytes=1_000),
        kind="reduce",
    ),
)
