"""Wires a worker to a cluster in memory: the production worker, tasks, commit and restore.

Only what a worker meets at its seams differs from `headrace.streams.worker.runtime`: the clients,
the clock, and the disk that local state survives on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.streams.config.config import StreamsConfig
from headrace.streams.contact.contact import NoContact
from headrace.streams.deployed.deployment import Deployment
from headrace.streams.global_tables.global_errors import RowErrors
from headrace.streams.global_tables.global_tables import GlobalTables
from headrace.streams.local.driver_disk import Disk
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.plan.topic_plan import plan_internal_topics
from headrace.streams.seams.background import at_once
from headrace.streams.seams.clients import Probe, Producer, TopicPartition
from headrace.streams.tasks.cluster_facts import ClusterFacts
from headrace.streams.tasks.gate_watch import OpenGate
from headrace.streams.tasks.lost_offsets import LostOffsets, read_before
from headrace.streams.tasks.restore import Restorer, SilentRestoreListener
from headrace.streams.tasks.tasks import Tasks
from headrace.streams.testing.memory_clients import (
    MemoryAdmin,
    MemoryConsumer,
    MemoryPlainProducer,
    MemoryTransactionalProducer,
)
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.streams.upkeep.offset_retention import keep_offsets_every_s
from headrace.streams.upkeep.upkeep import make_membership, make_purger, make_retention, make_watch
from headrace.streams.worker.processing import facts_maker
from headrace.streams.worker.worker import Worker


class ManualClock:
    """Time that passes when it is told to (see `headrace.streams.seams.clients.Clock`)."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._passed_ms = 0

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """Seconds that passed."""
        return self._passed_ms / 1000

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.pass_ms(int(seconds * 1000))

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass."""
        assert duration_ms >= 0, duration_ms
        self._now_ms += duration_ms
        self._passed_ms += duration_ms


@dataclass(slots=True)
class EventLog:
    """Keeps what the runtime logs (see `headrace.streams.seams.clients.Log`)."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def info(self, event: str, /, **fields: Any) -> None:
        """Keep an event."""
        self._keep("info", event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Keep an event."""
        self._keep("warning", event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        """Keep an event."""
        self._keep("error", event, fields)

    def _keep(self, level: str, event: str, fields: dict[str, Any]) -> None:
        self.events.append({"event": event, "level": level, **fields})


@dataclass(slots=True)
class Counts:
    """What a worker did, across restarts (its `WorkerListener` and `RestoreListener`)."""

    processed: int = 0
    commits: int = 0
    restored: int = 0

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """Not counted."""

    def on_running(self) -> None:
        """Not counted."""

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:  # noqa: ARG002
        """Count a commit and its records."""
        self.commits += 1
        self.processed += records

    def on_restore_start(self, place: TopicPartition, store: str, begin: int, end: int) -> None:
        """Not counted."""

    def on_batch_restored(self, place: TopicPartition, store: str, offset: int, count: int) -> None:
        """Count restored records."""
        del place, store, offset
        self.restored += count

    def on_restore_end(self, place: TopicPartition, store: str, total: int) -> None:
        """Not counted."""


REPARTITIONED = 4
"""How many partitions topics have where the topology repartitions and nobody says how many."""


def default_partitions(plans: Sequence[SubPlan]) -> int:
    """How many partitions topics have where nobody says how many.

    Several where keys are partitioned anew: with one, all keys meet whatever their bytes are.
    """
    return REPARTITIONED if any(plan.topics.repartition_sources for plan in plans) else 1


def create_topics(
    cluster: MemoryCluster,
    plans: Sequence[SubPlan],
    config: StreamsConfig,
    global_plans: Sequence[GlobalPlan] = (),
) -> None:
    """Create the topics that the plans read and write, those of its own as they are made live.

    Raises:
        MisconfiguredTopicError: topics do not fit each other or the topology.
    """
    admin = MemoryAdmin(cluster)
    read = [*(plan.topics for plan in plans), *(plan.topics for plan in global_plans)]
    for name in dict.fromkeys(name for topics in read for name in topics.sources):
        cluster.create(name)
    for sink in (sink for plan in plans for sink in plan.program.sub_topology.sinks):
        if isinstance(sink.topic, str) and not sink.internal:
            cluster.create(sink.topic)  # a windowed key asks how many partitions there are
    if config.handlers.dead_letter_topic is not None:
        cluster.create(config.handlers.dead_letter_topic)
    planned = plan_internal_topics(
        [plan.topics for plan in plans],
        admin.describe(admin.names()),
        topic_configs=config.topic_configs,
    )
    admin.create(planned.create)


@dataclass(frozen=True, slots=True)
class _MemoryFacts(ClusterFacts):
    """Answers for a cluster in memory, where topics that functions name are made."""

    create: Callable[[str], object] = str

    def partitions_of(self, topic: str) -> int:
        """The partition count of a topic."""
        self.create(topic)
        # By its own name: a dataclass with slots is another class than the one of `super()`.
        return ClusterFacts.partitions_of(self, topic)


def make_memory_worker(
    config: StreamsConfig,
    plans: Sequence[SubPlan],
    *,
    cluster: MemoryCluster,
    consumer: MemoryConsumer,
    disk: Disk,
    clock: ManualClock,
    counts: Counts,
    probe: Probe,
    log: EventLog,
    global_plans: Sequence[GlobalPlan] = (),
    deployed: Deployment | None = None,
) -> Worker:
    """Make a worker of a cluster in memory; its topics are there already."""
    admin = MemoryAdmin(cluster)
    topics = admin.describe(admin.names())
    restorer = _restorer(config, cluster, clock=clock, listener=counts, probe=probe, log=log)
    beside: dict[str, Any] = {"background": at_once, "clock": clock, "log": log}
    partitions = {name: facts.partitions for name, facts in topics.items()}
    facts = _MemoryFacts(admin, topics, from_earliest=True, create=cluster.create)
    global_tables = _global_tables(config, global_plans, cluster, disk, facts, clock, probe, log)
    tasks: dict[str, Any] = {
        "plans": plans,
        "partitions": partitions,
        "consumer": consumer,
        "restorer": restorer,
        "facts": facts,
        "open_home": disk.open,
        "global_views": global_tables.views,
        **beside,
    }
    return Worker(
        config=config,
        consumer=consumer,
        make_producer=partial(_make_producer, config, cluster, consumer),
        make_tasks=partial(_make_tasks, config, deployed, tasks),
        make_membership=lambda leads: make_membership(config, consumer, admin, leads, **beside),
        restorer=restorer,
        global_tables=global_tables,
        topic_ids={name: facts.topic_id for name, facts in topics.items()},
        clock=clock,
        listener=counts,
        probe=probe,
        purger=make_purger(config, plans, admin, **beside),
        retention=make_retention(
            config, plans, admin, consumer, topics=topics, partitions=partitions, **beside
        ),
        topic_watch=make_watch(
            config,
            plans,
            admin,
            topics=topics,
            partitions=partitions,
            grown=consumer.hear_of_partitions,
            global_topics=[plan.topic for plan in global_plans],
            **beside,
        ),
        ask_topic_ids=admin.ask_ids,
        contact=NoContact(),
        keep_offsets_s=keep_offsets_every_s(admin, log),
        gate=OpenGate(),
        first_commit_id=cluster.random.getrandbits(30) << 32,
        log=log,
    )


def _restorer(config: StreamsConfig, cluster: MemoryCluster, **parts: Any) -> Restorer:
    return Restorer(
        make_consumer=lambda: MemoryConsumer(cluster, group=None, committed=True),
        batch_records=config.restore_batch_records,
        **parts,
    )


def _make_tasks(
    config: StreamsConfig,
    deployed: Deployment | None,
    parts: dict[str, Any],
    producer: Callable[[], Producer],
    request_commit: Callable[[], None],
) -> Tasks:
    return Tasks(
        make_send=lambda: producer().send,
        lost_offsets=LostOffsets(
            config.application_id,
            read_before(deployed, parts["plans"], config.application_id),
            exactly_once=config.exactly_once,
            log=parts["log"],
        ),
        read_cache_bytes=config.statestore_read_cache_max_bytes,
        handlers=config.handlers,
        make_facts=facts_maker(config, parts["clock"], request_commit),
        **parts,
    )


def _make_producer(
    config: StreamsConfig, cluster: MemoryCluster, consumer: MemoryConsumer
) -> Producer:
    if config.exactly_once:
        return MemoryTransactionalProducer(cluster, config.application_id)
    return MemoryPlainProducer(cluster, consumer.commit)


def _global_tables(
    config: StreamsConfig,
    plans: Sequence[GlobalPlan],
    cluster: MemoryCluster,
    disk: Disk,
    facts: ClusterFacts,
    clock: ManualClock,
    probe: Probe,
    log: EventLog,
) -> GlobalTables:
    return GlobalTables(
        plans,
        make_consumer=lambda: MemoryConsumer(cluster, group=None, committed=True),
        open_home=disk.open_global,
        facts=facts,
        topics=facts.topics,
        errors=RowErrors(config.handlers, config.null_key_policy, log),
        listener=SilentRestoreListener(),
        probe=probe,
        clock=clock,
        timeout_s=config.task_timeout_ms / 1000,
        batch_records=config.restore_batch_records,
        cache_bytes=config.statestore_read_cache_max_bytes,
        log=log,
    )
