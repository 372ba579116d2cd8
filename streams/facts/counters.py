"""What a worker's thread counts: once a chunk of records and once a commit, never for each record.

Plain numbers, changed by that thread alone; others read snapshots (see `gathering`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.streams.facts.histogram import COMMIT_BOUNDS_S, LATENCY_BOUNDS_S, Histogram
from headrace.streams.plan.task_spec import TaskId


@dataclass(slots=True)
class TaskCounters:
    """What one task did; it outlives the aborts of the task.

    Args:
        processed: records, those of aborted transactions included.
        committed: records whose commits are final.
        open: records that no commit holds yet.
        oldest_ms: the earliest timestamp that a chunk of those began with; None without one.
    """

    processed: int = 0
    committed: int = 0
    open: int = 0
    oldest_ms: int | None = None


@dataclass(slots=True)
class Counters:
    """What one worker did since its process began.

    >>> counters, task = Counters(), TaskId(0, 1)
    >>> counters.ran(task, 5, oldest_ms=1_000)
    >>> counters.void()
    >>> counters.ran(task, 3, oldest_ms=1_000)
    >>> counters.committed([task], now_ms=1_500)
    >>> counters.tasks[task].processed, counters.tasks[task].committed
    (8, 3)
    >>> counters.latency[0].sum_s
    0.5
    """

    tasks: dict[TaskId, TaskCounters] = field(default_factory=dict)
    commits: int = 0
    records_committed: int = 0
    commit_latency: Histogram = field(default_factory=lambda: Histogram(COMMIT_BOUNDS_S))
    latency: dict[int, Histogram] = field(default_factory=dict)
    """By sub-topology: from the timestamp of a source's record to the end of its commit."""
    rebalances: int = 0
    reactions: dict[str, int] = field(default_factory=dict)

    def ran(self, task: TaskId, records: int, *, oldest_ms: int) -> None:
        """A task has processed a chunk of records.

        Args:
            oldest_ms: the timestamp that it began with; negative where there is none.
        """
        own = self.tasks.get(task)
        if own is None:
            own = self.tasks[task] = TaskCounters()
        own.processed += records
        own.open += records
        if oldest_ms >= 0 and (own.oldest_ms is None or oldest_ms < own.oldest_ms):
            own.oldest_ms = oldest_ms

    def committed(self, tasks: Iterable[TaskId], *, now_ms: int) -> None:
        """What these tasks did is final."""
        self.commits += 1
        for task in tasks:
            own = self.tasks.get(task)
            if own is None:
                continue
            own.committed += own.open
            self.records_committed += own.open
            own.open = 0
            if own.oldest_ms is not None:
                self._latency_of(task).add(max(0, now_ms - own.oldest_ms) / 1000)
                own.oldest_ms = None

    def void(self) -> None:
        """What was done since the last commit came to nothing."""
        for own in self.tasks.values():
            own.open, own.oldest_ms = 0, None

    def reacted(self, how: str) -> None:
        """Something went wrong, and was put right so."""
        self.reactions[how] = self.reactions.get(how, 0) + 1

    def _latency_of(self, task: TaskId) -> Histogram:
        return self.latency.setdefault(task.sub_topology, Histogram(LATENCY_BOUNDS_S))
