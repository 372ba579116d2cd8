"""Plans as notes of offsets: divided, read back, and what has become of them."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from headrace.spark_bridge.errors import CannotBackfillError
from headrace.spark_bridge.handover.notes import (
    HandoverNotes,
    HandoverOptions,
    check_id,
    marker_group,
    note_partitions,
)
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.streams.admin.backfill_gate import backfill_group
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.progress import MAX_BYTES

RANDOM = random.Random(7)
IN_PARTS = HandoverOptions("partitioned")


class Group:
    """Offsets of one group, without a cluster."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, CommittedOffset] = {}

    def committed_at(
        self, group: str, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        assert group == backfill_group("app")
        return {place: self.offsets[place] for place in places if place in self.offsets}


def plan_over(partitions: int, *, id: str = "bf-1") -> BackfillPlan:  # noqa: A002
    starts = {TopicPartition("in", p): RANDOM.randrange(1 << 40) for p in range(partitions)}
    ends = {place: start + RANDOM.randrange(1 << 30) for place, start in starts.items()}
    return BackfillPlan("app", id, 5, ((0,),), {"in": partitions}, starts, ends)


def read(group: Group, partitions: int) -> HandoverNotes:
    tps = note_partitions(["in"], ["app-n-changelog"], {"in": partitions})
    return HandoverNotes.of(group.committed_at(backfill_group("app"), tps), tps)


@pytest.mark.parametrize("partitions", [1, 40, 2000])
def test_a_plan_of_any_size_is_read_back(partitions: int) -> None:
    """Each note fits the metadata of an offset, and the first is where the gate looks."""
    plan, group = plan_over(partitions), Group()
    notes = read(group, partitions).opened(plan, IN_PARTS)
    assert all(len(committed.metadata) <= MAX_BYTES for committed in notes.values())
    assert (len(notes) > 1) == (partitions == 2000)
    group.offsets.update(notes)
    found = read(group, partitions)
    assert found.open_head is not None
    place, head = found.open_head
    assert place == TopicPartition("in", 0)
    assert found.plan_of(head) == plan


def test_a_note_has_room_for_the_longest_id() -> None:
    plan = plan_over(2000, id="i" * 64)
    check_id(plan.id)
    notes = read(Group(), 2000).opened(plan, IN_PARTS)
    assert max(len(committed.metadata) for committed in notes.values()) <= MAX_BYTES


def test_a_plan_that_finds_no_room_is_refused() -> None:
    with pytest.raises(CannotBackfillError, match="handover='driver'"):
        read(Group(), 1).opened(plan_over(2000), IN_PARTS)


def test_what_becomes_of_a_plan_is_said_by_its_first_note_alone() -> None:
    plan, group = plan_over(2000), Group()
    group.offsets.update(read(group, 2000).opened(plan, IN_PARTS))
    for state in ("dropping", "done"):
        group.offsets.update(read(group, 2000).become("bf-1", state))
        head = read(group, 2000).head_of("bf-1")
        assert head is not None
        assert head.state == state
        assert read(group, 2000).plan_of(head) == plan
    assert read(group, 2000).open_head is None


def test_a_smaller_plan_over_a_larger_one_is_read_back_alone() -> None:
    """Later parts of the first stay where they are."""
    group = Group()
    group.offsets.update(read(group, 2000).opened(plan_over(2000), IN_PARTS))
    group.offsets.update(read(group, 2000).become("bf-1", "dropped"))
    second = plan_over(1, id="bf-2")
    group.offsets.update(read(group, 2000).opened(second, IN_PARTS))
    found = read(group, 2000)
    assert found.open_head is not None
    assert found.plan_of(found.open_head[1]) == second


def test_a_plan_whose_parts_are_gone_is_none() -> None:
    group = Group()
    group.offsets.update(read(group, 2000).opened(plan_over(2000), IN_PARTS))
    del group.offsets[TopicPartition("in", 1)]
    found = read(group, 2000)
    assert found.open_head is not None
    assert found.plan_of(found.open_head[1]) is None


def test_other_terms_make_another_digest_and_not_another_group() -> None:
    plan = plan_over(1)
    terms = [
        HandoverOptions(how, outputs, reset)
        for how in ("driver", "partitioned")
        for outputs in ("write", "skip")
        for reset in (False, True)
    ]
    assert len({one.digest(plan) for one in terms}) == 8
    assert marker_group(plan).startswith("app.backfill-bf-1-")


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "ä", "x" * 65])
def test_an_id_that_no_group_can_have_is_refused(bad: str) -> None:
    with pytest.raises(CannotBackfillError, match="at most 64"):
        check_id(bad)


def read_more(group: Group) -> HandoverNotes:
    """With another input before the first one: notes have other places then."""
    places = note_partitions(["earlier", "in"], ["app-n-changelog"], {"earlier": 1, "in": 2000})
    return HandoverNotes.of(group.committed_at(backfill_group("app"), places), places)


def test_parts_of_another_plan_that_lie_behind_are_not_taken() -> None:
    group = Group()
    group.offsets.update(read(group, 2000).opened(plan_over(2000), IN_PARTS))
    group.offsets.update(read(group, 2000).become("bf-1", "dropped"))
    second = plan_over(1990, id="bf-2")
    notes = read_more(group).opened(second, IN_PARTS)
    assert len(notes) > 1
    assert TopicPartition("earlier", 0) in notes
    group.offsets.update(notes)
    found = read_more(group)
    assert found.open_head is not None
    assert found.plan_of(found.open_head[1]) == second


def test_of_two_first_notes_of_an_id_the_open_one_counts() -> None:
    group = Group()
    group.offsets.update(read(group, 1).opened(plan_over(1), IN_PARTS))
    group.offsets.update(read(group, 1).become("bf-1", "dropped"))
    again = plan_over(1)
    group.offsets.update(read_more(group).opened(again, IN_PARTS))
    found = read_more(group)
    head = found.head_of("bf-1")
    assert head is not None
    assert head.state == "open"
    assert found.plan_of(head) == again
    group.offsets.update(found.become("bf-1", "done"))
    head = read_more(group).head_of("bf-1")
    assert head is not None
    assert head.state == "done"


def test_notes_are_where_a_drop_deletes_nothing_first() -> None:
    partitions = {"in": 2, "app-n-changelog": 2, "b": 1}
    places = note_partitions(["in", "b", "gone"], ["app-n-changelog", "in"], partitions)
    assert [f"{place}" for place in places] == [
        "b-0", "in-0", "in-1", "app-n-changelog-0", "app-n-changelog-1"
    ]  # fmt: skip
