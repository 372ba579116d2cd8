"""A hand-over from its first look to its flip, and its drop; without Spark and without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from headrace.spark_bridge.errors import BackfillError, CannotBackfillError
from headrace.spark_bridge.handover.coordinator import HandoverCoordinator
from headrace.spark_bridge.handover.drop import drop_from
from headrace.spark_bridge.handover.notes import HandoverOptions, marker_group, transactional_id
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.streams.admin.backfill_gate import backfill_group
from headrace.streams.errors import ProducerFencedError
from headrace.streams.kafka.acls import AccessError
from headrace.streams.kafka.protocols import CommittedOffset, Member, TopicPartition, no_probe
from headrace.streams.plan.deployed import topology_group
from headrace.streams.plan.identity import with_topic_id
from headrace.streams.plan.progress import OffsetMetadata
from headrace.streams.testing.memory_clients import MemoryTransactionalProducer
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.topology import Materialized, StreamsBuilder, serdes
from tests.spark_bridge.support.memory_handover import CHANGELOG, NOW_MS, MemoryHandover
from tests.spark_bridge.support.ways import (
    finish_partitioned,
    hand_over_by_driver,
    hand_over_partitioned,
    left_to_write,
)

HOW: dict[str, Any] = {"driver": hand_over_by_driver, "partitioned": hand_over_partitioned}
BOTH = pytest.mark.parametrize("how", HOW)
SOMEBODY = Member("w1", "app-w1", "/10.0.0.7")


@pytest.fixture
def handover(monkeypatch: pytest.MonkeyPatch) -> MemoryHandover:
    made = MemoryHandover()
    made.patch(monkeypatch)
    return made


def run(handover: MemoryHandover, how: str, plan: BackfillPlan, **more: Any) -> Any:
    local = handover.computed(plan)
    more.setdefault("summary", local.local.summary())
    return HOW[how](local, handover.application, target=handover.target(), **more)


def at(step: str, what: Callable[[], None]) -> Callable[[str], None]:
    """What the driver's probe does, at one of its steps."""

    def probe(now: str) -> None:
        if now == step:
            what()

    return probe


def fail() -> None:
    raise ValueError("planted")


def state_of(handover: MemoryHandover, backfill_id: str = "bf-1") -> str | None:
    head = handover.target().notes().head_of(backfill_id)
    return None if head is None else head.state


@BOTH
def test_a_sink_that_is_denied_needs_the_right_to_write(
    handover: MemoryHandover, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = handover.plan()
    describe = handover.admin.describe

    def denying(names: Iterable[str]) -> Any:
        asked = list(names)
        if "counted" in asked:
            raise AccessError(
                "User:app lacks the right Describe on the topic counted; grant it",
                right="Describe",
                resource="the topic counted",
            )
        return describe(asked)

    monkeypatch.setattr(handover.admin, "describe", denying)
    with pytest.raises(AccessError, match="lacks the right Write on the topic counted"):
        run(handover, how, plan)


@BOTH
def test_everything_counts_once_and_the_plan_is_done(handover: MemoryHandover, how: str) -> None:
    plan = handover.plan()
    report = run(handover, how, plan)
    handover.check_handed_over()
    assert state_of(handover) == "done"
    assert handover.target().notes().open_head is None
    assert report.counts.sink == 40
    assert report.counts.changelog == 7
    assert marker_group(plan) not in handover.cluster.offsets


@BOTH
def test_offsets_say_what_tasks_know_and_of_which_topics(
    handover: MemoryHandover, how: str
) -> None:
    plan = handover.plan()
    run(handover, how, plan)
    for place in handover.cluster.partitions("words"):
        committed = handover.cluster.offsets["app"][place]
        text = committed.metadata
        assert OffsetMetadata.decode(text).partition_time == NOW_MS + 38 + place.partition
        assert text == with_topic_id(text, "words", plan.topic_ids["words"])
        assert text != with_topic_id(text, "words", "another")


@BOTH
def test_what_was_in_a_repartition_topic_before_is_part_of_nothing(
    handover: MemoryHandover, how: str
) -> None:
    handover.plan()
    place = TopicPartition("app-by-word-repartition", 1)
    for _ in range(3):
        handover.cluster.append(place.topic, b"w", b"w", 1, 0, None)
    run(handover, how, handover.plan())
    assert handover.cluster.offsets["app"][place].offset == 3


@BOTH
def test_records_for_others_can_be_left_out(handover: MemoryHandover, how: str) -> None:
    run(handover, how, handover.plan(), outputs="skip")
    assert handover.counted() == {}
    assert handover.state() == handover.expected()


# -- who runs, and what there is ---------------------------------------------------------------


@BOTH
def test_an_application_that_runs_is_refused_before_anything_is_written(
    handover: MemoryHandover, how: str
) -> None:
    handover.admin.running.append(SOMEBODY)
    with pytest.raises(CannotBackfillError, match="the application app is running"):
        run(handover, how, handover.plan())
    handover.check_empty()
    assert state_of(handover) is None


@BOTH
def test_who_has_begun_to_run_before_the_note_was_seen_is_seen(
    handover: MemoryHandover, how: str
) -> None:
    """One that has looked before the note was there: then the plan is not left open."""
    probe = at("handover_opened", lambda: handover.admin.running.append(SOMEBODY))
    with pytest.raises(CannotBackfillError, match="the application app is running"):
        run(handover, how, handover.plan(), probe=probe)
    handover.check_empty()
    assert state_of(handover) == "dropped"


@BOTH
def test_who_runs_right_before_the_offsets_is_seen(handover: MemoryHandover, how: str) -> None:
    probe = at("handover_written", lambda: handover.admin.running.append(SOMEBODY))
    with pytest.raises(CannotBackfillError, match="the application app is running"):
        run(handover, how, handover.plan(), probe=probe)
    assert "app" not in handover.cluster.offsets
    assert state_of(handover) == {"driver": "dropped", "partitioned": "open"}[how]


@BOTH
@pytest.mark.parametrize("step", ["handover_opened", "handover_written"])
def test_offsets_that_are_committed_meanwhile_are_not_replaced(
    handover: MemoryHandover, how: str, step: str
) -> None:
    place = TopicPartition("words", 1)

    def commit() -> None:
        handover.cluster.commit_offsets("app", {place: CommittedOffset(7)})

    with pytest.raises(CannotBackfillError, match=r"has already committed offsets \(words-1\)"):
        run(handover, how, handover.plan(), probe=at(step, commit))
    assert handover.cluster.offsets["app"] == {place: CommittedOffset(7)}


@BOTH
def test_rows_without_offsets_are_refused_before_the_plan_is_open(
    handover: MemoryHandover, how: str
) -> None:
    plan = handover.plan()
    handover.cluster.append(CHANGELOG, b"old", b"k", 1, 0, None)
    with pytest.raises(CannotBackfillError, match=rf"have rows, .* \({CHANGELOG}-1\)"):
        run(handover, how, plan)
    assert state_of(handover) is None


@BOTH
def test_a_reset_replaces_rows_offsets_and_what_was_deployed(
    handover: MemoryHandover, how: str
) -> None:
    plan = handover.plan()
    cluster, deployed = handover.cluster, TopicPartition("words", 0)
    cluster.append(CHANGELOG, b"old", b"gone", 1, 0, None)
    cluster.commit_offsets("app", {deployed: CommittedOffset(3)})
    cluster.commit_offsets(topology_group("app"), {deployed: CommittedOffset(5, "a topology")})
    report = run(handover, how, plan, reset=True)
    handover.check_handed_over()
    assert report.counts.tombstones == 1
    assert cluster.offsets[topology_group("app")][deployed] == CommittedOffset(6)


@BOTH
def test_topics_that_were_made_again_are_refused(handover: MemoryHandover, how: str) -> None:
    """Before the offsets are committed, and before anything is written."""
    plan = handover.plan()
    # One that no transaction is open for, and no marker is at.
    topic = {"driver": "app-by-word-repartition", "partitioned": CHANGELOG}[how]

    def make_again() -> None:
        handover.cluster.delete(topic)
        handover.cluster.create(topic)

    said = f"{topic} was deleted and created again"
    with pytest.raises(CannotBackfillError, match=said):
        run(handover, how, plan, probe=at("handover_written", make_again))
    assert "app" not in handover.cluster.offsets
    with pytest.raises(CannotBackfillError, match=said):
        run(handover, how, plan)
    assert handover.state() == {}


def test_a_note_that_went_with_its_topic_hides_no_error(handover: MemoryHandover) -> None:
    """Brokers forget offsets with their topic: then nothing is open any more."""
    plan = handover.plan()

    def make_again() -> None:
        handover.cluster.delete("words")
        handover.cluster.create("words")

    with pytest.raises(CannotBackfillError, match="words was deleted and created again"):
        run(handover, "driver", plan, probe=at("handover_written", make_again))
    assert state_of(handover) is None


# -- the next driver ---------------------------------------------------------------------------


def interrupted(handover: MemoryHandover, unit: str = "1_1", **more: Any) -> BackfillPlan:
    """Hand over in parts, up to a unit that fails for good."""
    plan = handover.plan()

    def probe(step: str, name: str) -> None:
        if (step, name) == ("written", unit):
            fail()

    with pytest.raises(BackfillError, match="application cannot start before"):
        run(handover, "partitioned", plan, unit_probe=probe, **more)
    assert state_of(handover) == "open"
    assert "app" not in handover.cluster.offsets
    return plan


def test_the_next_driver_does_the_rest(handover: MemoryHandover) -> None:
    plan = interrupted(handover)
    missing = left_to_write(handover.application, plan, target=handover.target())
    assert [unit.name for unit in missing] == ["1_1"]
    report = run(handover, "partitioned", plan)
    assert (report.units, report.found) == (4, 3)
    handover.check_handed_over()
    assert state_of(handover) == "done"


def test_notes_and_markers_are_committed_again(handover: MemoryHandover) -> None:
    """They are offsets, and expire by their age."""
    plan = interrupted(handover)
    for group in (backfill_group("app"), marker_group(plan)):
        # What is renewed is what is written, whatever was there.
        renewed = handover.cluster.offsets[group] = _Noted(handover.cluster.offsets[group])
        with pytest.raises(ValueError, match="planted"):
            run(handover, "partitioned", plan, probe=at("handover_written", fail))
        assert renewed.written == dict(renewed).keys()


class _Noted(dict[TopicPartition, CommittedOffset]):
    """Offsets that know which were committed again."""

    def __init__(self, offsets: dict[TopicPartition, CommittedOffset]) -> None:
        super().__init__(offsets)
        self.written: set[TopicPartition] = set()

    def update(self, offsets: Any = (), **_: Any) -> None:
        self.written |= set(offsets)
        super().update(offsets)


@pytest.mark.parametrize("more", [{"outputs": "skip"}, {"reset": True}])
def test_it_keeps_to_the_terms(handover: MemoryHandover, more: dict[str, Any]) -> None:
    plan = interrupted(handover)
    with pytest.raises(CannotBackfillError, match="with another plan or other options"):
        run(handover, "partitioned", plan, **more)
    with pytest.raises(CannotBackfillError, match="with another plan or other options"):
        run(handover, "driver", plan)


def test_it_keeps_to_the_plan(handover: MemoryHandover) -> None:
    """With more input there is another plan of the same id."""
    interrupted(handover)
    handover.write(4)
    with pytest.raises(CannotBackfillError, match="with another plan or other options"):
        run(handover, "partitioned", handover.plan())


def test_a_plan_in_one_transaction_may_be_replaced(handover: MemoryHandover) -> None:
    """It leaves nothing behind."""
    lead = HandoverCoordinator(handover.target(), "bf-1", timeout_ms=1000, probe=no_probe)
    lead.open(handover.plan(), HandoverOptions("driver"))
    handover.write(4)
    run(handover, "partitioned", handover.plan())
    handover.check_handed_over()


@BOTH
def test_another_backfill_waits_for_the_one_that_is_open(
    handover: MemoryHandover, how: str
) -> None:
    interrupted(handover)
    with pytest.raises(CannotBackfillError, match="backfill bf-1 of app is open"):
        run(handover, how, handover.plan("bf-2"))


@BOTH
def test_an_id_is_used_once(handover: MemoryHandover, how: str) -> None:
    plan = handover.plan()
    run(handover, how, plan)
    with pytest.raises(CannotBackfillError, match="bf-1 of app is already handed over"):
        run(handover, how, plan, reset=True)


@BOTH
def test_a_second_driver_fences_the_first(handover: MemoryHandover, how: str) -> None:
    plan = handover.plan()

    def take_over() -> None:
        lead = HandoverCoordinator(handover.target(), "bf-1", timeout_ms=1000, probe=no_probe)
        lead.take_over()

    with pytest.raises(BackfillError, match="another driver has taken over backfill bf-1"):
        run(handover, how, plan, probe=at("handover_checked", take_over))
    assert "app" not in handover.cluster.offsets
    assert state_of(handover) == "open"


def test_nothing_is_visible_before_the_one_transaction_ends(handover: MemoryHandover) -> None:
    plan = handover.plan()
    with pytest.raises(ValueError, match="planted"):
        run(handover, "driver", plan, probe=at("handover_written", fail))
    handover.check_empty()
    assert state_of(handover) == "dropped"
    run(handover, "driver", plan)
    handover.check_handed_over()


@BOTH
def test_there_is_no_moment_between_the_offsets_and_that_it_is_done(
    handover: MemoryHandover, how: str
) -> None:
    """Who died there would have the application begin, and its backfill go on."""
    seen: list[str | None] = []
    probe = at("handover_committed", lambda: seen.append(state_of(handover)))
    run(handover, how, handover.plan(), probe=probe)
    assert seen == ["done"]


def test_a_unit_is_left_until_all_its_inputs_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StreamsBuilder()
    words, more = (
        builder.stream(topic, key=serdes.string, value=serdes.string) for topic in ("words", "more")
    )
    words.merge(more).group_by_key().count(store="counts")
    cluster = MemoryCluster(partitions=1)
    cluster.create("more")
    handover = MemoryHandover(cluster, builder.build(), partitions=1)
    handover.patch(monkeypatch)
    plan = handover.plan()
    with pytest.raises(ValueError, match="planted"):
        run(handover, "partitioned", plan, probe=at("handover_written", fail))
    assert left_to_write(handover.application, plan, target=handover.target()) == ()
    del cluster.offsets[marker_group(plan)][TopicPartition("more", 0)]
    (left,) = left_to_write(handover.application, plan, target=handover.target())
    assert set(left.inputs) == {TopicPartition("more", 0), TopicPartition("words", 0)}


def test_versions_of_before_cannot_be_replaced_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StreamsBuilder()
    builder.stream("words", key=serdes.string, value=serdes.string).to_table(
        store=Materialized("counts", history=timedelta(days=1))
    )
    handover = MemoryHandover(topology=builder.build())
    handover.patch(monkeypatch)
    plan = handover.plan()
    handover.cluster.append(CHANGELOG, b"old", b"k", 1, NOW_MS, None)
    with pytest.raises(CannotBackfillError, match="with headrace reset"):
        run(handover, "partitioned", plan, reset=True)
    assert state_of(handover) is None


def test_a_flip_needs_all_units(handover: MemoryHandover) -> None:
    plan = interrupted(handover)
    with pytest.raises(BackfillError, match="no task has reported progress of app-by-word"):
        finish_partitioned(handover.application, plan, target=handover.target())
    assert "app" not in handover.cluster.offsets
    assert state_of(handover) == "open"


def test_a_driver_that_died_before_the_flip_leaves_the_flip_alone(
    handover: MemoryHandover,
) -> None:
    plan = handover.plan()
    with pytest.raises(ValueError, match="planted"):
        run(handover, "partitioned", plan, probe=at("handover_written", fail))
    assert not left_to_write(handover.application, plan, target=handover.target())
    report = finish_partitioned(handover.application, plan, target=handover.target())
    assert report.found == 4
    handover.check_handed_over()
    assert state_of(handover) == "done"


# -- dropping ----------------------------------------------------------------------------------


def drop(handover: MemoryHandover, backfill_id: str = "bf-1", **more: Any) -> Any:
    return drop_from(handover.target(), handover.application, backfill_id, **more)


def test_dropping_parts_takes_what_is_the_application_s_own(handover: MemoryHandover) -> None:
    plan = interrupted(handover)
    handover.cluster.commit_offsets("app", {TopicPartition("words", 0): CommittedOffset(1)})
    report = drop(handover)
    assert report.restarts
    assert set(report.deleted) == {CHANGELOG, "app-by-word-repartition"}
    assert set(handover.cluster.topics) == {"words", "counted"}
    assert handover.cluster.offsets.get("app", {}) == {}
    assert marker_group(plan) not in handover.cluster.offsets
    assert state_of(handover) == "dropped"
    run(handover, "partitioned", replace(handover.plan(), id="bf-2"), outputs="skip")


def test_a_drop_that_may_not_see_topics_asks_for_the_right_to_delete_them(
    handover: MemoryHandover,
) -> None:
    interrupted(handover)
    target = handover.target()

    def describe(names: Iterable[str]) -> Any:
        if {"words", "counted"}.isdisjoint(names):
            raise AccessError("User:ann lacks the right Describe on the topic t", right="Describe")
        return target.admin.describe(names)

    denied = replace(target, admin=Mock(wraps=target.admin, describe=describe))
    with pytest.raises(AccessError, match="the right Delete on the topic t") as raised:
        drop_from(denied, handover.application, "bf-1")
    assert raised.value.right == "Delete"


def test_dropping_what_nobody_wrote_leaves_everything(handover: MemoryHandover) -> None:
    interrupted(handover, "0_0")
    report = drop(handover)
    assert not report.restarts
    assert CHANGELOG in handover.cluster.topics
    assert state_of(handover) == "dropped"


def test_a_drop_is_noted_before_writers_are_fenced_and_they_are_before_it_looks(
    handover: MemoryHandover,
) -> None:
    """Who comes later refuses, and who came before is fenced: none writes behind the look."""
    plan = interrupted(handover, "0_0")
    slow = MemoryTransactionalProducer(handover.cluster, transactional_id(plan, "1_0"))
    slow.init()
    slow.begin()
    slow.send(CHANGELOG, b"late", b"late", 0, NOW_MS, None)

    def noted() -> None:
        assert state_of(handover) == "dropping"

    drop(handover, probe=at("drop_noted", noted))
    with pytest.raises(ProducerFencedError):
        slow.commit()
    assert handover.state() == {}


@pytest.mark.parametrize("step", ["drop_noted", "drop_deleted"])
def test_a_drop_that_was_interrupted_is_done_again(handover: MemoryHandover, step: str) -> None:
    interrupted(handover)
    with pytest.raises(ValueError, match="planted"):
        drop(handover, probe=at(step, fail))
    assert state_of(handover) == "dropping"
    with pytest.raises(CannotBackfillError, match="being dropped"):
        run(handover, "partitioned", handover.plan())
    assert drop(handover).id == "bf-1"
    assert state_of(handover) == "dropped"


def test_what_is_done_or_runs_is_not_dropped(handover: MemoryHandover) -> None:
    plan = interrupted(handover)
    handover.admin.running.append(SOMEBODY)
    with pytest.raises(CannotBackfillError, match="the application app is running"):
        drop(handover)
    handover.admin.running.clear()
    run(handover, "partitioned", plan)
    with pytest.raises(BackfillError, match=r"not open \(done\): there is nothing to drop"):
        drop(handover)
    handover.check_handed_over()
