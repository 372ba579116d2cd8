"""Bugs of the kinds that exactly-once dies of, each a small patch of the production code.

A bug is planted within a context, and only in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from headrace.state.buffer import Buffer
from headrace.state.errors import StateError
from headrace.state.rocks import RocksTaskState
from headrace.streams.admin.start_check import StartCheck
from headrace.streams.errors import OutcomeUnknownError
from headrace.streams.kafka.consumer import LiveConsumer
from headrace.streams.kafka.plain_producer import PlainProducer
from headrace.streams.kafka.protocols import CommittedOffset, Offsets, TopicPartition
from headrace.streams.kafka.transactional_producer import TransactionalProducer
from headrace.streams.plan.live_versions import LiveVersions
from headrace.streams.plan.ownership import TopicOwnership
from headrace.streams.plan.progress import COMMIT_ID, OffsetMetadata
from headrace.streams.simulation.world.cluster import SimulatedAdmin
from headrace.streams.simulation.world.disk import _DurableState
from headrace.streams.simulation.world.groups import Group
from headrace.streams.simulation.world.kernel import VirtualClock
from headrace.streams.tasks import task
from headrace.streams.tasks.restore import Restorer
from headrace.streams.tasks.task import Task
from headrace.streams.tasks.tasks import Tasks
from headrace.streams.tasks.upstream_times import InputTime, UpstreamSnapshot, UpstreamTimes
from headrace.streams.worker.commit import Commit
from headrace.streams.worker.membership import Membership
from headrace.streams.worker.worker import Worker
from headrace.topology.context.punctuation import NEVER_MS
from headrace.topology.payload_time import EventTime

Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Plant] = {}
BUGS_OF_STEPS: dict[str, Plant] = {}
"""Those that only windows, joins and their like show."""
BUGS_OF_SEVERAL: dict[str, Plant] = {}
"""Those that only disasters, full disks, clocks and caches show."""
BUGS_OF_STRIKES: dict[str, Plant] = {}
"""Those that need a fault at a chosen call in a chosen phase, or a twin."""
BUGS_OF_LEAVING: dict[str, Plant] = {}
"""Those that need workers that come and go all the time."""
BUGS_OF_UPGRADES: dict[str, Plant] = {}
"""Those that need two versions of a topology at once."""
BUGS_OF_SNAPSHOTS: dict[str, Plant] = {}
"""Those that need a cluster that is restored from a snapshot."""
BUGS_OF_SKEW: dict[str, Plant] = {}
"""Those that only partitions far apart in event time show."""


def bug_of_skew(plant: Plant) -> Plant:
    BUGS_OF_SKEW[plant.__name__] = plant
    return plant


def bug(plant: Plant) -> Plant:
    BUGS[plant.__name__] = plant
    return plant


def bug_of_steps(plant: Plant) -> Plant:
    BUGS_OF_STEPS[plant.__name__] = plant
    return plant


def bug_of_several(plant: Plant) -> Plant:
    BUGS_OF_SEVERAL[plant.__name__] = plant
    return plant


def bug_of_strikes(plant: Plant) -> Plant:
    BUGS_OF_STRIKES[plant.__name__] = plant
    return plant


def bug_of_leaving(plant: Plant) -> Plant:
    BUGS_OF_LEAVING[plant.__name__] = plant
    return plant


def bug_of_snapshots(plant: Plant) -> Plant:
    BUGS_OF_SNAPSHOTS[plant.__name__] = plant
    return plant


def bug_of_upgrades(plant: Plant) -> Plant:
    BUGS_OF_UPGRADES[plant.__name__] = plant
    return plant


@contextmanager
def planted(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        families = (
            BUGS,
            BUGS_OF_STEPS,
            BUGS_OF_SEVERAL,
            BUGS_OF_STRIKES,
            BUGS_OF_LEAVING,
            BUGS_OF_SNAPSHOTS,
            BUGS_OF_SKEW,
            BUGS_OF_UPGRADES,
        )
        next(family[name] for family in families if name in family)(patch)
        yield


SHOWN_BY: dict[str, int] = {
    "restore_only_to_the_last_stable_offset": 151,
    "another_membership_not_noticed": 1412,
    "metadata_fetched_at_commit_time": 1412,
    "bulk_restore_without_flush": 4,
    "bulk_restore_without_flush_on_rocksdb": 17,
    "offsets_committed_before_the_flush": 34,
    "offsets_from_the_consumers_position": 47,
    "time_out_of_a_commit_taken_for_success": 36,
    "lost_partitions_dropped_without_an_abort": 32,
    "offsets_read_while_undecided": 190,
    "state_written_before_the_transaction_commits": 9,
    "deletions_left_out_of_changelogs": 4,
    "durations_by_the_clock_on_the_wall": 28,
    "a_write_that_fails_for_lack_of_room_taken_for_done": 98,
    "what_a_client_drops_is_passed_in_its_last_callback": 18,
    "rows_of_another_history_kept": 294,
    "stores_move_while_others_live": 26,
    "versions_compared_before_they_join_alone": 15,
}
"""A seed that has shown a bug that few show: tried first, which spares minutes."""


def found_by(name: str, run: Callable[[int], Sequence[str]], count: int) -> int | None:
    """The seed that shows a bug, of the first so many; None if there is none.

    Args:
        name: of the bug.
        run: runs a seed, and says what was wrong.
        count: of seeds.
    """
    first = SHOWN_BY.get(name, 0)
    with planted(name):
        return next((seed for seed in (first, *range(count)) if run(seed)), None)


@bug
def restore_only_to_the_last_stable_offset(patch: pytest.MonkeyPatch) -> None:
    def end_offsets(
        self: SimulatedAdmin, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return self._of_logs("end_offsets", partitions, lambda log: log.last_stable)

    patch.setattr(SimulatedAdmin, "end_offsets", end_offsets)


def _do_not_compare_members(patch: pytest.MonkeyPatch) -> None:
    right = Membership.take_new_membership
    patch.setattr(Membership, "take_new_membership", lambda self: right(self) and False)


@bug
def another_membership_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """Who rejoined commits in the next callback what it did before, or without owning it."""
    _do_not_compare_members(patch)


@bug
def metadata_fetched_at_commit_time(patch: pytest.MonkeyPatch) -> None:
    """With the comparison of member ids, which is a second defence, it would be harmless."""
    _do_not_compare_members(patch)
    patch.setattr(Membership, "metadata", lambda self: self._consumer.group_metadata())


@bug
def bulk_restore_without_flush(patch: pytest.MonkeyPatch) -> None:
    """The disk in memory keeps apart what a flush would make durable."""
    patch.setattr(_DurableState, "flush", lambda self: None)


@bug
def bulk_restore_without_flush_on_rocksdb(patch: pytest.MonkeyPatch) -> None:
    def end_restore(self: RocksTaskState, positions: Mapping[str, Any]) -> None:
        self._restored = None
        self.write({}, positions)

    patch.setattr(RocksTaskState, "end_restore", end_restore)


@bug
def offsets_from_the_consumers_position(patch: pytest.MonkeyPatch) -> None:
    right = Task.offsets

    def offsets(self: Task, positions: Mapping[TopicPartition, int], commit_id: int) -> Offsets:
        return {
            place: type(c)(max(c.offset, positions.get(place, 0)), c.metadata)
            for place, c in right(self, positions, commit_id).items()
        }

    patch.setattr(Task, "offsets", offsets)


@bug
def buffer_kept_over_an_abort(patch: pytest.MonkeyPatch) -> None:
    right = task.buffers_of

    def buffers_of(spec: Any, state: Any) -> dict[str, Buffer]:
        kept: dict[str, Buffer] = state.__dict__.setdefault("kept", {})
        return {name: kept.setdefault(name, made) for name, made in right(spec, state).items()}

    patch.setattr("headrace.streams.tasks.task.buffers_of", buffers_of)
    patch.setattr(Buffer, "discard", lambda self: None)


@bug
def time_out_of_a_commit_taken_for_success(patch: pytest.MonkeyPatch) -> None:
    right = TransactionalProducer.commit

    def commit(self: TransactionalProducer) -> None:
        try:
            right(self)
        except OutcomeUnknownError:
            self._is_open = False

    patch.setattr(TransactionalProducer, "commit", commit)


@bug
def lost_partitions_dropped_without_an_abort(patch: pytest.MonkeyPatch) -> None:
    """With the comparison of member ids, which is a second defence, it would be harmless."""
    _do_not_compare_members(patch)

    def on_lost(self: Worker, partitions: Sequence[TopicPartition]) -> None:
        self._ownership.release(self.tasks.ids_of(partitions))

    patch.setattr(Worker, "on_lost", on_lost)


@bug
def offsets_read_while_undecided(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "is_undecided", lambda self, places: False)


@bug
def state_written_before_the_transaction_commits(patch: pytest.MonkeyPatch) -> None:
    def run(self: Commit, tasks: Sequence[Task], commit_id: int) -> Any:
        self.flush_caches(tasks)
        deltas = self.write_changelogs(tasks, commit_id)
        offsets = self.send_offsets(tasks, commit_id)
        self.write_state(tasks, deltas, offsets, commit_id)
        self.commit_transaction(tasks, commit_id)
        return deltas

    patch.setattr(Commit, "run", run)


@bug
def tasks_go_on_after_an_abort(patch: pytest.MonkeyPatch) -> None:
    """Neither the queues nor the offsets of an aborted transaction are taken back."""
    patch.setattr(Tasks, "rebuild", lambda self: None)


@bug
def offsets_committed_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    """At-least-once only."""
    right = PlainProducer.commit

    def commit(self: PlainProducer) -> None:
        if self._offsets:
            self._commit_offsets(self._offsets)
        right(self)

    patch.setattr(PlainProducer, "commit", commit)


@bug_of_steps
def numbers_forgotten_over_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Stream times of operators, and which windows were emitted, begin anew."""
    right = OffsetMetadata.decode

    def decode(text: str) -> OffsetMetadata:
        found = right(text)
        kept = {name: value for name, value in found.values.items() if name == COMMIT_ID}
        return OffsetMetadata(found.partition_time, kept)

    patch.setattr(OffsetMetadata, "decode", decode)


@bug_of_steps
def deletions_left_out_of_changelogs(patch: pytest.MonkeyPatch) -> None:
    """At-least-once only: local rows go, and would come back with a restore."""
    right = PlainProducer.send_changelog

    def send_changelog(
        self: PlainProducer, place: TopicPartition, rows: Any, last_headers: Any = None
    ) -> None:
        if kept := [row for row in rows if row[1] is not None]:
            right(self, place, kept, last_headers)

    patch.setattr(PlainProducer, "send_changelog", send_changelog)


@bug_of_steps
def deletions_left_out_of_local_state(patch: pytest.MonkeyPatch) -> None:
    """The changelogs are right."""
    right = task.local_rows

    def local_rows(buffers: Any, deltas: Mapping[str, Any]) -> dict[str, Any]:
        rows = right(buffers, deltas)
        if "final-store" in rows:
            rows["final-store"] = [row for row in rows["final-store"] if row[1] is not None]
        return rows

    patch.setattr("headrace.streams.tasks.task.local_rows", local_rows)


@bug_of_several
def another_topic_of_the_same_name_not_noticed(patch: pytest.MonkeyPatch) -> None:
    for module in (
        "headrace.streams.tasks.input_identity",
        "headrace.streams.tasks.tasks",
        "headrace.streams.plan.topics",
    ):
        patch.setattr(f"{module}.require_same", lambda known, found: None)


@bug_of_snapshots
def rows_of_another_history_kept(patch: pytest.MonkeyPatch) -> None:
    """A position is a topic's id and an offset alone."""
    patch.setattr("headrace.streams.tasks.restore._require_same_history", lambda part, found: None)


@bug_of_several
def durations_by_the_clock_on_the_wall(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VirtualClock, "monotonic_s", lambda self: self.now_ms() / 1000)


@bug_of_several
def a_write_that_fails_for_lack_of_room_taken_for_done(patch: pytest.MonkeyPatch) -> None:
    right = Task.written

    def written(self: Task, deltas: Any, positions: Any, offsets: Any) -> None:
        try:
            right(self, deltas, positions, offsets)
        except StateError:
            self.start = offsets
            self.next_offset = {place: committed.offset for place, committed in offsets.items()}
            for name in deltas:
                self.buffer(name).committed()
            self.moved = False

    patch.setattr(Task, "written", written)


@bug_of_several
def what_caches_hold_back_left_out_of_the_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Commit, "flush_caches", lambda self, tasks: None)


@bug_of_several
def an_input_without_offsets_begins_at_its_beginning(patch: pytest.MonkeyPatch) -> None:
    for module in ("tasks.lost_offsets", "admin.start_check"):
        patch.setattr(f"headrace.streams.{module}.lost_inputs", lambda committed, before: [])


@bug_of_several
def a_changelog_that_is_gone_is_made_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StartCheck, "__call__", lambda self, admin, plan: None)
    patch.setattr(Restorer, "_require_other_commit", lambda self, *facts: None)
    patch.setattr("headrace.streams.plan.identity.lost_changelogs", lambda committed, found: [])


@bug_of_several
def another_changelog_of_the_same_name_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("headrace.streams.plan.identity.lost_changelogs", lambda committed, found: [])


@bug_of_strikes
def a_committed_offset_0_taken_for_none(patch: pytest.MonkeyPatch) -> None:
    right = LiveConsumer.committed

    def committed(
        self: LiveConsumer, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> Mapping[TopicPartition, CommittedOffset | None] | None:
        found = right(self, partitions, timeout_s)
        if found is None:
            return None
        return {place: c if c is not None and c.offset else None for place, c in found.items()}

    patch.setattr(LiveConsumer, "committed", committed)


@bug_of_leaving
def what_a_client_drops_is_passed_in_its_last_callback(patch: pytest.MonkeyPatch) -> None:
    """If one that closes told nobody, which is a second defence, it would be harmless."""
    patch.setattr(LiveConsumer, "_in_callback", lambda self: nullcontext())
    never = property(lambda self: False, lambda self, _: None)
    patch.setattr(LiveConsumer, "_is_closing", never, raising=False)


@bug_of_skew
def ends_read_before_the_times(patch: pytest.MonkeyPatch) -> None:
    """A time is visible before the records that were written with it."""
    right = UpstreamTimes._request_times

    def look(self: UpstreamTimes, inputs: Any, own: Any, alike: Any) -> UpstreamSnapshot | None:
        early = right(self, inputs, own, alike)
        late = right(self, inputs, own, alike)
        return late if early is None or late is None else UpstreamSnapshot(late.inputs, early.ends)

    patch.setattr(UpstreamTimes, "_request_times", look)


@bug_of_skew
def times_hold_up_to_the_last_stable_offset(patch: pytest.MonkeyPatch) -> None:
    """Offsets may be visible before the records of their transaction."""
    right = UpstreamTimes._request_times

    def look(self: UpstreamTimes, inputs: Any, own: Any, alike: Any) -> UpstreamSnapshot | None:
        found = right(self, inputs, own, alike)
        admin: Any = getattr(self._end_offsets, "__self__")  # noqa: B009
        return None if found is None else UpstreamSnapshot(found.inputs, admin.stable_offsets(own))

    patch.setattr(UpstreamTimes, "_request_times", look)


@bug_of_skew
def idle_inputs_hold_time_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UpstreamTimes, "_idle", lambda _, __: frozenset())


@bug_of_skew
def inputs_of_a_join_that_are_read_directly_do_not_hold_time_back(
    patch: pytest.MonkeyPatch,
) -> None:
    patch.setattr(UpstreamTimes, "_limit", lambda _, __: NEVER_MS)


@bug_of_skew
def the_watermark_is_not_restored(patch: pytest.MonkeyPatch) -> None:
    """A task that begins again goes by the largest timestamp until it is told better."""
    right = Task.__post_init__

    def begin(self: Task) -> None:
        right(self)
        self.context.watermark = NEVER_MS

    patch.setattr(Task, "__post_init__", begin)


@bug_of_skew
def a_record_of_the_future_advances_time(patch: pytest.MonkeyPatch) -> None:
    """`max_ahead` is not looked at."""
    right = EventTime._time
    patch.setattr(EventTime, "_time", lambda self, r: right(replace(self, max_ahead_ms=None), r))


@bug_of_skew
def results_that_wait_do_not_hold_time_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InputTime, "of", lambda self, _: self.time)


@bug_of_skew
def results_left_wait_for_the_next_time(patch: pytest.MonkeyPatch) -> None:
    """Operators downstream advance, and close their windows, before all results came."""

    def advance(self: Task, time: int) -> None:
        operators = self._bound.operators.values()
        emits = any(operator.is_due(time) for operator in operators)
        for operator in operators:
            while emits and self.cached_updates():
                self._bound.flush()
            if operator.has_remaining_results():
                operator.emit_remaining()
            operator.advance(time)
        self.context.advance(time)

    patch.setattr(Task, "_advance_operators", advance)
    patch.setattr(Task, "has_remaining_results", lambda self: self._closes_idle)


@bug_of_skew
def a_watermark_outlives_an_abort(patch: pytest.MonkeyPatch) -> None:
    """Records are read again from before it."""
    latest: dict[Any, int] = {}
    right, right_advance = Task.__post_init__, Task.advance_watermarks

    def begin(self: Task) -> None:
        right(self)
        if self.is_time_bounded:
            self.context.watermark = max(self.context.watermark, latest.get(self.id, 0))

    def advance(self: Task, times: Mapping[TopicPartition, int], limit: int) -> None:
        right_advance(self, times, limit)
        if self.is_time_bounded:
            latest[self.id] = max(self.context.watermark, latest.get(self.id, 0))

    patch.setattr(Task, "__post_init__", begin)
    patch.setattr(Task, "advance_watermarks", advance)


@bug_of_upgrades
def each_version_chooses_its_subscribed_topics(patch: pytest.MonkeyPatch) -> None:
    """As it was before versions were compared."""
    patch.setattr(
        "headrace.streams.plan.live_versions.keep_subscribed", lambda plans, deployed: plans
    )
    patch.setattr(TopicOwnership, "conflicts", lambda self, other: [])


@bug_of_upgrades
def stores_move_while_others_live(patch: pytest.MonkeyPatch) -> None:
    """Inputs are compared, and changelogs are not."""
    right = TopicOwnership.conflicts

    def conflicts(self: TopicOwnership, other: TopicOwnership) -> list[str]:
        return right(replace(self, stores={}), replace(other, stores={}))

    patch.setattr(TopicOwnership, "conflicts", conflicts)


@bug_of_upgrades
def versions_compared_before_they_join_alone(patch: pytest.MonkeyPatch) -> None:
    """Two versions that start at the same moment do not see each other then."""
    patch.setattr(LiveVersions, "may_begin", lambda self: True)
