"""Wires a worker to a real cluster: clients, topics, identity, local state, purging."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from state.directory import Identity, StateDirectory, TaskDirectory
from state.rocks import RocksMemory
from state.store import TaskState
from state.task_state import open_task_state
from streams.admin import LiveAdmin
from streams.clients import Clock, Log, Probe, Producer, TopicPartition
from streams.config import StreamsConfig
from streams.consumer import LiveConsumer
from streams.plan import SubPlan
from streams.producer import PlainProducer, TransactionalProducer
from streams.restore import ChangelogFacts, RestoreListener, Restorer
from streams.task import Task, TaskId
from streams.tasks import Tasks
from streams.topic_plan import TopicFacts
from streams.topics import TopicAdmin, prepare_topics
from streams.worker import Worker, WorkerListener
from topology.graph import Store

LOCK_WAIT_MS = 2_000
DELETE_RETENTION_MS = 24 * 60 * 60 * 1000
"""Kafka's default of delete.retention.ms, where reading the topic's own is not allowed."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Answers the tasks' questions with an admin client (see `streams.tasks.Facts`)."""

    admin: TopicAdmin
    topics: Mapping[str, TopicFacts]
    from_earliest: bool

    def changelogs(
        self, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ChangelogFacts]:
        """Ends and identities of changelog partitions, asked for now."""
        starts, ends = self.admin.start_offsets(places), self.admin.end_offsets(places)
        facts = {}
        for place in places:
            topic = self.topics[place.topic]
            kept_ms = topic.delete_retention_ms
            facts[place] = ChangelogFacts(
                topic.topic_id,
                starts[place],
                ends[place],
                DELETE_RETENTION_MS if kept_ms is None else kept_ms,
            )
        return facts

    def first_offsets(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to begin with partitions for which nothing was ever committed."""
        ask = self.admin.start_offsets if self.from_earliest else self.admin.end_offsets
        return ask(places)


@dataclass(slots=True)
class LocalHome:
    """A task's directory, locked, with its state open (see `streams.tasks.TaskHome`)."""

    directory: TaskDirectory
    stores: Sequence[Store]
    memory: RocksMemory
    state: TaskState = field(init=False)

    def __post_init__(self) -> None:
        self.state = self._open()

    def _open(self) -> TaskState:
        specs = [store.spec for store in self.stores]
        return open_task_state(self.directory.path, specs, memory=self.memory)

    def wipe(self) -> None:
        """Empty the local state, keeping the lock."""
        for store in self.stores:
            self.state.drop_store(store.name)

    def close(self) -> None:
        """Close the state and let go of the lock."""
        self.state.close()
        self.directory.release()


class Purger:
    """Deletes what was processed of repartition topics, now and then.

    Args:
        admin: the cluster.
        topics: the repartition topics.
        interval_s: the least time between two rounds, in seconds.
        clock: for that time.
        log: bound to the worker.
    """

    def __init__(
        self, admin: TopicAdmin, topics: frozenset[str], interval_s: float, clock: Clock, log: Log
    ) -> None:
        self._admin = admin
        self._topics = topics
        self._interval_s = interval_s
        self._clock = clock
        self._log = log
        self._last_s = clock.monotonic_s()
        self._done: dict[TopicPartition, int] = {}

    def __call__(self, tasks: Sequence[Task]) -> None:
        """Note what `tasks` have committed, and delete it when it is time."""
        if not self._topics:
            return
        for task in tasks:
            for place, committed in task.start.items():
                if place.topic in self._topics:
                    self._done[place] = committed.offset
        now_s = self._clock.monotonic_s()
        if now_s - self._last_s < self._interval_s or not self._done:
            return
        self._last_s = now_s
        try:
            self._admin.delete_records(self._done)
        except Exception as error:
            # Nothing depends on it: the next round deletes the same and more.
            self._log.warning("purge_failed", reason=str(error))
        self._done.clear()


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
        StateLockedError: another live process has the identity that the settings give.
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
    directory = StateDirectory(config.state_dir, config.application_id)
    identity = directory.acquire_identity(config.worker_id)
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
        make_producer=_producer_maker(config, identity, topics, consumer, admin),
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


def _begins_earliest(config: StreamsConfig) -> bool:
    reset = config.consumer_config("").get("auto.offset.reset")
    return reset in ("earliest", "smallest", "beginning")


def _bind(log: Log, worker_id: str) -> Log:
    bind = getattr(log, "bind", None)
    bound: Log = bind(worker=worker_id) if bind is not None else log
    return bound


def _producer_maker(
    config: StreamsConfig,
    identity: Identity,
    topics: Mapping[str, TopicFacts],
    consumer: LiveConsumer,
    admin: TopicAdmin,
) -> Callable[[], Producer]:
    limits = {name: f.max_message_bytes for name, f in topics.items() if f.max_message_bytes}
    largest = max(limits.values(), default=None)
    timeout_s = config.task_timeout_ms / 1000
    transactional_id = f"{config.application_id}-{identity.instance_id}"

    def make() -> Producer:
        if config.processing_guarantee == "exactly_once_v2":
            return TransactionalProducer(
                config.producer_config(transactional_id, message_max_bytes=largest),
                timeout_s=timeout_s,
                topic_limits=limits,
            )
        return PlainProducer(
            config.producer_config(None, message_max_bytes=largest),
            commit_offsets=consumer.commit,
            end_offsets=admin.end_offsets,
            timeout_s=timeout_s,
            topic_limits=limits,
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
        task_directory = directory.acquire_task(str(task_id), wait_ms=LOCK_WAIT_MS)
        return LocalHome(task_directory, stores, memory)

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
