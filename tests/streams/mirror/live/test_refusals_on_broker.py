"""What ends a mirror: each with a message that says what, where and what to do."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from structlog.testing import capture_logs

from headrace.streams.devbroker import DevBroker
from headrace.streams.errors import (
    ConfigError,
    MisconfiguredTopicError,
    MissingTopicError,
    RecordError,
)
from headrace.streams.kafka.acls import AccessError, Right
from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.mirror.mirror import Mirror
from headrace.streams.mirror.names import MirroredTopicReplacedError, RecordsLostError
from tests.support import kafka
from tests.support.mirrors import Clusters
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.topics import Topics

Make = Callable[..., Mirror]


@pytest.fixture
def make(west: Topics, east: Topics) -> Make:
    """Makes mirrors from west to east of one name."""
    name = west.name("m")

    def made(*topics: str, **more: Any) -> Mirror:
        for topic in topics:
            east.own(topic)
        return Mirror(
            **{
                "name": name,
                "source": {"bootstrap.servers": west.bootstrap},
                "target": {"bootstrap.servers": east.bootstrap},
                "topics": topics,
                "source_name": "west",
                "target_name": "east",
                **more,
            }
        )

    return made


def _rows(*numbers: int) -> list[tuple[bytes | None, bytes | None]]:
    return [(None, b"%d" % n) for n in numbers]


def _values(bootstrap: str, topic: str) -> list[int]:
    return [int(record.value or b"") for record in kafka.read(bootstrap, topic)]


def test_one_cluster_twice(west: Topics, make: Make, tmp_path: Path) -> None:
    topic = west.create()
    same = {"bootstrap.servers": west.bootstrap.replace("localhost", "127.0.0.1")}
    with pytest.raises(ConfigError, match="are the same cluster"):
        make(topic, target=same).run(once=True)
    clusters = Clusters(tmp_path, {"west": west.bootstrap, "east": west.bootstrap})
    done = clusters.run("--topics", topic)
    assert done.returncode == 3
    assert "are the same cluster" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_topic_that_the_source_lacks_and_one_that_is_meant(west: Topics, make: Make) -> None:
    topic = west.create("orders")
    with pytest.raises(MissingTopicError, match=rf"no topic {topic}s \(did you mean {topic}\?\)"):
        make(f"{topic}s").run(once=True)


def test_a_target_with_fewer_partitions(west: Topics, east: Topics, make: Make) -> None:
    topic = west.create(partitions=3)
    east.create_named(topic, partitions=2)
    with pytest.raises(
        MisconfiguredTopicError, match=rf"{topic} of east has 2 partitions, and .* 3"
    ):
        make(topic).run(once=True)


def test_a_target_that_gives_records_times_of_its_own(
    west: Topics, east: Topics, make: Make
) -> None:
    topic = west.create(config={"message.timestamp.type": "LogAppendTime"})
    east.create_named(topic, config={"message.timestamp.type": "LogAppendTime"})
    kafka.write(west.bootstrap, topic, _rows(1))
    with pytest.raises(MisconfiguredTopicError, match=f"{topic} of east has message.timestamp.typ"):
        make(topic).run(once=True)
    copy = east.own(f"west.{topic}")
    make(topic, rename="{cluster}.{topic}").run(once=True)
    (there,), (here,) = kafka.read(west.bootstrap, topic), kafka.read(east.bootstrap, copy)
    assert here.timestamp == there.timestamp


def test_a_target_with_records_of_others_before_and_after(
    west: Topics, east: Topics, make: Make
) -> None:
    topic, other = west.create(), west.create()
    kafka.write(west.bootstrap, topic, _rows(1, 2))
    kafka.write(west.bootstrap, other, _rows(1, 2))
    east.create_named(topic)
    kafka.write(east.bootstrap, topic, _rows(7))
    with pytest.raises(MisconfiguredTopicError, match=f"{topic} of east has records that mirror"):
        make(topic).run(once=True)
    assert make(other).run(once=True) == 2
    kafka.write(east.bootstrap, other, _rows(7))
    kafka.write(west.bootstrap, other, _rows(3))
    with pytest.raises(MisconfiguredTopicError, match=f"{other}-0 of east has a record at or near"):
        make(other).run(once=True)
    assert _values(east.bootstrap, other) == [1, 2, 7]


def test_a_target_into_which_another_one_writes_meanwhile(
    west: Topics, east: Topics, make: Make
) -> None:
    """What stands elsewhere than it should is void; what others wrote is read, and said."""
    topic = west.create()
    kafka.write(west.bootstrap, topic, _rows(1, 2))
    stop = threading.Event()
    with capture_logs() as logs, ThreadPoolExecutor() as beside:
        ended = beside.submit(make(topic).run, stop=stop)
        try:
            wait_until(lambda: _values(east.bootstrap, topic) == [1, 2], what="copied")
            kafka.write(east.bootstrap, topic, _rows(7))
            kafka.write(west.bootstrap, topic, _rows(3))
            with pytest.raises(MisconfiguredTopicError, match="has a record at or near offset"):
                ended.result(PATIENCE_S)
        finally:
            stop.set()
    (again,) = [entry for entry in logs if entry["event"] == "mirror_restarted"]
    assert "of a transaction with 1 records from offset 3 on" in again["reason"]
    assert _values(east.bootstrap, topic) == [1, 2, 7]


def test_a_record_that_the_target_does_not_take_and_going_on_at_it(
    west: Topics, east: Topics, make: Make
) -> None:
    topic = west.create()
    east.create_named(topic, config={"max.message.bytes": "3000"})
    large = (b"k", os.urandom(5000))
    kafka.write(west.bootstrap, topic, [*_rows(0, 1, 2), large, *_rows(4)])
    with pytest.raises(RecordError) as caught:
        make(topic).run(once=True)
    said = str(caught.value)
    assert (caught.value.partition, caught.value.offset) == (0, 3)
    assert "a record of 5001 bytes is larger than" in said
    assert f"({topic}-0 offset 3)" in said
    assert f"headrace topics set {topic} max.message.bytes=" in said
    assert kafka.read(east.bootstrap, topic) == []
    cluster = LiveAdmin({"bootstrap.servers": east.bootstrap}, timeout_s=PATIENCE_S)
    cluster.alter_config(topic, {"max.message.bytes": "9000"})
    assert make(topic).run(once=True) == 5
    there, here = kafka.read(west.bootstrap, topic), kafka.read(east.bootstrap, topic)
    assert [(r.key, r.value) for r in here] == [(r.key, r.value) for r in there]


def test_a_limit_that_is_lowered_while_it_copies_is_reported_as_it_is_now(
    west: Topics, east: Topics, make: Make
) -> None:
    topic = west.create()
    east.create_named(topic, config={"max.message.bytes": "90000"})
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(make(topic).run, stop=stop)
        try:
            kafka.write(west.bootstrap, topic, _rows(0))
            wait_until(lambda: len(kafka.read(east.bootstrap, topic)) == 1)
            cluster = LiveAdmin({"bootstrap.servers": east.bootstrap}, timeout_s=PATIENCE_S)
            cluster.alter_config(topic, {"max.message.bytes": "3000"})
            kafka.write(west.bootstrap, topic, [(b"k", os.urandom(5000))])
            with pytest.raises(RecordError, match=r"max.message.bytes=3000"):
                run.result(PATIENCE_S)
        finally:
            stop.set()


def test_records_that_the_source_deleted_before_they_were_copied(
    west: Topics, east: Topics, make: Make
) -> None:
    topic = west.create()
    kafka.write(west.bootstrap, topic, _rows(*range(10)))
    assert make(topic).run(once=True) == 10
    kafka.write(west.bootstrap, topic, _rows(*range(10, 30)))
    place = confluent_kafka.TopicPartition(topic, 0, 25)
    admin = AdminClient({"bootstrap.servers": west.bootstrap})
    admin.delete_records([place])[place].result(PATIENCE_S)
    with pytest.raises(
        RecordsLostError, match=r"begins at offset 25, .* to copy is 10: 15 offsets"
    ):
        make(topic).run(once=True)
    assert make(topic, skip_lost=True).run(once=True) == 5
    assert _values(east.bootstrap, topic) == [*range(10), *range(25, 30)]
    assert make(topic).run(once=True) == 0


def test_a_topic_that_was_made_anew_on_either_side(west: Topics, east: Topics, make: Make) -> None:
    topic, other = west.create(), west.create()
    for name in (topic, other):
        kafka.write(west.bootstrap, name, _rows(1))
    assert make(topic, other).run(once=True) == 2
    _delete(west.bootstrap, topic)
    west.create_named(topic)
    with pytest.raises(MirroredTopicReplacedError, match=f"topic {topic} of west was deleted and"):
        make(topic).run(once=True)
    _delete(east.bootstrap, other)
    with pytest.raises(MissingTopicError, match=f"topic {other} of east was deleted after mirror"):
        make(other).run(once=True)
    east.create_named(other)
    with pytest.raises(MirroredTopicReplacedError, match=f"topic {other} of east was deleted and"):
        make(other).run(once=True)


def test_records_do_not_go_round(west: Topics, east: Topics, make: Make) -> None:
    topic = west.create("orders")
    copy = east.own(f"west.{topic}")
    kafka.write(west.bootstrap, topic, _rows(1, 2))
    assert make(topic, rename="{cluster}.{topic}").run(once=True) == 2
    name = west.own(f"mirror.{west.name('back')}").removeprefix("mirror.")
    back = {
        "name": name,
        "source": {"bootstrap.servers": east.bootstrap},
        "target": {"bootstrap.servers": west.bootstrap},
        "source_name": "east",
        "target_name": "west",
        "rename": "{cluster}.{topic}",
    }
    with pytest.raises(ConfigError, match=f"topic {copy} of east is a copy of a topic of west"):
        make(copy, **back).run(once=True)
    # The same with names that say nothing: what counts is where records come from.
    with pytest.raises(ConfigError, match=f"topic {copy} of east is a copy of a topic of west"):
        make(copy, **back | {"rename": "again-{topic}"}).run(once=True)
    pattern = f"*{topic.removeprefix('orders')}"
    with pytest.raises(ConfigError, match=f"topic {copy} of east is a copy of a topic of west"):
        make(pattern, **back).run(once=True)
    own = east.create_named(topic)
    kafka.write(east.bootstrap, own, _rows(8))
    with capture_logs() as logs:
        assert make(pattern, **back).run(once=True) == 1
    (left_out,) = (one for one in logs if one["event"] == "topics_excluded")
    assert (left_out["log_level"], left_out["topics"]) == ("warning", [copy])
    assert "copies of topics of west" in left_out["reason"]
    assert _values(west.bootstrap, west.own(f"east.{topic}")) == [8]
    assert west.partitions(f"east.west.{topic}") == 0
    assert make(topic, rename="{cluster}.{topic}").run(once=True) == 0


def test_a_pattern_that_matches_nothing_is_an_error_where_nothing_more_is_waited_for(
    west: Topics, make: Make
) -> None:
    pattern = f"{west.name('none')}*"
    with pytest.raises(ConfigError, match=r"no topic of west matches .*none.*Correct --topics, or"):
        make(pattern).run(once=True)


def test_another_name_at_the_target_than_before(west: Topics, make: Make) -> None:
    topic = west.create()
    make(topic).run(once=True)
    with pytest.raises(ConfigError, match=f"copied {topic} as {topic}, and --rename makes it b-"):
        make(topic, rename="b-{topic}").run(once=True)


def test_a_right_that_is_missing(
    secured: DevBroker, east: Topics, make: Make, tmp_path: Path
) -> None:
    user, topic = f"u{secrets.token_hex(4)}", f"secret-{secrets.token_hex(4)}"
    admin = AdminClient({**secured.settings(), "log_level": 2})
    new = NewTopic(topic, 1, config={"retention.ms": "-1"})
    admin.create_topics([new])[topic].result(PATIENCE_S)
    secured.grant(
        user,
        [
            Right("Describe", "topic", topic),
            Right("DescribeConfigs", "topic", topic),
            Right("Read", "group", f"mirror.{topic}"),
        ],
    )
    east.own(topic)
    clusters = Clusters(tmp_path, {"east": east.bootstrap})
    secured.settings_file(user).rename(tmp_path / "west.toml")
    producer = confluent_kafka.Producer(secured.settings())
    producer.produce(topic, b"5")
    assert producer.flush(PATIENCE_S) == 0
    done = clusters.run("--topics", topic, "--once", "--name", topic)
    assert done.returncode == 13, done.stderr
    assert f"User:{user} lacks the right Read on the topic {topic}" in done.stderr
    secured.grant(user, [Right("Read", "topic", topic)])
    done = clusters.run("--topics", topic, "--once", "--name", topic)
    assert done.stdout == "Mirrored: 1 record\n", done.stderr
    wrong = {**secured.settings(user), "sasl.password": "wrong"}
    with pytest.raises(AccessError, match=r"rejects "):
        make(topic, source=wrong).run(once=True)


def _delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
