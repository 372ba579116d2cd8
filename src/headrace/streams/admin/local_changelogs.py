"""Writer of lost changelogs from the rows on this host.

The rows of a task are complete if they belong to the same commit as the group's offsets. Tasks may
be on several hosts, so each host writes its own tasks, and a kill may interrupt between any two
steps:

    1  lock the local state of this host; check that the group has no members
    2  commit the offsets again with a mark in the metadata of each: no task starts from it
    3  create the changelogs
    4  task by task: write its rows, wait for the brokers, write the new positions locally
    5  commit the original offsets of the written tasks, with the topic ids of the new changelogs
       (see `headrace.streams.plan.identity`)

A second run, here or on another host, finds the marks and completes the work. An interrupted task
is written again in full, which produces the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from headrace.state.directory import TaskDirectory
from headrace.state.rocks import RocksMemory
from headrace.state.store import Position, TaskState
from headrace.state.task_state import open_task_state
from headrace.streams.admin.reset import (
    changed_since,
    local_errors,
    locked_state,
    refuse_members,
    set_offsets,
)
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import ResetRefusedError
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    GroupAdminClient,
    Member,
    NewTopic,
    Offsets,
    Probe,
    Producer,
    TopicDescription,
    TopicPartition,
    no_probe,
)
from headrace.streams.plan.identity import (
    committed_numbers,
    known_changelogs,
    lost_changelogs,
    with_changelogs,
)
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.plan.progress import (
    CHANGELOG_MARK,
    MAX_BYTES,
    RESET_MARK,
    OffsetMetadata,
    committed_commit_id,
)
from headrace.streams.plan.topic_plan import plan_internal_topics, topic_names
from headrace.streams.plan.topics import await_topics

# The plan of writing lost changelogs, as plain data.


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Task whose changelogs lack rows.

    Args:
        changelogs: all changelogs of the task.
        stores: the stores whose changelogs are written.
        commit_id: id of the commit that its offsets belong to.
        refusal: why its rows cannot be taken from this host; None if they can.
    """

    id: TaskId
    inputs: tuple[TopicPartition, ...]
    changelogs: tuple[str, ...]
    stores: tuple[str, ...]
    commit_id: int
    refusal: str | None


@dataclass(frozen=True, slots=True)
class ChangelogPlan:
    """Plan of the changelogs to write, from a snapshot of the cluster.

    Args:
        members: members of the group; nothing is done while it has any.
        create: lost changelogs, to be created.
        tasks: tasks whose changelogs lack rows.
        committed: the group's offsets, including marked offsets.
    """

    group: str
    members: tuple[Member, ...]
    create: tuple[NewTopic, ...]
    tasks: tuple[TaskRows, ...]
    committed: Mapping[TopicPartition, CommittedOffset]

    @property
    def here(self) -> tuple[TaskRows, ...]:
        return tuple(task for task in self.tasks if task.refusal is None)

    @property
    def elsewhere(self) -> tuple[TaskRows, ...]:
        return tuple(task for task in self.tasks if task.refusal is not None)

    @property
    def marks(self) -> Offsets:
        """Offsets with a mark, committed first: no task starts from a marked offset."""
        return {p: _marked(self.committed[p]) for task in self.tasks for p in self._of(task)}

    def final_offsets(self, ids: Mapping[str, str]) -> Offsets:
        """The original offsets of written tasks with the `ids` of changelogs, committed last."""
        return {
            p: _of_changelogs(
                unmarked(self.committed[p]), {name: ids[name] for name in t.changelogs}
            )
            for t in self.here
            for p in self._of(t)
        }

    def _of(self, task: TaskRows) -> list[TopicPartition]:
        return [tp for tp in task.inputs if tp in self.committed]


def missing_rows(
    positions: Mapping[str, Position] | None,
    lost: Sequence[str],
    volatile: Sequence[str],
    commit_id: int | None,
) -> str | None:
    """Return the reason why a task's rows cannot be taken from this host, or None.

    `positions` is None without local state, and `volatile` has in-memory stores.

    >>> positions = {"counts": Position("id", 5, 7, 0), "sums": Position("id", 5, 6, 0)}
    >>> missing_rows(positions, ["counts"], [], 7) is None
    True
    >>> missing_rows(positions, ["counts", "sums"], [], 7)
    'the rows on this host and the offsets are of different commits'
    """
    if volatile:
        return f"the rows of {', '.join(volatile)} were only in memory"
    if commit_id is None:
        return "the offsets have no commit id"
    if not positions:
        return "no rows here"
    if any(store not in positions or positions[store].commit_id != commit_id for store in lost):
        return "the rows on this host and the offsets are of different commits"
    return None


def unmarked(committed: CommittedOffset) -> CommittedOffset:
    text = committed.metadata.removeprefix(CHANGELOG_MARK)
    # The client may append bytes to the metadata; encode only the parsed part.
    progress = OffsetMetadata.parse(text)
    return CommittedOffset(committed.offset, text if progress is None else progress.encode())


def _of_changelogs(committed: CommittedOffset, ids: Mapping[str, str]) -> CommittedOffset:
    text = committed.metadata
    return CommittedOffset(committed.offset, with_changelogs(text, ids) if text else text)


def _marked(committed: CommittedOffset) -> CommittedOffset:
    return CommittedOffset(committed.offset, f"{CHANGELOG_MARK}{unmarked(committed).metadata}")


def lines(plan: ChangelogPlan) -> Iterator[str]:
    if not plan.tasks:
        yield f"No changelog of {plan.group} lacks rows."
        return
    yield "Changelogs to create:"
    yield from [f"  {topic.name}" for topic in plan.create] or ["  none"]
    yield "Tasks to write from the rows on this host:"
    yield from [f"  {t.id}: {', '.join(t.stores) or 'nothing'}" for t in plan.here] or ["  none"]
    if plan.elsewhere:
        yield "Tasks whose rows are not on this host:"
        yield from (f"  {task.id}: {task.refusal}" for task in plan.elsewhere)
        yield (
            "Run this on the hosts that have them; until all are written the application does not "
            "start. Rows that no host has are lost: headrace reset starts from scratch."
        )


_BATCH_ROWS = 10_000


class LocalChangelogs:
    """Writer of lost changelogs from local state.

    Args:
        make_producer: creates the producer of the rows.
    """

    def __init__(
        self,
        config: StreamsConfig,
        plans: Sequence[SubPlan],
        cluster: GroupAdminClient,
        *,
        make_producer: Callable[[], Producer],
        now_ms: Callable[[], int],
        probe: Probe = no_probe,
    ) -> None:
        self._config = config
        self._group = config.application_id
        self._plans = plans
        self._cluster = cluster
        self._make_producer = make_producer
        self._now_ms = now_ms
        self._probe = probe

    def plan(self) -> ChangelogPlan:
        """Find the changelogs to write, and their rows on this host; nothing is changed."""
        with self._locked() as held:
            return self._make_plan(held)

    def _make_plan(self, held: Mapping[TaskId, TaskDirectory]) -> ChangelogPlan:
        topics = [plan.topics for plan in self._plans]
        described = self._cluster.describe(topic_names(topics))
        planned = plan_internal_topics(
            topics,
            described,
            replication_factor=self._config.replication_factor,
            topic_configs=self._config.topic_configs,
        )
        committed = self._cluster.committed(self._group, decided=True)
        if any(c.metadata.startswith(RESET_MARK) for c in committed.values()):
            raise ResetRefusedError(
                f"a reset of {self._group} was started and not finished: run headrace reset again"
            )
        counts = {name: found.partitions for name, found in described.items()}
        counts |= {topic.name: topic.partitions for topic in planned.internal}
        tasks = [
            found
            for plan in self._plans
            if plan.changelogs
            for partition in range(counts[plan.subscribed_topic(counts)])
            if (found := self._task(plan, partition, counts, described, committed, held))
            is not None
        ]
        return ChangelogPlan(
            group=self._group,
            members=self._cluster.members(self._group),
            create=tuple(topic for topic in planned.create if topic.changelog),
            tasks=tuple(tasks),
            committed=committed,
        )

    def _task(
        self,
        plan: SubPlan,
        partition: int,
        counts: Mapping[str, int],
        described: Mapping[str, TopicDescription],
        committed: Offsets,
        held: Mapping[TaskId, TaskDirectory],
    ) -> TaskRows | None:
        """Return None if its changelogs lack no rows."""
        task_id = TaskId(plan.id, partition)
        inputs = tuple(plan.inputs(partition, counts))
        offsets = {tp: committed[tp] for tp in inputs if tp in committed}
        if not any(c.metadata for c in offsets.values()):
            return None  # it has read nothing, so it has no rows
        is_marked = any(c.metadata.startswith(CHANGELOG_MARK) for c in offsets.values())
        ids = {t: described[t].topic_id for t in plan.changelogs.values() if t in described}
        numbers = committed_numbers(c.metadata for c in offsets.values())
        others = {topic for values in numbers for topic in lost_changelogs(values, ids)}
        # Local rows from another topic than a known changelog are outdated, not lost.
        known = known_changelogs(numbers, ids)
        lost = [s for s, topic in plan.changelogs.items() if topic not in ids or topic in others]
        if task_id not in held:
            positions = None
        else:
            with self._state(plan, held[task_id]) as state:
                by_store = {store: state.position(store) for store in plan.changelogs}
            positions = {store: position for store, position in by_store.items() if position}
            lost = [
                store
                for store, topic in plan.changelogs.items()
                if store in lost
                or (
                    topic not in known
                    and store in positions
                    and positions[store].topic_id != ids[topic]
                )
            ]
        if not lost and not is_marked:
            return None
        commit_id = committed_commit_id({p: unmarked(c) for p, c in offsets.items()})
        volatile = [
            store.name
            for store in plan.program.sub_topology.stores
            if store.name in lost and store.spec.kind == "memory"
        ]
        refusal = missing_rows(positions, lost, volatile, commit_id)
        changelogs = tuple(plan.changelogs.values())
        return TaskRows(task_id, inputs, changelogs, tuple(lost), commit_id or 0, refusal)

    # -- execution -----------------------------------------------------------------------------

    def carry_out(self, plan: ChangelogPlan) -> None:
        """Write the changelogs whose rows are here; raise if the plan has changed."""
        with self._locked() as held:
            if self._make_plan(held) != plan:
                raise changed_since(self._group)
            refuse_members(self._group, plan.members)
            self._commit_marks(plan)
            self._probe("changelogs_marked")
            described = self._create(plan)
            self._probe("changelogs_created")
            producer = self._make_producer()
            try:
                for task in plan.here:
                    self._write(task, held[task.id], described, producer)
                    self._probe("changelog_written")
            finally:
                producer.close()
            ids = {name: found.topic_id for name, found in described.items()}
            self._cluster.set_offsets(self._group, plan.final_offsets(ids))

    def _commit_marks(self, plan: ChangelogPlan) -> None:
        marks = plan.marks
        longest = max((len(mark.metadata) for mark in marks.values()), default=0)
        if longest > MAX_BYTES:
            raise ResetRefusedError(
                f"the mark in the offset metadata of {self._group} would take {longest} bytes, and "
                f"brokers accept {MAX_BYTES}; nothing was done. Run headrace reset, which starts "
                "without these rows"
            )
        set_offsets(self._cluster, self._group, marks, when="meanwhile")

    def _create(self, plan: ChangelogPlan) -> Mapping[str, TopicDescription]:
        names = [topic for sub in self._plans for topic in sub.changelogs.values()]
        self._cluster.create(plan.create)
        timeout_s = self._config.task_timeout_ms / 1000
        described = await_topics(self._cluster, names, timeout_s=timeout_s)
        for topic in plan.create:
            if "delete" in topic.config["cleanup.policy"]:
                # Rows of old windows have old timestamps; a running worker restores the retention.
                self._cluster.alter_config(topic.name, {"retention.ms": "-1"})
        return described

    def _write(
        self,
        task: TaskRows,
        directory: TaskDirectory,
        described: Mapping[str, TopicDescription],
        producer: Producer,
    ) -> None:
        plan = next(plan for plan in self._plans if plan.id == task.id.sub_topology)
        specs = {store.name: store.spec for store in plan.program.sub_topology.stores}
        with self._state(plan, directory) as state:
            tps = {}
            for store in task.stores:
                tp = TopicPartition(plan.changelogs[store], task.id.partition)
                changes = specs[store].rows.changes(state.store(store))
                while rows := list(islice(changes, _BATCH_ROWS)):
                    producer.send_changelog(tp, rows)
                    producer.apply_backpressure(self._config.task_timeout_ms / 1000)
                if state.position(store) is not None:
                    tps[store] = tp
            producer.flush()
            ends = self._cluster.end_offsets(tps.values())
            positions = {
                store: Position(
                    described[tp.topic].topic_id, ends[tp], task.commit_id, self._now_ms()
                )
                for store, tp in tps.items()
            }
            state.write({}, positions)

    # -- local state ---------------------------------------------------------------------------

    @contextmanager
    def _state(self, plan: SubPlan, directory: TaskDirectory) -> Iterator[TaskState]:
        memory = RocksMemory(block_cache_bytes=8 << 20, write_buffer_bytes=8 << 20)
        specs = [store.spec for store in plan.program.sub_topology.stores]
        with local_errors():
            state = open_task_state(directory.path, specs, memory=memory)
            try:
                yield state
            finally:
                state.close()

    @contextmanager
    def _locked(self) -> Iterator[Mapping[TaskId, TaskDirectory]]:
        """Lock all local state; yield the newest generation of each task that has files."""
        with locked_state(self._config.state_dir, self._group) as held:
            newest: dict[TaskId, TaskDirectory] = {}
            for directory in sorted(held, key=lambda one: one.generation):
                sub, _, partition = directory.path.name.partition(".")[0].partition("_")
                if sub.isdecimal() and partition.isdecimal() and directory.path.is_dir():
                    newest[TaskId(int(sub), int(partition))] = directory
            yield newest
