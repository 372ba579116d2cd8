"""W4 and W10: sums per key in tumbling and in sliding windows.

Late records arrive within the grace period, so no record is dropped, and sums do not depend on the
order in which partitions are read.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from itertools import accumulate

import orjson

from benchmarks.jobs.job import (
    GRACE_MS,
    SLIDING_MS,
    WINDOW_MS,
    Dataset,
    Expected,
    Job,
    Record,
    topic,
)
from benchmarks.jobs.shape import (
    NOTES,
    Ranges,
    Shape,
    first_of_key_share,
    interval_ms_for,
    rows_in_windows,
)
from headrace import SlidingWindows, TimeWindows
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology

GRACE = timedelta(milliseconds=GRACE_MS)


def readings(shape: Shape, step_ms: float) -> tuple[list[tuple[bytes, int, int]], list[Record]]:
    """Return key, amount and time of each reading, and the readings as records."""
    rng = shape.generator()
    keys = [b'"sensor-%06d"' % i for i in range(shape.keys)]
    notes = shape.notes(rng)
    amounts = rng.choices(range(1, 1000), k=shape.records)
    drawn = shape.draw_keys(rng, shape.records)
    times = shape.times(rng, shape.records, step_ms)
    generated = [(keys[k], a, time_ms) for k, a, time_ms in zip(drawn, amounts, times, strict=True)]
    return generated, [
        (key, b'{"amount":%d%b}' % (amount, notes[number % NOTES]), time_ms)
        for number, (key, amount, time_ms) in enumerate(generated)
    ]


def windowed_key(key: bytes, start_ms: int) -> bytes:
    """Encode the key of a window as Kafka Streams does."""
    return key + start_ms.to_bytes(8, "big")


def tumbling_input(shape: Shape) -> Dataset:
    """Generate readings, and their sums in tumbling windows."""
    generated, rows = readings(
        shape, interval_ms_for(shape, WINDOW_MS, rows_in_windows, shape.rows)
    )
    sums: dict[bytes, int] = defaultdict(int)
    for key, amount, time_ms in generated:
        sums[windowed_key(key, time_ms - time_ms % WINDOW_MS)] += amount
    last = {key: orjson.dumps(total) for key, total in sums.items()}
    return Dataset({"in": rows}, Expected(last, shape.records), len(last))


def sliding_input(shape: Shape) -> Dataset:
    """Generate readings, and their sums in sliding windows.

    A window ends at each record, and another one starts 1 ms later if a record falls into it. Both
    ends belong to the window.
    """
    # A record opens a second window unless no later record of its key follows within the span.
    step_ms = interval_ms_for(shape, SLIDING_MS, first_of_key_share, 2 - shape.rows)
    generated, rows = readings(shape, step_ms)
    by_key: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for key, amount, time_ms in generated:
        by_key[key].append((time_ms, amount))
    last = {}
    for key, own in by_key.items():
        own.sort()
        sums = [0, *accumulate(amount for _, amount in own)]
        starts = {time_ms - SLIDING_MS for time_ms, _ in own} | {time_ms + 1 for time_ms, _ in own}
        low = high = 0
        for start_ms in sorted(starts):
            while low < len(own) and own[low][0] < start_ms:
                low += 1
            while high < len(own) and own[high][0] <= start_ms + SLIDING_MS:
                high += 1
            if high > low:
                last[windowed_key(key, start_ms)] = orjson.dumps(sums[high] - sums[low])
    return Dataset({"in": rows}, Expected(last, None), len(last))


def tumbling(source: str, output: str) -> Topology:
    """Build the topology: sums per key in tumbling windows of 10 s."""
    size = timedelta(milliseconds=WINDOW_MS)
    return _summed(source, output, TimeWindows(size=size, grace=GRACE))


def sliding(source: str, output: str) -> Topology:
    """Build the topology: sums per key in sliding windows of 2 s."""
    difference = timedelta(milliseconds=SLIDING_MS)
    return _summed(source, output, SlidingWindows(time_difference=difference, grace=GRACE))


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


TUMBLING = Job(
    "windows",
    "W4 windows of 10 s",
    tumbling_input,
    tumbling,
    (
        Shape("zipf", 1_000_000, 100_000, skew=1.0, rows=0.44),
        Shape("late", 1_000_000, 20_000, late=0.1, rows=0.8),
        Shape("few", 1_000_000, 1_000, rows=0.2),
    ),
    Ranges(1_000_000, (100, 200_000), rows=(0.1, 0.95), late=True, value_bytes=200),
    kind="windows",
)
SLIDING = Job(
    "sliding",
    "W10 sliding windows",
    sliding_input,
    sliding,
    (
        Shape("late", 500_000, 20_000, late=0.1, rows=1.05),
        Shape("dense", 1_000_000, 1_000, rows=1.63),
        Shape("zipf", 500_000, 20_000, skew=0.8, rows=1.2),
    ),
    Ranges(1_000_000, (500, 100_000), rows=(1.05, 1.7), skewed_rows=1.2, late=True),
    kind="sliding",
)
