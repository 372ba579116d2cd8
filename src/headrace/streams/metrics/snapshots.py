"""Snapshots of an application: application > worker > task > store, input partition.

Nodes are listed next to the tasks, because all tasks of a sub-topology run the same code. All
fields are plain numbers or texts without references to running objects, so any thread can read a
snapshot, and other processes can receive it. Counters start with the worker's process. Counters of
processed records count records again that were processed again after an abort; `committed` counts
each record once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from headrace import __version__
from headrace.streams.metrics.counters import Distribution
from headrace.streams.plan.plan import SubPlan
from headrace.streams.states import State
from headrace.topology.describe.picture import Picture

UNRESPONSIVE_S = 10.0
"""Age of the last report, in seconds, above which a worker is unresponsive: about the session
timeout, after which the group reassigns its tasks."""
UNRESPONSIVE = "unresponsive"
"""State of a worker that was active and has not reported for `UNRESPONSIVE_S`."""
_AT_WORK = frozenset({"rebalancing", "running", "paused"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewSnapshot:
    """Slowest and fastest partition in event time, of all that bound a task's stream time.

    Args:
        slowest: its topic and partition, as ``orders-0``.
        slowest_ms: its event time in milliseconds since 1970; -1 if it has not been read.
        is_idle: whether the slowest partition has no more records, so it does not limit stream
            time.
    """

    slowest: str
    slowest_ms: int
    fastest: str
    fastest_ms: int
    is_idle: bool = False

    @property
    def span_ms(self) -> int:
        """Difference of the two event times in milliseconds; 0 if the slowest was not read."""
        return self.fastest_ms - self.slowest_ms if self.slowest_ms >= 0 else 0

    @property
    def extent(self) -> tuple[bool, int]:
        """Sort key: a partition that was not read is behind by an unknown time, the largest."""
        return self.slowest_ms < 0, self.span_ms

    def describe(self) -> str:
        """Describe it for logs and tables.

        >>> skew_of({"a-0": 5, "a-1": 9, "a-2": 3_600_005}).describe()
        'a-0 is 1:00:00 behind a-2'
        """
        slowest = f"{self.slowest} (idle)" if self.is_idle else self.slowest
        if self.slowest_ms < 0:
            return f"{slowest} has not been read yet, {self.fastest} has"
        return f"{slowest} is {format_duration(self.span_ms)} behind {self.fastest}"


def skew_of(times: Mapping[str, int], idle: Collection[str] = ()) -> SkewSnapshot | None:
    """Return the skew between input partitions; None if fewer than two of them have records.

    Args:
        times: the event time of each partition in milliseconds, or -1 before it was read. An idle
            partition at time 0 is left out, because an extractor returns 0 for "always".
        idle: the partitions without more records.
    """
    known = {tp: time for tp, time in times.items() if time > 0 or tp not in idle}
    if len(known) < 2 or max(known.values()) < 0:
        return None
    slowest = min(known, key=known.__getitem__)
    fastest = max((tp for tp in known if tp != slowest), key=known.__getitem__)
    return SkewSnapshot(
        slowest=slowest,
        slowest_ms=known[slowest],
        fastest=fastest,
        fastest_ms=known[fastest],
        is_idle=slowest in idle,
    )


def moment(time_ms: int) -> str:
    """Format a record timestamp for people.

    >>> moment(1_700_000_000_000), moment(-1), moment(1_700_000_000_000_000)
    ('2023-11-14T22:13:20.000Z', '-1 ms', '1700000000000000 ms')
    """
    try:
        time = datetime.fromtimestamp(time_ms / 1000, UTC) if time_ms >= 0 else None
    except (ValueError, OverflowError, OSError):
        time = None
    if time is None:
        return f"{time_ms} ms"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_duration(duration_ms: int) -> str:
    """Format a duration as ``1 day, 2:03:04``."""
    try:
        return str(timedelta(milliseconds=duration_ms))
    except OverflowError:
        return f"{duration_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSnapshot:
    """Input partition of a running task.

    Args:
        internal: whether it is a repartition topic of the application.
        committed: the committed offset.
        processed: the offset after the last processed record.
        end: the last known last stable offset; None before it is known.
        queued: records in the worker's queue.
        behind_ms: upper bound of the age of the next records in milliseconds; 0 without a lag.
        event_time_ms: the largest timestamp that was read, in milliseconds since 1970, or -1.
    """

    topic: str
    partition: int
    internal: bool
    committed: int
    processed: int
    end: int | None
    queued: int
    behind_ms: int
    event_time_ms: int = -1

    @property
    def lag(self) -> int | None:
        """Lag in offsets, including transaction markers; None before the end is known."""
        return None if self.end is None else max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """Frequently changed key, see `hot.keys.max`; it is data and must not be logged.

    Args:
        key: its bytes, without times of windows and sessions.
        share: approximate fraction of the recent commits to the store that wrote the key, from 0 to
            1; the weight of a commit halves each minute.
        max_error: maximum error of `share`, which may be too large.
    """

    key: bytes
    share: float
    max_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSnapshot:
    """Store of a task.

    Args:
        keys: number of committed rows; updated occasionally.
        is_counted: whether `keys` is exact: few rows are counted, many are estimated by RocksDB,
            which may count rewritten rows several times.
        size_bytes: approximate size on disk or in memory; updated occasionally.
        uncommitted_bytes: approximate size of uncommitted rows.
        cached_bytes: approximate size of committed rows in the read cache.
        cache_hits: rows changed by commits that were read from the cache.
        cache_misses: rows that were read from the store, since the task started.
        restore_remaining: remaining changelog offsets of the restore.
        hot_keys: hot keys, if the setting ``hot.keys.max`` enables them; empty over HTTP, where
            ``/api/hot-keys`` returns them to clients that may read rows.
    """

    name: str
    keys: int
    is_counted: bool
    size_bytes: int
    uncommitted_bytes: int
    cached_bytes: int
    cache_hits: int
    cache_misses: int
    restore_remaining: int
    hot_keys: tuple[HotKey, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSnapshot:
    """Task that the worker owns.

    Args:
        id: sub-topology and partition, as ``0_3``.
        state: "waiting" for the cluster, "restoring" or "running"; "unresponsive" like its
            worker.
        state_s: time in this state, in seconds.
        unready_s: time since it last ran in this worker, or since the worker got it, in seconds; 0
            while it runs.
        processed: processed records, including aborted transactions.
        committed: records of completed commits.
        stream_time_ms: its stream time in milliseconds since 1970, or -1.
        skew: the largest skew between the partitions that bound its stream time: its own inputs, or
            the inputs of the tasks that write its repartition topics.
        stalled_s: time since it processed a first record after its last commit, in seconds; 0 until
            it exceeds task.timeout.ms (at least a minute) and commit.interval.ms together.
    """

    id: str
    sub_topology: int
    partition: int
    state: str
    state_s: float
    processed: int
    committed: int
    inputs: tuple[InputSnapshot, ...] = ()
    stores: tuple[StoreSnapshot, ...] = ()
    unready_s: float = 0.0
    stream_time_ms: int = -1
    skew: SkewSnapshot | None = None
    stalled_s: float = 0.0

    @property
    def lag(self) -> int | None:
        """Lag of its inputs in offsets; None until it has run and all ends are known."""
        lags = [one.lag for one in self.inputs]
        return sum(lag for lag in lags if lag is not None) if lags and None not in lags else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """Node of the topology, over all tasks of a worker.

    Args:
        dropped: dropped records, by reason.
        own_s: approximate run time in seconds, without user functions.
        user_s: approximate run time of the user functions that it calls, in seconds.
    """

    sub_topology: int
    name: str
    dropped: Mapping[str, int] = field(default_factory=dict)
    own_s: float = 0.0
    user_s: float = 0.0

    @property
    def late(self) -> int:
        """Number of late records, including records that were late only for some windows."""
        return sum(count for reason, count in self.dropped.items() if reason.startswith("late"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySnapshot:
    """Age of records when a sub-topology has committed them.

    Measured from the timestamp of the oldest first record of a batch to the end of its commit.
    """

    sub_topology: int
    latency: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorCounter:
    """Custom counter of a node's processors."""

    node: str
    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """Worker at a point in time.

    Args:
        id: the worker's identity.
        at_s: time of the snapshot, in seconds of this host's monotonic clock.
        at_ms: the same by the wall clock, in milliseconds since 1970.
        is_running: whether it has tasks, and all of them process records.
        is_paused: whether it is paused.
        processed: processed records, including aborted transactions.
        committed: records of completed commits.
        undecided: records of commits with an unknown outcome, which count as neither committed nor
            aborted until one of their tasks starts again.
        commits: completed commits.
        commit_latency: durations of commits, including the write of local state; commits that fail
            after their transaction are not included.
        rebalances: assignments, and reported losses of partitions.
        aborted: aborted transactions, including empty transactions.
        reactions: handled errors, by reaction.
        producers_replaced: replaced producers.
        restored: restored changelog records, again if a restore restarts.
        restored_per_s: restored records per second since the previous snapshot.
        cpu_s: processor time of the process, in seconds; None if unavailable.
        memory_bytes: memory of the process; None if unavailable.
        busy_s: approximate time of its thread by activity, in seconds.
        counters: custom metrics of processors.
        sent: records sent to each topic and changelog, including aborted transactions; updated
            every two seconds.
    """

    id: str
    at_s: float
    at_ms: int
    is_running: bool
    is_paused: bool
    processed: int
    committed: int
    undecided: int = 0
    commits: int
    commit_latency: Distribution
    latencies: tuple[LatencySnapshot, ...]
    rebalances: int
    aborted: int
    reactions: Mapping[str, int]
    producers_replaced: int
    restored: int
    restored_per_s: float
    cpu_s: float | None
    memory_bytes: int | None
    busy_s: Mapping[str, float]
    nodes: tuple[NodeSnapshot, ...]
    tasks: tuple[TaskSnapshot, ...]
    counters: tuple[ProcessorCounter, ...]
    sent: Mapping[str, int] = field(default_factory=dict)

    def age_s(self, now_s: float) -> float:
        """Return its age at a time of the clock of `at_s`: large if the worker is stuck."""
        return max(0.0, now_s - self.at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """Worker of an application, as known on a host.

    Args:
        index: the worker's number, from 0.
        state: its application's state, as text.
        pid: its process ID; None without a process.
        restarts: number of restarts.
        snapshot: its last snapshot, kept after the process has ended; None before the first.
    """

    index: int
    state: str
    pid: int | None
    restarts: int
    snapshot: WorkerSnapshot | None

    def state_at(self, now_s: float) -> str:
        """Return its state; "unresponsive" if it was active and `UNRESPONSIVE_S` have passed."""
        if self.pid is None or self.snapshot is None or self.state not in _AT_WORK:
            return self.state
        return UNRESPONSIVE if self.snapshot.age_s(now_s) > UNRESPONSIVE_S else self.state

    def at(self, now_s: float) -> WorkerView:
        """Return the view at a time; rates and task states of an unresponsive worker are reset."""
        state = self.state_at(now_s)
        if state != UNRESPONSIVE or self.snapshot is None:
            return self
        silent_s = self.snapshot.age_s(now_s)
        tasks = tuple(replace(t, state=UNRESPONSIVE, state_s=silent_s) for t in self.snapshot.tasks)
        snapshot = replace(self.snapshot, restored_per_s=0.0, is_running=False, tasks=tasks)
        return replace(self, state=state, snapshot=snapshot)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationSnapshot:
    """Application, as known on a host.

    Args:
        version: version of this library.
        topology: digest of the topology's version; empty before it is loaded.
    """

    application: str
    version: str
    topology: str
    workers: tuple[WorkerView, ...]

    def at(self, now_s: float) -> ApplicationSnapshot:
        """Return the snapshot at a time, see `WorkerView.at`."""
        return replace(self, workers=tuple(view.at(now_s) for view in self.workers))

    @property
    def snapshots(self) -> tuple[WorkerSnapshot, ...]:
        """Snapshots of all workers that have reported."""
        return tuple(view.snapshot for view in self.workers if view.snapshot is not None)

    @property
    def running(self) -> tuple[WorkerSnapshot, ...]:
        """Snapshots of workers with a process; an ended worker has no tasks."""
        snapshots = (view.snapshot for view in self.workers if view.pid is not None)
        return tuple(snapshot for snapshot in snapshots if snapshot is not None)

    @property
    def tasks(self) -> tuple[TaskSnapshot, ...]:
        """Tasks of all workers, in order."""
        tasks = [task for snapshot in self.running for task in snapshot.tasks]
        return tuple(sorted(tasks, key=lambda task: (task.sub_topology, task.partition)))

    @property
    def inputs(self) -> tuple[InputSnapshot, ...]:
        """Input partitions of all running tasks."""
        return tuple(one for task in self.tasks for one in task.inputs)


# Health of an application, shared with other threads.


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSnapshot:
    """Health of an application at a point in time, shared with other threads.

    Args:
        snapshot: the application and its workers.
        turned_s: time of the supervising loop's last turn, in seconds of the clock of the
            snapshots' `at_s`.
        is_loaded: whether the application is loaded and its settings are valid.
        picture: drawing of the topology; None before it is loaded.
        has_failed: whether a worker has failed permanently, so that all workers are stopped.
        why: the reason in that case, as text.
    """

    snapshot: ApplicationSnapshot
    turned_s: float
    is_loaded: bool
    has_failed: bool
    why: str = "a worker has failed and is not restarted"
    picture: Picture | None = None


# Snapshots of an application that runs in this process.


def digest_of(plans: Sequence[SubPlan]) -> str:
    digest = hashlib.sha256()
    for plan in plans:
        digest.update(plan.program.source_code.encode())
    return digest.hexdigest()[:12]


def embedded(
    application: str,
    digest: str,
    state: str,
    snapshot: WorkerSnapshot | None,
    added: Sequence[WorkerView] = (),
) -> ApplicationSnapshot:
    view = WorkerView(index=0, state=state, pid=os.getpid(), restarts=0, snapshot=snapshot)
    return ApplicationSnapshot(
        application=application, version=__version__, topology=digest, workers=(view, *added)
    )


def health_of(
    snapshot: ApplicationSnapshot, now_s: float, picture: Picture | None = None
) -> HealthSnapshot:
    """Return the health of the application; without a supervising loop, the loop cannot hang."""
    over = (State.PENDING_ERROR.value, State.ERROR.value)
    has_failed = any(view.state in over for view in snapshot.workers)
    return HealthSnapshot(
        snapshot=snapshot,
        turned_s=now_s,
        is_loaded=True,
        has_failed=has_failed,
        picture=picture,
        why="the application in this process was stopped by an error",
    )


# Removal of tasks that moved to another worker.
#
# The last snapshot of a frozen or disconnected worker contains tasks that the group has since
# assigned to other workers. Snapshots of a host share a clock, so the worker that started a task
# later owns it.


def without_taken(app: ApplicationSnapshot) -> ApplicationSnapshot:
    """Return the application with each task at a single worker: the worker that started it last."""
    began: dict[str, tuple[float, float]] = {}
    is_twice = False
    for snapshot in app.running:
        for task in snapshot.tasks:
            known = began.get(task.id)
            is_twice = is_twice or known is not None
            began[task.id] = max(_began(snapshot, task), known or (float("-inf"), 0.0))
    if not is_twice:
        return app
    return replace(app, workers=tuple(_left(view, began) for view in app.workers))


def _began(snapshot: WorkerSnapshot, task: TaskSnapshot) -> tuple[float, float]:
    """Return when the task entered its state; the later report breaks ties."""
    return snapshot.at_s - task.state_s, snapshot.at_s


def _left(view: WorkerView, began: dict[str, tuple[float, float]]) -> WorkerView:
    snapshot = view.snapshot
    if snapshot is None or view.pid is None:
        return view
    tasks = tuple(task for task in snapshot.tasks if _began(snapshot, task) == began[task.id])
    return replace(view, snapshot=replace(snapshot, tasks=tasks))


# Snapshots as JSON, for other processes and for HTTP clients.


def to_json(snapshot: object) -> bytes:
    """Return a snapshot as JSON, without line breaks."""
    return msgspec.json.encode(snapshot)


def to_plain(snapshot: object) -> Any:
    return msgspec.to_builtins(snapshot)
