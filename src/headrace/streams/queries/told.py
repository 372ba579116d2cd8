"""What the workers of this host told of their tasks, as far as a query wants to know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.streams.metrics.snapshots import ApplicationSnapshot, TaskSnapshot, without_taken


@dataclass(frozen=True, slots=True)
class Told:
    """A task.

    Args:
        age_s: how old the word is, in seconds.
        worker: the number of the worker that told it.
    """

    task: TaskSnapshot
    age_s: float
    worker: int = 0

    @property
    def remaining(self) -> int:
        """Offsets of its changelogs that are still to be read."""
        return sum(store.restore_remaining for store in self.task.stores)

    @property
    def inputs(self) -> dict[str, int]:
        """Up to where each input is committed, by ``TOPIC-PARTITION``."""
        return {f"{one.topic}-{one.partition}": one.committed for one in self.task.inputs}


def told_of(facts: ApplicationSnapshot, now_s: float) -> Mapping[str, Told]:
    """The tasks of an application, by their ids."""
    return {
        task.id: Told(task, view.facts.age_s(now_s), view.index)
        for view in without_taken(facts).workers
        if view.facts is not None and view.pid is not None
        for task in view.facts.tasks
    }
