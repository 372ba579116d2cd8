"""Where Kafka goes on behind an archive: each border one record too early and one too late."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.spark_bridge.errors import CannotBackfillError, HistoryGapError
from headrace.spark_bridge.history.archive_checks import (
    EVERYWHERE,
    ArchiveStatistics,
    ArchiveSummary,
    Cutover,
    cuts_of,
)
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.metrics.snapshots import moment
from headrace.streams.testing.memory_cluster import MemoryMessage

START_MS = 1_700_000_000_000
RECORDS = 20
"""One a second."""
PLACE = TopicPartition("archived", 0)


def time_of(number: int) -> int:
    return START_MS + 1000 * number


def at(number: int) -> datetime:
    return datetime.fromtimestamp(time_of(number) / 1000, UTC)


@dataclass
class History:
    """A topic in Kafka, without a broker.

    Args:
        times: of the record at each offset; None where there is a marker or an aborted record.
        marker_times: of markers, by their offset; otherwise that of the record before.
        start: the first offset that is still there.
        stable: the end of what is decided; None for the last record's.
        partitions: how many there are; those but the first are empty.
    """

    times: Sequence[int | None] = field(default_factory=lambda: [*map(time_of, range(RECORDS))])
    start: int = 0
    stable: int | None = None
    partitions: int = 1
    marker_times: Mapping[int, int] = field(default_factory=dict)
    read_ranges: list[tuple[int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return len(self.times) if self.stable is None else self.stable

    def start_offsets(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: self.start if place == PLACE else 0 for place in places}

    def stable_offsets(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: self.end if place == PLACE else 0 for place in places}

    def offsets_at(
        self, places: Collection[TopicPartition], timestamp_ms: int, *, committed: bool = True
    ) -> dict[TopicPartition, int | None]:
        """A broker finds markers, too."""
        del committed
        found: int | None = None
        latest = 0
        for offset, time_ms in enumerate(self.times):
            latest = max(latest, self.marker_times.get(offset, 0) if time_ms is None else time_ms)
            if found is None and offset >= self.start and latest >= timestamp_ms:
                found = offset
        return {place: found if place == PLACE else None for place in places}

    def read(
        self, place: TopicPartition, start: int, end: int
    ) -> Iterator[Sequence[MemoryMessage]]:
        assert self.start <= start < end <= self.end, "such a range is not there"
        self.read_ranges.append((start, end))
        for offset in range(start, end):
            time_ms = self.times[offset]
            if time_ms is not None:
                yield [MemoryMessage(place, offset, b"k", b"v", time_ms, None, offset)]

    def cut(self, summary: ArchiveSummary, cutover: Cutover | int | None = None) -> int:
        if isinstance(cutover, int):
            cutover = {PLACE: cutover}
        admin: Any = self
        return cuts_of(summary, self.partitions, admin, self.read, cutover)[PLACE]


def with_offsets(first: int, last: int) -> ArchiveSummary:
    """An archive of the records between two."""
    part = ArchiveStatistics(0, last - first + 1, 0, 0, first, last, time_of(first), time_of(last))
    return ArchiveSummary(PLACE.topic, True, {0: part})


def without(first: int, last: int, *, partition: int = EVERYWHERE) -> ArchiveSummary:
    """The same, if it does not know its offsets."""
    part = ArchiveStatistics(
        partition, last - first + 1, 0, 0, None, None, time_of(first), time_of(last)
    )
    return ArchiveSummary(PLACE.topic, False, {partition: part})


NOTHING = ArchiveSummary(PLACE.topic, True, {})


def test_an_archive_with_offsets_says_itself_where_kafka_goes_on() -> None:
    """At the record behind its last one, which may be all that Kafka has left."""
    assert History().cut(with_offsets(0, 9)) == 10
    assert History(start=10).cut(with_offsets(0, 9)) == 10
    assert History().cut(with_offsets(0, RECORDS - 1)) == RECORDS


def test_one_record_that_is_in_neither_is_missed() -> None:
    """Offset 9, which the archive does not have and Kafka no more."""
    with pytest.raises(HistoryGapError, match=r"ends before offset 9, .* starts at offset 10"):
        History(start=10).cut(with_offsets(0, 8))
    with pytest.raises(
        HistoryGapError, match=r"archived-0.* has no records, .* starts at offset 1\b"
    ):
        History(start=1).cut(NOTHING)
    assert History().cut(NOTHING) == 0


def test_one_record_between_the_archive_and_an_offset_is_missed() -> None:
    assert History().cut(with_offsets(0, 9), 10) == 10
    with pytest.raises(HistoryGapError, match="such as offset 10,"):
        History().cut(with_offsets(0, 9), 11)
    with pytest.raises(HistoryGapError, match="such as offset 10,"):
        History().cut(with_offsets(0, 9), at(11))


def test_one_record_before_the_archive_is_missed() -> None:
    with pytest.raises(HistoryGapError, match=r"such as offset 0, archive from 1\b"):
        History().cut(with_offsets(1, 9))
    assert History(start=1).cut(with_offsets(1, 9)) == 10
    assert History([None, *map(time_of, range(1, RECORDS))]).cut(with_offsets(1, 9)) == 10


def test_an_archive_may_go_beyond_an_earlier_place() -> None:
    """What is behind the cut is read from Kafka; nothing before is looked for there."""
    assert History().cut(with_offsets(0, 15), 10) == 10
    assert History(start=5).cut(with_offsets(0, 15), at(10)) == 10


def test_markers_and_aborted_records_are_in_no_archive() -> None:
    times = [*map(time_of, range(10)), None, None, *map(time_of, range(12, RECORDS))]
    assert History(times).cut(with_offsets(0, 9), 12) == 12
    assert History(times).cut(without(0, 9), 12) == 12
    with pytest.raises(HistoryGapError, match="such as offset 12,"):
        History(times).cut(with_offsets(0, 9), 13)
    with pytest.raises(HistoryGapError, match=r"newer than the archive .*, offset 12,"):
        History(times).cut(without(0, 9), 13)


def test_a_time_cuts_at_the_first_record_that_is_not_older() -> None:
    assert History().cut(without(0, 9), at(10)) == 10
    assert History().cut(without(0, 9, partition=0), at(10)) == 10


def test_a_cut_is_never_behind_the_last_decided_record() -> None:
    """Whatever comes of the open transaction, it is the live application's."""
    undecided = History(stable=15)
    assert undecided.cut(with_offsets(0, 14), at(15)) == 15
    assert undecided.cut(with_offsets(0, 14), at(17)) == 15
    assert undecided.cut(without(0, 14), at(17)) == 15
    assert undecided.cut(with_offsets(0, 14), at(RECORDS + 5)) == 15
    assert History().cut(without(0, RECORDS - 1), at(RECORDS)) == RECORDS


def test_only_what_is_decided_is_looked_at_behind_an_archive() -> None:
    undecided = History(stable=15)
    assert undecided.cut(with_offsets(0, 14), 18) == 18
    assert undecided.read_ranges == []
    with pytest.raises(HistoryGapError, match="such as offset 14,"):
        undecided.cut(with_offsets(0, 13), 18)
    assert undecided.read_ranges == [(14, 15)]


def test_a_record_at_the_time_counts_twice_and_one_before_does_not() -> None:
    with pytest.raises(CannotBackfillError, match=f"count twice .*up to {moment(time_of(10))},"):
        History().cut(without(0, 10), at(10))


def test_kafka_must_show_that_it_has_all_from_the_time_on() -> None:
    """With a record of before it is known; with none, those behind it may be gone."""
    assert History(start=9).cut(without(0, 9), at(10)) == 10
    with pytest.raises(HistoryGapError, match=r"may be deleted, too .*from offset 10,"):
        History(start=10).cut(without(0, 9), at(10))
    with pytest.raises(HistoryGapError, match=f"may be deleted, too .*from offset {RECORDS},"):
        History(start=RECORDS).cut(without(0, 9), at(10))
    # Nothing was ever deleted there.
    assert History([*map(time_of, range(10, 30))]).cut(without(0, 9), at(10)) == 0
    # With offsets it can be known.
    assert History(start=10).cut(with_offsets(0, 9), at(10)) == 10


def test_a_newer_record_before_an_offset_is_missed() -> None:
    assert History().cut(without(0, 9), 10) == 10
    with pytest.raises(HistoryGapError, match=r"newer than the archive .*, offset 10,"):
        History().cut(without(0, 9), 11)
    # What is as old as the last one of the archive may be that one.
    times = [*map(time_of, range(10)), time_of(9), *map(time_of, range(11, RECORDS))]
    assert History(times).cut(without(0, 9), 11) == 11


def test_a_marker_has_a_time_and_is_no_newer_record() -> None:
    """Behind it there may be one that is as old as the archive's last."""
    times = [*map(time_of, range(10)), None, time_of(9), *map(time_of, range(12, RECORDS))]
    history = History(times, marker_times={10: time_of(11)})
    assert history.cut(without(0, 9), 12) == 12
    with pytest.raises(HistoryGapError, match=r"newer than the archive .*, offset 12,"):
        history.cut(without(0, 9), 13)


def test_every_partition_must_be_given_a_place() -> None:
    with pytest.raises(HistoryGapError, match=r"cutover= lacks partitions \(archived-1\)"):
        History(partitions=2).cut(with_offsets(0, 9), 10)


def test_an_archive_without_offsets_says_nothing_itself() -> None:
    with pytest.raises(HistoryGapError, match="has no offsets, so the next record"):
        History().cut(without(0, 9))
