"""Counters of a worker: updated once per batch of records and once per commit, not per record.

Plain numbers that only the worker's thread changes; other threads read snapshots (see `snapshots`).
The parts in order: `Histogram`, custom metrics of processors (`ProcessorCounters`), and the counts
of tasks and of the worker (`TaskCounters`, `Counters`). `tasks.tasks` counts dropped records.

A commit with an unknown outcome is neither committed nor aborted until one of its tasks starts
again: the offsets at which the task starts contain the id of their commit.

    ending ─► committed            the normal case
      └─► in doubt ─► committed    a task starts at this commit
              ├─► aborted          a task starts where it started before
              └─► undecided        no task starts here again, or other workers have continued
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.streams.kafka.protocols import Log
from headrace.streams.plan.plan import TaskId

# Histograms of durations with fixed bounds, which can be added over workers.


COMMIT_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LATENCY_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Distribution:
    """Snapshot of a histogram.

    Args:
        bounds_s: inclusive upper bounds of the buckets, in seconds; the last bucket has none.
        counts: number of values in each bucket.
        sum_s: sum of all values, in seconds.
    """

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float

    @property
    def count(self) -> int:
        """Number of all values.

        >>> Distribution((0.1, 1.0), (2, 1, 4), 9.5).count
        7
        """
        return sum(self.counts)


@dataclass(slots=True)
class Histogram:
    """Histogram that a single thread updates.

    >>> histogram = Histogram((0.1, 1.0))
    >>> for seconds in (0.1, 0.5, 3.0):
    ...     histogram.add(seconds)
    >>> histogram.distribution()
    Distribution(bounds_s=(0.1, 1.0), counts=(1, 1, 1), sum_s=3.6)
    """

    bounds_s: tuple[float, ...]
    counts: list[int] = field(init=False)
    sum_s: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds_s) + 1)

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    def distribution(self) -> Distribution:
        return Distribution(self.bounds_s, tuple(self.counts), self.sum_s)


# Custom metrics of processors.


NUMBERS_MAX = 1_000
"""Maximum number of metrics: a name built from a key would create a metric for each key."""


class ProcessorCounters:
    """Custom metrics of processors, updated only by the worker's thread."""

    def __init__(self, log: Log) -> None:
        self.values: dict[tuple[str, str], float] = {}
        """Values by node and name."""
        self._log = log
        self._is_full = False

    def add(self, node: str, name: str, n: float) -> None:
        key = (node, name)
        before = self.values.get(key)
        if before is not None:
            self.values[key] = before + n
        elif len(self.values) < NUMBERS_MAX:
            self.values[key] = n
        elif not self._is_full:
            self._is_full = True
            self._log.warning(
                "counters_omitted",
                node=node,
                most=NUMBERS_MAX,
                advice="further names are not counted: use few names, and no keys or values",
            )


# Counts of tasks and of the worker.


Began = Mapping[TaskId, "int | None"]
"""By task: id of the commit that it started at or completed last; None without a commit."""


@dataclass(slots=True)
class TaskCounters:
    """Counters of a task, which survive its aborts.

    Args:
        processed: processed records, including aborted transactions.
        committed: records of completed commits.
        open: records that are not committed yet.
        oldest_ms: smallest timestamp of the first record of each uncommitted batch; None without
            any.
    """

    processed: int = 0
    committed: int = 0
    open: int = 0
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Commit with an unknown outcome, with the records of each task."""

    commit_id: int
    began: Began
    records: Mapping[TaskId, int]


@dataclass(slots=True)
class Counters:
    """Counters of a worker since its process started.

    >>> counters, task = Counters(), TaskId(0, 1)
    >>> counters.ran(task, 5, oldest_ms=1_000)
    >>> counters.discard_open()
    >>> counters.ran(task, 3, oldest_ms=1_000)
    >>> counters.committed([task], now_ms=1_500)
    >>> counters.tasks[task].processed, counters.tasks[task].committed
    (8, 3)
    >>> counters.latency[0].sum_s
    0.5
    """

    tasks: dict[TaskId, TaskCounters] = field(default_factory=dict)
    processed: int = 0
    """Total of `TaskCounters.processed`."""
    open: int = 0
    """Total of `TaskCounters.open`."""
    commits: int = 0
    """Completed commits, even if writing local state failed afterwards."""
    records_committed: int = 0
    commit_latency: Histogram = field(default_factory=lambda: Histogram(COMMIT_BOUNDS_S))
    """Durations of commits that also wrote local state."""
    latency: dict[int, Histogram] = field(default_factory=dict)
    """By sub-topology: time from a source record's timestamp to the end of its commit."""
    rebalances: int = 0
    """Number of assignments, and of reported losses of partitions."""
    reactions: dict[str, int] = field(default_factory=dict)
    found_aborted: int = 0
    """Transactions in doubt that turned out to be aborted."""
    _ending: tuple[int, Callable[[], Began]] | None = None
    """Commit in progress."""
    _doubts: list[_Doubt] = field(default_factory=list)

    @property
    def undecided(self) -> int:
        """Number of records in commits with an unknown outcome."""
        return sum(sum(doubt.records.values()) for doubt in self._doubts)

    @property
    def undecided_commits(self) -> int:
        return len(self._doubts)

    @property
    def is_in_doubt(self) -> bool:
        return bool(self._doubts)

    def ran(self, task: TaskId, records: int, *, oldest_ms: int) -> None:
        """Count a processed batch of a task; `oldest_ms` is negative if unknown."""
        counters = self.tasks.get(task)
        if counters is None:
            counters = self.tasks[task] = TaskCounters()
        counters.processed += records
        counters.open += records
        self.processed += records
        self.open += records
        if oldest_ms >= 0 and (counters.oldest_ms is None or oldest_ms < counters.oldest_ms):
            counters.oldest_ms = oldest_ms

    def ending(self, commit_id: int, began: Callable[[], Began]) -> None:
        """Record that a commit was requested; `began` is called if its outcome is unknown."""
        self._ending = (commit_id, began)

    def committed(self, tasks: Iterable[TaskId], *, now_ms: int) -> None:
        self.commits += 1
        self._ending = None
        for task in tasks:
            counters = self.tasks.get(task)
            if counters is None:
                continue
            counters.committed += counters.open
            self.records_committed += counters.open
            self.open -= counters.open
            counters.open = 0
            if counters.oldest_ms is not None:
                self._latency_of(task).add(max(0, now_ms - counters.oldest_ms) / 1000)
                counters.oldest_ms = None

    def in_doubt(self) -> bool:
        """Record an unknown outcome; return whether the transaction may have been committed."""
        if self._ending is None:
            return False
        commit_id, began = self._ending[0], self._ending[1]()
        records = {task: self.tasks[task].open for task in began if task in self.tasks}
        self._doubts.append(_Doubt(commit_id, began, records))
        self._ending = None
        return True

    def began(self, task: TaskId, commit_id: int | None) -> None:
        """Record the start of a task at the offsets of a commit, which may resolve a doubt."""
        for doubt in [doubt for doubt in self._doubts if task in doubt.began]:
            if commit_id == doubt.commit_id:
                # A transaction contains the work of all tasks.
                self._doubts.remove(doubt)
                self.commits += 1
                for task_id, records in doubt.records.items():
                    self.tasks[task_id].committed += records
                    self.records_committed += records
            elif commit_id == doubt.began[task]:
                self._doubts.remove(doubt)
                self.found_aborted += 1

    def discard_open(self) -> None:
        """Record that everything since the last commit was aborted."""
        self._ending = None
        self.open = 0
        for counters in self.tasks.values():
            counters.open, counters.oldest_ms = 0, None

    def reacted(self, how: str) -> None:
        self.reactions[how] = self.reactions.get(how, 0) + 1

    def _latency_of(self, task: TaskId) -> Histogram:
        return self.latency.setdefault(task.sub_topology, Histogram(LATENCY_BOUNDS_S))
