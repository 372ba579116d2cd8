"""Creation of a live worker: checks topics, acquires an identity, and connects the clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from confluent_kafka import murmur2

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import MissingTopicError, StreamsError
from headrace.streams.kafka.clocks import MonotonicWallClock
from headrace.streams.kafka.consumer import LiveConsumer
from headrace.streams.kafka.offset_texts import TimeLimits
from headrace.streams.kafka.plain_producer import PlainProducer
from headrace.streams.kafka.protocols import (
    AdminClient,
    AlwaysReachable,
    Clock,
    Log,
    Probe,
    Producer,
    TopicDescription,
    TopicPartition,
)
from headrace.streams.kafka.transactional_producer import TransactionalProducer
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.live_versions import LiveVersions
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.topic_plan import TopicPlan, did_you_mean
from headrace.streams.plan.topics import describe_twice, prepare_topics
from headrace.streams.queries.query_queue import QueryQueue
from headrace.streams.tasks.gate_watch import Gate, OpenGate
from headrace.streams.tasks.restore import RestoreListener
from headrace.streams.tasks.tasks import ClusterMetadata, begins_earliest
from headrace.streams.worker.connections import LIVE, Connections, LocalState, Stopping
from headrace.streams.worker.protocols import (
    Application,
    KeepsPartitions,
    WorkerDependencies,
    WorkerListener,
)
from headrace.streams.worker.retention import recommit_interval_s
from headrace.streams.worker.wiring import wire
from headrace.streams.worker.worker import Worker


def _limit_of(admin: AdminClient, topic: str) -> int | None:
    with suppress(StreamsError):
        facts = admin.describe([topic]).get(topic)
        return None if facts is None else facts.max_message_bytes
    return None


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Producer limits derived from max.message.bytes of the topics.

    Args:
        limits: the limit of each topic, if known.
        record: the maximum record size over all topics.
        batch: the maximum batch size that all output topics accept.
    """

    limits: Mapping[str, int]
    record: int | None
    batch: int | None

    @classmethod
    def of(cls, plans: Sequence[SubPlan], topics: Mapping[str, TopicDescription]) -> _Sizes:
        limits = {name: f.max_message_bytes for name, f in topics.items() if f.max_message_bytes}
        only_read = {name for plan in plans for name in plan.topics.sources}
        only_read -= {name for plan in plans for name in plan.sinks}
        written = [limit for name, limit in limits.items() if name not in only_read]
        return cls(limits, max(limits.values(), default=None), min(written, default=None))


def describe_dead_letters(
    admin: AdminClient, config: StreamsConfig
) -> Mapping[str, TopicDescription]:
    """Describe the dead-letter topic before it is needed; raise if it does not exist."""
    topic = config.handlers.dead_letter_topic
    if topic is None:
        return {}
    topics = describe_twice(admin, [topic], {topic}, written={topic})
    if topic not in topics:
        named = did_you_mean(topic, sorted(admin.names()))
        raise MissingTopicError(
            f"the dead-letter topic {named} does not exist; create it, or correct "
            "errors.dead.letter.queue.topic.name",
            topics=[topic],
        )
    return topics


BeforeStart = Callable[
    [AdminClient, TopicPlan, Mapping[str, TopicDescription]], AbstractSet[TopicPartition]
]
"""Called before topics are created, with the admin client, the plan, and the existing topics. It
may raise to prevent the start, and returns inputs with missing offsets that it has reported."""


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker, and the resources to close after it."""

    worker: Worker
    local: LocalState
    recommit_s: float
    """How often unchanged offsets are committed again, in seconds."""
    query_queue: QueryQueue

    def close(self) -> None:
        self.query_queue.close()
        self.local.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFactory:
    """Creator of a worker.

    Args:
        deployed: the deployed topology before this start, if known.
        versions: compares this version with live workers; None if the application has a single
            worker.
        before_start: checks existing topics before any topic is created.
    """

    config: StreamsConfig
    plans: Sequence[SubPlan]
    clock: Clock
    listener: WorkerListener
    restore_listener: RestoreListener
    probe: Probe
    log: Log
    connections: Connections = LIVE
    stopping: Stopping = lambda: False
    global_plans: Sequence[GlobalPlan] = ()
    deployed: Deployment | None = None
    gate: Gate | None = None
    versions: LiveVersions | None = None
    before_start: BeforeStart = lambda _, __, ___: frozenset()
    keeps_partitions: KeepsPartitions = lambda _: False

    def make(self) -> LiveWorker:
        """Check and create the topics, acquire an identity, and create a worker."""
        admin = self.connections.make_admin(self.config, self.stopping)
        topics, reported = self._prepare(admin)
        local = self.connections.local_state(self.config)
        try:
            if self.versions is not None:
                self.versions.take(local.instance_id)
            application = Application(
                config=self.config,
                plans=self.plans if self.versions is None else self.versions.plans,
                topics=topics,
                global_plans=self.global_plans,
                deployed=self.deployed,
                reported_inputs=reported,
                recommit_s=recommit_interval_s(admin, self.log),
            )
            worker = wire(application, self._dependencies(application, local, admin))
            return LiveWorker(
                worker, local, application.recommit_s, query_queue=self.connections.query_queue
            )
        except BaseException:
            local.close()  # release the identity, so that the process may retry
            raise

    def _prepare(
        self, admin: AdminClient
    ) -> tuple[dict[str, TopicDescription], AbstractSet[TopicPartition]]:
        """Check and create the topics; return them, and the inputs reported by `before_start`."""
        reported: set[TopicPartition] = set()

        def before_create(plan: TopicPlan, existing: Mapping[str, TopicDescription]) -> None:
            if self.versions is not None:
                self.versions.resolve(admin, plan, existing)
            reported.update(self.before_start(admin, plan, existing))

        topics = prepare_topics(
            admin,
            [*(p.topics for p in self.plans), *(p.topics for p in self.global_plans)],
            replication_factor=self.config.replication_factor,
            topic_configs=self.config.topic_configs,
            timeout_s=self.config.task_timeout_ms / 1000,
            before_create=before_create,
        )
        # Describe it separately because the dead-letter topic may not be part of the topology.
        topics.update(describe_dead_letters(admin, self.config))
        return topics, reported

    def _dependencies(
        self, application: Application, local: LocalState, admin: AdminClient
    ) -> WorkerDependencies:
        config, connections, clock = self.config, self.connections, self.clock
        log = _bind(self.log, local.instance_id)
        version = "" if self.versions is None else self.versions.version
        settings = config.consumer_config(local.instance_id, version=version)
        consumer = connections.make_consumer(config, settings, clock)
        resets = (plan.offset_resets.items() for plan in application.plans)
        return WorkerDependencies(
            admin=admin,
            consumer=consumer,
            make_reader=partial(connections.make_reader, config, clock),
            make_global_reader=partial(
                connections.make_consumer, config, config.restore_config(), clock=clock
            ),
            make_producer=self._producer_maker(
                application, local.instance_id, admin=admin, consumer=consumer
            ),
            metadata=ClusterMetadata(
                admin,
                application.topics,
                begins_earliest(config),
                resets=dict(chain(*resets)),
                partition_for_key=murmur2,
            ),
            open_home=local.homes(clock, log),
            open_global_home=lambda stores: local.global_home(stores, log),
            background=connections.background,
            clock=clock,
            listener=self.listener,
            restore_listener=self.restore_listener,
            global_listener=self.restore_listener,
            probe=self.probe,
            calls=connections.calls(),
            first_commit_id=connections.first_commit_id(),
            results_per_commit=connections.results_per_commit,
            log=log,
            brokers=connections.brokers or AlwaysReachable(),
            gate=self.gate or OpenGate(),
            worker_id=local.instance_id,
            measures=connections.all_measures(),
            tracer=connections.tracer(config.application_id, local.instance_id),
            open_sink=connections.open_sink,
            query_queue=connections.query_queue,
            keeps_partitions=self.keeps_partitions,
        )

    def _producer_maker(
        self,
        application: Application,
        instance_id: str,
        *,
        admin: AdminClient,
        consumer: LiveConsumer,
    ) -> Callable[[], Producer]:
        """Return a factory of producers; without transactions, the consumer commits offsets."""
        config, connections = self.config, self.connections
        looked_up = {plan.topic for plan in application.global_plans}
        others = {name: f for name, f in application.topics.items() if name not in looked_up}
        sizes = _Sizes.of(application.plans, others)
        settings = config.producer_config(
            f"{config.application_id}-{instance_id}" if config.exactly_once else None,
            message_max_bytes=sizes.record,
            batch_max_bytes=sizes.batch,
        )
        shared: dict[str, Any] = {
            "timeout_s": config.task_timeout_ms / 1000,
            "topic_limits": sizes.limits,
            "time_limits": TimeLimits.of(others),
            "ask_limit": partial(_limit_of, admin),
            "clock": self.clock,
            # For all producers of the worker: the clock may be set back before the next is made.
            "latest_ms": MonotonicWallClock(self.clock).now_ms,
            "make_client": connections.producer_client,
            "stopping": self.stopping,
            "group": config.application_id,
            **connections.broker_arguments(config),
        }

        def make() -> Producer:
            is_live = connections.producer_client is None
            client_settings = connections.sent.attach(settings) if is_live else settings
            if config.exactly_once:
                return TransactionalProducer(client_settings, **shared)
            return PlainProducer(
                client_settings,
                commit_offsets=consumer.commit,
                end_offsets=admin.end_offsets,
                **shared,
            )

        return make


def _bind(log: Log, worker_id: str) -> Log:
    bind = getattr(log, "bind", None)
    bound: Log = bind(worker=worker_id) if bind is not None else log
    return bound
