"""Wires a worker to a real cluster: clients, topics, identity, local state, purging."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from state.directory import Identity, StateDirectory
from state.errors import StateError, StateLockedError
from state.rocks import RocksMemory
from streams.admin import LiveAdmin
from streams.clients import Clock, Log, Probe, Producer
from streams.config import StreamsConfig
from streams.consumer import LiveConsumer
from streams.errors import IdentityError, LocalStateError
from streams.facts import ClusterFacts
from streams.home import LocalHome
from streams.plan import SubPlan
from streams.producer import PlainProducer, TransactionalProducer
from streams.purge import Purger
from streams.restore import RestoreListener, Restorer
from streams.task import TaskId
from streams.tasks import Tasks
from streams.topic_plan import TopicFacts
from streams.topics import TopicAdmin, prepare_topics
from streams.worker import Worker, WorkerListener
from topology.graph import Store

LOCK_WAIT_MS = 2_000


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """A worker, and what must be closed after it."""

    worker: Worker
    directory: StateDirectory
    identity: Identity

    def close(self) -> None:
        """Let go of the identity."""
        self.identity.release()


def make_worker(
    config: StreamsConfig,
    plans: Sequence[SubPlan],
    *,
    clock: Clock,
    listener: WorkerListener,
    restore_listener: RestoreListener,
    probe: Probe,
    log: Log,
) -> WorkerParts:
    """Check and create the topics, take an identity, and make a worker of a real cluster.

    Raises:
        MissingTopicError, MisconfiguredTopicError: the topics do not fit.
        IdentityError: another live process has the identity that the settings give.
        LocalStateError: the state directory cannot be used.
    """
    timeout_s = config.task_timeout_ms / 1000
    admin = LiveAdmin(config.admin_config(), timeout_s=timeout_s)
    topics = prepare_topics(
        admin,
        [plan.topics for plan in plans],
        replication_factor=config.replication_factor,
        topic_configs=config.topic_configs,
        timeout_s=timeout_s,
    )
    sizes = _Sizes.of(plans, {**topics, **_describe_sinks(admin, plans)})
    directory, identity = _local_identity(config)
    log = _bind(log, identity.instance_id)
    consumer = LiveConsumer(config.consumer_config(identity.instance_id), timeout_s=timeout_s)
    restorer = Restorer(
        make_consumer=lambda: LiveConsumer(config.restore_config(), timeout_s=timeout_s),
        clock=clock,
        listener=restore_listener,
        probe=probe,
        batch_records=config.restore_batch_records,
        log=log,
    )
    repartitions = frozenset(t.name for plan in plans for t in plan.topics.repartition_sources)
    worker = Worker(
        config=config,
        consumer=consumer,
        make_producer=_producer_maker(config, identity, sizes, consumer, admin),
        make_tasks=lambda producer: _make_tasks(
            config, plans, topics, consumer, restorer, admin, directory, producer, log
        ),
        restorer=restorer,
        topic_ids={name: facts.topic_id for name, facts in topics.items()},
        clock=clock,
        listener=listener,
        probe=probe,
        housekeeping=Purger(
            admin, repartitions, config.repartition_purge_interval_ms / 1000, clock, log
        ),
        first_commit_id=secrets.randbits(30) << 32,
        log=log,
    )
    return WorkerParts(worker, directory, identity)


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


def _producer_maker(
    config: StreamsConfig,
    identity: Identity,
    sizes: _Sizes,
    consumer: LiveConsumer,
    admin: TopicAdmin,
) -> Callable[[], Producer]:
    timeout_s = config.task_timeout_ms / 1000
    transactional_id = f"{config.application_id}-{identity.instance_id}"

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
            )
        return PlainProducer(
            config.producer_config(
                None, message_max_bytes=sizes.record, batch_max_bytes=sizes.batch
            ),
            commit_offsets=consumer.commit,
            end_offsets=admin.end_offsets,
            timeout_s=timeout_s,
            topic_limits=sizes.limits,
        )

    return make


def _make_tasks(
    config: StreamsConfig,
    plans: Sequence[SubPlan],
    topics: Mapping[str, TopicFacts],
    consumer: LiveConsumer,
    restorer: Restorer,
    admin: TopicAdmin,
    directory: StateDirectory,
    producer: Callable[[], Producer],
    log: Log,
) -> Tasks:
    memory = RocksMemory(
        block_cache_bytes=config.rocksdb_block_cache_bytes,
        write_buffer_bytes=config.rocksdb_write_buffer_bytes,
    )

    def open_home(task_id: TaskId, stores: Sequence[Store]) -> LocalHome:
        try:
            task_directory = directory.acquire_task(str(task_id), wait_ms=LOCK_WAIT_MS)
            return LocalHome(task_directory, stores, memory, log)
        except StateError as error:
            raise LocalStateError(f"task {task_id}: {error}") from error

    return Tasks(
        plans=plans,
        partitions={name: facts.partitions for name, facts in topics.items()},
        consumer=consumer,
        restorer=restorer,
        facts=ClusterFacts(admin, topics, _begins_earliest(config)),
        open_home=open_home,
        make_send=lambda: producer().send,
        exactly_once=config.processing_guarantee == "exactly_once_v2",
        read_cache_bytes=config.statestore_read_cache_max_bytes,
        log=log,
    )
