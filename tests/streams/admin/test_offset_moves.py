"""What follows from setting an offset, and what is refused; without a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.streams.admin.backfill_gate import BackfillNote
from headrace.streams.admin.offsets import (
    GroupOffsets,
    Input,
    MovePlan,
    OffsetChange,
    lines,
    listing,
    read_offsets,
)
from headrace.streams.errors import ConfigError, ResetRefusedError
from headrace.streams.kafka.protocols import CommittedOffset, OffsetTarget, TopicPartition
from headrace.streams.plan.identity import committed_id, with_topic_id
from headrace.streams.plan.plan import TaskId
from headrace.streams.plan.progress import CHANGELOG_MARK, RESET_MARK, OffsetMetadata
from headrace.streams.tasks.lost_offsets import Counted

PLACE = TopicPartition("in", 0)
NOW, BEFORE = "mIZ3c7IdTReMqgcwdmKasA", "TaV9E4cwSRaMmdzz6DDvkg"
HERE = Input(
    task=TaskId(0, 0),
    tp=PLACE,
    topic_id=NOW,
    committed=CommittedOffset(30),
    begin=10,
    end=40,
    counted=Counted(["counts"]),
    has_begun=True,
)


def at(offset: int | None, text: str = "", **more: Any) -> Input:
    committed = None if offset is None else CommittedOffset(offset, text)
    return replace(HERE, committed=committed, **more)


def of_topic(topic_id: str) -> str:
    return with_topic_id(OffsetMetadata(5).encode(), "in", topic_id)


def group(*inputs: Input, **more: Any) -> GroupOffsets:
    found = {one.tp: one for one in inputs}
    given = {"group": "a", "exactly_once": True, "members": (), "inputs": found} | more
    return GroupOffsets(**given)


def planned(one: Input, target: OffsetTarget, **more: Any) -> MovePlan:
    since = {PLACE: target.number} if target.kind == "time" else {}
    return MovePlan.of(group(one, **more), {PLACE: target}, since)


@pytest.mark.parametrize(
    ("before", "target", "again", "left_out"),
    [
        (at(30), 30, None, None),
        (at(30), 25, (25, 29), None),
        (at(30), 31, None, (30, 30)),
        (at(30), 40, None, (30, 39)),
        (at(4), 10, None, None),  # what was between is deleted
        (at(4), 12, None, (10, 11)),
        (at(30, of_topic(NOW)), 25, (25, 29), None),
        (at(30, of_topic(BEFORE)), 10, None, None),  # nothing of this topic was processed
        (at(30, of_topic(BEFORE)), 12, None, (10, 11)),
        (at(None), 10, None, None),  # nobody knows
        (at(None), 40, None, None),
        (at(41), 12, None, None),
    ],
)
def test_each_move_says_what_is_processed_again_or_never(
    before: Input, target: int, again: Any, left_out: Any
) -> None:
    move = OffsetChange(before, target)
    assert (move.again, move.left_out) == (again, left_out)


@pytest.mark.parametrize(
    ("before", "target", "option"),
    [
        (at(30), OffsetTarget("offset", 25), "--process-again"),
        (at(30), OffsetTarget("earliest"), "--process-again"),
        (at(30), OffsetTarget("time", 29), "--process-again"),
        (at(30), OffsetTarget("offset", 31), "--leave-out"),
        (at(30), OffsetTarget("latest"), "--leave-out"),
        (at(None), OffsetTarget("earliest"), "--process-again"),
        (at(41), OffsetTarget("earliest"), "--process-again"),
        (at(30), OffsetTarget("offset", 30), ""),
        (at(None), OffsetTarget("offset", 20), ""),  # somebody knows
        (at(None), OffsetTarget("latest"), ""),
        (at(None, begin=40), OffsetTarget("earliest"), ""),  # there is nothing to repeat
        (at(None, has_begun=False), OffsetTarget("earliest"), ""),
        (at(None, counted=Counted()), OffsetTarget("earliest"), ""),
        (at(30, of_topic(BEFORE)), OffsetTarget("earliest"), ""),
    ],
)
def test_what_would_double_or_lose_needs_its_option_under_exactly_once(
    before: Input, target: OffsetTarget, option: str
) -> None:
    plan = planned(before, target)
    wanted = {"again": option == "--process-again", "left_out": option == "--leave-out"}
    plan.require_consent(**wanted)
    other = {name: option != "" and not is_wanted for name, is_wanted in wanted.items()}
    if option:
        with pytest.raises(ResetRefusedError, match=f"in-0 .*{option}"):
            plan.require_consent(**other)
    planned(before, target, exactly_once=False).require_consent(again=False, left_out=False)


def test_what_stands_beside_the_offset_goes_along_with_the_id_of_the_topic_that_is_there() -> None:
    moved = at(30, of_topic(BEFORE)).at(10)
    progress = OffsetMetadata.decode(moved.metadata)
    assert (moved.offset, progress.partition_time) == (10, 5)
    assert committed_id("in", progress.values) == NOW


@pytest.mark.parametrize("text", [None, "", "rubbish", OffsetMetadata().encode()])
def test_where_no_progress_stands_none_is_put(text: str | None) -> None:
    """It would look like a task that has run, and lost the offsets of its other inputs."""
    before = at(None) if text is None else at(30, text)
    assert before.at(12) == CommittedOffset(12)


@pytest.mark.parametrize("number", [9, 41])
def test_an_offset_outside_of_the_partition_is_refused(number: int) -> None:
    with pytest.raises(ConfigError, match=f"in-0 has the offsets 10 to 40, .* and not {number}"):
        planned(HERE, OffsetTarget("offset", number))


def test_an_input_or_a_partition_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="out is not an existing input of a; its inputs are in"):
        group(HERE).chosen("out")
    with pytest.raises(ConfigError, match="in has the partitions 0 to 0, and no 3"):
        group(HERE).chosen("in", [0, 3])
    with pytest.raises(ConfigError, match="in has the partitions 0 to 0, and no 1"):
        MovePlan.of(group(HERE), {TopicPartition("in", 1): OffsetTarget()}, {})


@pytest.mark.parametrize("mark", [RESET_MARK, CHANGELOG_MARK])
def test_an_unfinished_change_of_the_offsets_is_refused_and_shown(mark: str) -> None:
    found = group(at(30, f"{mark} {{}}"))
    with pytest.raises(ResetRefusedError, match=r"is not finished \(in-0 "):
        found.refuse_changes()
    assert "is not finished" in "\n".join(listing(found))


@pytest.mark.parametrize("state", ["open", "dropping"])
def test_an_open_backfill_is_refused(state: Any) -> None:
    found = group(HERE, backfill=BackfillNote(state, "bf-1", "0f"))
    with pytest.raises(ResetRefusedError, match=f"backfill bf-1 of a is {state}"):
        found.refuse_changes()


def test_a_change_since_the_plan_is_seen_and_growth_is_none() -> None:
    plan = planned(HERE, OffsetTarget("latest"))
    shown = OffsetTarget("offset", 40)
    assert plan.is_still(planned(replace(HERE, end=50), shown))
    assert not plan.is_still(planned(at(31), shown))
    assert not plan.is_still(planned(replace(HERE, topic_id=BEFORE), shown))


def test_what_would_be_set_is_said_with_what_follows() -> None:
    said = "\n".join(lines(planned(HERE, OffsetTarget("offset", 25))))
    assert (
        "  in-0  30 -> 25; offsets 25 to 29 are processed again, and the task has state in counts"
        in said
    )
    assert "offset 30 is left out" in "\n".join(lines(planned(HERE, OffsetTarget("offset", 31))))
    assert "up to which the state includes its records is unknown" in "\n".join(
        lines(planned(at(None), OffsetTarget("latest")))
    )
    assert "in-0  41 (beyond the end) -> 40" in "\n".join(
        lines(planned(at(41), OffsetTarget("latest")))
    )


def test_the_listing_has_a_line_for_each_partition() -> None:
    other = replace(at(None), tp=TopicPartition("in", 1), task=TaskId(0, 1), end=7, begin=0)
    said = list(listing(group(other, HERE, missing=("more",))))
    assert said == [
        "Group a, no members",
        "task  partition  committed  begin  end  left",
        "0_0   in-0              30     10   40    10",
        "0_1   in-1            none      0    7     ?",
        "more does not exist",
    ]


@pytest.mark.parametrize("line", ["in,0", "in,0,x", "in,0,-1", "in;0;1", "in,0,1,2", "in,²,1"])
def test_a_line_that_is_no_offset_is_named(line: str) -> None:
    with pytest.raises(ConfigError, match="line 2 is not topic,partition,offset"):
        read_offsets(["in,1,5", line])
    with pytest.raises(ConfigError, match="line 3 names in-1 a second time"):
        read_offsets(["in,1,5", "", "in,1,6"])


def test_a_file_may_begin_with_the_names_of_its_columns() -> None:
    assert read_offsets(["topic,partition,offset", "in,1,5"]) == read_offsets(["in,1,5"])
    with pytest.raises(ConfigError, match="line 2 is not topic,partition,offset"):
        read_offsets(["in,1,5", "topic,partition,offset"])


@pytest.mark.parametrize(
    ("other", "is_left"),
    [
        (at(None), True),
        (at(41), True),  # beyond the end
        (at(30), False),
        (at(None, has_begun=False), False),
        (at(None, counted=Counted()), False),
    ],
)
def test_an_input_that_stays_without_an_offset_is_named(other: Input, is_left: bool) -> None:
    tp = TopicPartition("in", 1)
    found = group(HERE, replace(other, tp=tp))
    plan = MovePlan.of(found, {PLACE: OffsetTarget("offset", 30)}, {})
    assert plan.left_without == ([tp] if is_left else [])
    assert ("in-1 still has no offset" in "\n".join(lines(plan))) is is_left


def test_an_offset_without_a_past_says_that_the_times_of_windows_are_gone() -> None:
    gone = "the stream time is lost with the old offset"
    assert gone in str(OffsetChange(at(None), 40))
    assert gone not in str(OffsetChange(at(30), 40))
    assert gone not in str(OffsetChange(at(None, counted=Counted()), 40))


def test_an_offset_that_moves_no_table_s_position_is_said_to() -> None:
    move = OffsetChange(replace(HERE, counted=Counted(), outside="keep"), 25)
    said = str(move)
    assert "offsets 25 to 29 are NOT written again, because the sink of keep has its" in said
    assert "processed again" not in said
