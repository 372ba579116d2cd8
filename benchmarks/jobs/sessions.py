"""W8, sums by session: each record makes its session longer, so that its key changes."""

from __future__ import annotations

import random
from datetime import timedelta

import orjson

from benchmarks.jobs.job import SEED, START_MS, Expected, Job, Made, Record, topic
from headrace import SessionWindows
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology

USERS = 2000
STEP_MS = 2
GAP_MS = 5_000


def session_key(key: bytes, start_ms: int, end_ms: int) -> bytes:
    """A session's key in the output, as Kafka Streams has it."""
    return key + end_ms.to_bytes(8, "big") + start_ms.to_bytes(8, "big")


def visits(count: int) -> Made:
    """Make visits; a longer session takes the place of the shorter one, which is deleted first."""
    rng = random.Random(SEED)
    rows: list[Record] = []
    open_ones: dict[bytes, tuple[int, int, int]] = {}
    last: dict[bytes, bytes] = {}
    outputs = 0
    for number in range(count):
        key, amount = b'"user-%05d"' % rng.randrange(USERS), rng.randrange(1, 1000)
        time_ms = START_MS + number * STEP_MS
        rows.append((key, b'{"amount":%d}' % amount, time_ms))
        start_ms, end_ms, total = open_ones.get(key, (time_ms, time_ms - GAP_MS - 1, 0))
        if time_ms - end_ms <= GAP_MS:
            del last[session_key(key, start_ms, end_ms)]
            outputs += 1
        else:
            start_ms, total = time_ms, 0
        open_ones[key] = start_ms, time_ms, total + amount
        last[session_key(key, start_ms, time_ms)] = orjson.dumps(total + amount)
        outputs += 1
    return Made({"in": rows}, Expected(last, outputs))


def sessions(source: str, output: str) -> Topology:
    """Add up by session."""
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "in"))
        .group_by_key()
        .windowed_by(SessionWindows(inactivity_gap=timedelta(milliseconds=GAP_MS)))
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


JOBS = (Job("sessions", "W8 sessions", 100_000, visits, sessions, kind="sessions"),)
