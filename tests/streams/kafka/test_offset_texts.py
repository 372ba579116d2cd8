"""What stands beside an offset is read as far as its form says, whatever follows in memory."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.admin.backfill_gate import BackfillNote
from headrace.streams.admin.reset import InputReset, committed_before
from headrace.streams.errors import ResetUnfinishedError
from headrace.streams.kafka.offset_texts import text_of
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.deployment import DeployedTopic, Deployment
from headrace.streams.plan.progress import RESET_MARK, OffsetMetadata
from headrace.streams.tasks.lost_offsets import LostOffsets
from headrace.streams.testing.memory_worker import EventLog

PLACE = TopicPartition("in", 0)
GARBAGE = [
    "\x7f",
    "=",
    "==",
    "AAAA",
    "AAAAAQAAAAF4AAAA",  # the beginning of a map
    "\x1f\x04 ;.",
    " ",
    '"}',
    "/////w",
]
longs = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(longs, st.dictionaries(names, longs, min_size=1, max_size=5), st.text())
def test_the_numbers_are_read_whatever_follows(
    time: int, values: dict[str, int], garbage: str
) -> None:
    progress = OffsetMetadata(time, values)
    assert OffsetMetadata.parse(progress.encode() + garbage) == progress


@pytest.mark.parametrize("garbage", GARBAGE)
def test_kafka_streams_text_without_a_map_is_read_whatever_follows(garbage: str) -> None:
    for magic in (1, 2):
        text = base64.b64encode(struct.pack(">bq", magic, 1_700_000_000_000)).decode()
        assert len(text) == 12
        assert OffsetMetadata.parse(text + garbage) == OffsetMetadata(1_700_000_000_000)


def test_the_bytes_are_those_of_kafka_streams() -> None:
    """A magic byte, the partition time, and a map of names to numbers, all big-endian."""
    data = struct.pack(">bq", 2, 5) + struct.pack(">ii1sq", 1, 1, b"x", -7)
    text = base64.b64encode(data).decode()
    assert OffsetMetadata(5, {"x": -7}).encode() == text
    assert OffsetMetadata.parse(text) == OffsetMetadata(5, {"x": -7})
    assert OffsetMetadata(5).encode() == base64.b64encode(struct.pack(">bq", 2, 5)).decode()


@pytest.mark.parametrize(
    "text", ["", "abc", "a note of somebody", "AAAA", "{}", "AwAAAYvP5WgA", "\x00" * 20]
)
def test_text_of_another_origin_is_known_as_such(text: str) -> None:
    assert OffsetMetadata.parse(text) is None
    assert OffsetMetadata.decode(text) == OffsetMetadata()


def test_a_length_that_goes_back_ends_at_once() -> None:
    head = struct.pack(">bq", 2, 5) + struct.pack(">ii", 2**31 - 1, -4)
    assert OffsetMetadata.parse(base64.b64encode(head).decode()) == OffsetMetadata(5)


@given(st.binary(min_size=1, max_size=60).filter(lambda b: 0 not in b))
def test_bytes_that_are_no_text_come_behind_it(garbage: bytes) -> None:
    """What confluent-kafka does with the bytes up to the next zero."""
    ours = OffsetMetadata(7, {"x": 1}).encode()

    class Position:
        @property
        def metadata(self) -> str:
            return (ours.encode() + garbage).decode()

    assert text_of(Position()).startswith(ours)
    assert OffsetMetadata.parse(text_of(Position())) == OffsetMetadata(7, {"x": 1})


@pytest.mark.parametrize("garbage", ["", *GARBAGE])
def test_our_other_texts_are_read_whatever_follows(garbage: str) -> None:
    note = BackfillNote("open", "bf-1", "0f3c", 0, 1, "eJx+/8==")
    assert BackfillNote.decode(note.encode() + garbage) == note
    deployment = Deployment(topics=(DeployedTopic("by-word-repartition", "string", "json"),))
    assert Deployment.decode(deployment.encode() + garbage) == deployment
    mark = InputReset(PLACE, 7, 3).mark
    assert committed_before(CommittedOffset(3, mark.metadata + garbage)) == 7
    with pytest.raises(ResetUnfinishedError):
        OffsetMetadata.decode(mark.metadata + garbage)
    assert mark.metadata.startswith(RESET_MARK)


def test_texts_of_older_versions_are_read() -> None:
    assert BackfillNote.decode("headrace.backfill open bf-1 0f3c 0/1 eJx") == BackfillNote(
        "open", "bf-1", "0f3c", 0, 1, "eJx"
    )
    deployment = Deployment(topics=(DeployedTopic("by-word-repartition", "string", "json"),))
    assert Deployment.decode(deployment.encode().removesuffix(".")) == deployment


@pytest.mark.parametrize("garbage", GARBAGE)
def test_an_open_backfill_of_an_older_version_stays_open(garbage: str) -> None:
    found = BackfillNote.decode(f"headrace.backfill open bf-1 0f3c 0/1 eJx{garbage}")
    assert found is not None
    assert found.is_open


def test_what_cannot_be_read_is_said_once_and_with_what_is_taken_instead() -> None:
    log = EventLog()
    lost = LostOffsets("app", {}, exactly_once=True, log=log)
    committed: Any = {
        PLACE: CommittedOffset(7, "\x7fnonsense"),
        TopicPartition("in", 1): CommittedOffset(7, OffsetMetadata(1).encode()),
        TopicPartition("in", 2): CommittedOffset(7),
        TopicPartition("in", 3): None,
    }
    lost.of(0, committed)
    lost.of(0, committed)
    (event,) = log.events
    assert (event["event"], event["level"]) == ("offset_metadata_unreadable", "error")
    assert (event["group"], event["topic"], event["partition"]) == ("app", "in", 0)
    assert event["taken"].startswith("offset 7, without the times")
