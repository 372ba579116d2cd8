"""Wiring of a worker from its dependencies; shared by live runtime, simulation and test driver."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from headrace.state.layout import TIMES_BYTES
from headrace.streams.config.config import table
from headrace.streams.kafka.clocks import Background, MonotonicWallClock
from headrace.streams.kafka.offset_texts import TimeLimits
from headrace.streams.kafka.protocols import (
    AdminClient,
    Clock,
    Log,
    TopicDescription,
    TopicPartition,
)
from headrace.streams.metrics.counters import Counters, ProcessorCounters
from headrace.streams.metrics.hot_keys import HotKeys
from headrace.streams.plan.flow import Upstream, flow_of, upstream_of
from headrace.streams.plan.plan import TaskId
from headrace.streams.plan.topic_plan import SubTopologyTopics
from headrace.streams.plan.topics import recheck_global_topics, recheck_topics
from headrace.streams.queries.query_queue import QueryHandler
from headrace.streams.tasks.backpressure import RepartitionBackpressure
from headrace.streams.tasks.event_order import CHECK_S, EventOrder
from headrace.streams.tasks.fetch import FetchController
from headrace.streams.tasks.global_tables import GlobalTables, RowErrors
from headrace.streams.tasks.input_identity import InputIdentity
from headrace.streams.tasks.lost_offsets import LostOffsets, read_before
from headrace.streams.tasks.restore import Restorer
from headrace.streams.tasks.sink_connections import SinkConnections
from headrace.streams.tasks.task import Task
from headrace.streams.tasks.tasks import Tasks
from headrace.streams.tasks.upstream_times import UpstreamTimes
from headrace.streams.tasks.window_idle import IdleWindows
from headrace.streams.worker.commit_timing import CommitTiming
from headrace.streams.worker.committer import Committer
from headrace.streams.worker.membership import Membership
from headrace.streams.worker.parts import WorkerParts
from headrace.streams.worker.processing import Processing
from headrace.streams.worker.progress_guard import ProgressGuard
from headrace.streams.worker.protocols import Application, WorkerDependencies
from headrace.streams.worker.recovery import Recovery, TaskOwnership
from headrace.streams.worker.retention import RetentionGuard, window_topics
from headrace.streams.worker.sink_writes import LINGER_S, DeadLetterProducer, SinkWrites
from headrace.streams.worker.snapshot_collector import SnapshotCollector
from headrace.streams.worker.topic_watch import TopicWatch
from headrace.streams.worker.transactions import Transactions
from headrace.streams.worker.worker import Pausing, Worker
from headrace.topology.context.task_context import EmissionBudget, TaskContext


@dataclass(slots=True, kw_only=True)
class RepartitionPurger:
    """Periodic deletion of processed records of repartition topics."""

    admin: AdminClient
    topics: frozenset[str]
    interval_s: float
    background: Background
    clock: Clock
    log: Log
    _last_s: float = field(init=False)
    _processed_offsets: dict[TopicPartition, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._last_s = self.clock.monotonic_s()

    def __call__(self, tasks: Sequence[Task]) -> None:
        """Record the committed offsets of tasks, and delete records before them if it is due."""
        if not self.topics:
            return
        for task in tasks:
            for tp, committed in task.start.items():
                if tp.topic in self.topics:
                    self._processed_offsets[tp] = committed.offset
        now_s = self.clock.monotonic_s()
        if now_s - self._last_s < self.interval_s or not self._processed_offsets:
            return
        done = dict(self._processed_offsets)
        if self.background(lambda: self._purge(done)):
            self._last_s = now_s
            self._processed_offsets.clear()

    def _purge(self, done: Mapping[TopicPartition, int]) -> None:
        try:
            self.admin.delete_records(done)
        except Exception as error:
            # The deletion is not essential: the next one includes the same records.
            self.log.warning("purge_failed", reason=str(error))


def _recheck(
    admin: AdminClient,
    sub_topologies: Sequence[SubTopologyTopics],
    global_topics: Sequence[str],
    before: Mapping[str, TopicDescription],
) -> Mapping[str, TopicDescription]:
    source_topics = {name: facts for name, facts in before.items() if name not in global_topics}
    rechecked = recheck_topics(admin, sub_topologies, source_topics)
    return {**rechecked, **recheck_global_topics(admin, global_topics, before)}


def wire(application: Application, dependencies: WorkerDependencies) -> Worker:
    """Create a worker of an application whose topics exist."""
    return _Wiring(application, dependencies).worker()


class _Wiring:
    """Lazily created parts of a worker, with their dependencies."""

    def __init__(self, application: Application, dependencies: WorkerDependencies) -> None:
        self._application = application
        self._config = application.config
        self._dependencies = dependencies
        self._partitions = {name: facts.partitions for name, facts in application.topics.items()}
        """Shared table: the topic watch updates it, and the other parts read it."""
        self._commit_requested = threading.Event()

    def worker(self) -> Worker:
        return Worker(
            self.parts,
            processing=self.processing,
            committer=self.committer,
            recovery=Recovery(
                self.parts, ownership=self.task_ownership, processing=self.processing
            ),
            ownership=self.task_ownership,
            snapshots=SnapshotCollector(
                self.parts, self.processor_counters.values, lambda: self.pausing.is_on
            ),
            pausing=self.pausing,
            queries=QueryHandler(
                self._dependencies.query_queue,
                self.tasks,
                self.global_tables,
                restorer=self.restorer,
            ),
        )

    @cached_property
    def parts(self) -> WorkerParts:
        return WorkerParts(
            config=self._config,
            dependencies=self._dependencies,
            tasks=self.tasks,
            transactions=self.transactions,
            membership=self.membership,
            restorer=self.restorer,
            global_tables=self.global_tables,
            fetch=self.fetch,
            backpressure=self.backpressure,
            progress_guard=self.progress_guard,
            commit_timing=self.commit_timing,
            input_identity=self.input_identity,
            topic_watch=self.topic_watch,
            sink_writes=self.sink_writes,
            counters=Counters(),
            hot_keys=self.hot_keys,
        )

    # -- tasks and clients ---------------------------------------------------------------------

    @cached_property
    def transactions(self) -> Transactions:
        return Transactions(
            self._dependencies.make_producer,
            timeout_s=self._config.transaction_timeout_ms / 1000,
            clock=self._dependencies.clock,
            probe=self._dependencies.probe,
            log=self._dependencies.log,
            emission=EmissionBudget(
                self._dependencies.results_per_commit, self._dependencies.clock.now_ms
            ),
        )

    @cached_property
    def restorer(self) -> Restorer:
        return Restorer(
            make_consumer=self._dependencies.make_reader,
            clock=self._dependencies.clock,
            listener=self._dependencies.restore_listener,
            probe=self._dependencies.probe,
            batch_records=self._config.restore_batch_records,
            log=self._dependencies.log,
        )

    @cached_property
    def global_tables(self) -> GlobalTables:
        config, dependencies = self._config, self._dependencies
        return GlobalTables(
            self._application.global_plans,
            make_consumer=dependencies.make_global_reader or dependencies.make_reader,
            open_home=dependencies.open_global_home,
            metadata=dependencies.metadata,
            topics=self._application.topics,
            errors=RowErrors(config.handlers, config.null_key_policy, dependencies.log),
            listener=dependencies.global_listener,
            probe=dependencies.probe,
            clock=dependencies.clock,
            timeout_s=config.task_timeout_ms / 1000,
            batch_records=config.restore_batch_records,
            cache_bytes=config.statestore_read_cache_max_bytes,
            log=dependencies.log,
        )

    @cached_property
    def tasks(self) -> Tasks:
        config, plans, dependencies = self._config, self._application.plans, self._dependencies
        return Tasks(
            plans=plans,
            partitions=self._partitions,
            consumer=dependencies.consumer,
            restorer=self.restorer,
            metadata=dependencies.metadata,
            open_home=dependencies.open_home,
            make_send=lambda: self.transactions.producer.send,
            lost_offsets=LostOffsets(
                config.application_id,
                read_before(self._application.deployed, plans, config.application_id),
                exactly_once=config.exactly_once,
                log=dependencies.log,
                reported=self._application.reported_inputs,
            ),
            read_cache_bytes=config.statestore_read_cache_max_bytes,
            clock=dependencies.clock,
            background=dependencies.background("headrace-start"),
            log=dependencies.log,
            handlers=config.handlers,
            make_context=self._make_context,
            global_views=self.global_tables.views,
            sinks=self.sink_connections,
            send_dead_letter=self.dead_letters.send,
            record_limit=lambda topic: self.transactions.producer.limit_of(topic),
            max_ahead_ms=TimeLimits.of(self._application.topics).max_ahead_ms,
            upstream=self.upstream,
        )

    def _make_context(self, task_id: TaskId) -> TaskContext:
        return TaskContext(
            application_id=self._config.application_id,
            task_id=str(task_id),
            partition=task_id.partition,
            settings=self._settings,
            now_ms=self._dependencies.clock.now_ms,
            request_commit=self._commit_requested.set,
            count=self.processor_counters.add,
            calls=self._dependencies.calls,
            emission=self.transactions.emission,
        )

    @cached_property
    def _settings(self) -> Mapping[str, object]:
        """Settings for processors, without client settings, which may be secret."""
        return {
            setting.name: getattr(self._config, setting.name.replace(".", "_"))
            for setting in table()
        }

    @cached_property
    def upstream(self) -> Upstream:
        is_slowest = self._config.stream_time == "slowest"
        return upstream_of(self._application.plans) if is_slowest else Upstream()

    @cached_property
    def upstream_times(self) -> UpstreamTimes:
        dependencies = self._dependencies
        return UpstreamTimes(
            self.upstream,
            dependencies.consumer,
            self.tasks,
            partitions=self._partitions,
            committed=partial(dependencies.admin.committed_offsets, self._config.application_id),
            end_offsets=dependencies.admin.end_offsets,
            start_offsets=dependencies.admin.start_offsets,
            idle_s=self._config.max_task_idle_ms / 1000,
            interval_s=dependencies.times_interval_s,
            background=self._periodic_background,
            clock=dependencies.clock,
            log=dependencies.log,
        )

    @cached_property
    def _periodic_background(self) -> Background:
        """Runner of periodic requests; they share a thread."""
        return self._dependencies.background("headrace-lag")

    @cached_property
    def sink_connections(self) -> SinkConnections:
        dependencies, application_id = self._dependencies, self._config.application_id
        return SinkConnections(
            dependencies.open_sink, application_id, clock=dependencies.clock, log=dependencies.log
        )

    @cached_property
    def dead_letters(self) -> DeadLetterProducer:
        transactions = self.transactions
        return DeadLetterProducer(
            transactions.begin, lambda *record: transactions.producer.send(*record)
        )

    @cached_property
    def sink_writes(self) -> SinkWrites:
        dependencies = self._dependencies
        return SinkWrites(
            connections=self.sink_connections,
            dead_letters=self.dead_letters,
            running=lambda: self.tasks.running,
            restart_task=self._restart_task,
            commit_dead_letters=lambda: self.committer.commit_dead_letters(),
            linger_s=None if self._config.exactly_once else LINGER_S,
            target_s=self._config.transaction_timeout_ms / 1000 / 3,
            clock=dependencies.clock,
            probe=dependencies.probe,
            log=dependencies.log,
        )

    def _restart_task(self, task: Task) -> None:
        self.tasks.recreate(task)
        self.fetch.retain_running()

    @cached_property
    def fetch(self) -> FetchController:
        dependencies = self._dependencies
        return FetchController(
            self._config,
            dependencies.consumer,
            self.tasks,
            self.backpressure,
            clock=dependencies.clock,
        )

    @cached_property
    def backpressure(self) -> RepartitionBackpressure:
        dependencies = self._dependencies
        return RepartitionBackpressure(
            self._config,
            flow_of(self._application.plans),
            dependencies.consumer,
            self.tasks,
            is_ahead=EventOrder(
                self.upstream.bounded,
                self._config.repartition_lag_max_records,
                dependencies.consumer,
                self.tasks,
                check_s=min(CHECK_S, dependencies.times_interval_s),
                clock=dependencies.clock,
            ).must_wait,
            partitions=self._partitions,
            end_offsets=dependencies.admin.end_offsets,
            committed=self._committed_offsets,
            background=self._periodic_background,
            clock=dependencies.clock,
            log=dependencies.log,
        )

    def _committed_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        offsets = self._dependencies.admin.committed_offsets(self._config.application_id, tps)
        return {tp: committed.offset for tp, committed in offsets.items()}

    @cached_property
    def pausing(self) -> Pausing:
        return Pausing(self.parts, self.committer)

    # -- metrics -------------------------------------------------------------------------------

    @cached_property
    def hot_keys(self) -> HotKeys:
        stores = [s for plan in self._application.plans for s in plan.program.sub_topology.stores]
        return HotKeys(
            self._config.hot_keys_max,
            {store.name: TIMES_BYTES[store.spec.layout] for store in stores},
            monotonic_s=self._dependencies.clock.monotonic_s,
        )

    @cached_property
    def processor_counters(self) -> ProcessorCounters:
        return ProcessorCounters(self._dependencies.log)

    # -- processing and commits ----------------------------------------------------------------

    @cached_property
    def progress_guard(self) -> ProgressGuard:
        return ProgressGuard(
            self._config,
            first_records=self._dependencies.first_records,
            clock=self._dependencies.clock,
            log=self._dependencies.log,
        )

    @cached_property
    def processing(self) -> Processing:
        return Processing(
            self.parts,
            upstream_times=self.upstream_times,
            idle_windows=IdleWindows(
                self._config.window_close_idle_ms,
                self._dependencies.consumer,
                lambda: self.tasks.running,
                self.upstream_times.is_behind,
                clock=self._dependencies.clock,
            ),
        )

    @cached_property
    def commit_timing(self) -> CommitTiming:
        return CommitTiming(
            self._config,
            self._dependencies.consumer,
            self.tasks,
            clock=self._dependencies.clock,
            recommit_s=self._application.recommit_s,
        )

    @cached_property
    def committer(self) -> Committer:
        return Committer(
            self.parts,
            processing=self.processing,
            requested=self._commit_requested,
            retention=self.retention,
            purger=RepartitionPurger(
                admin=self._dependencies.admin,
                topics=frozenset(
                    topic.name
                    for plan in self._application.plans
                    for topic in plan.topics.repartition_sources
                ),
                interval_s=self._config.repartition_purge_interval_ms / 1000,
                background=self._dependencies.background("headrace-purge"),
                clock=self._dependencies.clock,
                log=self._dependencies.log,
            ),
            topic_ids={name: f.topic_id for name, f in self._application.topics.items()},
        )

    @cached_property
    def task_ownership(self) -> TaskOwnership:
        return TaskOwnership(self.parts)

    # -- group and topics ----------------------------------------------------------------------

    @cached_property
    def membership(self) -> Membership:
        return Membership(
            self._dependencies.consumer,
            session_s=self._config.session_timeout_ms / 1000,
            assigned=partial(self._dependencies.admin.assigned, self._config.application_id),
            subscribed=lambda: self.tasks.subscribed_partitions,
            background=self._dependencies.background("headrace-group"),
            clock=self._dependencies.clock,
            log=self._dependencies.log,
        )

    @cached_property
    def retention(self) -> RetentionGuard:
        windows, topics = window_topics(self._application.plans), self._application.topics
        return RetentionGuard(
            admin=self._dependencies.admin,
            topics=windows,
            suspended={t for t in windows if t in topics and topics[t].retention_ms == -1},
            inputs=self._inputs_of,
            committed=self._dependencies.consumer.committed,
            interval_s=self._config.topics_check_interval_ms / 1000,
            background=self._dependencies.background("headrace-retention"),
            clock=MonotonicWallClock(self._dependencies.clock),
            log=self._dependencies.log,
        )

    def _inputs_of(self, sub_topology: int) -> list[TopicPartition]:
        plan = next(plan for plan in self._application.plans if plan.id == sub_topology)
        sources = plan.topics.all_sources
        return [TopicPartition(t, p) for t in sources for p in range(self._partitions[t])]

    @cached_property
    def topic_watch(self) -> TopicWatch:
        plans, global_plans = self._application.plans, self._application.global_plans
        return TopicWatch(
            check=partial(
                _recheck,
                self._dependencies.admin,
                [plan.topics for plan in plans],
                [plan.topic for plan in global_plans],
            ),
            plans=plans,
            topics=self._application.topics,
            partitions=self._partitions,
            on_grown=self._dependencies.consumer.refresh_metadata,
            interval_s=self._config.topics_check_interval_ms / 1000,
            background=self._dependencies.background("headrace-topics"),
            clock=self._dependencies.clock,
            log=self._dependencies.log,
        )

    @cached_property
    def input_identity(self) -> InputIdentity:
        return InputIdentity(
            self._dependencies.admin.ask_ids,
            outputs=self.topic_watch.outputs,
            missing=self.topic_watch.check_soon,
            clock=self._dependencies.clock,
            log=self._dependencies.log,
        )
