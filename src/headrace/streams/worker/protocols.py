"""Parts from which a worker is built: listeners, the application, and external dependencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from inspect import signature
from typing import Protocol, TypeVar

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import ConfigError
from headrace.streams.kafka.adaptive_batch_size import FIRST_RECORDS
from headrace.streams.kafka.clocks import Background
from headrace.streams.kafka.protocols import (
    AdminClient,
    AlwaysReachable,
    BrokerReachability,
    Clock,
    Consumer,
    Log,
    NoTracer,
    Probe,
    Producer,
    TopicDescription,
    TopicPartition,
    Tracer,
)
from headrace.streams.metrics.measures import NOTHING_MEASURED, Measures
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.queries.query_queue import QueryQueue
from headrace.streams.states import State
from headrace.streams.tasks.gate_watch import Gate, OpenGate
from headrace.streams.tasks.restore import RestoreListener
from headrace.streams.tasks.sink_connections import OpenSink, open_sink
from headrace.streams.tasks.tasks import ClusterMetadata, OpenHome, TaskHome
from headrace.streams.tasks.upstream_times import INTERVAL_S
from headrace.topology.arguments import why_not_called_as
from headrace.topology.context.calls import Caller
from headrace.topology.context.task_context import RESULTS_PER_COMMIT
from headrace.topology.errors import type_of
from headrace.topology.processors.store import Store

KeepsPartitions = Callable[[BaseException | None], bool]
"""Returns whether a worker that ends, perhaps with an error, must keep its partitions."""


class WorkerListener(Protocol):
    """Listener for events of a worker; called in the worker's thread.

    Derive a class from it, and override the methods that you need.

    Examples:
        >>> from headrace import KafkaStreams, StreamsBuilder, WorkerListener
        >>> class Commits(WorkerListener):
        ...     def on_assignment(self, tasks):
        ...         print(f"{len(tasks)} tasks")
        ...     def on_running(self):
        ...         print("running")
        ...     def on_commit(self, tasks, records):
        ...         print(f"{records} records of {len(tasks)} tasks")
        >>> builder = StreamsBuilder()
        >>> builder.stream("in").to("out")
        >>> app = KafkaStreams(builder.build(), {
        ...     "application.id": "copy", "bootstrap.servers": "localhost:9092"},
        ...     worker_listener=Commits())
    """

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        """Handle a change of the worker's tasks; `tasks` are all that it has now."""

    def on_running(self) -> None:
        """Handle that all tasks of the worker process records."""

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        """Handle a complete commit, including local state."""


_CALLS = {
    "state_listener": "listener(new, old)",
    "uncaught_error_handler": "handler(error)",
}
_LISTENERS: dict[str, type] = {
    "restore_listener": RestoreListener,
    "worker_listener": WorkerListener,
}


C = TypeVar("C")


def checked(name: str, callback: C | None) -> C | None:
    """Return a listener or handler of an application; raise ConfigError if it cannot be called.

    >>> checked("state_listener", len)
    Traceback (most recent call last):
        ...
    headrace.streams.errors.ConfigError: state_listener is called as listener(new, old), and \
len takes (obj, /); give it 2 parameters
    """
    if callback is None:
        return None
    if name in _CALLS:
        called = _CALLS[name]
        _check_call(name, called, called.count(",") + 1, callback)
    else:
        _check_methods(name, _LISTENERS[name], callback)
    return callback


def _check_call(name: str, called: str, count: int, function: object) -> None:
    if not callable(function):
        raise ConfigError(f"{name} must be a function, not {function!r}")
    wrong = why_not_called_as(called, count, function)
    if wrong is not None:
        raise ConfigError(f"{name} {wrong}")


def _check_methods(name: str, kind: type, listener: object) -> None:
    methods = [method for method in vars(kind) if method.startswith("on_")]
    if isinstance(listener, type):
        raise ConfigError(
            f"{name} must be an object, not the class {listener.__name__}. Write "
            f"{name}={listener.__name__}()"
        )
    for method in methods:
        function = getattr(listener, method, None)
        if not callable(function):
            raise ConfigError(
                f"{name} must have the methods {', '.join(methods)}, and {type_of(listener)} has "
                f"no {method}. Derive a class from headrace.{kind.__name__}, and give an object"
            )
        _, *parameters = signature(getattr(kind, method)).parameters
        called = f"{method}({', '.join(parameters)})"
        _check_call(f"{name}.{method}", called, len(parameters), function)


@dataclass(frozen=True, slots=True)
class WorkerListeners:
    """Listener that forwards worker events to other listeners, in order."""

    listeners: Sequence[WorkerListener] = ()

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        for listener in self.listeners:
            listener.on_assignment(tasks)

    def on_running(self) -> None:
        for listener in self.listeners:
            listener.on_running()

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:
        for listener in self.listeners:
            listener.on_commit(tasks, records)


class StateTracker:
    """Listener that derives the application's state from worker events."""

    def __init__(self, become: Callable[[State], None]) -> None:
        self._become = become

    def on_assignment(self, tasks: Sequence[TaskId]) -> None:
        del tasks
        self._become(State.REBALANCING)

    def on_running(self) -> None:
        self._become(State.RUNNING)

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """The application that a worker runs, and the facts known before its start.

    Args:
        topics: the known topics, refreshed while the worker runs.
        deployed: the deployed topology before this start, if known.
        reported_inputs: inputs with missing offsets that were already reported.
        recommit_s: how often unchanged offsets are committed again, in seconds.
    """

    config: StreamsConfig
    plans: Sequence[SubPlan]
    topics: dict[str, TopicDescription]
    global_plans: Sequence[GlobalPlan] = ()
    deployed: Deployment | None = None
    reported_inputs: AbstractSet[TopicPartition] = frozenset()
    recommit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDependencies:
    """External dependencies of a worker: the live runtime, simulation and test driver differ here.

    Args:
        make_reader: creates a consumer without a group, for restores.
        make_global_reader: creates the consumer of global tables, which may read headers; None for
            the same as `make_reader`.
        make_producer: creates a producer with this worker's identity.
        open_home: opens a task's local state; returns None while another worker holds it.
        background: creates a runner of background jobs with a name.
        global_listener: listener for the bootstrap of global tables.
        first_commit_id: the first commit ID, which is unique to this worker.
        times_interval_s: minimum seconds between two requests for upstream times.
        first_records: the number of records of the first transaction.
        results_per_commit: the number of results of closed windows in one commit.
        keeps_partitions: whether a worker that ends with an error stays in the group.
    """

    admin: AdminClient
    consumer: Consumer
    make_reader: Callable[[], Consumer]
    make_producer: Callable[[], Producer]
    metadata: ClusterMetadata
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
    brokers: BrokerReachability = field(default_factory=AlwaysReachable)
    gate: Gate = field(default_factory=OpenGate)
    worker_id: str = ""
    measures: Measures = NOTHING_MEASURED
    tracer: Tracer = field(default_factory=NoTracer)
    open_sink: OpenSink = open_sink
    query_queue: QueryQueue = field(default_factory=QueryQueue)
    times_interval_s: float = INTERVAL_S
    make_global_reader: Callable[[], Consumer] | None = None
    first_records: int = FIRST_RECORDS
    results_per_commit: int = RESULTS_PER_COMMIT
    keeps_partitions: KeepsPartitions = lambda _: False
