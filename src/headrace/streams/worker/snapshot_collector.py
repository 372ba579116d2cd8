"""Collection of a worker's snapshots: in its own thread, between two iterations, at low cost.

    worker's thread:  turn ─► turn ─► turn ─► snapshot ─► turn …
                                                 │ replaced as one attribute
    any other thread:  ◄──────────── `latest` ───┘

A snapshot is created at most every half second, and rarely enough to take half a percent of the
time. It is created at least every four seconds, because health checks treat a worker without recent
snapshots as stuck. The snapshot of a stuck worker grows old, as its `at_s` shows. Stores are
measured in rotation, for a few milliseconds per snapshot, and each store rarely: few rows are
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from headrace.state.buffer import Buffer
from headrace.state.counting import count_rows
from headrace.streams.kafka.protocols import Clock, Log, TopicPartition
from headrace.streams.metrics.counters import TaskCounters
from headrace.streams.metrics.measures import Measures, NodeKey
from headrace.streams.metrics.snapshots import (
    InputSnapshot,
    LatencySnapshot,
    NodeSnapshot,
    ProcessorCounter,
    SkewSnapshot,
    StoreSnapshot,
    TaskSnapshot,
    WorkerSnapshot,
    moment,
    skew_of,
)
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.task import Task
from headrace.streams.worker.parts import WorkerParts

EVERY_S = 0.5
COST_MAX = 0.005
"""Maximum fraction of a worker's time for snapshots."""
EVERY_MOST_S = 4.0
"""Maximum seconds between snapshots, because a snapshot can take long on a busy machine."""
STORES_EVERY_S = 5.0
STORES_COUNTED_AGAIN_S = 60.0
"""Seconds until the rows of a store that was too large to count are counted again; the number is
estimated until then."""
STORES_MOST_S = 0.005
"""Maximum seconds per snapshot to measure stores; other stores keep their last values."""

STALLED_MS = 60_000
"""Minimum time without a commit, over its interval; task.timeout.ms may be shorter."""

NO_COUNTERS = TaskCounters()


BACKLOG_RECORDS = 10_000
"""Lag in offsets from which a worker processes a backlog; it ends at a tenth of that."""
BACKLOG_S = 10.0
"""Seconds that it must take to be reported when it has been processed."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Backlog that a worker is processing.

    Args:
        first: the snapshot in which it was found.
        skew: the largest skew between partitions so far.
    """

    first: WorkerSnapshot
    skew: SkewSnapshot | None


def backlog_after(backlog: Backlog | None, now: WorkerSnapshot, log: Log) -> Backlog | None:
    """Return the backlog after a snapshot; log a summary when it has been processed."""
    lags = [input_.lag for task in now.tasks for input_ in task.inputs]
    lag = sum(known for known in lags if known is not None)
    if backlog is None or not lags:
        return Backlog(now, None) if lag >= BACKLOG_RECORDS else None
    skews = [task.skew for task in now.tasks if task.skew is not None]
    if backlog.skew is not None:
        skews.append(backlog.skew)
    skew = max(skews, key=lambda skew: skew.span_ms, default=None)
    if lag > BACKLOG_RECORDS // 10 or None in lags or not now.is_running:
        return Backlog(backlog.first, skew)
    first = backlog.first
    if now.at_s - first.at_s >= BACKLOG_S:
        late = _late(now) - _late(first)
        (log.warning if late else log.info)(
            "backlog_processed",
            records=now.committed - first.committed,
            seconds=round(now.at_s - first.at_s, 1),
            event_time_from=_event_time(first),
            event_time_to=_event_time(now),
            late=late,
            skew=None if skew is None else skew.describe(),
        )
    return None


def _stream_time(task: Task) -> int:
    """Return the stream time of a task's operators, or -1 before it is known."""
    if task.is_time_bounded:
        return task.context.watermark or -1
    return max(task.partition_time.values(), default=-1)


def _late(snapshot: WorkerSnapshot) -> int:
    return sum(node.late for node in snapshot.nodes)


def _event_time(snapshot: WorkerSnapshot) -> str | None:
    """Return the smallest event time of the source partitions; None before they were read."""
    inputs = [input_ for task in snapshot.tasks for input_ in task.inputs if not input_.internal]
    times = [input_.event_time_ms for input_ in inputs if input_.event_time_ms >= 0]
    return moment(min(times)) if times else None


@dataclass(slots=True)
class _Size:
    """Size of a store when it was measured."""

    keys: int
    is_counted: bool
    size_bytes: int
    at_s: float
    count_at_s: float = 0.0
    """Time until which a store that was too large to count is only estimated."""


@dataclass(slots=True)
class _Uncommitted:
    """Work of a task since its last commit, over aborts.

    Args:
        offsets: the committed offsets of its inputs.
        processed: number of processed records at the last commit.
        since_s: time when more records than that were seen first.
    """

    offsets: Sequence[int]
    processed: int
    since_s: float | None = None


@dataclass(slots=True)
class SnapshotCollector:
    """Collector of a worker's snapshots, run in its thread between two iterations.

    Args:
        processor_counters: the counters of processors, by node and name.
    """

    parts: WorkerParts
    processor_counters: dict[tuple[str, str], float]
    is_paused: Callable[[], bool]
    measures: Measures = field(init=False)
    clock: Clock = field(init=False)
    latest: WorkerSnapshot | None = None
    """The last snapshot; None before the first."""
    _next_s: float = 0.0
    _sizes: dict[tuple[TaskId, str], _Size] = field(default_factory=dict)
    _states: dict[TaskId, tuple[str, float]] = field(default_factory=dict)
    """State of each task, and the time since when it has that state."""
    _ran_s: dict[TaskId, float] = field(default_factory=dict)
    """Time when each task was last running, or was assigned."""
    _uncommitted: dict[TaskId, _Uncommitted] = field(default_factory=dict)
    _backlog: Backlog | None = None

    def __post_init__(self) -> None:
        self.measures = self.parts.dependencies.measures
        self.clock = self.parts.dependencies.clock

    @property
    def aborted(self) -> int:
        return self.parts.transactions.aborted + self.parts.counters.found_aborted

    def turn(self) -> None:
        begun_s = self.clock.monotonic_s()
        if begun_s < self._next_s:
            return
        if self.measures.are_served:
            self.parts.transactions.producer.apply_backpressure(0.0)
        self.collect()
        took_s = self.clock.monotonic_s() - begun_s
        self._next_s = begun_s + min(EVERY_MOST_S, max(EVERY_S, took_s / COST_MAX))

    def collect(self) -> None:
        """Create a snapshot now; call it in the worker's thread."""
        now_s, now_ms = self.clock.monotonic_s(), self.clock.now_ms()
        self._measure(now_s)
        tasks = tuple(self._tasks(now_s, now_ms))
        usage, times = self.measures.usage(), self.measures.times()
        counters, before = self.parts.counters, self.latest
        restored = self.parts.restorer.restored
        snapshot = self.latest = WorkerSnapshot(
            id=self.parts.dependencies.worker_id,
            at_s=now_s,
            at_ms=now_ms,
            is_running=bool(tasks) and all(task.state == "running" for task in tasks),
            is_paused=self.is_paused(),
            processed=counters.processed,
            committed=counters.records_committed,
            undecided=counters.undecided,
            commits=counters.commits,
            commit_latency=counters.commit_latency.distribution(),
            latencies=tuple(
                LatencySnapshot(sub_topology=sub, latency=histogram.distribution())
                for sub, histogram in sorted(counters.latency.items())
            ),
            rebalances=counters.rebalances,
            aborted=self.aborted,
            reactions=dict(counters.reactions),
            producers_replaced=self.parts.transactions.replaced,
            restored=restored,
            restored_per_s=_rate(before, restored, now_s),
            cpu_s=usage.cpu_s,
            memory_bytes=usage.memory_bytes,
            busy_s=dict(times.busy),
            nodes=self._nodes(dict(times.nodes)),
            tasks=tasks,
            sent=dict(self.measures.sent()),
            counters=tuple(
                ProcessorCounter(node=node, name=name, value=value)
                for (node, name), value in sorted(self.processor_counters.items())
            ),
        )
        self._backlog = backlog_after(self._backlog, snapshot, self.parts.dependencies.log)

    # -- tasks ---------------------------------------------------------------------------------

    def _tasks(self, now_s: float, now_ms: int) -> Iterable[TaskSnapshot]:
        states = self.parts.tasks.states()
        self.parts.hot_keys.retain(states)
        since = self._states
        self._states = {
            task: since[task] if since.get(task, ("", 0.0))[0] == state else (state, now_s)
            for task, (state, _) in states.items()
        }
        ran_s = self._ran_s
        self._ran_s = {
            task: now_s if state == "running" else ran_s.get(task, now_s)
            for task, (state, _) in states.items()
        }
        running = [task for state, task in states.values() if state == "running" and task]
        tps = [tp for task in running for tp in task.inputs]
        positions = self.parts.dependencies.consumer.positions(tps) if tps else {}
        self._uncommitted = {t: u for t, u in self._uncommitted.items() if t in states}
        remaining = self.parts.restorer.remaining()
        for task_id, (state, task) in states.items():
            task_counters = self.parts.counters.tasks.get(task_id, NO_COUNTERS)
            yield TaskSnapshot(
                id=str(task_id),
                sub_topology=task_id.sub_topology,
                partition=task_id.partition,
                state=state,
                state_s=now_s - self._states[task_id][1],
                unready_s=now_s - self._ran_s[task_id],
                processed=task_counters.processed,
                committed=task_counters.committed,
                inputs=(inputs := () if state != "running" or task is None else tuple(
                    self._input(task, tp, positions.get(tp, 0), now_ms)
                    for tp in task.inputs
                )),
                stream_time_ms=-1 if task is None else _stream_time(task),
                skew=None if task is None else self._skew(task, inputs),
                stalled_s=self._stalled_s(task_id, task, task_counters.processed, now_s),
                stores=() if task is None else tuple(
                    self._store(task, buffer, remaining.get((task_id, buffer.name), 0))
                    for buffer in task.buffers
                ),
            )  # fmt: skip

    def _stalled_s(self, task_id: TaskId, task: Task | None, processed: int, now_s: float) -> float:
        """Return the seconds without a commit, if it is overdue; 0 otherwise."""
        known = self._uncommitted.get(task_id)
        if task is not None:
            offsets = [task.start[tp].offset for tp in task.inputs]
            if known is None or known.offsets != offsets or task.context.has_collected_rows:
                known = self._uncommitted[task_id] = _Uncommitted(offsets, processed)
            elif known.since_s is None and processed > known.processed:
                known.since_s = now_s
        if known is None or known.since_s is None:
            return 0.0
        config, stalled_s = self.parts.config, now_s - known.since_s
        limit_ms = max(config.task_timeout_ms, STALLED_MS) + config.commit_interval_ms
        return stalled_s if stalled_s * 1000 > limit_ms else 0.0

    def _measure(self, now_s: float) -> None:
        """Measure the stores with the oldest measurements, within the time limit."""
        clock = self.clock.monotonic_s
        until_s = clock() + STORES_MOST_S
        before, self._sizes = self._sizes, {}
        due: list[tuple[float, Task, str]] = []
        for task in (task for _, task in self.parts.tasks.states().values() if task is not None):
            for buffer in task.buffers:
                store = task.id, buffer.name
                known = before.get(store)
                self._sizes[store] = known or _Size(0, False, 0, -STORES_EVERY_S)
                if known is None or now_s >= known.at_s + STORES_EVERY_S:
                    due.append((self._sizes[store].at_s, task, buffer.name))
        for number, (_, task, name) in enumerate(sorted(due, key=lambda entry: entry[0])):
            known = self._sizes[task.id, name]
            size = self._sized(
                task, name, known, now_s, is_first=not number, is_late=lambda: clock() > until_s
            )
            if clock() > until_s and number and (task.id, name) in before:
                continue  # measured first in the next snapshot
            self._sizes[task.id, name] = size

    def _sized(
        self,
        task: Task,
        name: str,
        known: _Size,
        now_s: float,
        *,
        is_first: bool,
        is_late: Callable[[], bool],
    ) -> _Size:
        """Measure a store; a store that was too large to count is counted rarely."""
        committed, layout = task.state.store(name), task.spec.layout(name)
        if now_s < known.count_at_s:
            keys = layout.view(committed).approximate_count()
            return replace(known, keys=keys, size_bytes=committed.approximate_bytes(), at_s=now_s)
        keys, is_counted = count_rows(committed, layout, is_late)
        size = _Size(keys, is_counted, committed.approximate_bytes(), now_s)
        if not is_counted and (is_first or not is_late()):
            size.count_at_s = now_s + STORES_COUNTED_AGAIN_S
        return size

    def _input(self, task: Task, tp: TopicPartition, position: int, now_ms: int) -> InputSnapshot:
        queued = task.queued_in(tp)
        processed = task.next_offset[tp]
        # Without queued records, the position is past control records and aborted records.
        reached = processed if queued else max(position, processed)
        ahead = self.parts.dependencies.consumer.lag(tp, reached)
        time_ms = task.partition_time[tp]
        is_behind = bool(ahead) or queued > 0
        return InputSnapshot(
            topic=tp.topic,
            partition=tp.partition,
            internal=tp.topic in task.spec.internal_topics,
            committed=task.start[tp].offset,
            processed=processed,
            end=None if ahead is None else reached + ahead,
            queued=queued,
            behind_ms=max(0, now_ms - time_ms) if is_behind and time_ms >= 0 else 0,
            event_time_ms=time_ms,
        )

    def _skew(self, task: Task, inputs: Sequence[InputSnapshot]) -> SkewSnapshot | None:
        """Return the largest skew that concerns a task: of its inputs, or of upstream inputs."""
        upstream_skews = [self.parts.tasks.skews.get(tp.topic) for tp in task.watermarks]
        # Inputs that are read to their end, such as tables, do not have records that come late.
        latest = max((input_.event_time_ms for input_ in inputs), default=-1)
        times = {
            f"{input_.topic}-{input_.partition}": input_.event_time_ms
            for input_ in inputs
            if input_.lag or input_.queued or input_.event_time_ms == latest
        }
        known = [skew for skew in (*upstream_skews, skew_of(times)) if skew is not None]
        return max(known, key=lambda skew: skew.extent, default=None)

    def _store(self, task: Task, buffer: Buffer, remaining: int) -> StoreSnapshot:
        size = self._sizes[task.id, buffer.name]
        return StoreSnapshot(
            name=buffer.name,
            keys=size.keys,
            is_counted=size.is_counted,
            size_bytes=size.size_bytes,
            uncommitted_bytes=buffer.uncommitted_bytes(),
            cached_bytes=buffer.cached_bytes(),
            cache_hits=buffer.hits,
            cache_misses=buffer.misses,
            restore_remaining=remaining,
            hot_keys=self.parts.hot_keys.of(task.id, buffer.name),
        )

    # -- nodes ---------------------------------------------------------------------------------

    def _nodes(self, times: dict[NodeKey, float]) -> tuple[NodeSnapshot, ...]:
        dropped: dict[tuple[int, str], dict[str, int]] = {}
        for (node, reason), count in self.parts.tasks.dropped.items():
            dropped.setdefault((self.parts.tasks.sub_topology_of(node), node), {})[reason] = count
        nodes = dropped.keys() | {(key.sub_topology, key.node) for key in times}
        return tuple(
            NodeSnapshot(
                sub_topology=sub,
                name=node,
                dropped=dropped.get((sub, node), {}),
                own_s=times.get(NodeKey(sub, node, False), 0.0),
                user_s=times.get(NodeKey(sub, node, True), 0.0),
            )
            for sub, node in sorted(nodes)
        )


def _rate(before: WorkerSnapshot | None, restored: int, now_s: float) -> float:
    if before is None or now_s <= before.at_s:
        return 0.0
    return (restored - before.restored) / (now_s - before.at_s)
