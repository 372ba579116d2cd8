"""Table of metrics: their names, their help, and the source of their values.

`headrace.streams_web.pages` writes them for Prometheus, and docs/metrics.md shows the table. If
Kafka Streams has a metric, its name is used, in Prometheus' spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from headrace.streams.metrics.counters import Distribution
from headrace.streams.metrics.snapshots import (
    ApplicationSnapshot,
    InputSnapshot,
    NodeSnapshot,
    StoreSnapshot,
    TaskSnapshot,
    WorkerSnapshot,
    WorkerView,
)

Labels = tuple[str, ...]
Value = float | Distribution
Found = Iterable[tuple[Labels, Value]]
Kind = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Args:
        name: name in Prometheus, without the `_total` of a counter and the `_info` of an info.
        kafka: names of the metric in Kafka Streams, or empty.
    """

    name: str
    kind: Kind
    help: str
    labels: Labels
    read: Read
    kafka: str = ""

    @property
    def sample(self) -> str:
        """Name of its samples; for a histogram, of its count."""
        endings = {"counter": "_total", "info": "_info", "histogram": "_count"}
        return self.name + endings.get(self.kind, "")


# -- how a snapshot is read --------------------------------------------------------------------


def _unchanged(value: Value) -> Value:
    return value


@dataclass(frozen=True, slots=True)
class Read:
    """Source of a metric's samples: objects with labels, and the value of each.

    Args:
        things: returns the objects for a snapshot and the current seconds of its clock. Metrics of
            the same objects share this function, so that labels are written once for all of them.
        value: returns the value of an object, or None to skip it.
    """

    things: Callable[[ApplicationSnapshot, float], Iterable[tuple[Labels, Any]]]
    value: Callable[[Any], Value | None] = _unchanged


def _app(values: Callable[[ApplicationSnapshot], Found]) -> Read:
    return Read(lambda app, _: values(app))


def _each_view(app: ApplicationSnapshot, _: float) -> Iterable[tuple[Labels, WorkerView]]:
    return (((str(view.index),), view) for view in app.workers)


def _each_worker(app: ApplicationSnapshot, now_s: float) -> Iterable[tuple[Labels, WorkerSnapshot]]:
    """Yield workers with a report, even if they have ended: counts stay until a restart."""
    views = (view.at(now_s) for view in app.workers)
    return (((str(view.index),), view.snapshot) for view in views if view.snapshot is not None)


def _each_task(app: ApplicationSnapshot, now_s: float) -> Iterable[tuple[Labels, TaskSnapshot]]:
    """Skip tasks of a worker without a process, because other workers have them by now."""
    for view in app.at(now_s).workers:
        if view.snapshot is not None and view.pid is not None:
            index = str(view.index)
            for task in view.snapshot.tasks:
                yield (index, task.id), task


def _each_input(app: ApplicationSnapshot, now_s: float) -> Iterable[tuple[Labels, InputSnapshot]]:
    for labels, task in _each_task(app, now_s):
        for one in task.inputs:
            internal = "true" if one.internal else "false"
            yield (*labels, one.topic, str(one.partition), internal), one


def _each_store(app: ApplicationSnapshot, now_s: float) -> Iterable[tuple[Labels, StoreSnapshot]]:
    for labels, task in _each_task(app, now_s):
        for store in task.stores:
            yield (*labels, store.name), store


def _each_age(app: ApplicationSnapshot, now_s: float) -> Iterable[tuple[Labels, float]]:
    for labels, worker in _each_worker(app, now_s):
        yield labels, worker.age_s(now_s)


def _views(value: Callable[[WorkerView], float]) -> Read:
    return Read(_each_view, value)


def _workers(value: Callable[[WorkerSnapshot], Value | None]) -> Read:
    return Read(_each_worker, value)


def _tasks(value: Callable[[TaskSnapshot], float | None]) -> Read:
    return Read(_each_task, value)


def _inputs(value: Callable[[InputSnapshot], float | None]) -> Read:
    return Read(_each_input, value)


def _stores(value: Callable[[StoreSnapshot], float]) -> Read:
    return Read(_each_store, value)


def _each(values: Callable[[WorkerSnapshot], Found]) -> Read:
    return Read(
        lambda app, now_s: (
            ((*labels, *more), value)
            for labels, worker in _each_worker(app, now_s)
            for more, value in values(worker)
        )
    )


def _nodes(values: Callable[[NodeSnapshot], Found]) -> Read:
    return _each(
        lambda worker: (
            ((str(node.sub_topology), node.name, *labels), value)
            for node in worker.nodes
            for labels, value in values(node)
        )
    )


def _skew_s(task: TaskSnapshot) -> float | None:
    if task.skew is None or task.skew.slowest_ms < 0:
        return None
    return 0.0 if task.skew.is_idle else task.skew.span_ms / 1000


def _lag(one: InputSnapshot) -> float | None:
    return one.lag


def _time_s(time_ms: int) -> float | None:
    return None if time_ms < 0 else time_ms / 1000


_INPUT = ("worker", "task", "topic", "partition", "internal")
_STORE = ("worker", "task", "store")
_NODE = ("worker", "sub_topology", "node")

METRICS = (
    # -- the application and its workers --------------------------------------------------------
    Metric(
        "headrace_app", "info", "Application, version of Headrace, and digest of the topology.",
        ("application", "version", "topology"),
        _app(lambda app: [((app.application, app.version, app.topology), 1)]),
        "version, application-id",
    ),
    Metric(
        "headrace_app_workers_running", "gauge", "Workers whose tasks all process records.", (),
        Read(lambda app, now_s: [((), sum(v.state_at(now_s) == "running" for v in app.workers))]),
        "alive-stream-threads",
    ),
    Metric(
        "headrace_app_workers", "gauge", "Configured number of workers.", (),
        _app(lambda app: [((), len(app.workers))]),
    ),
    Metric(
        "headrace_worker_state", "gauge",
        "1 for the state of the worker; unresponsive if it was active and has not reported for "
        "10 s.",
        ("worker", "state"),
        Read(lambda app, now_s: (((str(v.index), v.state_at(now_s)), 1) for v in app.workers)),
        "state",
    ),
    Metric(
        "headrace_worker_restarts", "counter", "Restarts of the worker.",
        ("worker",), _views(lambda view: view.restarts), "failed-stream-threads",
    ),
    Metric(
        "headrace_worker_report_age_seconds", "gauge",
        "Age of the worker's last report; large if it is stuck.", ("worker",), Read(_each_age),
    ),
    Metric(
        "headrace_worker_process_records", "counter",
        "Processed records, including aborted transactions.", ("worker",),
        _workers(lambda worker: worker.processed), "process-total",
    ),
    Metric(
        "headrace_worker_committed_records", "counter", "Records of completed commits.",
        ("worker",), _workers(lambda worker: worker.committed),
    ),
    Metric(
        "headrace_worker_commit_latency_seconds", "histogram", "Duration of commits.",
        ("worker",), _workers(lambda worker: worker.commit_latency),
        "commit-total, commit-latency-avg, commit-latency-max",
    ),
    Metric(
        "headrace_worker_rebalances", "counter",
        "Assignments, revocations and losses of partitions.",
        ("worker",), _workers(lambda worker: worker.rebalances), "rebalance-total",
    ),
    Metric(
        "headrace_worker_aborted_transactions", "counter",
        "Aborted transactions, as far as known.", ("worker",),
        _workers(lambda worker: worker.aborted), "txn-abort",
    ),
    Metric(
        "headrace_worker_reactions", "counter", "Handled errors, by reaction.",
        ("worker", "reaction"),
        _each(lambda worker: (((name,), count) for name, count in worker.reactions.items())),
    ),
    Metric(
        "headrace_worker_producers_replaced", "counter", "Replaced producers.",
        ("worker",), _workers(lambda worker: worker.producers_replaced),
    ),
    Metric(
        "headrace_worker_restore_records", "counter", "Restored changelog records.",
        ("worker",), _workers(lambda worker: worker.restored), "restore-total",
    ),
    Metric(
        "headrace_worker_restore_records_per_second", "gauge",
        "Restored changelog records per second, recently.",
        ("worker",), _workers(lambda worker: worker.restored_per_s), "restore-rate",
    ),
    Metric(
        "headrace_worker_busy_seconds", "counter",
        "Approximate time of the worker's thread by activity, sampled.",
        ("worker", "activity"),
        _each(lambda worker: (((name,), seconds) for name, seconds in worker.busy_s.items())),
        "process-ratio, poll-ratio, commit-ratio",
    ),
    Metric(
        "headrace_worker_cpu_seconds", "counter", "Processor time of the worker's process.",
        ("worker",), _workers(lambda worker: worker.cpu_s),
    ),
    Metric(
        "headrace_worker_memory_bytes", "gauge", "Resident memory of the worker's process.",
        ("worker",), _workers(lambda worker: worker.memory_bytes),
    ),
    Metric(
        "headrace_worker_paused", "gauge", "1 if the worker is paused.",
        ("worker",), _workers(lambda worker: worker.is_paused),
    ),
    Metric(
        "headrace_record_e2e_latency_seconds", "histogram",
        "Time from the oldest first timestamp of a batch to the end of its commit.",
        ("worker", "sub_topology"),
        _each(lambda worker: (((str(one.sub_topology),), one.latency) for one in worker.latencies)),
        "record-e2e-latency",
    ),
    # -- tasks and their inputs ------------------------------------------------------------------
    Metric(
        "headrace_task_process_records", "counter",
        "Processed records, including aborted transactions.", ("worker", "task"),
        _tasks(lambda task: task.processed), "process-total",
    ),
    Metric(
        "headrace_task_committed_records", "counter", "Records of completed commits.",
        ("worker", "task"), _tasks(lambda task: task.committed),
    ),
    Metric(
        "headrace_task_running", "gauge",
        "1 if the task processes records; 0 if not, or if its worker is unresponsive.",
        ("worker", "task"), _tasks(lambda task: task.state == "running"),
    ),
    Metric(
        "headrace_task_input_lag_records", "gauge",
        "Offsets from the committed to the last known last stable offset, including transaction "
        "markers; for internal topics, the lag between sub-topologies. No sample while unknown.",
        _INPUT, _inputs(_lag), "records-lag",
    ),
    Metric(
        "headrace_task_input_behind_seconds", "gauge",
        "Time since the latest processed timestamp; 0 without a lag.",
        _INPUT, _inputs(lambda one: one.behind_ms / 1000),
    ),
    Metric(
        "headrace_task_input_event_time_seconds", "gauge",
        "Largest timestamp of the records read, in seconds since 1970.",
        _INPUT, _inputs(lambda one: _time_s(one.event_time_ms)),
    ),
    Metric(
        "headrace_task_stream_time_seconds", "gauge",
        "Stream time of the task, in seconds since 1970.", ("worker", "task"),
        _tasks(lambda task: _time_s(task.stream_time_ms)),
    ),
    Metric(
        "headrace_task_event_time_skew_seconds", "gauge",
        "Difference in event time between the slowest and the fastest partition on which the "
        "stream time of the task depends; 0 if the slowest is idle, and no sample before it is "
        "read.", ("worker", "task"),
        _tasks(_skew_s),
    ),
    Metric(
        "headrace_task_input_queued_records", "gauge", "Records in the worker's queue.",
        _INPUT, _inputs(lambda one: one.queued), "active-buffer-count",
    ),
    # -- nodes -----------------------------------------------------------------------------------
    Metric(
        "headrace_node_dropped_records", "counter", "Records dropped by a node, by reason.",
        (*_NODE, "reason"),
        _nodes(lambda node: (((reason,), count) for reason, count in node.dropped.items())),
        "dropped-records-total",
    ),
    Metric(
        "headrace_node_late_records", "counter", "Dropped records that were late.", _NODE,
        _nodes(lambda node: [((), node.late)] if node.late else []),
    ),
    Metric(
        "headrace_node_time_seconds", "counter",
        "Approximate run time of a node, without (own) and in (user) user functions.",
        (*_NODE, "code"),
        _nodes(lambda node: [(("own",), node.own_s), (("user",), node.user_s)]),
        "process-latency",
    ),
    Metric(
        "headrace_processor_counter", "counter", "Counts of processors by `context.count`.",
        ("worker", "node", "name"),
        _each(lambda worker: (((one.node, one.name), one.value) for one in worker.counters)),
        "StreamsMetrics.addSensor",
    ),
    # -- stores ----------------------------------------------------------------------------------
    Metric(
        "headrace_store_keys", "gauge",
        "Committed rows; estimated by RocksDB for large stores.", _STORE,
        _stores(lambda store: store.keys), "estimate-num-keys, num-entries",
    ),
    Metric(
        "headrace_store_size_bytes", "gauge", "Approximate size on disk or in memory.", _STORE,
        _stores(lambda store: store.size_bytes), "total-sst-files-size",
    ),
    Metric(
        "headrace_store_uncommitted_bytes", "gauge",
        "Approximate size of uncommitted rows.", _STORE,
        _stores(lambda store: store.uncommitted_bytes),
    ),
    Metric(
        "headrace_store_cached_bytes", "gauge",
        "Approximate size of committed rows in the read cache.", _STORE,
        _stores(lambda store: store.cached_bytes), "cache-size-bytes",
    ),
    Metric(
        "headrace_store_cache_hits", "counter",
        "Rows changed by commits that were in the read cache, since the task started; misses of "
        "lookups are subtracted.", _STORE,
        _stores(lambda store: store.cache_hits), "hit-ratio",
    ),
    Metric(
        "headrace_store_cache_misses", "counter",
        "Rows that were read from the store because the cache did not have them, since the task "
        "started.", _STORE,
        _stores(lambda store: store.cache_misses), "hit-ratio",
    ),
    Metric(
        "headrace_store_restore_remaining_records", "gauge",
        "Remaining changelog offsets of the restore.", _STORE,
        _stores(lambda store: store.restore_remaining), "restore-remaining-records-total",
    ),
)  # fmt: skip
"""All metrics, in the order of the table."""
