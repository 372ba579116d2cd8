"""The commit of a worker: state, output and input offsets become final atomically.

    1  flush caches downstream until no update is cached
    2  write each store's changes to its changelog, one record per changed key
    3  add the next offsets of all input partitions to the transaction
    4  commit the transaction, once
    5  write the changes and the changelogs' positions to local state, one batch per task

A failure before 4 has no effect: the transaction is aborted and the buffers are discarded. A
failure between 4 and 5 leaves local state one commit behind, which the restore replays. Under
at-least-once the steps are the same, but 4 flushes the producer before the offsets are committed,
and output is flushed before 2: a changelog must not contain a row whose output may still be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from headrace.state.store import Position
from headrace.streams.errors import RecordTooLargeError
from headrace.streams.kafka.protocols import Offsets, Producer, TopicPartition
from headrace.streams.plan.identity import commit_header, last_read, last_written
from headrace.streams.tasks.task import Delta, Task
from headrace.streams.worker.parts import WorkerParts
from headrace.topology.errors import RefusedTimestampError


@dataclass(frozen=True, slots=True)
class CommittedAt:
    """The positions of a task's stores at a commit.

    Args:
        commit_id: a number larger than the ID of the previous commit.
        now_ms: the wall-clock time of the commit.
        topic_ids: the ID of each changelog topic, stored with the local position.
    """

    commit_id: int
    now_ms: int
    topic_ids: Mapping[str, str]

    def written_positions(
        self, task: Task, deltas: Mapping[str, Delta], ends: Mapping[TopicPartition, int]
    ) -> dict[str, Position]:
        """Return the positions of stores with their own changelog, or without a changelog."""
        commit_id, now_ms = self.commit_id, self.now_ms
        positions = {}
        for store in task.spec.stores:
            tp = task.spec.changelogs.get(store.name)
            if store.name in task.spec.source_rows:
                continue
            if tp is None:
                # The commit ID alone shows whether an unlogged store belongs to these offsets.
                positions[store.name] = Position("", 0, commit_id, now_ms)
            elif store.name in deltas:
                topic_id, end = self.topic_ids[tp.topic], ends[tp]
                last = last_written(deltas[store.name], end, commit_id)
                positions[store.name] = Position(topic_id, end, commit_id, now_ms, last)
            elif (previous := task.state.position(store.name)) is not None:
                # Rows without a change belong to this commit, too.
                positions[store.name] = replace(previous, commit_id=commit_id)
        return positions

    def read_positions(self, task: Task, offsets: Offsets) -> dict[str, Position]:
        """Return the positions of stores whose changelog is an input, at its committed offset."""
        commit_id, now_ms = self.commit_id, self.now_ms
        positions = {}
        for store in task.spec.source_rows:
            tp = task.spec.restored_from[store]
            topic_id, offset = self.topic_ids[tp.topic], offsets[tp].offset
            record, previous = task.last_read.get(tp), task.state.position(store)
            last = None if previous is None else previous.last
            if record is not None:
                last = last_read(record)
            positions[store] = Position(topic_id, offset, commit_id, now_ms, last)
        return positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Commit of a worker's tasks.

    Args:
        topic_ids: the ID of each changelog topic, stored with the local position.
        protect: called with each task before it writes to its changelogs.
        working: context in which user code runs.
        before_commit: called before the transaction is committed.
        after_commit: called when the transaction is committed, before local state is written.
    """

    parts: WorkerParts
    topic_ids: Mapping[str, str]
    protect: Callable[[Task], None]
    working: Callable[[], AbstractContextManager[None]]
    before_commit: Callable[[Sequence[Task], int], None]
    after_commit: Callable[[Sequence[Task]], None]

    @property
    def producer(self) -> Producer:
        return self.parts.transactions.producer

    def run(self, tasks: Sequence[Task], commit_id: int) -> Sequence[dict[str, Delta]]:
        """Commit all work since the last commit; return the written rows of each task."""
        require_same_inputs = self.parts.input_identity.begin_check(tasks)
        with self.working():
            self.flush_caches(tasks)
        deltas = self.write_changelogs(tasks, commit_id)
        offsets = self.send_offsets(tasks, commit_id)
        require_same_inputs()
        self.commit_transaction(tasks, commit_id)
        self.write_state(tasks, deltas, offsets, commit_id)
        return deltas

    def flush_caches(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            while task.cached_updates():
                task.flush()
        self.parts.dependencies.probe("caches_flushed")

    def write_changelogs(self, tasks: Sequence[Task], commit_id: int) -> list[dict[str, Delta]]:
        last_headers = commit_header(commit_id)
        all_deltas = []
        if any(task.spec.changelogs for task in tasks):
            self.producer.flush()
        for task in tasks:
            self.protect(task)
            with self.working():
                deltas = task.deltas()
            for store, delta in deltas.items():
                tp = task.spec.changelogs.get(store)
                if tp is None:
                    continue
                try:
                    self.producer.send_changelog(tp, delta, last_headers)
                except (RecordTooLargeError, RefusedTimestampError) as error:
                    raise task.row_refused(store, error) from error
            all_deltas.append(deltas)
        self.parts.dependencies.probe("changelogs_written")
        return all_deltas

    def send_offsets(self, tasks: Sequence[Task], commit_id: int) -> list[Offsets]:
        positions = self.parts.dependencies.consumer.positions(
            [tp for task in tasks for tp in task.inputs]
        )
        offsets = [task.offsets(positions, commit_id) for task in tasks]
        all_offsets = {tp: c for task_offsets in offsets for tp, c in task_offsets.items()}
        # Request the membership late: a new generation may have started during the writes.
        self.producer.send_offsets(all_offsets, self.parts.membership.metadata())
        self.parts.dependencies.probe("offsets_sent")
        return offsets

    def commit_transaction(self, tasks: Sequence[Task], commit_id: int) -> None:
        self.before_commit(tasks, commit_id)
        self.producer.commit()
        self.after_commit(tasks)
        self.parts.dependencies.probe("transaction_committed")

    def write_state(
        self,
        tasks: Sequence[Task],
        deltas: Sequence[dict[str, Delta]],
        offsets: Sequence[Offsets],
        commit_id: int,
    ) -> None:
        written = [
            tp
            for task, task_deltas in zip(tasks, deltas, strict=True)
            for store, tp in task.spec.changelogs.items()
            if store in task_deltas
        ]
        ends = self.producer.changelog_ends(written)
        committed_at = CommittedAt(
            commit_id, self.parts.dependencies.clock.now_ms(), self.topic_ids
        )
        for task, task_deltas, next_offsets in zip(tasks, deltas, offsets, strict=True):
            positions = {
                **committed_at.written_positions(task, task_deltas, ends),
                **committed_at.read_positions(task, next_offsets),
            }
            task.written(task_deltas, positions, next_offsets)
            self.parts.dependencies.probe("state_written")
