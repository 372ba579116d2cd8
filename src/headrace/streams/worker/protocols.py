"""Who hears what a worker does: a protocol, nobody, and two where the runtime takes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.adaptive_batch_size import FIRST_RECORDS
from headrace.streams.kafka.clocks import Background
from headrace.streams.kafka.protocols import (
    Clock,
    Consumer,
    Contact,
    Log,
    NoContact,
    NoTracer,
    Probe,
    Producer,
    TopicFacts,
    TopicPartition,
    Tracer,
)
from headrace.streams.metrics.measures import NOTHING_MEASURED, Measures
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.plan.topics import TopicAdmin
from headrace.streams.queries.query_queue import QueryQueue
from headrace.streams.states import State
from headrace.streams.tasks.gate_watch import Gate, OpenGate
from headrace.streams.tasks.restore import RestoreListener
from headrace.streams.tasks.sink_connections import OpenSink, open_sink
from headrace.streams.tasks.task_home import TaskHome
from headrace.streams.tasks.tasks import ClusterFacts, OpenHome
from headrace.streams.tasks.upstream_times import INTERVAL_S
from headrace.topology.context.calls import Caller
from headrace.topology.processors.store import Store


class WorkerListener(Protocol):
    """Hears what a worker does; called in the worker's thread."""

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """The worker's tasks changed."""

    def on_running(self) -> None:
        """All tasks of the worker process records."""

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        """A commit is final, local state included."""


class SilentListener:
    """Does nothing: what is used where nobody asked."""

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """Do nothing."""

    def on_running(self) -> None:
        """Do nothing."""

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class BothWorkerListeners:
    """Tells both what a worker does, in this order."""

    first: WorkerListener
    second: WorkerListener

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """The worker's tasks changed."""
        self.first.on_assignment(tasks)
        self.second.on_assignment(tasks)

    def on_running(self) -> None:
        """All tasks of the worker process records."""
        self.first.on_running()
        self.second.on_running()

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        """A commit is final."""
        self.first.on_commit(tasks, records)
        self.second.on_commit(tasks, records)


@dataclass(frozen=True, slots=True)
class BothRestoreListeners:
    """Tells both how restores go on, in this order."""

    first: RestoreListener
    second: RestoreListener

    def on_restore_start(self, place: TopicPartition, store: str, begin: int, end: int) -> None:
        """A store's restore begins."""
        self.first.on_restore_start(place, store, begin, end)
        self.second.on_restore_start(place, store, begin, end)

    def on_batch_restored(self, place: TopicPartition, store: str, offset: int, count: int) -> None:
        """Records were applied."""
        self.first.on_batch_restored(place, store, offset, count)
        self.second.on_batch_restored(place, store, offset, count)

    def on_restore_end(self, place: TopicPartition, store: str, total: int) -> None:
        """A store is complete."""
        self.first.on_restore_end(place, store, total)
        self.second.on_restore_end(place, store, total)


class StateTracker(SilentListener):
    """Turns what the worker does into the application's states."""

    def __init__(self, become: Callable[[State], None]) -> None:
        self._become = become

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """The tasks changed; they run again when the worker says so."""
        del tasks
        self._become(State.REBALANCING)

    def on_running(self) -> None:
        """All tasks process records."""
        self._become(State.RUNNING)


# What a worker is made from: what it runs, and what it meets of the world outside.
#
# Live, simulated and in the test driver, each has `Seams` of its own: clients, clock, disk.


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """What a worker runs, and what is known of it before it starts.

    Args:
        topics: what is known of the topics; brought up to date while the worker runs.
        deployed: what was deployed before this start, as far as that is known.
        told: the inputs without offsets of which it was said already what follows.
        keep_offsets_s: how often offsets that do not move are committed again, in seconds.
    """

    config: StreamsConfig
    plans: Sequence[SubPlan]
    topics: dict[str, TopicFacts]
    global_plans: Sequence[GlobalPlan] = ()
    deployed: Deployment | None = None
    told: AbstractSet[TopicPartition] = frozenset()
    keep_offsets_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """What a worker meets of the world outside.

    Args:
        admin: asks about topics, and changes them.
        make_reader: makes a consumer without a group, for restores.
        make_global_reader: the same for global tables, whose steps may read headers; None takes
            the other one.
        make_producer: makes a producer of this worker's identity.
        facts: answers what tasks ask of the cluster.
        open_home: opens a task's local state; None while another worker has it.
        open_global_home: opens the local state of global tables.
        background: makes what runs jobs of a name beside the worker.
        listener: hears what the worker does.
        restore_listener: hears how tasks' restores go on.
        global_listener: hears how global tables are read.
        first_commit_id: where commits are numbered from, unlike any other worker's.
        calls: makes the calls of steps to the outside.
        contact: knows whether brokers can be reached.
        gate: what tasks wait for before they begin.
        worker_id: the worker's identity.
        measures: what is measured of the worker from outside of its loop.
        tracer: hears of commits.
        open_sink: connects with tables outside of Kafka.
        desk: takes questions about rows in the worker's memory.
        times_interval_s: how often to ask for the times of upstream tasks, at most.
        first_records: how many records the first transaction takes.
    """

    admin: TopicAdmin
    consumer: Consumer
    make_reader: Callable[[], Consumer]
    make_producer: Callable[[], Producer]
    facts: ClusterFacts
    open_home: OpenHome
    open_global_home: Callable[[Sequence[Store]], TaskHome]
    background: Callable[[str], Background]
    clock: Clock
    listener: WorkerListener
    restore_listener: RestoreListener
    global_listener: RestoreListener
    probe: Probe
    first_commit_id: int
    log: Log
    calls: Caller
    contact: Contact = field(default_factory=NoContact)
    gate: Gate = field(default_factory=OpenGate)
    worker_id: str = ""
    measures: Measures = NOTHING_MEASURED
    tracer: Tracer = field(default_factory=NoTracer)
    open_sink: OpenSink = open_sink
    desk: QueryQueue = field(default_factory=QueryQueue)
    times_interval_s: float = INTERVAL_S
    make_global_reader: Callable[[], Consumer] | None = None
    first_records: int = FIRST_RECORDS
