"""Wires a worker to a cluster: clients, topics, identity, local state, purging."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import confluent_kafka

from state.directory import Identity, StateDirectory
from state.errors import StateError, StateLockedError
from state.rocks import RocksMemory
from streams.admin import LiveAdmin
from streams.background import Background, InThread
from streams.clients import Clock, Log, Probe, Producer
from streams.config import StreamsConfig
from streams.consumer import LiveConsumer
from streams.consumer import MakeClient as MakeConsumerClient
from streams.errors import IdentityError, LocalStateError
from streams.facts import ClusterFacts
from streams.home import LocalHomes
from streams.plan import SubPlan
from streams.producer import MakeClient as MakeProducerClient
from streams.producer import PlainProducer, TransactionalProducer
from streams.restore import RestoreListener, Restorer
from streams.tasks import OpenHome, Tasks
from streams.topic_plan import TopicFacts
from streams.topics import TopicAdmin, prepare_topics
from streams.upkeep import make_purger, make_watch
from streams.worker import Worker, WorkerListener


class LocalState(Protocol):
    """What is a worker's own on its host: its identity, and where its tasks' state lives."""

    @property
    def instance_id(self) -> str:
        """The worker's identity, kept across restarts."""

    def homes(self, clock: Clock, log: Log) -> OpenHome:
        """Return what opens a task's local state."""

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

    @property
    def instance_id(self) -> str:
        """The worker's identity, kept across restarts."""
        return self._identity.instance_id

    def homes(self, clock: Clock, log: Log) -> OpenHome:
        """Return what opens a task's local state."""
        memory = _rocks_memory(self._config)
        return LocalHomes(self._directory, memory, clock=clock, log=log).open

    def close(self) -> None:
        """Let go of the identity."""
        self._identity.release()


def _live_admin(config: StreamsConfig) -> TopicAdmin:
    return LiveAdmin(config.admin_config(), timeout_s=config.task_timeout_ms / 1000)


def _new_commit_id() -> int:
    return secrets.randbits(30) << 32


@dataclass(frozen=True, slots=True)
class Connections:
    """What joins a worker to the world outside; by default a real cluster and a real disk.

    Args:
        admin: makes the admin client.
        consumer_client: makes Kafka's own consumers, by their settings.
        producer_client: makes Kafka's own producers, by their settings.
        local_state: takes an identity, and opens the host's state.
        background: makes what runs jobs of a name beside the worker.
        first_commit_id: where a worker's commits are numbered from, unlike any other worker's.
    """

    admin: Callable[[StreamsConfig], TopicAdmin] = _live_admin
    consumer_client: MakeConsumerClient = confluent_kafka.Consumer
    producer_client: MakeProducerClient = confluent_kafka.Producer
    local_state: Callable[[StreamsConfig], LocalState] = HostState
    background: Callable[[str], Background] = InThread
    first_commit_id: Callable[[], int] = _new_commit_id


LIVE = Connections()


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """A worker, and what must be closed after it."""

    worker: Worker
    local: LocalState

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
) -> WorkerParts:
    """Check and create the topics, take an identity, and make a worker.

    Raises:
        MissingTopicError, MisconfiguredTopicError: the topics do not fit.
        IdentityError: another live process has the identity that the settings give.
        LocalStateError: the state directory cannot be used.
    """
    timeout_s = config.task_timeout_ms / 1000
    admin = connections.admin(config)
    topics = prepare_topics(
        admin,
        [plan.topics for plan in plans],
        replication_factor=config.replication_factor,
        topic_configs=config.topic_configs,
        timeout_s=timeout_s,
    )
    sizes = _Sizes.of(plans, {**topics, **_describe_sinks(admin, plans)})
    local = connections.local_state(config)
    log = _bind(log, local.instance_id)
    make_consumer = _consumer_maker(connections, timeout_s, clock)
    consumer = make_consumer(config.consumer_config(local.instance_id))
    restorer = _make_restorer(config, make_consumer, restore_listener, clock, probe, log)
    partitions = {name: facts.partitions for name, facts in topics.items()}
    homes = local.homes(clock, log)
    worker = Worker(
        config=config,
        consumer=consumer,
        make_producer=_producer_maker(
            config, local.instance_id, sizes, consumer, admin, clock, connections.producer_client
        ),
        make_tasks=lambda made: _make_tasks(
            config, plans, topics, partitions, consumer, restorer, admin, homes, made, clock, log
        ),
        restorer=restorer,
        topic_ids={name: facts.topic_id for name, facts in topics.items()},
        clock=clock,
        listener=listener,
        probe=probe,
        purger=make_purger(
            config,
            plans,
            admin,
            background=connections.background("headrace-purge"),
            clock=clock,
            log=log,
        ),
        topic_watch=make_watch(
            config,
            plans,
            admin,
            topics=topics,
            partitions=partitions,
            background=connections.background("headrace-topics"),
            clock=clock,
            log=log,
        ),
        first_commit_id=connections.first_commit_id(),
        log=log,
    )
    return WorkerParts(worker, local)


def _local_identity(config: StreamsConfig) -> tuple[StateDirectory, Identity]:
    try:
        directory = StateDirectory(config.state_dir, config.application_id)
        return directory, directory.acquire_identity(config.worker_id)
    except StateLockedError as error:
        raise IdentityError(str(error)) from error
    except StateError as error:
        raise LocalStateError(str(error)) from error


def _begins_earliest(config: StreamsConfig) -> bool:
    reset = config.consumer_config("").get("auto.offset.reset")
    return reset in ("earliest", "smallest", "beginning")


def _bind(log: Log, worker_id: str) -> Log:
    bind = getattr(log, "bind", None)
    bound: Log = bind(worker=worker_id) if bind is not None else log
    return bound


def _describe_sinks(admin: TopicAdmin, plans: Sequence[SubPlan]) -> Mapping[str, TopicFacts]:
    return admin.describe(sink for plan in plans for sink in plan.sinks)


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


def _consumer_maker(
    connections: Connections, timeout_s: float, clock: Clock
) -> Callable[[dict[str, object]], LiveConsumer]:
    def make(settings: dict[str, object]) -> LiveConsumer:
        return LiveConsumer(
            settings, timeout_s=timeout_s, clock=clock, make_client=connections.consumer_client
        )

    return make


def _make_restorer(
    config: StreamsConfig,
    make_consumer: Callable[[dict[str, object]], LiveConsumer],
    listener: RestoreListener,
    clock: Clock,
    probe: Probe,
    log: Log,
) -> Restorer:
    return Restorer(
        make_consumer=lambda: make_consumer(config.restore_config()),
        clock=clock,
        listener=listener,
        probe=probe,
        batch_records=config.restore_batch_records,
        log=log,
    )


def _producer_maker(
    config: StreamsConfig,
    instance_id: str,
    sizes: _Sizes,
    consumer: LiveConsumer,
    admin: TopicAdmin,
    clock: Clock,
    make_client: MakeProducerClient,
) -> Callable[[], Producer]:
    timeout_s = config.task_timeout_ms / 1000
    transactional_id = f"{config.application_id}-{instance_id}"

    def make() -> Producer:
        if config.processing_guarantee == "exactly_once_v2":
            return TransactionalProducer(
                config.producer_config(
                    transactional_id,
                    message_max_bytes=sizes.record,
                    batch_max_bytes=sizes.batch,
                ),
                timeout_s=timeout_s,
                topic_limits=sizes.limits,
                clock=clock,
                make_client=make_client,
            )
        return PlainProducer(
            config.producer_config(
                None, message_max_bytes=sizes.record, batch_max_bytes=sizes.batch
            ),
            commit_offsets=consumer.commit,
            end_offsets=admin.end_offsets,
            timeout_s=timeout_s,
            topic_limits=sizes.limits,
            clock=clock,
            make_client=make_client,
        )

    return make


def _rocks_memory(config: StreamsConfig) -> RocksMemory:
    return RocksMemory(
        block_cache_bytes=config.rocksdb_block_cache_bytes,
        write_buffer_bytes=config.rocksdb_write_buffer_bytes,
    )


def _make_tasks(
    config: StreamsConfig,
    plans: Sequence[SubPlan],
    topics: Mapping[str, TopicFacts],
    partitions: Mapping[str, int],
    consumer: LiveConsumer,
    restorer: Restorer,
    admin: TopicAdmin,
    open_home: OpenHome,
    producer: Callable[[], Producer],
    clock: Clock,
    log: Log,
) -> Tasks:
    return Tasks(
        plans=plans,
        partitions=partitions,
        consumer=consumer,
        restorer=restorer,
        facts=ClusterFacts(admin, topics, _begins_earliest(config)),
        open_home=open_home,
        make_send=lambda: producer().send,
        exactly_once=config.processing_guarantee == "exactly_once_v2",
        read_cache_bytes=config.statestore_read_cache_max_bytes,
        clock=clock,
        log=log,
    )
