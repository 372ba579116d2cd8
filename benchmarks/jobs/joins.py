"""W6 and W7: a stream joined with a table, and two streams within ten seconds."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

from benchmarks.jobs.job import GRACE_MS, JOIN_MS, Dataset, Expected, Job, Record, topic
from benchmarks.jobs.shape import (
    LATE_MS,
    NOTES,
    START_MS,
    Ranges,
    Shape,
    same_key_probability,
    within,
)
from headrace import JoinWindows
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology

DAY_MS = 86_400_000
STEP_MS = 2.0
OWN_SHARE = 0.5


def clicks(shape: Shape) -> Dataset:
    """Generate clicks of users, of whom nine of ten are in the table; its rows are older."""
    rng = shape.generator()
    users = min(shape.keys, max(1, shape.records // 2))
    notes = shape.notes(rng)
    table: list[Record] = [
        (b'"user-%07d"' % i, b'{"name":"name-%d"%b}' % (i, notes[i % NOTES]), START_MS - DAY_MS + i)
        for i in range(users)
        if i % 10
    ]
    rows: list[Record] = []
    last: dict[bytes, bytes] = {}
    outputs, count = 0, shape.records - users
    times = shape.times(rng, count, 1)
    for number, user in enumerate(shape.draw_keys(rng, count)):
        user %= users
        key = b'"user-%07d"' % user
        rows.append((key, b'{"page":%d%b}' % (number, notes[number % NOTES]), times[number]))
        if user % 10:
            last[key] = b'{"name":"name-%d","page":%d}' % (user, number)
            outputs += 1
    return Dataset({"users": table, "clicks": rows}, Expected(last, outputs), outputs)


def stream_table(source: str, output: str) -> Topology:
    """Add the user's name to each click."""
    builder = StreamsBuilder()
    users = builder.table(topic(source, "users"), store="users")
    (
        builder.stream(topic(source, "clicks"))
        .join(users, lambda click, user: {"name": user["name"], "page": click["page"]})
        .to(output)
    )
    return builder.build()


def payments(shape: Shape) -> Dataset:
    """Generate orders, and a payment of each with the same key, some of them within ten seconds.

    With as many keys as orders, each order has its own key. Otherwise orders are joined with
    payments of other orders too, and the last pair of a key depends on which topic is read first,
    so all pairs are expected. Rows are pairs.
    """
    rng, count = shape.generator(), shape.records // 2
    is_unique = shape.keys >= count
    keys = list(range(count)) if is_unique else shape.draw_keys(rng, count)
    own = min(1.0, 2 * shape.rows) if is_unique else min(OWN_SHARE, shape.rows)
    others = 0.0 if is_unique else 2 * shape.rows - own
    step_ms = 2 * JOIN_MS * same_key_probability(shape) / others if others else STEP_MS
    due_ms = [START_MS + int(number * step_ms) for number in range(count)]
    order_ms = shape.times(rng, count, step_ms)
    paid = sorted(
        (due_ms[number] + rng.randrange(int(JOIN_MS / own)), number) for number in range(count)
    )
    late = [rng.randrange(1, LATE_MS) if rng.random() < shape.late else 0 for _ in paid]
    orders: list[Record] = []
    times: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, (key, time_ms) in enumerate(zip(keys, order_ms, strict=True)):
        orders.append((b'"order-%08d"' % key, b'{"price":%d}' % number, time_ms))
        times[key].append((time_ms, number))
    of_key = {key: sorted(found) for key, found in times.items()}
    only_ms = {key: [time_ms for time_ms, _ in found] for key, found in of_key.items()}
    rows: list[Record] = []
    pairs: dict[bytes, bytes] = {}
    for (due, number), late_ms in zip(paid, late, strict=True):
        key, time_ms = keys[number], due - late_ms
        name = b'"order-%08d"' % key
        rows.append((name, b'{"paid":%d}' % number, time_ms))
        for index in within(only_ms[key], time_ms - JOIN_MS, time_ms + JOIN_MS):
            value = b'{"paid":%d,"price":%d}' % (number, of_key[key][index][1])
            pairs[name + value] = value
    expected = Expected(pairs, len(pairs), each_record=True)
    return Dataset({"orders": orders, "payments": rows}, expected, len(pairs))


def stream_stream(source: str, output: str) -> Topology:
    """Join orders and payments."""
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "orders"))
        .join(
            builder.stream(topic(source, "payments")),
            lambda order, payment: {"price": order["price"], "paid": payment["paid"]},
            JoinWindows(
                time_difference=timedelta(milliseconds=JOIN_MS),
                grace=timedelta(milliseconds=GRACE_MS),
            ),
        )
        .to(output)
    )
    return builder.build()


JOBS = (
    Job(
        "stream_table",
        "W6 stream-table join",
        clicks,
        stream_table,
        (
            Shape("many", 1_100_000, 100_000),
            Shape("zipf", 1_100_000, 100_000, skew=1.0, late=0.1),
            Shape("wide", 1_300_000, 500_000),
        ),
        Ranges(1_200_000, (1_000, 500_000), late=True, value_bytes=200),
        kind="stream_table",
    ),
    Job(
        "stream_stream",
        "W7 stream-stream join",
        payments,
        stream_stream,
        (
            Shape("own", 1_000_000, 500_000, rows=0.25),
            Shape("late", 1_000_000, 50_000, late=0.1, rows=0.5),
            Shape("zipf", 600_000, 50_000, skew=0.8, rows=1.0),
        ),
        Ranges(1_000_000, (1_000, 1_000_000), rows=(0.1, 2.0), skewed_rows=1.0, late=True),
        kind="stream_stream",
    ),
)
