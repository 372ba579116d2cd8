"""Where Kafka goes on behind an archive, on a real broker; what archives have is said, not read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import confluent_kafka
import pytest

from headrace.spark_bridge.errors import CannotBackfillError, HistoryGapError
from headrace.spark_bridge.history.archive_checks import (
    EVERYWHERE,
    ArchiveStatistics,
    ArchiveSummary,
    check_cutover,
    cuts_of,
)
from headrace.spark_bridge.read import consumer_opener, read_range
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.metrics.snapshots import moment
from tests.support import kafka
from tests.support.processes import wait_until
from tests.support.topics import Topics

START_MS = 1_700_000_000_000
RECORDS = 20
"""One a second."""


class Topic:
    """A topic of one partition, and what is asked of it."""

    def __init__(self, topics: Topics) -> None:
        self.bootstrap = topics.bootstrap
        self.name = topics.create("archived")
        self.place = TopicPartition(self.name, 0)
        config = StreamsConfig.parse(
            {"application.id": "a", "bootstrap.servers": self.bootstrap, "task.timeout.ms": 20_000}
        )
        self._admin = LiveAdmin(config.admin_config(), timeout_s=20)
        self._read = partial(read_range, consumer_opener(config), timeout_s=20)

    def write(self, numbers: Iterable[int], *, abort: bool | None = None) -> None:
        """Write a record for each second, in a transaction if `abort` says how it ends."""
        settings: dict[str, Any] = {"bootstrap.servers": self.bootstrap}
        if abort is not None:
            settings["transactional.id"] = f"{self.name}-writer"
        producer = confluent_kafka.Producer(settings)
        if abort is not None:
            producer.init_transactions(30)
            producer.begin_transaction()
        for n in numbers:
            producer.produce(self.name, b"v", b"k", partition=0, timestamp=time_of(n))
        assert producer.flush(30) == 0
        if abort is not None:
            (producer.abort_transaction if abort else producer.commit_transaction)(30)

    def forget(self, before: int) -> None:
        admin = GroupAdmin({"bootstrap.servers": self.bootstrap}, timeout_s=30)
        admin.delete_records({self.place: before})

    def cut(self, summary: ArchiveSummary, cutover: Any = None) -> int:
        if isinstance(cutover, int):
            cutover = {self.place: cutover}
        check_cutover(cutover, [self.place])
        return cuts_of(summary, 1, self._admin, self._read, cutover)[self.place]

    def with_offsets(self, first: int, last: int) -> ArchiveSummary:
        """An archive of the records between two."""
        rows = last - first + 1
        part = ArchiveStatistics(0, rows, 0, 0, first, last, time_of(first), time_of(last))
        return ArchiveSummary(self.name, True, {0: part})

    def without(self, first: int, last: int, *, partition: int = EVERYWHERE) -> ArchiveSummary:
        """The same, if it does not know its offsets."""
        rows = last - first + 1
        part = ArchiveStatistics(partition, rows, 0, 0, None, None, time_of(first), time_of(last))
        return ArchiveSummary(self.name, False, {partition: part})

    def nothing(self, *, offsets: bool) -> ArchiveSummary:
        return ArchiveSummary(self.name, offsets, {})


def time_of(number: int) -> int:
    return START_MS + 1000 * number


def at(number: int) -> datetime:
    """The time of a record."""
    return datetime.fromtimestamp(time_of(number) / 1000, UTC)


@pytest.fixture
def topic(topics: Topics) -> Topic:
    found = Topic(topics)
    found.write(range(RECORDS))
    return found


def test_a_time_is_where_kafka_goes_on_behind_all_that_is_before_it(topic: Topic) -> None:
    assert topic.cut(topic.without(0, 9), at(10)) == 10
    assert topic.cut(topic.without(0, 9, partition=0), at(10)) == 10
    assert topic.cut(topic.without(0, 19), at(RECORDS)) == RECORDS
    topic.forget(5)
    assert topic.cut(topic.without(0, 9), at(10)) == 10
    assert topic.cut(topic.with_offsets(0, 12), at(10)) == 10


def test_a_time_from_which_kafka_may_have_deleted_records_is_refused(topic: Topic) -> None:
    """The first record that is left says nothing of those before it."""
    topic.forget(15)
    with pytest.raises(HistoryGapError, match=r"from offset 15.*Give cutover= as offsets"):
        topic.cut(topic.without(0, 9), at(10))
    with pytest.raises(HistoryGapError, match=r"ends before offset 10, .* starts at offset 15"):
        topic.cut(topic.with_offsets(0, 9), at(10))
    # With offsets it can be known.
    assert topic.cut(topic.with_offsets(0, 14), at(15)) == 15
    topic.forget(RECORDS)
    with pytest.raises(HistoryGapError, match=f"from offset {RECORDS},"):
        topic.cut(topic.without(0, 9), at(10))


def test_a_record_that_would_count_twice_is_refused(topic: Topic) -> None:
    with pytest.raises(CannotBackfillError, match=f"count twice .*up to {moment(time_of(10))},"):
        topic.cut(topic.without(0, 10), at(10))


@pytest.mark.parametrize("cutover", [15, at(15)])
def test_a_record_that_would_be_in_neither_is_refused(topic: Topic, cutover: Any) -> None:
    with pytest.raises(HistoryGapError, match="such as offset 10,"):
        topic.cut(topic.with_offsets(0, 9), cutover)
    with pytest.raises(HistoryGapError, match="such as offset 0,"):
        topic.cut(topic.nothing(offsets=True), cutover)
    for summary, offset in (
        (topic.without(0, 9), 10),
        (topic.without(0, 9, partition=0), 10),
        (topic.nothing(offsets=False), 0),
    ):
        with pytest.raises(HistoryGapError, match=f"newer than the archive .*, offset {offset},"):
            topic.cut(summary, cutover)


def test_what_kafka_has_before_an_archive_is_missed(topic: Topic) -> None:
    with pytest.raises(HistoryGapError, match=r"such as offset 0, archive from 5\b"):
        topic.cut(topic.with_offsets(5, 9))
    topic.forget(5)
    assert topic.cut(topic.with_offsets(5, 9)) == 10


def test_offsets_that_are_no_records_are_not_missed(topic: Topic) -> None:
    """Those of aborted records and of markers lie in no archive."""
    topic.write(range(RECORDS, RECORDS + 3), abort=True)
    behind = RECORDS + 4
    # The marker is written after the client has its answer.
    wait_until(
        lambda: kafka.ends(topic.bootstrap, topic.name) == {0: behind}, what="the abort's marker"
    )
    assert topic.cut(topic.with_offsets(0, 19), behind) == behind
    assert topic.cut(topic.without(0, 19), behind) == behind
    topic.write([RECORDS + 5], abort=False)
    topic.forget(RECORDS)
    assert topic.cut(topic.with_offsets(behind, behind)) == behind + 1
    with pytest.raises(HistoryGapError, match=f"such as offset {behind},"):
        topic.cut(topic.with_offsets(0, 19), behind + 2)


@pytest.mark.parametrize("cutover", ["latest", 7.5, "2026-01-01T00:00:00Z"])
def test_what_is_no_place_is_refused(cutover: Any) -> None:
    with pytest.raises(CannotBackfillError, match=r"cutover=.* Give a time .* or offsets"):
        check_cutover(cutover, [TopicPartition("lines", 0)])


def test_a_place_without_an_archive_is_refused() -> None:
    places = [TopicPartition("lines", p) for p in range(2)]
    check_cutover({("lines", 0): 3, ("lines", 1): 5}, places)
    with pytest.raises(CannotBackfillError, match=r"without an archive \(lines-2\)"):
        check_cutover({("lines", 2): 3}, places)
    with pytest.raises(CannotBackfillError, match="has no time zone"):
        check_cutover(datetime(2026, 1, 1), places)
