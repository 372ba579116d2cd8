"""A backlog of several partitions on a real broker: nothing that came in order is late."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import confluent_kafka
import pytest

from headrace.topology import StreamsBuilder, TimeWindows, Topology, serdes
from headrace.topology.dsl.suppressed import Suppressed
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.broker]

BEGIN_MS = 1_699_999_200_000
HOUR_MS = 3_600_000
SPAN_MS = 12 * HOUR_MS
RECORDS = 20_000
PARTITIONS = 4


def hourly(source: str, output: str, *, final: bool) -> Topology:
    builder = StreamsBuilder()
    orders = builder.stream(source, key=serdes.string, value=serdes.string)
    by_city = orders.group_by(lambda _, city: city, key=serdes.string, name="by-city")
    windows = TimeWindows(size=timedelta(hours=1), grace=timedelta(minutes=5))
    counts = by_city.windowed_by(windows).count(store="hourly")
    if final:
        counts = counts.suppress(Suppressed.until_window_closes())
    flat = counts.to_stream().map(lambda key, n: (f"{key.key}@{key.window.start_ms}", str(n)))
    flat.to(output, key=serdes.string, value=serdes.string)
    return builder.build()


def write(bootstrap: str, topic: str, *, empty: int | None) -> Counter[str]:
    """Write records in perfect order over twelve hours; returns the counts that are right."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    expected = Counter[str]()
    for number in range(RECORDS):
        time, partition = BEGIN_MS + number * SPAN_MS // RECORDS, number % PARTITIONS
        if partition != empty:
            city = f"city-{number % 50}"
            producer.produce(topic, city, "k", partition=partition, timestamp=time)
            expected[f"{city}@{time - time % HOUR_MS}"] += 1
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
    settings = settings_of(topics, tmp_path, commit_interval_ms=100) | {
        "max.poll.records": 500,
        "statestore.cache.max.bytes": 1 << 20,
    }

    def counted() -> dict[str, int]:
        found = kafka.read(topics.bootstrap, output)
        return {(r.key or b"").decode(): int(r.value or b"0") for r in found}

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
        apps[0].wait(lambda: counted() == expected, what="all counts")
