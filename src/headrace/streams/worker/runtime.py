"""Creation of a live worker: checks topics, acquires an identity, and connects the clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import MissingTopicError, StreamsError
from headrace.streams.kafka.clocks import MonotonicWallClock
from headrace.streams.kafka.consumer import LiveConsumer
from headrace.streams.kafka.offset_texts import TimeLimits
from headrace.streams.kafka.plain_producer import PlainProducer
from headrace.streams.kafka.protocols import (
    Clock,
    Log,
    NoContact,
    Probe,
    Producer,
    TopicFacts,
    TopicPartition,
)
from headrace.streams.kafka.transactional_producer import TransactionalProducer
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.live_versions import LiveVersions
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.topic_plan import TopicPlan, did_you_mean
from headrace.streams.plan.topics import TopicAdmin, describe_twice, prepare_topics
from headrace.streams.queries.query_queue import QueryQueue
from headrace.streams.tasks.gate_watch import Gate, OpenGate
from headrace.streams.tasks.restore import RestoreListener
from headrace.streams.tasks.tasks import ClusterFacts, begins_earliest
from headrace.streams.worker.connections import LIVE, Connections, LocalState, Stopping
from headrace.streams.worker.protocols import Application, Seams, WorkerListener
from headrace.streams.worker.retention import keep_offsets_every_s
from headrace.streams.worker.wiring import wire
from headrace.streams.worker.worker import Worker

# Creation of a worker's producers, with the size limits of the topics.


def producer_maker(
    application: Application,
    *,
    instance_id: str,
    admin: TopicAdmin,
    consumer: LiveConsumer,
    clock: Clock,
    connections: Connections,
    stopping: Stopping,
) -> Callable[[], Producer]:
    """Return a factory of producers; without transactions, the consumer commits offsets."""
    config = application.config
    looked_up = {plan.topic for plan in application.global_plans}
    others = {name: facts for name, facts in application.topics.items() if name not in looked_up}
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
        "clock": clock,
        # For all producers of the worker: the clock may be set back before the next one is made.
        "latest_ms": MonotonicWallClock(clock).now_ms,
        "make_client": connections.producer_client,
        "stopping": stopping,
        "group": config.application_id,
        **connections.hearing(config),
    }

    def make() -> Producer:
        is_live = connections.producer_client is None
        own = connections.sent.hearing(settings) if is_live else settings
        if config.exactly_once:
            return TransactionalProducer(own, **shared)
        return PlainProducer(
            own, commit_offsets=consumer.commit, end_offsets=admin.end_offsets, **shared
        )

    return make


def _limit_of(admin: TopicAdmin, topic: str) -> int | None:
    with suppress(StreamsError):
        found = admin.describe([topic]).get(topic)
        return None if found is None else found.max_message_bytes
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
    def of(cls, plans: Sequence[SubPlan], topics: Mapping[str, TopicFacts]) -> _Sizes:
        limits = {name: f.max_message_bytes for name, f in topics.items() if f.max_message_bytes}
        only_read = {name for plan in plans for name in plan.topics.sources}
        only_read -= {name for plan in plans for name in plan.sinks}
        written = [limit for name, limit in limits.items() if name not in only_read]
        return cls(limits, max(limits.values(), default=None), min(written, default=None))


def describe_dead_letters(admin: TopicAdmin, config: StreamsConfig) -> Mapping[str, TopicFacts]:
    """Describe the dead-letter topic before it is needed; raise if it does not exist."""
    topic = config.handlers.dead_letter_topic
    if topic is None:
        return {}
    found = describe_twice(admin, [topic], {topic}, written={topic})
    if topic not in found:
        named = did_you_mean(topic, sorted(admin.names()))
        raise MissingTopicError(
            f"the dead-letter topic {named} does not exist; create it, or correct "
            "errors.dead.letter.queue.topic.name",
            topics=[topic],
        )
    return found


BeforeStart = Callable[
    [TopicAdmin, TopicPlan, Mapping[str, TopicFacts]], AbstractSet[TopicPartition]
]
"""Called before topics are created, with the admin client, the plan, and the existing topics. It
may raise to prevent the start, and returns inputs with missing offsets that it has reported."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """A worker, and the resources to close after it."""

    worker: Worker
    local: LocalState
    keep_offsets_s: float
    """How often unchanged offsets are committed again, in seconds."""
    desk: QueryQueue

    def close(self) -> None:
        self.desk.close()
        self.local.close()


def make_worker(
    config: StreamsConfig,
    plans: Sequence[SubPlan],
    *,
    clock: Clock,
    listener: WorkerListener,
    restore_listener: RestoreListener,
    probe: Probe,
    log: Log,
    connections: Connections = LIVE,
    stopping: Stopping = lambda: False,
    global_plans: Sequence[GlobalPlan] = (),
    deployed: Deployment | None = None,
    gate: Gate | None = None,
    versions: LiveVersions | None = None,
    before_start: BeforeStart = lambda _, __, ___: frozenset(),
) -> WorkerParts:
    """Check and create the topics, acquire an identity, and create a worker.

    Args:
        deployed: the deployed topology before this start, if known.
        versions: compares this version with live workers; None if the application has a single
            worker.
        before_start: checks existing topics before any topic is created.
    """
    admin = connections.make_admin(config, stopping)
    topics, told = _prepare(config, plans, global_plans, admin, versions, before_start)
    plans = plans if versions is None else versions.plans
    local = connections.local_state(config)
    try:
        if versions is not None:
            versions.take(local.instance_id)
        bound = _bind(log, local.instance_id)
        application = Application(
            config=config,
            plans=plans,
            topics=topics,
            global_plans=global_plans,
            deployed=deployed,
            told=told,
            keep_offsets_s=keep_offsets_every_s(admin, log),
        )
        seams = _seams(
            application,
            local,
            admin=admin,
            clock=clock,
            listener=listener,
            restore_listener=restore_listener,
            probe=probe,
            log=bound,
            connections=connections,
            stopping=stopping,
            gate=gate or OpenGate(),
            version="" if versions is None else versions.version,
        )
        worker = wire(application, seams)
        return WorkerParts(worker, local, application.keep_offsets_s, connections.desk)
    except BaseException:
        local.close()  # release the identity, so that the process may retry
        raise


def _prepare(
    config: StreamsConfig,
    plans: Sequence[SubPlan],
    global_plans: Sequence[GlobalPlan],
    admin: TopicAdmin,
    versions: LiveVersions | None,
    before_start: BeforeStart,
) -> tuple[dict[str, TopicFacts], AbstractSet[TopicPartition]]:
    """Check and create the topics; return them, and the inputs reported by `before_start`."""
    told: set[TopicPartition] = set()

    def before_create(plan: TopicPlan, found: Mapping[str, TopicFacts]) -> None:
        if versions is not None:
            versions.settle(admin, plan, found)
        told.update(before_start(admin, plan, found))

    topics = prepare_topics(
        admin,
        [*(plan.topics for plan in plans), *(plan.topics for plan in global_plans)],
        replication_factor=config.replication_factor,
        topic_configs=config.topic_configs,
        timeout_s=config.task_timeout_ms / 1000,
        before_create=before_create,
    )
    # Describe it separately because the dead-letter topic may not be part of the topology.
    topics.update(describe_dead_letters(admin, config))
    return topics, told


def _seams(
    application: Application,
    local: LocalState,
    *,
    admin: TopicAdmin,
    clock: Clock,
    listener: WorkerListener,
    restore_listener: RestoreListener,
    probe: Probe,
    log: Log,
    connections: Connections,
    stopping: Stopping,
    gate: Gate,
    version: str,
) -> Seams:
    config = application.config
    settings = config.consumer_config(local.instance_id, version=version)
    consumer = connections.make_consumer(config, settings, clock)
    return Seams(
        admin=admin,
        consumer=consumer,
        make_reader=partial(connections.make_reader, config, clock),
        make_global_reader=partial(
            connections.make_consumer, config, config.restore_config(), clock
        ),
        make_producer=producer_maker(
            application,
            instance_id=local.instance_id,
            admin=admin,
            consumer=consumer,
            clock=clock,
            connections=connections,
            stopping=stopping,
        ),
        facts=ClusterFacts(
            admin,
            application.topics,
            begins_earliest(config),
            {
                name: reset
                for plan in application.plans
                for name, reset in plan.offset_resets.items()
            },
        ),
        open_home=local.homes(clock, log),
        open_global_home=lambda stores: local.global_home(stores, log),
        background=connections.background,
        clock=clock,
        listener=listener,
        restore_listener=restore_listener,
        global_listener=restore_listener,
        probe=probe,
        calls=connections.calls(),
        first_commit_id=connections.first_commit_id(),
        results_per_commit=connections.results_per_commit,
        log=log,
        contact=connections.contact or NoContact(),
        gate=gate,
        worker_id=local.instance_id,
        measures=connections.all_measures(),
        tracer=connections.tracer(config.application_id, local.instance_id),
        open_sink=connections.open_sink,
        desk=connections.desk,
    )


def _bind(log: Log, worker_id: str) -> Log:
    bind = getattr(log, "bind", None)
    bound: Log = bind(worker=worker_id) if bind is not None else log
    return bound
