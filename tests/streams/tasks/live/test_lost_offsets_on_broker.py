"""Offsets of one of several inputs, on a real broker: deleted, and kept from expiring."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.streams.devbroker import DevBroker, cluster
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.tasks.lost_offsets import StateWithoutOffsetsError
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support import kafka, raw_offsets
from tests.support.live import Live, live, settings_of
from tests.support.processes import wait_until
from tests.support.topics import Topics


def merged(topics: Topics) -> tuple[Topology, str, str, str]:
    inputs = [topics.create(name) for name in ("in-a", "in-b")]
    out = topics.create("out")
    builder = StreamsBuilder()
    one, other = (builder.stream(t, key=serdes.string, value=serdes.string) for t in inputs)
    one.merge(other).group_by_key().count(store="n").to_stream().to(out)
    return builder.build(), *inputs, out


def last_count(topics: Topics, out: str) -> int:
    records = kafka.read(topics.bootstrap, out)
    return int.from_bytes(records[-1].value or b"", "big") if records else 0


def lead_last(a: str, b: str) -> tuple[str, str]:
    """The inputs: the one that is not subscribed to, and the one that is."""
    return (a, b) if a < b else (b, a)


def test_a_start_after_offsets_of_one_input_were_deleted_is_refused(
    topics: Topics, tmp_path: Path
) -> None:
    topology, a, b, out = merged(topics)
    settings = settings_of(topics, tmp_path)
    for topic in (a, b):
        kafka.write(topics.bootstrap, topic, [(b"k", b"v")] * 500)
    with live(topology, settings) as app:
        app.wait_processed(1000)
    place = TopicPartition(b, 0)
    group = settings["application.id"]
    wait_until(lambda: _deleted(topics.bootstrap, group, place), what="the offset is deleted")
    again = Live(topology, settings)
    error = again.failure()
    assert isinstance(error, StateWithoutOffsetsError)
    assert f"no committed offsets for {b}-0:" in str(error)
    assert again.processed == 0
    assert last_count(topics, out) == 1000
    # The way out that the message gives.
    raw_offsets.commit(topics.bootstrap, group, place, 500, b"")
    kafka.write(topics.bootstrap, b, [(b"k", b"v")])
    with live(topology, settings) as app:
        app.wait_processed(1)
    assert last_count(topics, out) == 1001


def _deleted(bootstrap: str, group: str, place: TopicPartition) -> bool:
    try:
        raw_offsets.delete(bootstrap, group, place)
    except AssertionError:  # the member is still leaving
        return False
    return raw_offsets.fetch(bootstrap, group, place)[0] == -1


def test_an_input_without_a_record_has_an_offset_soon(topics: Topics, tmp_path: Path) -> None:
    topology, a, b, _ = merged(topics)
    settings = settings_of(topics, tmp_path)
    with live(topology, settings) as app:
        for topic in (a, b):
            place = TopicPartition(topic, 0)
            app.wait(
                lambda place=place: (
                    raw_offsets.fetch(topics.bootstrap, settings["application.id"], place)[0] == 0
                ),
                what=f"an offset of {place}",
            )


@pytest.fixture
def forgetful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Topics]:
    """A broker that forgets offsets after the shortest time that there is."""
    short = "offsets.retention.minutes=1\noffsets.retention.check.interval.ms=1000\n"
    monkeypatch.setattr(cluster, "_COMMON", cluster._COMMON + short)
    with DevBroker(tmp_path / "broker", port=0) as broker:
        yield Topics(broker.start())


@pytest.mark.long
@pytest.mark.slow
def test_a_quiet_input_keeps_its_offset_at_a_broker_that_forgets(
    forgetful: Topics, tmp_path: Path
) -> None:
    """A worker that is killed after that counts nothing twice."""
    topology, a, b, out = merged(forgetful)
    settings = settings_of(forgetful, tmp_path)
    quiet, lead = lead_last(a, b)
    for topic in (a, b):
        kafka.write(forgetful.bootstrap, topic, [(b"k", b"v")] * 50)
    with capture_logs() as logs, live(topology, settings) as app:
        app.wait_processed(100)
        end_s = time.monotonic() + 75
        while time.monotonic() < end_s:
            app.wait(lambda: True)
            time.sleep(0.5)
        group = settings["application.id"]
        place = TopicPartition(quiet, 0)
        assert raw_offsets.fetch(forgetful.bootstrap, group, place)[0] >= 50
        kafka.write(forgetful.bootstrap, lead, [(b"k", b"v")])
        app.wait(lambda: last_count(forgetful, out) == 101, what="the last count")
    short: list[Any] = [log for log in logs if log["event"] == "offsets_retention_short"]
    assert [(log["minutes"], log["committed_again_every_s"]) for log in short] == [(1, 15.0)]
