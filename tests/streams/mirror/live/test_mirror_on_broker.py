"""Mirrors between two real clusters: what is copied, and what is refused."""

from __future__ import annotations

import random
import signal
import subprocess
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from headrace.streams.kafka.protocols import NewTopic, TopicPartition
from headrace.streams.kafka.topic_reader import TopicReader
from headrace.streams.mirror.cluster import MirrorCluster
from headrace.streams.mirror.mirror import Mirror, config_of, sides
from headrace.streams.mirror.move import Mover
from tests.support import kafka
from tests.support.kafka import Record
from tests.support.mirrors import Clusters, Writer
from tests.support.patience import PATIENCE_S
from tests.support.processes import ROOT, full_pipe, wait_until
from tests.support.quotas import produce_quota
from tests.support.raw_records import write_raw
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
    east.own(topic)
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


def test_a_log_that_nobody_reads_does_not_hold_it_up(
    west: Topics, east: Topics, clusters: Clusters
) -> None:
    topic = west.create("orders")
    east.own(topic)
    with (
        full_pipe() as pipe,
        subprocess.Popen(
            clusters.command("--topics", topic, "--name", topic), cwd=ROOT, stderr=pipe
        ) as process,
    ):
        try:
            for begin in range(0, 300, 100):
                kafka.write(west.bootstrap, topic, ((b"k", b"%d" % n) for n in range(100)))
                wait_until(
                    lambda most=begin + 100: len(kafka.read(east.bootstrap, topic)) == most,  # type: ignore[misc]
                    what="copied records",
                )
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def test_settings_partitions_and_topics_that_come_later(
    west: Topics, east: Topics, clusters: Clusters
) -> None:
    begin = east.own(west.name("orders"))
    first = west.create_named(
        f"{begin}-1",
        partitions=2,
        config={"cleanup.policy": "compact,delete", "segment.ms": "777000"},
    )
    kafka.write(west.bootstrap, first, [(b"%d" % n, b"v") for n in range(50)])
    with clusters.running("--topics", f"{begin}-*", "--name", begin) as process:
        wait_until(
            lambda: (
                east.partitions(first) == 2
                and _bare(east.bootstrap, first) == _bare(west.bootstrap, first)
            ),
            what="the first topic",
        )
        second = west.create_named(f"{begin}-2")
        kafka.write(west.bootstrap, second, [(None, b"%d" % n) for n in range(20)])
        admin = AdminClient({"bootstrap.servers": west.bootstrap})
        admin.create_partitions([NewPartitions(first, 5)])[first].result(PATIENCE_S)
        wait_until(lambda: east.partitions(first) == 5, what="more partitions")
        kafka.write(west.bootstrap, first, [(b"%d" % n, b"w") for n in range(50)])

        def equal() -> bool:
            return all(
                _bare(east.bootstrap, topic) == _bare(west.bootstrap, topic)
                for topic in (first, second)
                if east.partitions(topic)
            )

        wait_until(lambda: east.partitions(second) == 1 and equal(), what="all is copied")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    cluster = MirrorCluster({"bootstrap.servers": east.bootstrap}, timeout_s=PATIENCE_S)
    configs = cluster.own_configs(first)
    assert configs["segment.ms"] == "777000"
    assert set(configs["cleanup.policy"].split(",")) == {"compact", "delete"}
    assert configs["retention.ms"] == "-1"


def test_a_second_mirror_of_a_name_ends_the_first_though_nothing_comes(
    west: Topics, east: Topics, clusters: Clusters
) -> None:
    topic = west.create("orders")
    east.own(topic)
    words = ("--topics", topic, "--name", topic)
    with clusters.running(*words) as first:
        wait_until(lambda: "partition_copies_started" in clusters.log(), what="the first one")
        with clusters.running(*words):
            assert first.wait(PATIENCE_S) == 6
            assert f"another mirror with the name {topic} has started" in clusters.log()


def test_a_setting_that_the_target_does_not_take_is_left_out_and_said(east: Topics) -> None:
    name = east.name("made")
    cluster = MirrorCluster({"bootstrap.servers": east.bootstrap}, timeout_s=PATIENCE_S)
    config = {"cleanup.policy": "compact", "no.such.setting": "5"}
    refused = cluster.create_fitting(NewTopic(name, 1, -1, config, "", changelog=False))
    assert list(refused) == ["no.such.setting"]
    wait_until(lambda: east.partitions(name) == 1, what="it is made without")
    assert cluster.own_configs(name) == {"cleanup.policy": "compact"}


def test_a_group_is_moved_from_wherever_it_stands_and_back(
    west: Topics, east: Topics, clusters: Clusters
) -> None:
    """The next record there is the next one here: at records, at markers, at aborted records."""
    topic, group = west.create("orders", partitions=2), west.name("readers")
    east.own(topic)
    words = ("--name", topic)
    writer = Writer(west.bootstrap, west.name("writer"))
    for begin in range(0, 60, 6):
        writer.write(topic, range(begin, begin + 6), partitions=2, commits=begin % 18 != 12)
        if begin == 30:
            clusters.mirrored("--topics", topic, "--once", *words)
    clusters.mirrored("--topics", topic, "--once", *words)
    there, here = kafka.read(west.bootstrap, topic), kafka.read(east.bootstrap, topic)
    ends = kafka.ends(west.bootstrap, topic)
    mover, back = _mover(west, east, topic), _mover(west, east, topic, back=True)
    for offset in range(0, max(ends.values()) + 1, 7):
        at_west = {p: min(offset + 2 * p, end) for p, end in ends.items()}
        kafka.set_committed(west.bootstrap, group, topic, at_west)
        mover.carry_out(mover.plan(group))
        assert _left(here, kafka.committed(east.bootstrap, group, topic)) == _left(there, at_west)
        back.carry_out(back.plan(group))
        assert _left(there, kafka.committed(west.bootstrap, group, topic)) == _left(there, at_west)


def test_a_group_is_moved_as_the_mirror_has_noted_it(
    west: Topics, east: Topics, clusters: Clusters, tmp_path: Path
) -> None:
    topic, group = west.create("orders"), west.name("readers")
    east.own(topic)
    words = ("--name", topic)
    kafka.write(west.bootstrap, topic, [(None, b"%d" % n) for n in range(10)])
    kafka.set_committed(west.bootstrap, group, topic, {0: 7})
    with clusters.running("--topics", topic, "--groups", group, *words) as process:
        (tmp_path / "gone").mkdir()
        gone = Clusters(tmp_path / "gone", {"west": "localhost:1", "east": east.bootstrap})

        def is_noted() -> bool:
            done = gone.run("offsets", group, "--last-known", "--dry-run", *words)
            return f"{topic}-0 7 -> {topic}-0 7" in done.stdout

        assert gone.run("offsets", group, *words).returncode == 9
        wait_until(is_noted, what="the group is noted")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert "not copied" not in gone.mirrored("offsets", group, "--last-known", "--yes", *words)
    assert kafka.committed(east.bootstrap, group, topic) == {0: 7}


def _mover(west: Topics, east: Topics, name: str, *, back: bool = False) -> Mover:
    configs = [config_of(name, {"bootstrap.servers": t.bootstrap}) for t in (west, east)]
    both = sides((configs[0], configs[1]), ("west", "east"), timeout_s=PATIENCE_S)
    return Mover(name, *both, source_name="west", back=back)


def _left(records: list[Record], begins: dict[int, int]) -> list[bytes | None]:
    left = [r for r in records if r.offset >= begins[r.partition]]
    return [r.value for r in sorted(left, key=lambda r: (r.partition, r.offset))]


def test_a_group_that_is_ahead_or_at_work_is_not_moved(
    west: Topics, east: Topics, clusters: Clusters
) -> None:
    topic, group = west.create("orders"), west.name("readers")
    east.own(topic)
    words = ("--name", topic)
    kafka.write(west.bootstrap, topic, [(None, b"%d" % n) for n in range(10)])
    clusters.mirrored("--topics", topic, "--once", *words)
    kafka.write(west.bootstrap, topic, [(None, b"%d" % n) for n in range(5)])
    kafka.set_committed(west.bootstrap, group, topic, {0: 13})
    done = clusters.run("offsets", group, "--yes", *words)
    assert done.returncode == 1
    assert "offset 13, which is 3 offsets more than are copied" in done.stderr
    clusters.mirrored("--topics", topic, "--once", *words)
    shown = clusters.mirrored("offsets", group, "--dry-run", *words)
    assert f"{topic}-0 13 -> {topic}-0 " in shown
    assert kafka.committed(east.bootstrap, group, topic) == {}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": east.bootstrap, "group.id": group})
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), what="joined")
    done = clusters.run("offsets", group, "--yes", *words)
    consumer.close()
    assert done.returncode == 1
    assert f"the group {group} of east has the members" in done.stderr
    assert "moved" not in done.stdout
    unknown = clusters.run("offsets", west.name("nobody"), *words)
    assert "has no offsets of topics that mirror" in unknown.stderr


def test_names_of_headers_are_copied_byte_for_byte(
    west: Topics, east: Topics, clusters: Clusters
) -> None:
    topic = west.create("orders")
    east.own(topic)
    given = [
        [(b"a", b"1"), (b"gr\xf6\xdfe", b"2"), (b"\xff\xfe", None)],
        [(b"\x80%d" % n, b"v") for n in range(1000)],
        [],
        [("größe".encode(), b"3"), (b"\xfelarge", bytes(500_000))],
    ]
    for headers in given:
        write_raw(west.bootstrap, topic, headers)
    said = clusters.mirrored("--topics", topic, "--once", "--name", topic)
    assert said == f"Mirrored: {len(given)} records\n"
    reader = TopicReader({"bootstrap.servers": east.bootstrap, "group.id": topic})
    place = TopicPartition(topic, 0)
    # The mirror's transaction ends with a marker.
    found = list(reader.read({place: 0}, {place: len(given)}))
    reader.close()
    names = [
        [(name.encode(errors="surrogateescape"), value) for name, value in record.headers() or ()]
        for record in found
    ]
    assert names == given


@pytest.mark.slow
def test_a_mirror_goes_on_under_a_quota(west: Topics, east: Topics) -> None:
    """Records of more than a transaction can take in its time, each of them once."""
    topic, count = west.create("orders", partitions=2), 3_000
    east.own(topic)
    body = random.Random(5).randbytes(5_000)
    kafka.write(west.bootstrap, topic, ((b"%d" % n, body) for n in range(count)))
    mirror = Mirror(
        name=topic,
        source={"bootstrap.servers": west.bootstrap},
        target={"bootstrap.servers": east.bootstrap, "producer.compression.type": "none"},
        topics=[topic],
    )
    with produce_quota(east.bootstrap, f"mirror.{topic}-producer", 500_000):
        assert mirror.run(once=True) == count
    assert _bare(east.bootstrap, topic) == _bare(west.bootstrap, topic)
