"""Who hears what a worker does: a protocol, nobody, and two where the runtime takes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.streams.plan.task_spec import TaskId
from headrace.streams.seams.clients import TopicPartition
from headrace.streams.states import State
from headrace.streams.tasks.restore import RestoreListener


class WorkerListener(Protocol):
    """Hears what a worker does; called in the worker's thread."""

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """The worker's tasks changed."""

    def on_running(self) -> None:
        """All tasks of the worker process records."""

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        """A commit is final, local state included."""


class SilentListener:
    """Does nothing: what is used where nobody asked."""

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """Do nothing."""

    def on_running(self) -> None:
        """Do nothing."""

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class BothWorkerListeners:
    """Tells both what a worker does, in this order."""

    first: WorkerListener
    second: WorkerListener

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """The worker's tasks changed."""
        self.first.on_assignment(tasks)
        self.second.on_assignment(tasks)

    def on_running(self) -> None:
        """All tasks of the worker process records."""
        self.first.on_running()
        self.second.on_running()

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        """A commit is final."""
        self.first.on_commit(tasks, records)
        self.second.on_commit(tasks, records)


@dataclass(frozen=True, slots=True)
class BothRestoreListeners:
    """Tells both how restores go on, in this order."""

    first: RestoreListener
    second: RestoreListener

    def on_restore_start(self, place: TopicPartition, store: str, begin: int, end: int) -> None:
        """A store's restore begins."""
        self.first.on_restore_start(place, store, begin, end)
        self.second.on_restore_start(place, store, begin, end)

    def on_batch_restored(self, place: TopicPartition, store: str, offset: int, count: int) -> None:
        """Records were applied."""
        self.first.on_batch_restored(place, store, offset, count)
        self.second.on_batch_restored(place, store, offset, count)

    def on_restore_end(self, place: TopicPartition, store: str, total: int) -> None:
        """A store is complete."""
        self.first.on_restore_end(place, store, total)
        self.second.on_restore_end(place, store, total)


class StateTracker(SilentListener):
    """Turns what the worker does into the application's states."""

    def __init__(self, become: Callable[[State], None]) -> None:
        self._become = become

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """The tasks changed; they run again when the worker says so."""
        del tasks
        self._become(State.REBALANCING)

    def on_running(self) -> None:
        """All tasks process records."""
        self._become(State.RUNNING)
