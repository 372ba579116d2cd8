"""What a worker's thread counts: once a chunk of records and once a commit, never for each record.

Plain numbers, changed by that thread alone; others read snapshots (see `gathering`).

A commit of which the brokers do not say whether it was made is neither committed nor aborted until
a task of it begins again: the offset that it begins at has the number of the commit that it is of.

    ending ─► committed            the usual way
      └─► in doubt ─► committed    a task begins at this commit
              ├─► aborted          a task begins where it began before
              └─► undecided        nobody here sees the task again, or others have gone on with it
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.streams.kafka.protocols import Log
from headrace.streams.plan.plan import TaskId

# How long things took: counts between fixed bounds, which add up over workers.


COMMIT_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LATENCY_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram as it was at one moment.

    Args:
        bounds_s: the upper bounds in seconds, inclusive; what is above the last has no bound.
        counts: how many were seen up to each bound and above the one before, and above the last.
        sum_s: of all that was seen, in seconds.
    """

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float

    @property
    def count(self) -> int:
        """How many were seen.

        >>> Distribution((0.1, 1.0), (2, 1, 4), 9.5).count
        7
        """
        return sum(self.counts)


@dataclass(slots=True)
class Histogram:
    """Counts that one thread adds to.

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
        """Count one."""
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    def distribution(self) -> Distribution:
        """What was counted until now."""
        return Distribution(self.bounds_s, tuple(self.counts), self.sum_s)


# Numbers that processors count themselves, of one worker.


NUMBERS_MAX = 1_000
"""So many are kept: a name that was made of a key would make one for each key."""


class OwnNumbers:
    """Custom metrics that processors count. Only the worker's thread adds to them."""

    def __init__(self, log: Log) -> None:
        self.values: dict[tuple[str, str], float] = {}
        """By node and name."""
        self._log = log
        self._is_full = False

    def add(self, node: str, name: str, n: float) -> None:
        """Add to a number of a node."""
        key = (node, name)
        before = self.values.get(key)
        if before is not None:
            self.values[key] = before + n
        elif len(self.values) < NUMBERS_MAX:
            self.values[key] = n
        elif not self._is_full:
            self._is_full = True
            self._log.warning(
                "numbers_left_out",
                node=node,
                most=NUMBERS_MAX,
                advice="further names are not counted: name few things, and no keys or values",
            )


Began = Mapping[TaskId, "int | None"]
"""By task, the number of the commit that it began at or made last; None without one."""


@dataclass(slots=True)
class TaskCounters:
    """What one task did; it outlives the aborts of the task.

    Args:
        processed: records of chunks that went through, those of aborted transactions included.
        committed: records whose commits are final.
        open: records that no commit holds yet.
        oldest_ms: the earliest timestamp that a chunk of those began with; None without one.
    """

    processed: int = 0
    committed: int = 0
    open: int = 0
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A commit that may have been made.

    Args:
        commit_id: its number.
        records: of each task.
    """

    commit_id: int
    began: Began
    records: Mapping[TaskId, int]


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
    processed: int = 0
    """Records of all tasks, as `TaskCounters.processed`."""
    open: int = 0
    """Records of all tasks that no commit holds yet."""
    commits: int = 0
    """Those that are final, whatever became of local state afterwards."""
    records_committed: int = 0
    commit_latency: Histogram = field(default_factory=lambda: Histogram(COMMIT_BOUNDS_S))
    """Of commits that are whole: their rows are in local state, too."""
    latency: dict[int, Histogram] = field(default_factory=dict)
    """By sub-topology: from the timestamp of a source's record to the end of its commit."""
    rebalances: int = 0
    """Times that the group gave partitions, or said that some were lost."""
    reactions: dict[str, int] = field(default_factory=dict)
    found_aborted: int = 0
    """Transactions that were in doubt and turned out to have come to nothing."""
    _ending: tuple[int, Callable[[], Began]] | None = None
    """The commit that may be made at this moment."""
    _doubts: list[_Doubt] = field(default_factory=list)

    @property
    def undecided(self) -> int:
        """Records of commits of which it is not known whether they were made."""
        return sum(sum(doubt.records.values()) for doubt in self._doubts)

    @property
    def undecided_commits(self) -> int:
        """How many commits that is."""
        return len(self._doubts)

    @property
    def is_in_doubt(self) -> bool:
        """Whether a task that begins may tell something."""
        return bool(self._doubts)

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
        self.processed += records
        self.open += records
        if oldest_ms >= 0 and (own.oldest_ms is None or oldest_ms < own.oldest_ms):
            own.oldest_ms = oldest_ms

    def ending(self, commit_id: int, began: Callable[[], Began]) -> None:
        """A commit is asked for, and may be made from now on.

        Args:
            commit_id: its number.
            began: tells of its tasks; called where the commit stays in doubt.
        """
        self._ending = (commit_id, began)

    def committed(self, tasks: Iterable[TaskId], *, now_ms: int) -> None:
        """What these tasks did is final."""
        self.commits += 1
        self._ending = None
        for task in tasks:
            own = self.tasks.get(task)
            if own is None:
                continue
            own.committed += own.open
            self.records_committed += own.open
            self.open -= own.open
            own.open = 0
            if own.oldest_ms is not None:
                self._latency_of(task).add(max(0, now_ms - own.oldest_ms) / 1000)
                own.oldest_ms = None

    def in_doubt(self) -> bool:
        """Nobody says any more what became of the open transaction.

        Returns:
            Whether it may have been committed.
        """
        if self._ending is None:
            return False
        commit_id, began = self._ending[0], self._ending[1]()
        records = {task: self.tasks[task].open for task in began if task in self.tasks}
        self._doubts.append(_Doubt(commit_id, began, records))
        self._ending = None
        return True

    def began(self, task: TaskId, commit_id: int | None) -> None:
        """A task has begun at offsets that are of a commit, which may settle a doubt.

        Args:
            commit_id: the commit's number; None where the offsets have none.
        """
        for doubt in [doubt for doubt in self._doubts if task in doubt.began]:
            if commit_id == doubt.commit_id:
                # One transaction holds the work of all tasks.
                self._doubts.remove(doubt)
                self.commits += 1
                for one, records in doubt.records.items():
                    self.tasks[one].committed += records
                    self.records_committed += records
            elif commit_id == doubt.began[task]:
                self._doubts.remove(doubt)
                self.found_aborted += 1

    def void(self) -> None:
        """What was done since the last commit came to nothing."""
        self._ending = None
        self.open = 0
        for own in self.tasks.values():
            own.open, own.oldest_ms = 0, None

    def reacted(self, how: str) -> None:
        """Something went wrong, and was put right so."""
        self.reactions[how] = self.reactions.get(how, 0) + 1

    def _latency_of(self, task: TaskId) -> Histogram:
        return self.latency.setdefault(task.sub_topology, Histogram(LATENCY_BOUNDS_S))
