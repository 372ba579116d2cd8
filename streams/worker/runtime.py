"""Wires a worker to a cluster: clients, topics, identity, local state, purging."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from headrace.state.directory import Identity, StateDirectory
from headrace.state.errors import StateError, StateLockedError
from headrace.state.rocks import RocksMemory
from headrace.streams.config.config import StreamsConfig
from headrace.streams.contact.contact import NoContact
from headrace.streams.deployed.deployment import Deployment
from headrace.streams.errors import IdentityError, LocalStateError, MissingTopicError
from headrace.streams.global_tables.global_errors import RowErrors
from headrace.streams.global_tables.global_tables import GlobalTables
from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.kafka.broker_contact import BrokerContact
from headrace.streams.kafka.consumer import LiveConsumer
from headrace.streams.kafka.consumer import MakeClient as MakeConsumerClient
from headrace.streams.kafka.plain_producer import PlainProducer
from headrace.streams.kafka.producer import MakeClient as MakeProducerClient
from headrace.streams.kafka.transactional_producer import TransactionalProducer
from headrace.streams.local.home import LocalHomes, open_global_home
from headrace.streams.local.task_home import TaskHome
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.topic_plan import TopicPlan, did_you_mean
from headrace.streams.plan.topics import TopicAdmin, describe_twice, prepare_topics
from headrace.streams.seams.background import Background, InThread
from headrace.streams.seams.clients import Clock, Log, Probe, Producer, TopicPartition
from headrace.streams.seams.topic_facts import TopicFacts
from headrace.streams.tasks.cluster_facts import ClusterFacts, begins_earliest
from headrace.streams.tasks.gate_watch import Gate, OpenGate
from headrace.streams.tasks.lost_offsets import LostOffsets, read_before
from headrace.streams.tasks.restore import RestoreListener, Restorer
from headrace.streams.tasks.tasks import OpenHome, Tasks
from headrace.streams.upkeep.offset_retention import keep_offsets_every_s
from headrace.streams.upkeep.upkeep import make_membership, make_purger, make_retention, make_watch
from headrace.streams.worker.processing import facts_maker
from headrace.streams.worker.worker import Worker, WorkerListener
from headrace.topology.context.context import TableView
from headrace.topology.processors.store import Store

BeforeStart = Callable[
    [TopicAdmin, TopicPlan, Mapping[str, TopicFacts]], AbstractSet[TopicPartition]
]
"""Called before topics are created, with what creates them, the plan, and those that are there.
It may refuse; it returns the inputs without offsets of which it has said what follows."""

Stopping = Callable[[], bool]
"""Whether the application was asked to stop."""


class LocalState(Protocol):
    """What is a worker's own on its host: its identity, and where its tasks' state lives."""

    @property
    def instance_id(self) -> str:
        """The worker's identity, kept across restarts."""

    def homes(self, clock: Clock, log: Log) -> OpenHome:
        """Return what opens a task's local state."""

    def global_home(self, stores: Sequence[Store], log: Log) -> TaskHome:
        """Open the local state of this worker's global tables."""

    def close(self) -> None:
        """Let go of the identity."""


class HostState:
    """Identity and state in the settings' state.dir (see `LocalState`).

    Raises:
        IdentityError: another live process has the identity that the settings give.
        LocalStateError: the state directory cannot be used.
    """

    def __init__(self, config: StreamsConfig) -> None:
        self._directory, self._identity = _local_identity(config)
        self._config = config
        self._memory = _rocks_memory(config)

    @property
    def instance_id(self) -> str:
        """The worker's identity, kept across restarts."""
        return self._identity.instance_id

    def homes(self, clock: Clock, log: Log) -> OpenHome:
        """Return what opens a task's local state."""
        return LocalHomes(self._directory, self._memory, clock=clock, log=log).open

    def global_home(self, stores: Sequence[Store], log: Log) -> TaskHome:
        """Open the local state of this worker's global tables."""
        return open_global_home(self._directory, self.instance_id, stores, self._memory, log)

    def close(self) -> None:
        """Let go of the identity."""
        self._identity.release()


def _new_commit_id() -> int:
    return secrets.randbits(30) << 32


@dataclass(frozen=True, slots=True)
class Connections:
    """What joins a worker to the world outside; by default a real cluster and a real disk.

    Args:
        admin: makes the admin client, given what says that nobody waits for it any more; None
            takes the live one.
        consumer_client: makes Kafka's own consumers, by their settings; None takes the live ones.
        producer_client: makes Kafka's own producers, by their settings; likewise.
        contact: hears what the live clients say, and knows whether brokers can be reached.
        local_state: takes an identity, and opens the host's state.
        background: makes what runs jobs of a name beside the worker.
        first_commit_id: where a worker's commits are numbered from, unlike any other worker's.
    """

    admin: Callable[[StreamsConfig, Stopping], TopicAdmin] | None = None
    consumer_client: MakeConsumerClient | None = None
    producer_client: MakeProducerClient | None = None
    contact: BrokerContact | None = None
    local_state: Callable[[StreamsConfig], LocalState] = HostState
    background: Callable[[str], Background] = InThread
    first_commit_id: Callable[[], int] = _new_commit_id

    def hearing(self, config: StreamsConfig) -> dict[str, Any]:
        """How live clients are heard, as arguments of what uses them."""
        if self.contact is None:
            return {}
        timeout_s = config.task_timeout_ms / 1000
        return {"contact": self.contact, "waiting": partial(self.contact.was_lost, timeout_s)}

    def make_admin(self, config: StreamsConfig, stopping: Stopping) -> TopicAdmin:
        """Make the admin client."""
        if self.admin is not None:
            return self.admin(config, stopping)
        timeout_s = config.task_timeout_ms / 1000
        return LiveAdmin(
            config.admin_config(), timeout_s=timeout_s, stopping=stopping, **self.hearing(config)
        )


LIVE = Connections()


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """A worker, and what must be closed after it."""

    worker: Worker
    local: LocalState
    keep_offsets_s: float
    """How often offsets that do not move are committed again."""

    def close(self) -> None:
        """Let go of the identity."""
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
    before_start: BeforeStart = lambda _, __, ___: frozenset(),
) -> WorkerParts:
    """Check and create the topics, take an identity, and make a worker.

    Args:
        config: the settings.
        plans: the sub-topologies.
        clock: the worker's.
        listener: hears what the worker does.
        restore_listener: hears how restores go on.
        probe: called between the steps of commit and restore.
        log: bound to the application.
        connections: to the world outside.
        stopping: whether the application was asked to stop.
        global_plans: the global tables.
        deployed: what was deployed before this start, as far as that is known.
        gate: what tasks wait for before they begin.
        before_start: looks at what is there before anything is made.

    Raises:
        MissingTopicError, MisconfiguredTopicError: the topics do not fit.
        IdentityError: another live process has the identity that the settings give.
        LocalStateError: the state directory cannot be used.
        StopRequestedError: `stopping` said so while the cluster did not answer.
    """
    admin = connections.make_admin(config, stopping)
    told: set[TopicPartition] = set()
    topics = prepare_topics(
        admin,
        [*(plan.topics for plan in plans), *(plan.topics for plan in global_plans)],
        replication_factor=config.replication_factor,
        topic_configs=config.topic_configs,
        timeout_s=config.task_timeout_ms / 1000,
        before_create=lambda plan, found: told.update(before_start(admin, plan, found)),
    )
    local = connections.local_state(config)
    bound = _bind(log, local.instance_id)
    wiring = _Wiring(
        config,
        plans,
        global_plans,
        connections,
        stopping,
        admin,
        topics,
        local,
        clock,
        probe,
        bound,
        deployed,
        keep_offsets_every_s(admin, log),
        gate or OpenGate(),
        told,
    )
    worker = wiring.worker(listener, restore_listener)
    return WorkerParts(worker, local, wiring.keep_offsets_s)


@dataclass(frozen=True, slots=True)
class _Wiring:
    """Makes the parts of one worker, each from those before it."""

    config: StreamsConfig
    plans: Sequence[SubPlan]
    global_plans: Sequence[GlobalPlan]
    connections: Connections
    stopping: Stopping
    admin: TopicAdmin
    topics: dict[str, TopicFacts]
    local: LocalState
    clock: Clock
    probe: Probe
    log: Log
    deployed: Deployment | None
    keep_offsets_s: float
    gate: Gate
    told: AbstractSet[TopicPartition]

    def worker(self, listener: WorkerListener, restore_listener: RestoreListener) -> Worker:
        partitions = {name: facts.partitions for name, facts in self.topics.items()}
        consumer = self.consumer(self.config.consumer_config(self.local.instance_id))
        restorer = self.restorer(restore_listener)
        global_tables = self.global_tables(restore_listener)
        return Worker(
            config=self.config,
            consumer=consumer,
            make_producer=self.producer_maker(consumer),
            make_tasks=lambda producer, request_commit: self.tasks(
                partitions, consumer, restorer, producer, request_commit, global_tables.views
            ),
            make_membership=lambda leads: make_membership(
                self.config,
                consumer,
                self.admin,
                leads,
                background=self.connections.background("headrace-group"),
                clock=self.clock,
                log=self.log,
            ),
            restorer=restorer,
            global_tables=global_tables,
            topic_ids={name: facts.topic_id for name, facts in self.topics.items()},
            clock=self.clock,
            listener=listener,
            probe=self.probe,
            purger=make_purger(
                self.config,
                self.plans,
                self.admin,
                background=self.connections.background("headrace-purge"),
                clock=self.clock,
                log=self.log,
            ),
            retention=make_retention(
                self.config,
                self.plans,
                self.admin,
                consumer,
                topics=self.topics,
                partitions=partitions,
                background=self.connections.background("headrace-retention"),
                clock=self.clock,
                log=self.log,
            ),
            topic_watch=make_watch(
                self.config,
                self.plans,
                self.admin,
                topics=self.topics,
                partitions=partitions,
                grown=consumer.hear_of_partitions,
                global_topics=[plan.topic for plan in self.global_plans],
                background=self.connections.background("headrace-topics"),
                clock=self.clock,
                log=self.log,
            ),
            ask_topic_ids=self.admin.ask_ids,
            keep_offsets_s=self.keep_offsets_s,
            gate=self.gate,
            first_commit_id=self.connections.first_commit_id(),
            contact=self.connections.contact or NoContact(),
            log=self.log,
        )

    def consumer(self, settings: dict[str, object]) -> LiveConsumer:
        return LiveConsumer(
            settings,
            timeout_s=self.config.task_timeout_ms / 1000,
            clock=self.clock,
            make_client=self.connections.consumer_client,
            **self.connections.hearing(self.config),
        )

    def restorer(self, listener: RestoreListener) -> Restorer:
        return Restorer(
            make_consumer=lambda: self.consumer(self.config.restore_config()),
            clock=self.clock,
            listener=listener,
            probe=self.probe,
            batch_records=self.config.restore_batch_records,
            log=self.log,
        )

    def global_tables(self, listener: RestoreListener) -> GlobalTables:
        return GlobalTables(
            self.global_plans,
            make_consumer=lambda: self.consumer(self.config.restore_config()),
            open_home=lambda stores: self.local.global_home(stores, self.log),
            facts=self.facts(),
            topics=self.topics,
            errors=RowErrors(self.config.handlers, self.config.null_key_policy, self.log),
            listener=listener,
            probe=self.probe,
            clock=self.clock,
            timeout_s=self.config.task_timeout_ms / 1000,
            batch_records=self.config.restore_batch_records,
            cache_bytes=self.config.statestore_read_cache_max_bytes,
            log=self.log,
        )

    def facts(self) -> ClusterFacts:
        return ClusterFacts(
            self.admin,
            self.topics,
            begins_earliest(self.config),
            {topic: r for plan in self.plans for topic, r in plan.offset_resets.items()},
        )

    def producer_maker(self, consumer: LiveConsumer) -> Callable[[], Producer]:
        # Described once more, as a dead-letter topic may be none of the topology's.
        self.topics.update(_describe_dead_letters(self.admin, self.config))
        looked_up = {plan.topic for plan in self.global_plans}
        others = {name: facts for name, facts in self.topics.items() if name not in looked_up}
        sizes = _Sizes.of(self.plans, others)
        shared: dict[str, Any] = {
            "timeout_s": self.config.task_timeout_ms / 1000,
            "topic_limits": sizes.limits,
            "clock": self.clock,
            "make_client": self.connections.producer_client,
            "stopping": self.stopping,
            "group": self.config.application_id,
            **self.connections.hearing(self.config),
        }
        exactly_once = self.config.exactly_once
        identity = f"{self.config.application_id}-{self.local.instance_id}"
        settings = self.config.producer_config(
            identity if exactly_once else None,
            message_max_bytes=sizes.record,
            batch_max_bytes=sizes.batch,
        )

        def make() -> Producer:
            if exactly_once:
                return TransactionalProducer(settings, **shared)
            return PlainProducer(
                settings,
                commit_offsets=consumer.commit,
                end_offsets=self.admin.end_offsets,
                **shared,
            )

        return make

    def tasks(
        self,
        partitions: Mapping[str, int],
        consumer: LiveConsumer,
        restorer: Restorer,
        producer: Callable[[], Producer],
        request_commit: Callable[[], None],
        global_views: Mapping[str, TableView],
    ) -> Tasks:
        return Tasks(
            plans=self.plans,
            partitions=partitions,
            consumer=consumer,
            restorer=restorer,
            facts=self.facts(),
            open_home=self.local.homes(self.clock, self.log),
            make_send=lambda: producer().send,
            lost_offsets=LostOffsets(
                self.config.application_id,
                read_before(self.deployed, self.plans, self.config.application_id),
                exactly_once=self.config.exactly_once,
                log=self.log,
                told=self.told,
            ),
            read_cache_bytes=self.config.statestore_read_cache_max_bytes,
            clock=self.clock,
            background=self.connections.background("headrace-facts"),
            log=self.log,
            handlers=self.config.handlers,
            make_facts=facts_maker(self.config, self.clock, request_commit),
            global_views=global_views,
        )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What max.message.bytes of the topics means for the producer.

    Args:
        limits: of each topic, as far as they are known.
        record: the largest record that any of them takes.
        batch: the largest batch that all written ones take.
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


def _describe_dead_letters(admin: TopicAdmin, config: StreamsConfig) -> Mapping[str, TopicFacts]:
    """Look at the dead-letter topic before it is needed.

    Raises:
        MissingTopicError: it does not exist.
    """
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


def _local_identity(config: StreamsConfig) -> tuple[StateDirectory, Identity]:
    try:
        directory = StateDirectory(config.state_dir, config.application_id)
        return directory, directory.acquire_identity(config.worker_id)
    except StateLockedError as error:
        raise IdentityError(str(error)) from error
    except StateError as error:
        raise LocalStateError(str(error)) from error


def _rocks_memory(config: StreamsConfig) -> RocksMemory:
    return RocksMemory(
        block_cache_bytes=config.rocksdb_block_cache_bytes,
        write_buffer_bytes=config.rocksdb_write_buffer_bytes,
    )


def _bind(log: Log, worker_id: str) -> Log:
    bind = getattr(log, "bind", None)
    bound: Log = bind(worker=worker_id) if bind is not None else log
    return bound
