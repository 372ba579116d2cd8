"""Checks of archives: statistics of their records, and the cut-over to Kafka.

The statistics are computed in a single pass over three columns. A plan stores the number of
archived records and their bounds, so that a second attempt with another archive is detected. At the
cut-over, no record may be missing, and none may be read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any, Literal

from headrace.spark_bridge.errors import CannotBackfillError, HistoryGapError
from headrace.spark_bridge.history.planning import InputEnds
from headrace.spark_bridge.plan.plan import ArchivedRows, BackfillPlan
from headrace.spark_bridge.reports import ArchiveReport
from headrace.streams.kafka.protocols import GroupAdminClient, ReceivedMessage, TopicPartition
from headrace.streams.metrics.snapshots import moment

Cutover = Mapping[TopicPartition, int] | datetime | str
"""Start of reading from Kafka: offsets, or a time whose first records are taken; a time may be
text, in UTC without a zone."""

Times = Literal["check", "trust"]
"""Whether implausible timestamps are rejected."""

Source = Mapping[str, Any] | None
"""DataFrames by topic."""

ReadRange = Callable[[TopicPartition, int, int], Iterator[Sequence[ReceivedMessage]]]
"""Yields the committed records of a partition between two offsets."""

EARLIEST_MS = 10**11
"""Smallest plausible timestamp (March 1973). Seconds stay below it until the year 5138."""
LATEST_MS = 10**14
"""Limit of plausible timestamps (year 5138). Microseconds exceed it since 1973."""
NANOSECONDS = 10**17
"""Nanoseconds exceed it since 1973. Microseconds stay below it until the year 5138."""

EVERYWHERE = -1
"""Partition number of records in an archive without partitions."""

_1970 = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class ArchiveStatistics:
    """Statistics of a partition in an archive, or of a whole archive without partitions.

    Args:
        partition: number of the partition; None if it is missing in the records.
        first: the lowest offset; None without offsets.
        earliest: the lowest timestamp, in milliseconds since 1970.
        days: the days since 1970 that have records.
    """

    partition: int | None
    rows: int
    no_offset: int
    no_time: int
    first: int | None
    last: int | None
    earliest: int | None
    latest: int | None
    days: Sequence[int] = ()

    @property
    def archived_rows(self) -> ArchivedRows:
        low, high = (self.earliest, self.latest) if self.first is None else (self.first, self.last)
        assert low is not None
        assert high is not None
        return ArchivedRows(self.rows, low, high)


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """Statistics of the archive of a topic.

    Args:
        parts: by partition; at `EVERYWHERE` if the archive has no partitions.
    """

    topic: str
    has_offsets: bool
    parts: Mapping[int, ArchiveStatistics]

    def of(self, tp: TopicPartition) -> ArchiveStatistics | None:
        """Return the statistics of a partition, or of the archive if it has no partitions."""
        return self.parts.get(tp.partition, self.parts.get(EVERYWHERE))

    def report(self, partitions: int) -> ArchiveReport:
        """Summarize the archive; `partitions` is the topic's number of partitions."""
        parts = self.parts.values()
        days = sorted({day for part in parts for day in part.days})
        before, after = max(pairwise(days), key=lambda two: two[1] - two[0], default=(0, 0))
        return ArchiveReport(
            self.topic,
            sum(part.rows for part in parts),
            min((p.earliest for p in parts if p.earliest is not None), default=None),
            max((p.latest for p in parts if p.latest is not None), default=None),
            partitions if EVERYWHERE in self.parts else len(self.parts),
            (_1970 + timedelta(before + 1), _1970 + timedelta(after - 1))
            if after - before > 1
            else None,
        )

    def is_beyond(self, ends: Mapping[TopicPartition, int]) -> bool:
        return any(
            part.last is not None and part.last >= ends[TopicPartition(self.topic, partition)]
            for partition, part in self.parts.items()
        )

    @property
    def archived_rows(self) -> dict[TopicPartition, ArchivedRows]:
        return {TopicPartition(self.topic, p): part.archived_rows for p, part in self.parts.items()}


def summary_of(
    topic: str,
    parts: Sequence[ArchiveStatistics],
    partitions: int,
    *,
    has_partitions: bool,
    has_offsets: bool,
) -> ArchiveSummary:
    """Combine the archive's statistics; raise if a record lacks a required column."""
    lacking = {
        "partition": sum(part.rows for part in parts if part.partition is None),
        "offset": sum(part.no_offset for part in parts),
        "timestamp": sum(part.no_time for part in parts),
    }
    needed = ["partition"] * has_partitions + ["offset"] * has_offsets + ["timestamp"]
    for column in needed:
        if lacking[column]:
            raise CannotBackfillError(
                f"{lacking[column]} records of the archive have no {column} ({topic}): it is null, "
                "or in CSV an empty field without quotes or an invalid number or time. Correct "
                f"them, or filter them out with where('{column} is not null')"
            )
    found = {EVERYWHERE if p.partition is None else p.partition: p for p in parts}
    foreign = sorted(found.keys() - set(range(partitions))) if has_partitions else []
    if foreign:
        raise CannotBackfillError(
            f"the archive has {found[foreign[0]].rows} records of partition {foreign[0]}, and the "
            f"topic has {partitions} partitions ({topic}). Give the archive of this topic, or "
            "remove the columns partition and offset to partition records by their keys"
        )
    return ArchiveSummary(topic, has_offsets, found)


def refuse_implausible_times(summary: ArchiveSummary) -> None:
    parts = [p for p in summary.parts.values() if p.earliest is not None and p.latest is not None]
    if not parts:
        return
    low = min(part.earliest for part in parts if part.earliest is not None)
    high = max(part.latest for part in parts if part.latest is not None)
    if low < 0:
        raise CannotBackfillError(
            f"the archive has timestamps before 1970 ({summary.topic}, {low} ms), such as -1 for a "
            "record without a time. Correct them, or filter them out with where('timestamp >= 0')"
        )
    if low >= EARLIEST_MS and high < LATEST_MS:
        return
    raise CannotBackfillError(
        f"the archive has timestamps from {low} to {high}, which as milliseconds since 1970 is "
        f"{_date(low)} to {_date(high)} ({summary.topic}); {_likely_fix(low, high)}. Pass "
        "times='trust' (--times trust) if they are correct"
    )


def _likely_fix(low: int, high: int) -> str:
    if high < EARLIEST_MS:
        return "they seem to be seconds: multiply the column by 1000"
    if low >= NANOSECONDS:
        return "they seem to be nanoseconds: divide the column by 1000000 (div, for a long)"
    if low >= LATEST_MS and high < NANOSECONDS:
        return "they seem to be microseconds: divide the column by 1000 (div, for a long)"
    return "they seem to be in several units, or some are not times: correct them"


def _date(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError):
        return "after the year 9999"


def refuse_other_archive(plan: BackfillPlan, summary: ArchiveSummary) -> None:
    """Raise if `summary`, of the archive before the plan's starts, differs from the plan."""
    if plan.archived_rows is None:
        return
    planned = {p: rows for p, rows in plan.archived_rows.items() if p.topic == summary.topic}
    now = summary.archived_rows
    for tp in sorted(planned.keys() | now.keys()):
        was, is_now = planned.get(tp), now.get(tp)
        if was != is_now:
            where = str(tp) if tp.partition != EVERYWHERE else tp.topic
            raise CannotBackfillError(
                f"the archive differs from the archive of the plan of backfill {plan.id} ({where}: "
                f"{_described(is_now)} now, {_described(was)} before, by offset or else by time). "
                "Give the same archive (source=, --source), or drop the backfill"
            )


def _described(rows: ArchivedRows | None) -> str:
    if rows is None:
        return "no records"
    return f"{rows.rows} records from {rows.low} to {rows.high}"


# -- cut-over --------------------------------------------------------------------------------------


def check_cutover(cutover: object, tps: Sequence[TopicPartition]) -> None:
    """Raise if `cutover` is neither a time with a zone nor offsets of archived partitions."""
    if isinstance(cutover, Mapping):
        unknown = sorted({TopicPartition(*tp) for tp in cutover} - set(tps))
        if unknown:
            raise CannotBackfillError(
                f"cutover= has partitions without an archive ({', '.join(map(str, unknown))}). Use "
                f"partitions of {', '.join(sorted({tp.topic for tp in tps}))}"
            )
    elif cutover is not None and not isinstance(cutover, datetime):
        raise CannotBackfillError(
            f"cutover= must be a time or offsets, not {cutover!r}. Give a time with a time zone, "
            "or offsets by partition"
        )
    elif cutover is not None and cutover.tzinfo is None:
        raise CannotBackfillError("cutover= has no time zone. Add one, such as timezone.utc")


def cuts_of(
    summary: ArchiveSummary,
    partitions: int,
    admin: GroupAdminClient | InputEnds,
    read: ReadRange,
    cutover: Mapping[TopicPartition, int] | datetime | None,
) -> dict[TopicPartition, int]:
    """Return the first offset to read from Kafka for each partition of an archive.

    Raises:
        HistoryGapError: the cut-over is unknown, or records would be lost.
        CannotBackfillError: records would be read twice.
    """
    tps = [TopicPartition(summary.topic, p) for p in range(partitions)]
    topic = _ArchiveTopic(admin, read, admin.start_offsets(tps), admin.stable_offsets(tps))
    if cutover is None:
        cuts = _own_ends(summary, tps)
    elif isinstance(cutover, datetime):
        cuts = _at_time(summary, topic, int(cutover.timestamp() * 1000))
    else:
        given = {TopicPartition(t, p): int(at) for (t, p), at in cutover.items()}
        missing = [tp for tp in tps if tp not in given]
        if missing:
            raise HistoryGapError(
                f"cutover= lacks partitions ({', '.join(map(str, missing))}). Give an offset for "
                "each of them"
            )
        cuts = {tp: given[tp] for tp in tps}
    # Partitions without any archived record are reported first.
    for tp in sorted(tps, key=lambda tp: summary.of(tp) is not None):
        part = summary.of(tp)
        if summary.has_offsets:
            _check_offsets(topic, tp, part, cuts[tp])
        else:
            _check_times(topic, tp, part, cuts[tp])
    return cuts


@dataclass(frozen=True, slots=True)
class _ArchiveTopic:
    """A topic in Kafka, with the first offsets and the readable ends of its partitions."""

    admin: GroupAdminClient | InputEnds
    read: ReadRange
    starts: Mapping[TopicPartition, int]
    stable: Mapping[TopicPartition, int]

    def records(self, tp: TopicPartition, start: int, end: int) -> Iterator[ReceivedMessage]:
        start, end = max(start, self.starts[tp]), min(end, self.stable[tp])
        if start < end:
            for batch in self.read(tp, start, end):
                yield from batch


def refuse_unknown_end(topic: str, *, has_offsets: bool) -> None:
    if not has_offsets:
        raise HistoryGapError(
            f"the archive has no offsets, so the next record of the topic is unknown "
            f"({topic}). Give cutover= as offsets or as a time, or an archive with the "
            "columns partition and offset"
        )


def _own_ends(summary: ArchiveSummary, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    refuse_unknown_end(summary.topic, has_offsets=summary.has_offsets)
    return {tp: _end(summary.of(tp)) for tp in tps}


def _end(part: ArchiveStatistics | None) -> int:
    return 0 if part is None or part.last is None else part.last + 1


def _at_time(
    summary: ArchiveSummary, topic: _ArchiveTopic, time_ms: int
) -> dict[TopicPartition, int]:
    """Return the first offset of each partition whose record is not older than a time."""
    found = topic.admin.offsets_at(list(topic.starts), time_ms)
    # If Kafka still has records from before the time, it has all records from after it.
    oldest = topic.admin.offsets_at(list(topic.starts), 0)
    cuts = {}
    for tp, at in found.items():
        cut = topic.stable[tp] if at is None else min(at, topic.stable[tp])
        cuts[tp] = cut
        if summary.has_offsets:
            continue
        first, start = oldest[tp], topic.starts[tp]
        if start > 0 and (first is None or first >= cut):
            raise HistoryGapError(
                f"Kafka has no records from before the cut-over, so records after it may be "
                f"deleted, too ({tp}, from offset {start}, cut-over {moment(time_ms)}). Give "
                "cutover= as offsets, or an archive with partition and offset"
            )
    for part in () if summary.has_offsets else summary.parts.values():
        if part.latest is not None and part.latest >= time_ms:
            raise CannotBackfillError(
                f"the archive has records after the cut-over, which would count twice "
                f"({summary.topic}, up to {moment(part.latest)}, cut-over {moment(time_ms)}). "
                "Remove them from the archive, or give a later time"
            )
    return cuts


def _check_offsets(
    topic: _ArchiveTopic, tp: TopicPartition, part: ArchiveStatistics | None, cut: int
) -> None:
    """Raise if records between an archive with offsets and Kafka are missing."""
    end, start = _end(part), topic.starts[tp]
    if start > end:
        has = "has no records" if part is None else f"ends before offset {end}"
        raise HistoryGapError(
            f"records between the archive and Kafka are lost ({tp}): the archive {has}, and Kafka "
            f"starts at offset {start}. Update the archive"
        )
    lost = next(topic.records(tp, end, cut), None)
    if lost is not None:
        raise HistoryGapError(
            f"cutover= skips records after the archive ({tp}, such as offset {lost.offset()}, "
            f"archive before {end}, cut-over {cut}). Omit cutover=, because the archive has offsets"
        )
    if part is None or part.first is None:
        return
    early = next(topic.records(tp, start, min(part.first, cut)), None)
    if early is not None:
        raise HistoryGapError(
            f"Kafka has records before the archive, which would not be read ({tp}, such as offset "
            f"{early.offset()}, archive from {part.first}). Update the archive from the topic's "
            "first record"
        )


def _check_times(
    topic: _ArchiveTopic, tp: TopicPartition, part: ArchiveStatistics | None, cut: int
) -> None:
    """Raise if Kafka has a record before the cut-over that is newer than the whole archive."""
    latest = -1 if part is None or part.latest is None else part.latest
    at = topic.admin.offsets_at([tp], latest + 1)[tp]
    if at is None or at >= cut:
        return
    # A transaction marker also has a timestamp, but is not a record.
    for record in topic.records(tp, at, cut):
        if record.timestamp()[1] > latest:
            raise HistoryGapError(
                f"cutover= skips a record that is newer than the archive ({tp}, offset "
                f"{record.offset()}, cut-over {cut}). Give an earlier cut-over, or update the "
                "archive"
            )
