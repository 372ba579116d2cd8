"""Local rows are dropped only with proof that they do not belong to the changelog."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.state.store import Position
from headrace.streams.tasks.restore import ChangelogDescription, RestorePlan, plan_restore

DAY_MS = 24 * 60 * 60 * 1000
NOW_MS = 100 * DAY_MS
FACTS = ChangelogDescription("id", start=0, end=100, delete_retention_ms=DAY_MS)
HERE = Position("id", offset=90, commit_id=7, wall_ms=NOW_MS - 1)


def test_rows_are_kept_and_only_the_tail_is_read() -> None:
    assert plan_restore(HERE, FACTS, NOW_MS) == RestorePlan(90, 100)


def test_nothing_is_read_where_nothing_is_missing() -> None:
    plan = plan_restore(replace(HERE, offset=100), FACTS, NOW_MS)
    assert (plan.begin, plan.end, plan.drop) == (100, 100, None)


def test_without_a_position_everything_is_read() -> None:
    assert plan_restore(None, replace(FACTS, start=5), NOW_MS) == RestorePlan(5, 100)


def test_rows_of_another_topic_of_the_same_name_are_dropped() -> None:
    plan = plan_restore(replace(HERE, topic_id="other"), FACTS, NOW_MS)
    assert (plan.begin, plan.drop) == (0, "the changelog was re-created")


def test_rows_from_beyond_the_end_are_dropped() -> None:
    plan = plan_restore(replace(HERE, offset=101), FACTS, NOW_MS)
    assert plan.begin == 0
    assert plan.drop == "it is at offset 101 of a changelog that ends at 100"


def test_rows_that_may_have_missed_deletions_are_dropped() -> None:
    """Compaction removes a tombstone after delete.retention.ms; the row would come back."""
    old = replace(HERE, wall_ms=NOW_MS - DAY_MS - 1)
    plan = plan_restore(old, FACTS, NOW_MS)
    assert plan.begin == 0
    assert plan.drop is not None
    assert plan_restore(replace(old, wall_ms=NOW_MS - DAY_MS), FACTS, NOW_MS).drop is None


def test_old_rows_that_miss_nothing_but_their_commits_marker_are_kept() -> None:
    old = replace(HERE, wall_ms=0, offset=99)
    assert plan_restore(old, FACTS, NOW_MS).drop is None
    assert plan_restore(replace(old, offset=98), FACTS, NOW_MS).drop is not None


def test_below_the_log_start_the_restore_goes_on_at_the_log_start() -> None:
    """A changelog with retention deletes what is too old to matter."""
    assert plan_restore(HERE, replace(FACTS, start=95), NOW_MS) == RestorePlan(95, 100)


@given(
    offset=st.integers(0, 20),
    start=st.integers(0, 20),
    length=st.integers(0, 20),
    age_ms=st.integers(0, 2 * DAY_MS),
    same=st.booleans(),
)
def test_a_plan_never_leaves_a_gap_between_what_is_kept_and_what_is_read(
    offset: int, start: int, length: int, age_ms: int, same: bool
) -> None:
    facts = replace(FACTS, start=start, end=start + length)
    position = Position("id" if same else "other", offset, 1, NOW_MS - age_ms)
    plan = plan_restore(position, facts, NOW_MS)
    assert facts.start <= plan.begin
    if plan.drop is None:
        assert same
        assert plan.begin == max(offset, start)
        assert offset <= facts.end
    else:
        assert plan.begin == facts.start
    assert plan.end == facts.end
