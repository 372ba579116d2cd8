"""Cut-over from an archive to Kafka: no record may be missing, and none may be read twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from headrace.spark_bridge.errors import CannotBackfillError, HistoryGapError
from headrace.spark_bridge.history.archive_facts import ArchiveFacts, ArchiveStatistics
from headrace.spark_bridge.history.planning import HistoryAdmin, InputEnds
from headrace.streams.kafka.protocols import ReceivedMessage, TopicPartition

Cutover = Mapping[TopicPartition, int] | datetime
"""Start of reading from Kafka: offsets, or a time whose first records are taken."""

ReadRange = Callable[[TopicPartition, int, int], Iterator[Sequence[ReceivedMessage]]]
"""Yields the committed records of a partition between two offsets."""


def check_cutover(cutover: object, tps: Sequence[TopicPartition]) -> None:
    """Raise if `cutover` is neither a time with a zone nor offsets of archived partitions."""
    if isinstance(cutover, Mapping):
        unknown = sorted({TopicPartition(*tp) for tp in cutover} - set(tps))
        if unknown:
            raise CannotBackfillError(
                f"cutover= names {', '.join(map(str, unknown))}, of which there is no archive; "
                f"take partitions of {', '.join(sorted({tp.topic for tp in tps}))}"
            )
    elif cutover is not None and not isinstance(cutover, datetime):
        raise CannotBackfillError(
            f"cutover={cutover!r} does not say where Kafka goes on behind the archive; give a "
            "time with a time zone, or offsets by partition"
        )
    elif cutover is not None and cutover.tzinfo is None:
        raise CannotBackfillError("cutover= is a time without a time zone; give it one")


def cuts_of(
    facts: ArchiveFacts,
    partitions: int,
    admin: HistoryAdmin | InputEnds,
    read: ReadRange,
    cutover: Cutover | None,
) -> dict[TopicPartition, int]:
    """Return the first offset to read from Kafka for each partition of an archive.

    Raises:
        HistoryGapError: the cut-over is unknown, or records would be lost.
        CannotBackfillError: records would be read twice.
    """
    tps = [TopicPartition(facts.topic, p) for p in range(partitions)]
    topic = _ArchiveTopic(admin, read, admin.start_offsets(tps), admin.stable_offsets(tps))
    if cutover is None:
        cuts = _own_ends(facts, tps)
    elif isinstance(cutover, datetime):
        cuts = _at_time(facts, topic, int(cutover.timestamp() * 1000))
    else:
        given = {TopicPartition(t, p): int(at) for (t, p), at in cutover.items()}
        unsaid = [tp for tp in tps if tp not in given]
        if unsaid:
            raise HistoryGapError(
                f"cutover= does not say where Kafka goes on in {', '.join(map(str, unsaid))}"
            )
        cuts = {tp: given[tp] for tp in tps}
    # Partitions without any archived record are reported first.
    for tp in sorted(tps, key=lambda tp: facts.of(tp) is not None):
        part = facts.of(tp)
        if facts.has_offsets:
            _check_offsets(topic, tp, part, cuts[tp])
        else:
            _check_times(topic, tp, part, cuts[tp])
    return cuts


@dataclass(frozen=True, slots=True)
class _ArchiveTopic:
    """A topic in Kafka, with the first offsets and the readable ends of its partitions."""

    admin: HistoryAdmin | InputEnds
    read: ReadRange
    starts: Mapping[TopicPartition, int]
    stable: Mapping[TopicPartition, int]

    def records(self, tp: TopicPartition, start: int, end: int) -> Iterator[ReceivedMessage]:
        start, end = max(start, self.starts[tp]), min(end, self.stable[tp])
        if start < end:
            for batch in self.read(tp, start, end):
                yield from batch


def _own_ends(facts: ArchiveFacts, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    if not facts.has_offsets:
        raise HistoryGapError(
            f"the archive of {facts.topic} has no offsets, so nothing says which record of the "
            "topic comes next; give cutover= as offsets or as a time, or an archive with the "
            "columns partition and offset"
        )
    return {tp: _end(facts.of(tp)) for tp in tps}


def _end(part: ArchiveStatistics | None) -> int:
    return 0 if part is None or part.last is None else part.last + 1


def _at_time(facts: ArchiveFacts, topic: _ArchiveTopic, time_ms: int) -> dict[TopicPartition, int]:
    """Return the first offset of each partition whose record is not older than a time."""
    found = topic.admin.offsets_at(list(topic.starts), time_ms)
    # If Kafka still has records from before the time, it has all records from after it.
    oldest = topic.admin.offsets_at(list(topic.starts), 0)
    cuts = {}
    for tp, at in found.items():
        cut = topic.stable[tp] if at is None else min(at, topic.stable[tp])
        cuts[tp] = cut
        if facts.has_offsets:
            continue
        first, start = oldest[tp], topic.starts[tp]
        if start > 0 and (first is None or first >= cut):
            raise HistoryGapError(
                f"Kafka has deleted {tp} up to offset {start}, and has nothing left from before "
                f"the cut-over, {time_ms} ms: whether it still has all from then on cannot be "
                "known; give cutover= as offsets, or an archive with partition and offset"
            )
    for part in () if facts.has_offsets else facts.parts.values():
        if part.latest is not None and part.latest >= time_ms:
            raise CannotBackfillError(
                f"the archive of {facts.topic} has records at or behind the cut-over, {time_ms} "
                f"ms, up to {part.latest} ms: Kafka is read from there, and they would count twice;"
                " leave them out of it, or take a later time"
            )
    return cuts


def _check_offsets(
    topic: _ArchiveTopic, tp: TopicPartition, part: ArchiveStatistics | None, cut: int
) -> None:
    """Raise if records between an archive with offsets and Kafka are missing."""
    end, start = _end(part), topic.starts[tp]
    if start > end:
        has = "has nothing" if part is None else f"ends before offset {end}"
        raise HistoryGapError(
            f"the archive {has} of {tp}, and Kafka has the records from {start} on: those "
            "between are nowhere; bring the archive up to date"
        )
    lost = next(topic.records(tp, end, cut), None)
    if lost is not None:
        raise HistoryGapError(
            f"cutover= goes on at offset {cut} of {tp}, and the archive ends before {end}: "
            f"the record at offset {lost.offset()} would be in neither; leave cutover= out, as the "
            "archive has offsets"
        )
    if part is None or part.first is None:
        return
    early = next(topic.records(tp, start, min(part.first, cut)), None)
    if early is not None:
        raise HistoryGapError(
            f"the archive begins at offset {part.first} of {tp}, and Kafka has records before, "
            f"such as that at offset {early.offset()}, which nobody would read; bring the archive "
            "up to date from the topic's first record on"
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
                f"cutover= goes on at offset {cut} of {tp}, and the record at offset "
                f"{record.offset()} is newer than all that the archive has: it would be in "
                "neither; take an earlier place, or bring the archive up to date"
            )
