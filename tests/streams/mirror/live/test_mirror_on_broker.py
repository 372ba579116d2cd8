"""Mirrors between two real clusters: what is copied, and what is refused."""

from __future__ import annotations

from tests.support import kafka
from tests.support.kafka import Record
from tests.support.mirrors import Clusters, Writer
from tests.support.topics import Topics


def _bare(bootstrap: str, topic: str) -> list[list[tuple[object, ...]]]:
    """The records of each partition, without their offsets."""
    found: dict[int, list[Record]] = {}
    for record in kafka.read(bootstrap, topic):
        found.setdefault(record.partition, []).append(record)
    return [[(r.key, r.value, r.timestamp, r.headers) for r in found[p]] for p in sorted(found)]


def test_records_are_copied_as_they_are_and_aborted_ones_left_out(
    west: Topics, east: Topics, clusters: Clusters
) -> None:
    topic = west.create("orders", partitions=3, config={"cleanup.policy": "compact"})
    east._names.append(topic)
    writer = Writer(west.bootstrap, west.name("writer"))
    for begin in range(0, 3000, 100):
        numbers = [n for n in range(begin, begin + 100) if n % 7 != 6]
        writer.write(topic, numbers, partitions=3, commits=begin % 300 != 0)
    said = clusters.mirrored("--topics", topic, "--once", "--name", topic)
    there = _bare(west.bootstrap, topic)
    assert sum(map(len, there)) > 1500
    assert said == f"Mirrored: {sum(map(len, there))} records\n"
    assert _bare(east.bootstrap, topic) == there
    assert (
        clusters.mirrored("--topics", topic, "--once", "--name", topic) == "Mirrored: 0 records\n"
    )
    assert east.partitions(topic) == 3
