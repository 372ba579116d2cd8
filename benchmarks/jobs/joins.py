"""W6 and W7: a stream joined with a table, and two streams within ten seconds."""

from __future__ import annotations

import random
from datetime import timedelta

from benchmarks.jobs.job import SEED, START_MS, Expected, Job, Made, Record, topic
from headrace import JoinWindows
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology

DAY_MS = 86_400_000
WINDOW_MS = 10_000
STEP_MS = 2


def clicks(count: int) -> Made:
    """Make clicks of users: of each ten users nine are in the table, which is older."""
    rng = random.Random(SEED)
    users = max(1, count // 10)
    table: list[Record] = [
        (b'"user-%07d"' % i, b'{"name":"name-%d"}' % i, START_MS - DAY_MS + i)
        for i in range(users)
        if i % 10
    ]
    rows: list[Record] = []
    last: dict[bytes, bytes] = {}
    outputs = 0
    for number, user in enumerate(rng.choices(range(users), k=count)):
        key = b'"user-%07d"' % user
        rows.append((key, b'{"page":%d}' % number, START_MS + number))
        if user % 10:
            last[key] = b'{"name":"name-%d","page":%d}' % (user, number)
            outputs += 1
    return Made({"users": table, "clicks": rows}, Expected(last, outputs))


def stream_table(source: str, output: str) -> Topology:
    """Put the user's name to each click."""
    builder = StreamsBuilder()
    users = builder.table(topic(source, "users"), store="users")
    (
        builder.stream(topic(source, "clicks"))
        .join(users, lambda click, user: {"name": user["name"], "page": click["page"]})
        .to(output)
    )
    return builder.build()


def payments(count: int) -> Made:
    """Make orders and payments; half of these come within ten seconds of their order."""
    rng = random.Random(SEED)
    orders: list[Record] = []
    paid: list[Record] = []
    last = {}
    for number in range(count // 2):
        key, time_ms = b'"order-%08d"' % number, START_MS + number * STEP_MS
        delay_ms = rng.randrange(2 * WINDOW_MS)
        orders.append((key, b'{"price":%d}' % (100 + number % 900), time_ms))
        paid.append((key, b'{"paid":%d}' % number, time_ms + delay_ms))
        if delay_ms <= WINDOW_MS:
            last[key] = b'{"paid":%d,"price":%d}' % (number, 100 + number % 900)
    paid.sort(key=lambda row: row[2])
    return Made({"orders": orders, "payments": paid}, Expected(last, len(last)))


def stream_stream(source: str, output: str) -> Topology:
    """Put orders and payments together."""
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "orders"))
        .join(
            builder.stream(topic(source, "payments")),
            lambda order, payment: {"price": order["price"], "paid": payment["paid"]},
            JoinWindows(
                time_difference=timedelta(milliseconds=WINDOW_MS),
                grace=timedelta(milliseconds=WINDOW_MS),
            ),
        )
        .to(output)
    )
    return builder.build()


JOBS = (
    Job("stream_table", "W6 stream-table join", 300_000, clicks, stream_table, kind="stream_table"),
    Job(
        "stream_stream",
        "W7 stream-stream join",
        200_000,
        payments,
        stream_stream,
        kind="stream_stream",
    ),
)
