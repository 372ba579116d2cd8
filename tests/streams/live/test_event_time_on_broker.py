"""A backlog of several partitions on a real broker: nothing that came in order is late."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace import event_time
from headrace.streams.app import State
from headrace.streams.errors import RecordError
from headrace.topology import StreamsBuilder, TimeWindows, Topology, serdes
from headrace.topology.dsl.suppressed import Suppressed
from tests.support import kafka
from tests.support.live import Live, live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.broker]

BEGIN_MS = 1_699_999_200_000
HOUR_MS = 3_600_000
SPAN_MS = 12 * HOUR_MS
RECORDS = 20_000
PARTITIONS = 4


def hourly(
    source: str,
    output: str,
    *,
    final: bool = False,
    timestamps: Any = None,
    delay_s: float = 0.0,
) -> Topology:
    """Count the orders of each city and hour.

    Args:
        final: whether only final results are written.
        timestamps: extracts the time of an order from its value, which is JSON.
        delay_s: how long an order takes before it is written to the repartition topic.
    """

    def city_of(_: str, city: str) -> str:
        if delay_s:
            time.sleep(delay_s)
        return city

    builder = StreamsBuilder()
    value = serdes.string if timestamps is None else serdes.json
    orders = builder.stream(source, key=serdes.string, value=value, timestamps=timestamps)
    if timestamps is not None:
        orders = orders.map_values(lambda order: order["city"])
    by_city = orders.group_by(city_of, key=serdes.string, name="by-city")
    windows = TimeWindows(size=timedelta(hours=1), grace=timedelta(minutes=5))
    counts = by_city.windowed_by(windows).count(store="hourly")
    if final:
        counts = counts.suppress(Suppressed.until_window_closes())
    flat = counts.to_stream().map(lambda key, n: (f"{key.key}@{key.window.start_ms}", str(n)))
    flat.to(output, key=serdes.string, value=serdes.string)
    return builder.build()


def write(
    bootstrap: str, topic: str, *, empty: int | None = None, records: int = RECORDS
) -> Counter[str]:
    """Write records in perfect order over twelve hours; returns the counts that are right."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    expected = Counter[str]()
    for number in range(records):
        time_ms, partition = BEGIN_MS + number * SPAN_MS // records, number % PARTITIONS
        if partition != empty:
            city = f"city-{number % 50}"
            producer.produce(topic, city, "k", partition=partition, timestamp=time_ms)
            expected[f"{city}@{time_ms - time_ms % HOUR_MS}"] += 1
        if number % 5_000 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0
    return expected


@pytest.mark.parametrize(
    ("workers", "empty", "final"), [(1, None, False), (2, None, False), (2, 1, True)]
)
def test_no_record_of_a_backlog_is_late(
    workers: int, empty: int | None, topics: Topics, tmp_path: Path, *, final: bool
) -> None:
    source, output = topics.create("in", partitions=PARTITIONS), topics.create("out")
    expected = write(topics.bootstrap, source, empty=empty)
    if final:  # the last hour is open
        last = max(int(key.split("@")[1]) for key in expected)
        expected = Counter({k: n for k, n in expected.items() if not k.endswith(str(last))})
    settings = backlog_settings(topics, tmp_path)
    with ExitStack() as stack:
        apps = [
            stack.enter_context(
                live(
                    hourly(source, output, final=final),
                    {
                        **settings,
                        "state.dir": str(tmp_path / str(number)),
                        "worker.id": f"{number}",
                    },
                )
            )
            for number in range(workers)
        ]
        apps[0].wait(lambda: counted(topics.bootstrap, output) == expected, what="all counts")


@pytest.mark.parametrize(
    ("records", "stopped_s"),
    [(4_000, 0.0), (4_000, 8.0), pytest.param(60_000, 60.0, marks=pytest.mark.long)],
    ids=["a slow worker", "a worker that pauses", "a worker that pauses for a minute"],
)
def test_the_speed_of_a_worker_makes_no_record_late(
    records: int, stopped_s: float, topics: Topics, tmp_path: Path
) -> None:
    source, output = topics.create("in", partitions=PARTITIONS), topics.create("out")
    settings = backlog_settings(topics, tmp_path)
    with ExitStack() as stack:
        fast, slow = (
            stack.enter_context(
                live(
                    hourly(source, output, delay_s=delay_s),
                    {**settings, "state.dir": str(tmp_path / name), "worker.id": name},
                )
            )
            for name, delay_s in (("fast", 0.0), ("slow", 0.0 if stopped_s else 0.003))
        )
        for one in (fast, slow):
            one.wait(lambda one=one: len(one.app.metrics().tasks) == PARTITIONS, what="its tasks")
        if stopped_s:
            # The group may have given all source tasks to one of them.
            slow, fast = sorted((fast, slow), key=source_tasks)
            slow.app.pause()
            slow.wait(lambda: slow.state is State.PAUSED, what="the pause")
        expected = write(topics.bootstrap, source, records=records)
        if stopped_s:
            fast.wait(lambda: fast.processed >= records // 2, what="the half of the fast worker")
            time.sleep(stopped_s)
            assert counted(topics.bootstrap, output) != expected
            slow.app.resume()
        fast.wait(lambda: counted(topics.bootstrap, output) == expected, what="all counts")


def source_tasks(running: Live) -> int:
    return sum(task.sub_topology == 0 for task in running.app.metrics().tasks)


def counted(bootstrap: str, output: str) -> dict[str, int]:
    """The last count of each city and hour."""
    found = kafka.read(bootstrap, output)
    return {(r.key or b"").decode(): int(r.value or b"0") for r in found}


def backlog_settings(topics: Topics, directory: Path, **more: Any) -> dict[str, Any]:
    settings = settings_of(topics, directory, commit_interval_ms=100, **more)
    return settings | {"max.poll.records": 500, "statestore.cache.max.bytes": 1 << 20}


def write_with_future(bootstrap: str, topic: str) -> tuple[Counter[str], int]:
    """Write orders over twelve hours, and one that is half an hour ahead of the clock.

    The order of the future is in partition 0, after a quarter of its records; its own timestamp is
    in order. Cities are in one partition each. Returns the counts without it, and its offset.
    """
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    expected, future_ms = Counter[str](), time.time_ns() // 1_000_000 + HOUR_MS // 2
    quarter = RECORDS // 4 // PARTITIONS * PARTITIONS
    for number in range(RECORDS):
        time_ms, partition = BEGIN_MS + number * SPAN_MS // RECORDS, number % PARTITIONS
        city = f"{partition}-{number % 10}"
        orders = [{"city": city, "ts": time_ms}]
        if number == quarter:
            orders.insert(0, {"city": "future", "ts": future_ms})
        for order in orders:
            value = json.dumps(order)
            producer.produce(topic, value, "k", partition=partition, timestamp=time_ms)
        expected[f"{city}@{time_ms - time_ms % HOUR_MS}"] += 1
        if number % 5_000 == 0:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0
    return expected, quarter // PARTITIONS


AHEAD = timedelta(minutes=10)


@pytest.mark.parametrize("on_invalid", ["dead_letter", "drop", "record_time"])
def test_an_order_of_the_future_makes_no_other_late(
    on_invalid: Any, topics: Topics, tmp_path: Path
) -> None:
    source, output = topics.create("in", partitions=PARTITIONS), topics.create("out")
    dead = topics.create("dead")
    expected, offset = write_with_future(topics.bootstrap, source)
    if on_invalid == "record_time":
        hour = BEGIN_MS + SPAN_MS // 4
        expected[f"future@{hour - hour % HOUR_MS}"] = 1
    extractor = event_time("ts", format="epoch_ms", max_ahead=AHEAD, on_invalid=on_invalid)
    settings = backlog_settings(topics, tmp_path)
    if on_invalid == "dead_letter":
        settings["errors.dead.letter.queue.topic.name"] = dead
    with live(hourly(source, output, timestamps=extractor), settings) as app:
        app.wait(lambda: counted(topics.bootstrap, output) == expected, what="all counts")
    letters = [dict(letter.headers or ()) for letter in kafka.read(topics.bootstrap, dead)]
    found = [letter["__streams.errors.offset"] for letter in letters]
    assert found == ([b"%d" % offset] if on_invalid == "dead_letter" else [])


def test_an_order_of_the_future_is_named_where_it_fails(topics: Topics, tmp_path: Path) -> None:
    source, output = topics.create("in", partitions=PARTITIONS), topics.create("out")
    _, offset = write_with_future(topics.bootstrap, source)
    extractor = event_time("ts", format="epoch_ms", max_ahead=AHEAD)
    topology = hourly(source, output, timestamps=extractor)
    error = Live(topology, backlog_settings(topics, tmp_path)).failure()
    assert isinstance(error, RecordError)
    assert (error.partition, error.first, error.offset) == (0, offset, offset)
    assert "ahead of the clock" in str(error)


def test_without_max_ahead_it_makes_no_order_of_other_partitions_late(
    topics: Topics, tmp_path: Path
) -> None:
    """Later records of its own partition are behind the time of that partition, so may be late."""
    source, output = topics.create("in", partitions=PARTITIONS), topics.create("out")
    expected, _ = write_with_future(topics.bootstrap, source)
    others = {key: n for key, n in expected.items() if not key.startswith("0-")}
    extractor = event_time("ts", format="epoch_ms", max_ahead=None)

    def of_others() -> dict[str, int]:
        found = counted(topics.bootstrap, output)
        return {key: n for key, n in found.items() if not key.startswith(("0-", "future"))}

    with live(
        hourly(source, output, timestamps=extractor), backlog_settings(topics, tmp_path)
    ) as app:
        app.wait(lambda: of_others() == others, what="all counts of other partitions")
    assert any(key.startswith("future@") for key in counted(topics.bootstrap, output))
