"""W8, sums by session: each record makes its session longer, so the session's key changes."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

import orjson

from benchmarks.jobs.job import GAP_MS, GRACE_MS, Dataset, Expected, Job, topic
from benchmarks.jobs.shape import Ranges, Shape, first_of_key_share, interval_ms_for
from benchmarks.jobs.windows import readings
from headrace import SessionWindows
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology


def session_key(key: bytes, start_ms: int, end_ms: int) -> bytes:
    """Encode the key of a session as Kafka Streams does."""
    return key + end_ms.to_bytes(8, "big") + start_ms.to_bytes(8, "big")


def visits(shape: Shape) -> Dataset:
    """Generate visits, and the sums of sessions.

    A longer session replaces the shorter one, which is deleted. How often that happens depends on
    the order of late records, so only visits in order have a number of outputs.
    """
    generated, rows = readings(
        shape, interval_ms_for(shape, GAP_MS, first_of_key_share, shape.rows)
    )
    by_key: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for key, amount, time_ms in generated:
        by_key[key].append((time_ms, amount))
    last: dict[bytes, bytes] = {}
    outputs = shape.records
    for key, own in by_key.items():
        own.sort()
        start_ms, total = own[0][0], 0
        before_ms = start_ms
        for time_ms, amount in own:
            if time_ms - before_ms > GAP_MS:
                last[session_key(key, start_ms, before_ms)] = orjson.dumps(total)
                start_ms, total = time_ms, 0
            elif time_ms > before_ms:
                outputs += 1
            total += amount
            before_ms = time_ms
        last[session_key(key, start_ms, before_ms)] = orjson.dumps(total)
    return Dataset({"in": rows}, Expected(last, None if shape.late else outputs), len(last))


def sessions(source: str, output: str) -> Topology:
    """Add up by session."""
    windows = SessionWindows(
        inactivity_gap=timedelta(milliseconds=GAP_MS), grace=timedelta(milliseconds=GRACE_MS)
    )
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "in"))
        .group_by_key()
        .windowed_by(windows)
        .aggregate(
            lambda: 0,
            lambda _, visit, total: total + visit["amount"],
            lambda _, one, other: one + other,
            store="sums",
        )
        .to_stream()
        .to(output)
    )
    return builder.build()


JOBS = (
    Job(
        "sessions",
        "W8 sessions",
        visits,
        sessions,
        (
            Shape("late", 500_000, 20_000, late=0.1, rows=0.6),
            Shape("long", 1_000_000, 2_000, rows=0.1),
            Shape("zipf", 1_000_000, 100_000, skew=1.0, rows=0.3),
        ),
        Ranges(1_000_000, (100, 200_000), rows=(0.1, 0.9), late=True),
        kind="sessions",
    ),
)
