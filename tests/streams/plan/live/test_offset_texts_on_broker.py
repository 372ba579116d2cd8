"""Offsets that a Java client committed: their metadata ends without a zero byte."""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.streams.kafka.consumer import LiveConsumer
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.group_offsets import MemberlessGroup
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.progress import MAX_BYTES, OffsetMetadata
from headrace.topology import StreamsBuilder, serdes
from tests.support import kafka, raw_offsets
from tests.support.live import live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.topics import Topics

TIME_MS = 1_700_000_000_000
WITHOUT = base64.b64encode(struct.pack(">bq", 2, TIME_MS))
"""As `TopicPartitionMetadata.encode` of Kafka Streams writes it, without a map and with one."""
WITH = OffsetMetadata(TIME_MS, {"java.number": 5}).encode().encode()
OLD = base64.b64encode(struct.pack(">bq", 1, TIME_MS))
WANTED = {WITHOUT: OffsetMetadata(TIME_MS), WITH: OffsetMetadata(TIME_MS, {"java.number": 5})}
WANTED |= {OLD: OffsetMetadata(TIME_MS), b"": None}
PARTITIONS, ROUNDS = 24, 20

Read = Callable[[], Mapping[TopicPartition, CommittedOffset | None]]


def readers(bootstrap: str, group: str, places: list[TopicPartition]) -> dict[str, Read]:
    settings = {"bootstrap.servers": bootstrap}
    consumer = LiveConsumer(
        {**settings, "group.id": group, "enable.auto.commit": False}, timeout_s=PATIENCE_S
    )
    outside = MemberlessGroup(settings, timeout_s=PATIENCE_S, stopping=lambda: False)
    admin = GroupAdmin(settings, timeout_s=PATIENCE_S)
    return {
        "member": lambda: consumer.committed(places, 10) or {},
        "outside": lambda: outside.committed_at(group, places),
        "admin": lambda: admin.committed(group, decided=True),
    }


def test_other_memory_is_never_read_as_part_of_it(topics: Topics) -> None:
    """Before, most of these rounds read something else behind it, or ended in an error."""
    topic, group = topics.create("in", partitions=PARTITIONS), topics.name("group")
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    texts = {place: list(WANTED)[place.partition % len(WANTED)] for place in places}
    for place, text in texts.items():
        raw_offsets.commit(topics.bootstrap, group, place, 7, text)
    random_bytes = random.Random(1)
    for name, read in readers(topics.bootstrap, group, places).items():
        for _ in range(ROUNDS):
            # Memory that was used before, so that what follows is not zero by chance.
            for _ in range(500):
                random_bytes.randbytes(random_bytes.randrange(8, 80))
            found = read()
            assert found.keys() == set(places), name
            for place, offset in found.items():
                assert offset is not None
                assert offset.offset == 7
                assert OffsetMetadata.parse(offset.metadata) == WANTED[texts[place]], (name, offset)


def test_an_application_goes_on_from_offsets_of_kafka_streams(
    topics: Topics, tmp_path: Path
) -> None:
    source, out = topics.create("in", partitions=8), topics.create("out")
    settings = settings_of(topics, tmp_path)
    group = settings["application.id"]
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string, value=serdes.string).to(out)
    kafka.write(topics.bootstrap, source, [(b"%d" % i, b"v") for i in range(200)])
    for partition in range(8):
        place = TopicPartition(source, partition)
        raw_offsets.commit(topics.bootstrap, group, place, 0, (WITHOUT, WITH)[partition % 2])
    with capture_logs() as logs, live(builder.build(), settings) as app:
        app.wait_processed(200)
    assert not [log for log in logs if log["event"] == "offset_metadata_unreadable"]
    for partition in range(8):
        _, text = raw_offsets.fetch(topics.bootstrap, group, TopicPartition(source, partition))
        progress = OffsetMetadata.decode(text.decode())
        assert progress.partition_time >= TIME_MS
        assert ("java.number" in progress.values) == bool(partition % 2)


@pytest.mark.parametrize("more", [0, 1])
def test_a_text_may_be_as_long_as_is_said(topics: Topics, more: int) -> None:
    """The client puts a zero byte behind it, which counts."""
    topic, group = topics.create("in"), topics.name("group")
    settings = {"bootstrap.servers": topics.bootstrap}
    outside = MemberlessGroup(settings, timeout_s=PATIENCE_S, stopping=lambda: False)
    place = TopicPartition(topic, 0)
    text = "x" * (MAX_BYTES + more)
    if more:
        with pytest.raises(Exception, match=r"(?i)metadata"):
            outside.set_offsets(group, {place: CommittedOffset(1, text)})
    else:
        outside.set_offsets(group, {place: CommittedOffset(1, text)})
        assert raw_offsets.fetch(topics.bootstrap, group, place) == (1, text.encode() + b"\0")
