"""Foreign-key joins and versioned tables on a real broker, with a restart and lost local state."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from confluent_kafka.admin import AdminClient

from headrace.topology import Materialized, StreamsBuilder, serdes
from headrace.topology.topology import Topology
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.topics import Topics

DAY = timedelta(days=1)
NOW_MS = 1_700_000_000_000


def write(bootstrap: str, records: list[tuple[str, str, str | None, int]]) -> None:
    settings = {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"}
    producer = confluent_kafka.Producer(settings)
    for topic, key, value, time in records:
        producer.produce(topic, value, key, timestamp=time)
    assert producer.flush(30) == 0


def last_of(bootstrap: str, topic: str) -> dict[str, str]:
    """The last committed value of each key."""
    rows: dict[str, str] = {}
    for record in kafka.read(bootstrap, topic):
        assert record.key is not None
        if record.value is None:
            rows.pop(record.key.decode(), None)
        else:
            rows[record.key.decode()] = record.value.decode()
    return rows


def config_of(bootstrap: str, topic: str) -> dict[str, str]:
    untyped: Any = confluent_kafka.admin
    resource = untyped.ConfigResource(untyped.ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    return {name: entry.value for name, entry in found.items()}


class Tables:
    """Two tables on the broker, what was written to them, and their join."""

    def __init__(self, topics: Topics, directory: Path) -> None:
        self.topics = topics
        self.left = topics.create("left", partitions=3)
        self.right = topics.create("right", partitions=2)
        self.out = topics.create("out")
        self.settings = settings_of(topics, directory, statestore_cache_max_bytes=1 << 20)
        self.rows: tuple[dict[str, str], dict[str, str]] = ({}, {})
        self._random = random.Random(1)
        self._number = 0

    def topology(self) -> Topology:
        builder = StreamsBuilder()
        left = builder.table(self.left, key=serdes.string, value=serdes.string, store="l")
        right = builder.table(
            self.right,
            key=serdes.string,
            value=serdes.string,
            store=Materialized("r", history=DAY),
        )
        rows = left.join(
            right,
            lambda value, other: f"{value}+{other}",
            foreign_key=lambda value: value[0],
            store="rows",
            value=serdes.string,
            name="fk",
        )
        rows.to_stream().to(self.out)
        return builder.build()

    def change(self, count: int) -> None:
        """Change rows of both tables at random; the other table's out of order now and then."""
        pick, records = self._random, []
        for _ in range(count):
            self._number += 1
            number = self._number
            left = pick.random() < 0.7
            key = f"k{pick.randrange(40)}" if left else pick.choice("abcde")
            value = None if pick.random() < 0.2 else f"{pick.choice('abcdef')}{number}"
            topic, rows = (self.left, self.rows[0]) if left else (self.right, self.rows[1])
            records.append((topic, key, value, NOW_MS + number))
            if not left:
                records.append((topic, key, "out of order", NOW_MS - number))
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        write(self.topics.bootstrap, records)

    def joined(self) -> Mapping[str, str]:
        rows, other = self.rows
        return {k: f"{v}+{other[v[0]]}" for k, v in rows.items() if v[0] in other}

    def run_until_right(self) -> None:
        with live(self.topology(), self.settings) as app:
            app.wait_running()
            bootstrap = self.topics.bootstrap
            app.wait(lambda: last_of(bootstrap, self.out) == self.joined(), what="the join")


@pytest.mark.parametrize("lost", [False, True])
def test_a_foreign_key_join_is_right_after_a_restart(
    topics: Topics, tmp_path: Path, lost: bool
) -> None:
    """Also with its local state restored from the changelogs, versions included."""
    tables = Tables(topics, tmp_path)
    tables.change(60)
    tables.run_until_right()
    if lost:
        shutil.rmtree(tmp_path / "state")
    tables.change(60)
    tables.run_until_right()
    assert tables.joined()


def test_the_topics_are_made_with_their_settings(topics: Topics, tmp_path: Path) -> None:
    """Trap 21."""
    tables = Tables(topics, tmp_path)
    tables.run_until_right()
    application = tables.settings["application.id"]
    counts = {
        name: topics.partitions(f"{application}-{name}")
        for name in ("fk-subscription-registration-topic", "fk-subscription-response-topic")
    }
    assert list(counts.values()) == [2, 3]
    config = config_of(topics.bootstrap, f"{application}-r-changelog")
    assert config["cleanup.policy"] == "compact"
    assert config["min.compaction.lag.ms"] == str(2 * 86_400_000)
    between = config_of(topics.bootstrap, f"{application}-fk-subscription-registration-topic")
    assert (between["cleanup.policy"], between["retention.ms"]) == ("delete", "-1")
