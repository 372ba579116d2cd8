"""What the tasks of a topology under test read, as far as it was committed.

Which task goes first, and which of several inputs, is the runtime's choice; so the interpreter is
told. What must not be its choice is checked here: that each task has read each committed record of
its inputs once, those of one partition in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.tasks.task import Task
from headrace.streams.testing.memory_clients import MemoryPlainProducer, MemoryTransactionalProducer
from headrace.streams.testing.memory_cluster import MemoryCluster, MemoryMessage
from headrace.streams.worker.commit import Commit


class Recorder:
    """Follows the tasks of one test driver, through aborts and crashes."""

    def __init__(self) -> None:
        self.read: list[tuple[str, MemoryMessage]] = []
        """Task and record, in the order in which they were committed."""
        self._open: dict[Task, list[MemoryMessage]] = {}
        self._committing: Sequence[Task] = ()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow what is processed and committed meanwhile."""
        run, commit = Task._run, Commit.run

        def run_and_note(task: Task, place: TopicPartition, batch: Any) -> int:
            done = run(task, place, batch)
            self._open.setdefault(task, []).extend(batch[:done])
            return done

        def commit_these(own: Commit, tasks: Sequence[Task], *rest: Any) -> Any:
            self._committing = tasks
            return commit(own, tasks, *rest)

        with (
            patch.object(Task, "_run", run_and_note),
            patch.object(Commit, "run", commit_these),
            self._after_commits(MemoryTransactionalProducer),
            self._after_commits(MemoryPlainProducer),
        ):
            yield

    @contextmanager
    def _after_commits(self, producer: type[Any]) -> Iterator[None]:
        commit = producer.commit

        def commit_and_note(own: Any) -> None:
            commit(own)
            for task in self._committing:
                self.read += [(str(task.id), m) for m in self._open.pop(task, [])]

        with patch.object(producer, "commit", commit_and_note):
            yield

    def check_exactly_once(self, cluster: MemoryCluster) -> None:
        """Each committed record of each input partition was read once, and in order."""
        seen: dict[TopicPartition, list[int]] = {}
        for _, message in self.read:
            seen.setdefault(message.tp, []).append(message.offset())
        for place, offsets in seen.items():
            there = [m.offset() for m in committed(cluster, place)]
            assert offsets == there, f"{place}: read {offsets}, there are {there}"


def committed(cluster: MemoryCluster, place: TopicPartition) -> list[MemoryMessage]:
    """The committed records of a partition, those too that were deleted since."""
    log = cluster.log(place)
    return [m for n, m in enumerate(log.entries) if m is not None and log.is_final(n)]
