"""Construction of a production worker on an in-memory cluster.

Everything else is wired as in production (`headrace.streams.worker.wiring`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.clocks import at_once
from headrace.streams.kafka.protocols import Probe, Producer, TopicPartition
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.plan.progress import COMMIT_COUNT_BITS
from headrace.streams.tasks.async_io import OneByOne
from headrace.streams.tasks.driver_disk import Disk
from headrace.streams.tasks.restore import RestoreListener, RestoreListeners
from headrace.streams.tasks.sink_connections import OpenSink, open_sink
from headrace.streams.tasks.tasks import ClusterMetadata
from headrace.streams.testing.memory_clients import (
    MemoryAdmin,
    MemoryConsumer,
    MemoryPlainProducer,
    MemoryTransactionalProducer,
)
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.streams.worker.protocols import Application, WorkerDependencies, WorkerListener
from headrace.streams.worker.retention import recommit_interval_s
from headrace.streams.worker.wiring import wire
from headrace.streams.worker.worker import Worker
from headrace.topology.context.task_context import RESULTS_PER_COMMIT


class ManualClock:
    """Clock that advances only on request (see `headrace.streams.kafka.protocols.Clock`)."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._passed_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._passed_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.pass_ms(int(seconds * 1000))

    def pass_ms(self, duration_ms: int) -> None:
        assert duration_ms >= 0, duration_ms
        self._now_ms += duration_ms
        self._passed_ms += duration_ms


@dataclass(slots=True)
class EventLog:
    """Log that stores the events of the runtime (see `headrace.streams.kafka.protocols.Log`)."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def info(self, event: str, /, **fields: Any) -> None:
        self._keep("info", event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._keep("warning", event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._keep("error", event, fields)

    def _keep(self, level: str, event: str, fields: dict[str, Any]) -> None:
        self.events.append({"event": event, "level": level, **fields})


@dataclass(slots=True)
class WorkerCounts(WorkerListener, RestoreListener):
    """Counters of a worker, across restarts."""

    processed: int = 0
    commits: int = 0
    restored: int = 0

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        del tasks
        self.commits += 1
        self.processed += records

    def on_batch_restored(self, tp: TopicPartition, store: str, offset: int, count: int) -> None:
        del tp, store, offset
        self.restored += count


REPARTITIONED = 4
"""Default partition count of topics if the topology repartitions."""


def default_partitions(plans: Sequence[SubPlan]) -> int:
    """Return more than 1 if keys are repartitioned: in a single partition all keys would match."""
    return REPARTITIONED if any(plan.topics.repartition_sources for plan in plans) else 1


def create_topics(
    cluster: MemoryCluster,
    plans: Sequence[SubPlan],
    config: StreamsConfig,
    global_plans: Sequence[GlobalPlan] = (),
) -> None:
    """Create the topics that the plans read and write; internal topics as in production."""
    read = [*(plan.topics for plan in plans), *(plan.topics for plan in global_plans)]
    for name in dict.fromkeys(name for topics in read for name in topics.sources):
        cluster.create(name)
    for sink in (sink for plan in plans for sink in plan.program.sub_topology.sinks):
        if isinstance(sink.topic, str) and not sink.internal:
            cluster.create(sink.topic)  # a windowed key requires the partition count
    if config.handlers.dead_letter_topic is not None:
        cluster.create(config.handlers.dead_letter_topic)
    MemoryAdmin(cluster).create_internal(plans, config.topic_configs)


@dataclass(frozen=True, slots=True)
class _MemoryMetadata(ClusterMetadata):
    """Facts of an in-memory cluster, where topics named by functions are created on demand."""

    create: Callable[[str], object] = str

    def partitions_of(self, topic: str) -> int:
        self.create(topic)
        # Not super(): a dataclass with slots is not the class that `super()` refers to.
        return ClusterMetadata.partitions_of(self, topic)


def make_memory_worker(
    config: StreamsConfig,
    plans: Sequence[SubPlan],
    *,
    cluster: MemoryCluster,
    consumer: MemoryConsumer,
    disk: Disk,
    clock: ManualClock,
    counts: WorkerCounts,
    probe: Probe,
    log: EventLog,
    global_plans: Sequence[GlobalPlan] = (),
    deployed: Deployment | None = None,
    open_sink: OpenSink = open_sink,
) -> Worker:
    admin = MemoryAdmin(cluster)
    topics = admin.describe(admin.names())
    application = Application(
        config=config,
        plans=plans,
        topics=topics,
        global_plans=global_plans,
        deployed=deployed,
        recommit_s=recommit_interval_s(admin, log),
    )
    dependencies = WorkerDependencies(
        admin=admin,
        consumer=consumer,
        make_reader=lambda: MemoryConsumer(cluster, group=None, committed=True),
        make_producer=partial(_make_producer, config, cluster, consumer),
        metadata=_MemoryMetadata(admin, topics, from_earliest=True, create=cluster.create),
        open_home=disk.open,
        open_global_home=disk.open_global,
        background=lambda _: at_once,
        calls=OneByOne(),
        clock=clock,
        listener=counts,
        restore_listener=counts,
        global_listener=RestoreListeners(),
        probe=probe,
        first_commit_id=cluster.random.getrandbits(30) << COMMIT_COUNT_BITS,
        log=log,
        open_sink=open_sink,
        times_interval_s=0,  # the clock advances only on request
        first_records=sys.maxsize,  # no limit is needed here, and tests observe each commit
        results_per_commit=RESULTS_PER_COMMIT,
    )
    return wire(application, dependencies)


def _make_producer(
    config: StreamsConfig, cluster: MemoryCluster, consumer: MemoryConsumer
) -> Producer:
    if config.exactly_once:
        return MemoryTransactionalProducer(cluster, config.application_id)
    return MemoryPlainProducer(cluster, consumer.commit)
