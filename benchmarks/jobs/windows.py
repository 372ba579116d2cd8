"""W4 and W10, sums in windows: of ten seconds side by side, and sliding ones.

Records come in the order of their times, so none is late however they are read.
"""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta

import orjson

from benchmarks.jobs.job import SEED, START_MS, Expected, Job, Made, Record, topic
from headrace import SlidingWindows, TimeWindows
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology

SENSORS = 1000
STEP_MS = 2
SIZE_MS = 10_000
SLIDING_MS = 2_000


def readings(count: int) -> list[tuple[bytes, int, int]]:
    """Key, amount and time of each reading."""
    rng = random.Random(SEED)
    keys = [b'"sensor-%04d"' % i for i in range(SENSORS)]
    amounts = rng.choices(range(1, 1000), k=count)
    drawn = rng.choices(keys, k=count)
    return [
        (key, amount, START_MS + number * STEP_MS)
        for number, (key, amount) in enumerate(zip(drawn, amounts, strict=True))
    ]


def _rows(made: list[tuple[bytes, int, int]]) -> list[Record]:
    return [(key, b'{"amount":%d}' % amount, time_ms) for key, amount, time_ms in made]


def windowed_key(key: bytes, start_ms: int) -> bytes:
    """A window's key in the output, as Kafka Streams has it."""
    return key + start_ms.to_bytes(8, "big")


def tumbling_input(count: int) -> Made:
    """Make readings, and their sums by windows that lie side by side."""
    made = readings(count)
    sums: dict[bytes, int] = defaultdict(int)
    for key, amount, time_ms in made:
        sums[windowed_key(key, time_ms - time_ms % SIZE_MS)] += amount
    last = {key: orjson.dumps(total) for key, total in sums.items()}
    return Made({"in": _rows(made)}, Expected(last, count))


def sliding_input(count: int) -> Made:
    """Make readings, and their sums by sliding windows.

    A window begins at each record and at the millisecond after each (if another record is in it),
    and ends with each; both its ends belong to it.
    """
    made = readings(count)
    by_key: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for key, amount, time_ms in made:
        by_key[key].append((time_ms, amount))
    last = {}
    for key, own in by_key.items():
        starts = {time_ms - SLIDING_MS for time_ms, _ in own} | {time_ms + 1 for time_ms, _ in own}
        low = 0
        for start_ms in sorted(starts):
            while low < len(own) and own[low][0] < start_ms:
                low += 1
            total, high = 0, low
            while high < len(own) and own[high][0] <= start_ms + SLIDING_MS:
                total += own[high][1]
                high += 1
            if high > low:
                last[windowed_key(key, start_ms)] = orjson.dumps(total)
    return Made({"in": _rows(made)}, Expected(last, None))


def tumbling(source: str, output: str) -> Topology:
    """Add up by key and ten seconds."""
    return _summed(source, output, TimeWindows(size=timedelta(milliseconds=SIZE_MS)))


def sliding(source: str, output: str) -> Topology:
    """Add up by key and two seconds around each record."""
    difference = timedelta(milliseconds=SLIDING_MS)
    return _summed(source, output, SlidingWindows(time_difference=difference))


def _summed(source: str, output: str, windows: TimeWindows | SlidingWindows) -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "in"))
        .group_by_key()
        .windowed_by(windows)
        .aggregate(lambda: 0, lambda _, reading, total: total + reading["amount"], store="sums")
        .to_stream()
        .to(output)
    )
    return builder.build()


JOBS = (
    Job("windows", "W4 windows of 10 s", 1_000_000, tumbling_input, tumbling, kind="windows"),
    Job("sliding", "W10 sliding windows", 100_000, sliding_input, sliding, kind="sliding"),
)
