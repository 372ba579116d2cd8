"""What an archive has, and what a second attempt is told of another one."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from headrace.spark_bridge.errors import CannotBackfillError
from headrace.spark_bridge.history.archive_checks import (
    ArchiveStatistics,
    ArchiveSummary,
    refuse_implausible_times,
    refuse_other_archive,
    summary_of,
)
from headrace.spark_bridge.plan.plan import ArchivedRows, BackfillPlan
from headrace.streams.kafka.protocols import TopicPartition


def part(
    partition: int | None, rows: int = 5, *, no_offset: int = 0, no_time: int = 0
) -> ArchiveStatistics:
    return ArchiveStatistics(partition, rows, no_offset, no_time, 0, rows - 1, 1000, 2000)


def timed(partition: int | None) -> ArchiveStatistics:
    """Of an archive without offsets."""
    return ArchiveStatistics(partition, 5, 5, 0, None, None, 1000, 2000)


def put_together(
    *parts: ArchiveStatistics, partitions: bool = True, offsets: bool = True
) -> ArchiveSummary:
    return summary_of("lines", parts, 2, has_partitions=partitions, has_offsets=offsets)


def test_only_what_an_archive_has_to_say_can_be_missing() -> None:
    assert put_together(part(0), part(1)).archived_rows == {
        TopicPartition("lines", 0): ArchivedRows(5, 0, 4),
        TopicPartition("lines", 1): ArchivedRows(5, 0, 4),
    }
    assert put_together(timed(None), partitions=False, offsets=False).archived_rows == {
        TopicPartition("lines", -1): ArchivedRows(5, 1000, 2000)
    }
    assert put_together(timed(1), offsets=False).of(TopicPartition("lines", 0)) is None


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((part(None, 3), part(1)), "3 records of the archive have no partition"),
        ((part(0, no_offset=2), part(1, no_offset=1)), "3 records of the archive have no offset"),
        ((part(0, no_time=1), part(1)), "1 records of the archive have no timestamp"),
        ((part(0), part(2)), "5 records of partition 2, and the topic has 2"),
        ((part(-1),), "5 records of partition -1"),
    ],
)
def test_what_is_missing_is_counted(parts: tuple[ArchiveStatistics, ...], said: str) -> None:
    with pytest.raises(CannotBackfillError, match=said):
        put_together(*parts)


NOW = 1_795_000_000
"""In seconds."""


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((NOW, NOW + 500), "as milliseconds since 1970 is 1970-01-21 .* seem to be seconds"),
        ((NOW * 10**6, NOW * 10**6 + 5), "after the year 9999 .*microseconds"),
        ((NOW * 10**9, NOW * 10**9 + 5), "nanoseconds"),
        ((0, NOW * 1000), "several units, or some are not times"),
        ((NOW * 1000, NOW * 10**6), "several units"),
        ((-1, NOW * 1000), "before 1970"),
    ],
)
def test_times_that_can_hardly_be_milliseconds_are_refused(
    times: tuple[int, int], said: str
) -> None:
    """The range is that of all partitions."""
    low, high = times
    parts = (
        ArchiveStatistics(0, 5, 0, 0, 0, 4, low, low),
        ArchiveStatistics(1, 5, 0, 0, 0, 4, high, high),
    )
    with pytest.raises(CannotBackfillError, match=said) as raised:
        refuse_implausible_times(put_together(*parts))
    assert "lines" in str(raised.value)


def test_times_of_fifty_years_are_taken() -> None:
    parts = (
        ArchiveStatistics(0, 5, 0, 0, 0, 4, 10**11, NOW * 1000),
        ArchiveStatistics(1, 5, 0, 0, 0, 4, None, None),
    )
    assert _are_taken(*parts)
    assert _are_taken()
    assert not _are_taken(*parts, ArchiveStatistics(2, 5, 0, 0, 0, 4, NOW * 10**6, NOW * 10**6))


def _are_taken(*parts: ArchiveStatistics) -> bool:
    try:
        refuse_implausible_times(put_together(*parts))
    except CannotBackfillError:
        return False
    return True


def planned(summary: ArchiveSummary) -> BackfillPlan:
    rows = {**summary.archived_rows, TopicPartition("others", 0): ArchivedRows(1, 0, 0)}
    return BackfillPlan("app", "bf-1", 0, ((0,),), {}, {}, {}, archived_rows=rows)


def test_a_plan_is_followed_with_the_archive_that_it_was_made_of() -> None:
    summary = put_together(part(0), part(1))
    plan = planned(summary)
    refuse_other_archive(plan, summary)
    for other, said in (
        (
            put_together(part(0), part(1, 4)),
            "lines-1: 4 records .* now, 5 records from 0 to 4 before",
        ),
        (
            put_together(part(0), replace(part(1), first=3, last=7)),
            "from 3 to 7 now.* from 0 to 4 before",
        ),
        (put_together(part(0)), "lines-1: no records now, 5 records .*Give the same archive"),
    ):
        with pytest.raises(CannotBackfillError, match=said):
            refuse_other_archive(plan, other)
        with pytest.raises(CannotBackfillError, match="lines-1"):
            refuse_other_archive(planned(other), summary)


def test_an_archive_without_places_is_known_by_its_times() -> None:
    summary = put_together(timed(None), partitions=False, offsets=False)
    refuse_other_archive(planned(summary), summary)
    with pytest.raises(
        CannotBackfillError, match="lines: no records now, 5 records from 1000 to 2000 before"
    ):
        refuse_other_archive(planned(summary), put_together())


def test_a_plan_of_a_version_that_did_not_ask_is_followed() -> None:
    plan = BackfillPlan("app", "bf-1", 0, ((0,),), {}, {}, {})
    refuse_other_archive(plan, put_together(part(0)))
    with pytest.raises(CannotBackfillError, match="no records"):
        refuse_other_archive(replace(plan, archived_rows={}), put_together(part(0)))


def test_a_report_of_an_archive_has_its_times_and_the_longest_gap() -> None:
    """No partition has rows of a month that was not loaded."""
    parts = (
        replace(part(0), earliest=NOW * 1000, latest=NOW * 1000 + 1, days=(1, 2, 40, 43)),
        replace(part(1), earliest=5, latest=6, days=(3, 40, 41)),
    )
    report = put_together(*parts).report(2)
    assert (report.rows, report.first_ms, report.last_ms) == (10, 5, NOW * 1000 + 1)
    assert report.partitions == 2
    assert report.longest_gap == (date(1970, 1, 5), date(1970, 2, 9))
    assert put_together(part(0)).report(2).longest_gap is None
    whole = put_together(replace(timed(None), days=(7, 8)), partitions=False, offsets=False)
    assert (whole.report(6).partitions, whole.report(6).longest_gap) == (6, None)
