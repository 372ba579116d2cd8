"""The commit of a worker: state, output and input offsets become final together.

    1  flush caches downstream until nothing is held back
    2  write each store's delta to its changelog, one record for each key that changed
    3  add the next offsets of all input partitions to the transaction
    4  commit the transaction, once
    5  write the deltas and the changelogs' positions to local state, one batch a task

A failure before 4 leaves nothing behind: the transaction is aborted and the buffers are dropped. A
failure between 4 and 5 leaves local state one commit behind, which the restore replays. Under
at-least-once the steps are the same, with everything flushed in 4 before the offsets are committed,
and the output before 2: no row may be in a changelog while what followed from it is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from headrace.streams.commit.local_positions import CommittedAt
from headrace.streams.plan.changelog_records import commit_header
from headrace.streams.seams.clients import (
    Clock,
    GroupMetadata,
    Offsets,
    Probe,
    Producer,
    TopicPartition,
)
from headrace.streams.task.task import Task
from headrace.streams.task.task_buffers import Delta
from headrace.streams.tasks.input_identity import InputIdentity
from headrace.streams.worker_errors import RecordTooLargeError
from headrace.topology.errors import RefusedTimestampError

Positions = Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]]


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit needs from its worker.

    Args:
        membership: what to commit under; asked for once the offsets go.
        topic_ids: the id of each changelog topic, kept beside the local position.
        protect: called with each task before it writes to its changelogs.
        is_ending: called before the transaction is committed.
        is_final: called when the transaction is committed, before local state is written.
    """

    producer: Producer
    membership: Callable[[], GroupMetadata]
    positions: Positions
    topic_ids: Mapping[str, str]
    clock: Clock
    probe: Probe
    protect: Callable[[Task], None]
    inputs: InputIdentity
    working: Callable[[], AbstractContextManager[None]]
    is_ending: Callable[[], None] = lambda: None
    is_final: Callable[[], None] = lambda: None

    def run(self, tasks: Sequence[Task], commit_id: int) -> Sequence[dict[str, Delta]]:
        """Commit everything that `tasks` did since their last commit; returns the rows of each.

        Args:
            commit_id: larger than that of the commit before.

        Raises:
            TopicReplacedError: an input is another topic than the one that was read.
        """
        require_same_inputs = self.inputs.ask(tasks)
        with self.working():
            self.flush_caches(tasks)
        deltas = self.write_changelogs(tasks, commit_id)
        offsets = self.send_offsets(tasks, commit_id)
        require_same_inputs()
        self.commit_transaction()
        self.write_state(tasks, deltas, offsets, commit_id)
        return deltas

    def flush_caches(self, tasks: Sequence[Task]) -> None:
        """Step 1."""
        for task in tasks:
            while task.held_back():
                task.flush()
        self.probe("caches_flushed")

    def write_changelogs(self, tasks: Sequence[Task], commit_id: int) -> list[dict[str, Delta]]:
        """Step 2."""
        last_headers = commit_header(commit_id)
        all_deltas = []
        if any(task.spec.changelogs for task in tasks):
            self.producer.settle()
        for task in tasks:
            self.protect(task)
            with self.working():
                deltas = task.deltas()
            for store, delta in deltas.items():
                place = task.spec.changelogs.get(store)
                if place is None:
                    continue
                try:
                    self.producer.send_changelog(place, delta, last_headers)
                except (RecordTooLargeError, RefusedTimestampError) as error:
                    raise task.row_refused(store, error) from error
            all_deltas.append(deltas)
        self.probe("changelogs_written")
        return all_deltas

    def send_offsets(self, tasks: Sequence[Task], commit_id: int) -> list[Offsets]:
        """Step 3."""
        positions = self.positions([place for task in tasks for place in task.inputs])
        offsets = [task.offsets(positions, commit_id) for task in tasks]
        everything = {place: c for one in offsets for place, c in one.items()}
        # Asked for this late, as another generation may have begun while the rest was written.
        self.producer.send_offsets(everything, self.membership())
        self.probe("offsets_sent")
        return offsets

    def commit_transaction(self) -> None:
        """Step 4."""
        self.is_ending()
        self.producer.commit()
        self.is_final()
        self.probe("transaction_committed")

    def write_state(
        self,
        tasks: Sequence[Task],
        deltas: Sequence[dict[str, Delta]],
        offsets: Sequence[Offsets],
        commit_id: int,
    ) -> None:
        """Step 5."""
        written = [
            place
            for task, own in zip(tasks, deltas, strict=True)
            for store, place in task.spec.changelogs.items()
            if store in own
        ]
        ends = self.producer.changelog_ends(written)
        at = CommittedAt(commit_id, self.clock.now_ms(), self.topic_ids)
        for task, own, next_offsets in zip(tasks, deltas, offsets, strict=True):
            positions = {**at.written(task, own, ends), **at.read(task, next_offsets)}
            task.written(own, positions, next_offsets)
            self.probe("state_written")
