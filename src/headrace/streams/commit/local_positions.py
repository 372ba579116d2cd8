"""How far local state follows its changelogs once a commit is written to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.state.store import Position
from headrace.streams.plan.changelog_records import last_read, last_written
from headrace.streams.seams.clients import Offsets, TopicPartition
from headrace.streams.task.task import Task
from headrace.streams.task.task_buffers import Delta


@dataclass(frozen=True, slots=True)
class CommittedAt:
    """The positions of a task's stores at one commit.

    Args:
        commit_id: larger than that of the commit before.
        now_ms: the wall-clock time of the commit.
        topic_ids: the id of each changelog topic, kept beside the local position.
    """

    commit_id: int
    now_ms: int
    topic_ids: Mapping[str, str]

    def written(
        self, task: Task, deltas: Mapping[str, Delta], ends: Mapping[TopicPartition, int]
    ) -> dict[str, Position]:
        """Those of stores with a changelog of their own, or without one.

        Args:
            deltas: what the commit wrote, by store.
            ends: the offsets behind what it wrote to changelogs.
        """
        commit_id, now_ms = self.commit_id, self.now_ms
        positions = {}
        for store in task.spec.stores:
            place = task.spec.changelogs.get(store.name)
            if store.name in task.spec.source_rows:
                continue
            if place is None:
                # Nothing else tells whether an unlogged store belongs to these offsets.
                positions[store.name] = Position("", 0, commit_id, now_ms)
            elif store.name in deltas:
                topic_id, end = self.topic_ids[place.topic], ends[place]
                last = last_written(deltas[store.name], end, commit_id)
                positions[store.name] = Position(topic_id, end, commit_id, now_ms, last)
            elif (before := task.state.position(store.name)) is not None:
                # Without a change, too: the rows are those of this commit.
                positions[store.name] = replace(before, commit_id=commit_id)
        return positions

    def read(self, task: Task, offsets: Offsets) -> dict[str, Position]:
        """Those of stores whose changelog is an input: as far as that is committed now."""
        commit_id, now_ms = self.commit_id, self.now_ms
        positions = {}
        for store in task.spec.source_rows:
            place = task.spec.restored_from[store]
            topic_id, offset = self.topic_ids[place.topic], offsets[place].offset
            record, before = task.last_read.get(place), task.state.position(store)
            last = None if before is None else before.last
            if record is not None:
                last = last_read(record)
            positions[store] = Position(topic_id, offset, commit_id, now_ms, last)
        return positions
