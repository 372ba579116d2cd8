"""Windows of a backfilled past on a real broker: kept while they are open, and given up after.

Brokers delete rows of changelogs by their age on the clock, and the windows of last year are open
by stream time. What is computed is computed in this process; the broker is what this is about.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.spark_bridge.plan.job import CompiledApplication
from headrace.state.codec import TIMESTAMP, partition_for_key
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import TopicPartition
from headrace.topology import StreamsBuilder, TimeWindows, Topology, serdes
from tests.spark_bridge.support.local_rows import computed, plan_of
from tests.spark_bridge.support.ways import hand_over_by_driver, hand_over_partitioned
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.processes import wait_until
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

YEAR_2023_MS = 1_700_000_400_000
"""A full hour."""
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
SIZE_MS = GRACE_MS = HOUR_MS
PLANNED_MS = 3 * HOUR_MS
"""Size, grace, and what is added to it."""
PARTITIONS = 2
KEYS = [f"k{n}" for n in range(10)]
WAYS = {"driver": hand_over_by_driver, "partitioned": hand_over_partitioned}

Event = tuple[str, int]
"""Key and time."""


def _partition(key: str) -> int:
    return partition_for_key(key.encode(), PARTITIONS)


class Windowed:
    """An application that counts by the hour, and a recount of its windows."""

    def __init__(self, topics: Topics, directory: Path) -> None:
        self.topics = topics
        self.bootstrap = topics.bootstrap
        self.source = topics.create("in", partitions=PARTITIONS)
        self.settings = settings_of(
            topics,
            directory,
            windowstore_changelog_additional_retention_ms=HOUR_MS,
            topics_check_interval_ms=1000,
        )
        self.changelog = f"{self.settings['application.id']}-w-changelog"
        self.topology = self._topology()
        self.admin = GroupAdmin({"bootstrap.servers": topics.bootstrap}, timeout_s=30)
        self.counts: Counter[Event] = Counter()
        self.stream_ms = [0] * PARTITIONS
        self.unprocessed = 0

    def _topology(self) -> Topology:
        builder = StreamsBuilder()
        (
            builder.stream(self.source, key=serdes.string, value=serdes.string)
            .group_by_key()
            .windowed_by(TimeWindows(size=timedelta(hours=1), grace=timedelta(hours=1)))
            .count(store="w")
        )
        return builder.build()

    def write(self, events: Sequence[Event]) -> None:
        """Write events, none of which is late."""
        for key, at_ms in events:
            kafka.write(self.bootstrap, self.source, [(key.encode(), b"v")], timestamp=at_ms)
            self.counts[key, at_ms - at_ms % SIZE_MS] += 1
            self.stream_ms[_partition(key)] = max(self.stream_ms[_partition(key)], at_ms)
        self.unprocessed += len(events)

    def backfill(self, how: str) -> None:
        """Everything that is there."""
        plan = plan_of(self.topology, self.settings, "bf-1")
        local: Any = computed(self.topology, self.settings, plan)
        application = CompiledApplication.of(self.topology, self.settings)
        WAYS[how](local, application, summary=local.local.summary())
        self.unprocessed = 0

    def run(self, meanwhile: Callable[[], None] = lambda: None) -> int:
        """Run live until all is processed; returns how many rows it restored."""
        with live(self.topology, self.settings) as app:
            app.wait_processed(self.unprocessed)
            self.unprocessed = 0
            meanwhile()
        return sum(restored.total or 0 for restored in app.restored)

    @property
    def retention_ms(self) -> int | None:
        """That of the changelog, as the broker says it."""
        return self.admin.describe([self.changelog])[self.changelog].retention_ms

    def start_of(self, topic: str) -> set[int]:
        """Where the partitions begin: behind 0 if the broker has deleted something."""
        places = [TopicPartition(topic, p) for p in range(self.topics.partitions(topic))]
        return set(self.admin.start_offsets(places).values())

    def check(self) -> None:
        """The changelog has each window that is open by stream time; counts are right."""
        rows = {record.key: record.value for record in kafka.read(self.bootstrap, self.changelog)}
        found = {}
        for key, value in rows.items():
            assert key is not None
            assert value is not None
            (start,) = TIMESTAMP.unpack_from(key, len(key) - TIMESTAMP.size - 4)
            found[key[: -TIMESTAMP.size - 4].decode(), start] = serdes.long.deserialize(value)
        assert found.items() <= self.counts.items()
        open_windows = {
            (key, start)
            for key, start in self.counts
            if start + SIZE_MS + GRACE_MS > self.stream_ms[_partition(key)]
        }
        assert open_windows <= found.keys()


@pytest.fixture
def windowed(topics: Topics, tmp_path: Path) -> Windowed:
    """With ten hours of 2023."""
    made = Windowed(topics, tmp_path)
    made.write([(key, YEAR_2023_MS + h * HOUR_MS) for h in range(10) for key in KEYS])
    return made


def later(hours: int, minutes: int = 0) -> list[Event]:
    """An event of each key, in 2023."""
    return [(key, YEAR_2023_MS + hours * HOUR_MS + minutes * MINUTE_MS) for key in KEYS]


def await_deletion(windowed: Windowed) -> None:
    """Have the broker delete from a topic as the changelog would be without protection."""
    config = {"cleanup.policy": "compact,delete", "retention.ms": str(PLANNED_MS)}
    topic = windowed.topics.create("unprotected", config=config)
    kafka.write(windowed.bootstrap, topic, [(b"k", b"v")] * 5, timestamp=YEAR_2023_MS)
    wait_until(lambda: windowed.start_of(topic) != {0}, seconds=300, what="a deletion by age")


@pytest.mark.parametrize("how", WAYS)
def test_windows_of_a_backfilled_past_are_kept_until_the_present_is_reached(
    windowed: Windowed, tmp_path: Path, how: str
) -> None:
    """Trap 21."""
    windowed.backfill(how)
    assert windowed.retention_ms == -1
    windowed.check()
    # Live goes on in 2023: the last window of the backfill is still open.
    windowed.write(later(9, 30) + later(10) + later(9, 50))
    assert windowed.run() > 0, "it did not start warm"
    windowed.check()
    # Brokers delete by age all along; what they may delete goes first.
    await_deletion(windowed)
    assert windowed.start_of(windowed.changelog) == {0}
    assert windowed.retention_ms == -1
    # On a new host everything is restored from the changelog, and open windows count on.
    windowed.settings["state.dir"] = str(tmp_path / "other")
    windowed.write(later(10, 1) + later(11))
    assert windowed.run() > 0
    assert windowed.retention_ms == -1
    windowed.check()
    # Stream time reaches the present, first in one partition alone.
    ahead, behind = ([k for k in KEYS if _partition(k) == p] for p in (0, 1))
    now_ms = int(time.time() * 1000)
    for number in range(3):
        windowed.write([(key, now_ms + number) for key in ahead])
        windowed.run(lambda: time.sleep(1.2))
    assert windowed.retention_ms == -1

    def is_given_back() -> bool:
        windowed.write([(behind[0], now_ms), (ahead[0], now_ms + 5)])
        windowed.run(lambda: time.sleep(1.2))
        return windowed.retention_ms == PLANNED_MS

    wait_until(is_given_back, what="the planned retention")
    windowed.check()
