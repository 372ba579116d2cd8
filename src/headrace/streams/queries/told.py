"""Last reports of this host's workers on their tasks, reduced to the needs of queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.streams.metrics.snapshots import ApplicationSnapshot, TaskSnapshot, without_taken


@dataclass(frozen=True, slots=True)
class Told:
    """Task as last reported by its worker, `age_s` ago."""

    task: TaskSnapshot
    age_s: float
    worker: int = 0

    @property
    def remaining(self) -> int:
        return sum(store.restore_remaining for store in self.task.stores)

    @property
    def inputs(self) -> dict[str, int]:
        """The committed offset of each input, by ``TOPIC-PARTITION``."""
        return {f"{one.topic}-{one.partition}": one.committed for one in self.task.inputs}


def told_of(facts: ApplicationSnapshot, now_s: float) -> Mapping[str, Told]:
    return {
        task.id: Told(task, view.facts.age_s(now_s), view.index)
        for view in without_taken(facts).workers
        if view.facts is not None and view.pid is not None
        for task in view.facts.tasks
    }
