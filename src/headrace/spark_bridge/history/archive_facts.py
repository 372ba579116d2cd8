"""Statistics of an archive, computed in a single pass over three of its columns, and their checks.

A plan stores the number of archived records and their bounds, so that a second attempt with
another archive is detected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.spark_bridge.errors import CannotBackfillError
from headrace.spark_bridge.plan.plan import ArchivedRows, BackfillPlan
from headrace.streams.kafka.protocols import TopicPartition

EARLIEST_MS = 10**11
"""Smallest plausible timestamp (March 1973). Seconds stay below it until the year 5138."""
LATEST_MS = 10**14
"""Limit of plausible timestamps (year 5138). Microseconds exceed it since 1973."""
NANOSECONDS = 10**17
"""Nanoseconds exceed it since 1973. Microseconds stay below it until the year 5138."""

EVERYWHERE = -1
"""Partition number of records in an archive without partitions."""


@dataclass(frozen=True, slots=True)
class ArchiveStatistics:
    """Statistics of a partition in an archive, or of a whole archive without partitions.

    Args:
        partition: number of the partition; None if it is missing in the records.
        first: the lowest offset; None without offsets.
        earliest: the lowest timestamp, in milliseconds since 1970.
    """

    partition: int | None
    rows: int
    no_offset: int
    no_time: int
    first: int | None
    last: int | None
    earliest: int | None
    latest: int | None

    @property
    def kept(self) -> ArchivedRows:
        low, high = (self.earliest, self.latest) if self.first is None else (self.first, self.last)
        assert low is not None
        assert high is not None
        return ArchivedRows(self.rows, low, high)


@dataclass(frozen=True, slots=True)
class ArchiveFacts:
    """Statistics of the archive of a topic.

    Args:
        parts: by partition; at `EVERYWHERE` if the archive has no partitions.
    """

    topic: str
    has_offsets: bool
    parts: Mapping[int, ArchiveStatistics]

    def of(self, tp: TopicPartition) -> ArchiveStatistics | None:
        """Return the facts of a partition, or of the archive if it has no partitions."""
        return self.parts.get(tp.partition, self.parts.get(EVERYWHERE))

    def goes_beyond(self, ends: Mapping[TopicPartition, int]) -> bool:
        return any(
            part.last is not None and part.last >= ends[TopicPartition(self.topic, partition)]
            for partition, part in self.parts.items()
        )

    @property
    def kept(self) -> dict[TopicPartition, ArchivedRows]:
        return {TopicPartition(self.topic, p): part.kept for p, part in self.parts.items()}


def facts_of(
    topic: str,
    parts: Sequence[ArchiveStatistics],
    partitions: int,
    *,
    has_partitions: bool,
    has_offsets: bool,
) -> ArchiveFacts:
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
                f"the archive of {topic} has {lacking[column]} records that say no {column} (null; "
                "in CSV an empty field without quotes, or what is no number or time), and none may "
                "be left out unseen: correct them, or leave them out yourself with "
                f"where('{column} is not null')"
            )
    found = {EVERYWHERE if p.partition is None else p.partition: p for p in parts}
    foreign = sorted(found.keys() - set(range(partitions))) if has_partitions else []
    if foreign:
        raise CannotBackfillError(
            f"the archive of {topic} has {found[foreign[0]].rows} records of partition "
            f"{foreign[0]}, and the topic has {partitions} partitions, counted from 0; is it of "
            "another topic, or from before that was made anew? Without the columns partition and "
            "offset, records go where their keys say"
        )
    return ArchiveFacts(topic, has_offsets, found)


def refuse_implausible_times(facts: ArchiveFacts) -> None:
    parts = [p for p in facts.parts.values() if p.earliest is not None and p.latest is not None]
    if not parts:
        return
    low = min(part.earliest for part in parts if part.earliest is not None)
    high = max(part.latest for part in parts if part.latest is not None)
    if low < 0:
        raise CannotBackfillError(
            f"the archive of {facts.topic} has timestamps before 1970 ({low}), which records "
            "cannot have; a record without a time has -1 in some archives: correct them, or leave "
            "them out yourself with where('timestamp >= 0')"
        )
    if low >= EARLIEST_MS and high < LATEST_MS:
        return
    raise CannotBackfillError(
        f"the archive of {facts.topic} has timestamps from {low} to {high}, which as milliseconds "
        f"since 1970 is {_date(low)} to {_date(high)}; {_way_out(low, high)}. If they are really "
        "meant, say times='trust' (--times trust)"
    )


def _way_out(low: int, high: int) -> str:
    if high < EARLIEST_MS:
        return "they seem to be seconds: multiply the column by 1000"
    if low >= NANOSECONDS:
        return "they seem to be nanoseconds: divide the column by 1000000 (div, for a long)"
    if low >= LATEST_MS and high < NANOSECONDS:
        return "they seem to be microseconds: divide the column by 1000 (div, for a long)"
    return "they seem to be of several units, or some are no times: correct those"


def _date(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError):
        return "behind the year 9999"


def refuse_other_archive(plan: BackfillPlan, facts: ArchiveFacts) -> None:
    """Raise if `facts`, of the archive before the plan's starts, differ from the plan."""
    if plan.archived_rows is None:
        return
    planned = {p: rows for p, rows in plan.archived_rows.items() if p.topic == facts.topic}
    now = facts.kept
    for tp in sorted(planned.keys() | now.keys()):
        was, is_now = planned.get(tp), now.get(tp)
        if was != is_now:
            where = str(tp) if tp.partition != EVERYWHERE else tp.topic
            raise CannotBackfillError(
                f"backfill {plan.id} was planned with an archive that has of {where} "
                f"{_said(was)}, and is now given one that has {_said(is_now)} (by offset, or "
                "by time where there is none); give the same archive (source=, --source) again, or "
                "drop the backfill"
            )


def _said(rows: ArchivedRows | None) -> str:
    if rows is None:
        return "no records"
    return f"{rows.rows} records from {rows.low} to {rows.high}"
