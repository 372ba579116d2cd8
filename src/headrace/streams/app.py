"""`KafkaStreams`: a topology that runs on Kafka in this process."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.state.directory import remove_local_state
from headrace.state.log import get_logger
from headrace.streams.admin.backfill_gate import BackfillGate, note_topics
from headrace.streams.admin.start_check import StartCheck, has_stored_nothing
from headrace.streams.config.config import REQUIRED_NAMES, StreamsConfig
from headrace.streams.config.loading import completed, refuse_while_loading
from headrace.streams.config.secrets import guarded, over
from headrace.streams.config.settings import given_by, origins_of
from headrace.streams.errors import StopRequestedError
from headrace.streams.kafka.client_check import check_clients
from headrace.streams.kafka.clocks import SystemClock, at_the_same_time
from headrace.streams.kafka.connectivity import BrokerMonitor
from headrace.streams.kafka.group_offsets import MemberlessGroup
from headrace.streams.kafka.protocols import Clock, Probe, no_probe
from headrace.streams.kafka.unreached import Unreached
from headrace.streams.metrics.measures import Measures, Usage, process_usage
from headrace.streams.metrics.node_times import NodeTimes
from headrace.streams.metrics.snapshots import (
    ApplicationSnapshot,
    HealthSnapshot,
    InputSnapshot,
    TaskSnapshot,
    digest_of,
    embedded,
    health_of,
    without_taken,
)
from headrace.streams.plan.deployed import DeployedTopology
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.global_plan import GlobalPlan, plan_global_tables
from headrace.streams.plan.key_sample import log_plan_notes
from headrace.streams.plan.live_versions import WAIT_MORE_S, LiveVersions
from headrace.streams.plan.plan import SubPlan, plan_application, refuse_other_than_topology
from headrace.streams.queries.errors import ApplicationFailedError
from headrace.streams.queries.query_queue import QueryQueue, SendQuery
from headrace.streams.states import State as State
from headrace.streams.states import rare_collections
from headrace.streams.stream_threads import StreamThreads, ThreadHandle
from headrace.streams.tasks.failures import describe_failure, log_failure
from headrace.streams.tasks.gate_watch import GateWatch
from headrace.streams.tasks.restore import RestoreListener, RestoreListeners
from headrace.streams.web import WebServer, open_web
from headrace.streams.worker.connections import Connections
from headrace.streams.worker.protocols import (
    StateTracker,
    WorkerListener,
    WorkerListeners,
    checked,
)
from headrace.streams.worker.runtime import WorkerFactory
from headrace.streams.worker.shutdown import Shutdown
from headrace.streams.worker.uncaught_errors import UncaughtErrorHandler, UncaughtErrors
from headrace.streams.worker.worker import Worker
from headrace.topology.describe.picture import picture_of
from headrace.topology.errors import require_timedelta, type_of
from headrace.topology.java_names import hinting, hinting_arguments
from headrace.topology.topology import Topology

if TYPE_CHECKING:
    from headrace.streams.queries.queries import Queries


@contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM and SIGINT; do nothing in a thread other than the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def obey(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stop()

    before = {n: signal.signal(n, obey) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_TASKS_SHOWN = 5
_NOT_BEGUN = (State.CREATED, State.CONNECTING, State.REBALANCING)

StateListener = Callable[[State, State], None]
"""Called with the new and the old state, in the thread that changed it."""


@hinting
@hinting_arguments
class KafkaStreams:
    """Application that runs a topology on Kafka, in the calling thread or in a new thread.

    Args:
        topology: the result of ``StreamsBuilder().build()``.
        settings: settings by dotted name; the command ``headrace settings`` lists them.
        state_listener: called as ``listener(new, old)`` on each change of `state`.
        restore_listener: object with the methods of `RestoreListener`, called on the start,
            progress and end of state restores.
        worker_listener: object with the methods of `WorkerListener`, called on assignments and
            commits.
        uncaught_error_handler: decides the reaction to an error that stopped a worker; None stops
            the application in this process.
        clock: clock, replaced in tests.
        probe: called between the steps of a commit and a restore, for tests.

    Raises:
        ConfigError: the settings are invalid, or a listener or handler cannot be called as above.
        TopologyError: the topology cannot run.

    Examples:
        >>> from headrace import StreamsBuilder, serdes
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", value=serdes.string).map_values(str.upper).to("out")
        >>> app = KafkaStreams(builder.build(), {
        ...     "application.id": "shout", "bootstrap.servers": "localhost:9092"})
        >>> app.state.name
        'CREATED'
        >>> app.settings["application.id"], [source.topics for source in app.topology.sources]
        ('shout', [('in',)])
        >>> [sink.topic for sink in app.topology.sinks]
        ['out']
    """

    def __init__(
        self,
        topology: Topology,
        settings: Mapping[str, object],
        *,
        state_listener: StateListener | None = None,
        restore_listener: RestoreListener | None = None,
        worker_listener: WorkerListener | None = None,
        uncaught_error_handler: UncaughtErrorHandler | None = None,
        clock: Clock | None = None,
        probe: Probe = no_probe,
    ) -> None:
        self._pause = threading.Event()
        self._queries_lock = threading.Lock()
        self._queries: Queries | None = None
        self.query_queue = QueryQueue()
        """Query queue for rows in the worker's memory."""
        refuse_other_than_topology(topology)
        settings = completed(guarded(settings), REQUIRED_NAMES)
        self.config = StreamsConfig.parse(settings)
        check_clients(self.config, origins_of(settings))
        self._topology = topology
        self._settings = settings
        self._plans = plan_application(topology, self.config)
        self._global_plans = plan_global_tables(topology, self.config)
        self._state = self._own = State.CREATED
        """State of all workers together, and state of the application's own worker."""
        self._index = 0
        """Number of the worker: 0, and above 0 for added workers."""
        self._state_listener = checked("state_listener", state_listener)
        self._restore_listener = checked("restore_listener", restore_listener) or RestoreListeners()
        self._worker_listener = checked("worker_listener", worker_listener) or WorkerListeners()
        self._uncaught_error_handler = checked("uncaught_error_handler", uncaught_error_handler)
        self._clock = clock or SystemClock()
        self._probe = probe
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        """Error that `close` raises."""
        self._failed: BaseException | None = None
        """Error that stopped the application."""
        self._logs_failure = True
        self._on_unreached: Callable[[Unreached], bool] = lambda _: False
        self._before_lost: State | None = None
        """State before the brokers were lost, which is restored when they answer again."""
        self._is_paused = False
        self._digest = digest_of(self._plans)
        self._connections = Connections()
        self._lock = threading.RLock()
        self._state_changed = threading.Condition(self._lock)
        self._log = get_logger().bind(application=self.config.application_id)
        self._shutdown = Shutdown(self.config, self._plans, clock=self._clock, log=self._log)
        self._uncaught = UncaughtErrors(
            self._uncaught_error_handler,
            self._shutdown.request,
            quotes_records=self.config.log_errors == "full",
            clock=self._clock,
            log=self._log,
        )
        self._threads = StreamThreads(
            f"headrace-{self.config.application_id}",
            self._add_thread,
            changed=self._notify,
            failed=self._stop,
            timeout_s=self.config.shutdown_timeout_ms / 1000,
        )

    def __repr__(self) -> str:
        if not hasattr(self, "_state"):
            return "<KafkaStreams whose settings or topology are refused>"  # a debugger shows it
        return f"<KafkaStreams {self.config.application_id} {self._state.name} of {self._topology}>"

    @property
    def state(self) -> State:
        """Current state of the application."""
        return self._state

    @property
    def topology(self) -> Topology:
        """Topology that runs, as it was built."""
        return self._topology

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings as they were given; secrets are wrapped."""
        return self._settings

    @property
    def plans(self) -> tuple[SubPlan, ...]:
        """Compiled sub-topologies and their topics."""
        return self._plans

    @property
    def global_plans(self) -> tuple[GlobalPlan, ...]:
        """Global tables of the topology."""
        return self._global_plans

    @property
    def records_processed(self) -> int:
        """Number of records that this process has processed, including aborted transactions."""
        return self._threads.processed + (0 if self._worker is None else self._worker.processed)

    @property
    def uncaught_answered(self) -> bool:
        """Whether `uncaught_error_handler` was called and has returned."""
        return self._uncaught.answer is not None

    def _snapshot(self) -> ApplicationSnapshot:
        snapshot = None if self._worker is None else self._worker.latest_snapshot
        name, state = self.config.application_id, self._own.value
        return embedded(name, self._digest, state, snapshot, self._threads.views())

    def derived(
        self,
        settings: Mapping[str, object],
        *,
        worker_listener: WorkerListener,
        restore_listener: RestoreListener,
        logs_failure: bool = True,
        on_unreached: Callable[[Unreached], bool] = lambda _: False,
    ) -> KafkaStreams:
        """Create an application with the same topology and listeners; this object must not run.

        Args:
            settings: settings that override this application's settings.
            worker_listener: additional listener of assignments and commits.
            restore_listener: additional listener of state restores.
            logs_failure: whether the application logs the error that stops it; False if the caller
                does.
            on_unreached: called if no broker can be reached; returns whether the caller logs it.

        Raises:
            ConfigError: the settings are invalid.
        """
        made = self._copy(
            over(given_by(self._settings, "the program"), settings),
            state_listener=self._state_listener,
            worker_listener=WorkerListeners((self._worker_listener, worker_listener)),
            restore_listener=RestoreListeners((self._restore_listener, restore_listener)),
        )
        made._logs_failure, made._on_unreached = logs_failure, on_unreached
        return made

    def _copy(
        self,
        settings: Mapping[str, object],
        *,
        state_listener: StateListener | None,
        worker_listener: WorkerListener,
        restore_listener: RestoreListener,
    ) -> KafkaStreams:
        return KafkaStreams(
            self._topology,
            settings,
            state_listener=state_listener,
            worker_listener=worker_listener,
            restore_listener=restore_listener,
            uncaught_error_handler=self._uncaught_error_handler,
            clock=self._clock,
            probe=self._probe,
        )

    def _add_thread(self, index: int) -> ThreadHandle:
        """Create an added worker with a number."""
        worker_id = self.config.worker_id
        made = self._copy(
            over(self._settings, {"worker.id": f"{worker_id}-{index}"} if worker_id else {}),
            state_listener=lambda _, __: self._notify(),
            worker_listener=self._worker_listener,
            restore_listener=self._restore_listener,
        )
        made._index, made._pause = index, self._pause
        made._log = self._log.bind(worker_index=index)
        made._on_unreached = lambda _: True  # the own worker logs it
        return ThreadHandle(
            run=made._run,
            stop=made._stop,
            state=lambda: made.state,
            view=lambda: made.metrics().workers[0],
            processed=lambda: made.records_processed,
            query_queue=made.query_queue,
        )

    # -- running -----------------------------------------------------------------------------

    def run(self) -> None:
        """Process records until `close`, SIGTERM or SIGINT; then commit and close cleanly.

        While it runs, Python's garbage collector runs less often. Signal handlers are installed in
        the main thread only.

        Raises:
            StreamsError: the error that stopped the application; nothing after it is committed.
        """
        refuse_while_loading(self.config.application_id)
        with on_signals(self._stop), rare_collections():
            self._run()

    def start(self, *, wait: timedelta | bool = False) -> None:
        """Run in a new thread; `close` stops it and raises the error that stopped it, if any.

        Args:
            wait: whether to wait until all tasks assigned to this process run; True waits without a
                limit, a timedelta at most that long.

        Raises:
            StreamsError: the error that stopped the application during the wait, such as a missing
                topic.
            TimeoutError: the application does not run in time; the message names the missing
                condition. It continues to start in the background, until `close`.
            RuntimeError: it was started before, or was closed during the wait.
            TypeError: `wait` has another type; nothing is started.

        Examples:
            >>> from datetime import timedelta
            >>> from headrace import KafkaStreams, StreamsBuilder
            >>> builder = StreamsBuilder()
            >>> builder.stream("in").to("out")
            >>> app = KafkaStreams(builder.build(), {
            ...     "application.id": "copy", "bootstrap.servers": "localhost:1"})
            >>> app.start(wait=timedelta(milliseconds=50))
            Traceback (most recent call last):
                ...
            TimeoutError: the application copy does not run after 0.05 s: no broker of \
localhost:1 has answered yet. It continues to start in the background; stop it with close()
            >>> app.close()
        """
        if not isinstance(wait, (bool, timedelta)):
            raise TypeError(
                f"wait must be a timedelta or True, not {type_of(wait)}. Write "
                "start(wait=timedelta(seconds=5)), or start(wait=True) to wait without a limit."
            )
        refuse_while_loading(self.config.application_id)
        if self._thread is not None:
            raise RuntimeError("the application was started before. Create a new KafkaStreams")
        self._thread = threading.Thread(
            target=self._run_quietly, name=f"headrace-{self.config.application_id}"
        )
        self._thread.start()
        if wait is not False:
            self._await_running(None if wait is True else wait.total_seconds())

    def _await_running(self, within_s: float | None) -> None:
        with self._state_changed:
            self._state_changed.wait_for(lambda: self._state not in _NOT_BEGUN, within_s)
            state = self._state
        if state in (State.RUNNING, State.PAUSED):
            return
        if state.works or state is State.CREATED:
            assert within_s is not None
            raise TimeoutError(
                f"the application {self.config.application_id} does not run after {within_s:g} s: "
                f"{self._awaited(state)}. It continues to start in the background; stop it with "
                "close()"
            )
        self.close()
        raise RuntimeError(f"the application {self.config.application_id} was closed before it ran")

    def _awaited(self, state: State) -> str:
        """Describe the missing condition of an application that does not run yet."""
        if state is not State.REBALANCING:
            return f"no broker of {self.config.bootstrap_servers} has answered yet"
        left = [task for task in self.tasks() if task.state != "running"]
        if not left:
            return "the group has not assigned its tasks yet"
        remaining = sum(store.restore_remaining for task in left for store in task.stores)
        more = f", {remaining:,} records of changelogs are left" if remaining else ""
        shown = ", ".join(f"{task.id} ({task.state})" for task in left[:_TASKS_SHOWN])
        others = len(left) - _TASKS_SHOWN
        return f"tasks {shown}{f' and {others} more' if others > 0 else ''} do not run{more}"

    def close(self, timeout: timedelta | None = None, *, leave_group: bool | None = None) -> None:
        """Commit the processed records and stop.

        Args:
            timeout: maximum time to wait; None uses ``shutdown.timeout.ms``.
            leave_group: whether to leave the group, so that other workers get the tasks
                immediately; None follows ``on.stop``.

        Raises:
            StreamsError: the error that stopped an application that was started with `start`.
            TimeoutError: it did not stop in time, and continues to stop in the background.
            TypeError: `timeout` has another type; nothing is stopped.
        """
        if timeout is not None:
            require_timedelta("timeout", timeout)
        self._stop(leave_group)
        thread, here = self._thread, threading.current_thread()
        if thread is None or thread is here or self._threads.has_thread(here):
            return
        own_s = self.config.shutdown_timeout_ms / 1000
        seconds = own_s if timeout is None else timeout.total_seconds()
        thread.join(seconds)
        if thread.is_alive():
            raise TimeoutError(
                f"the application did not stop within {seconds:g} s: a user function may take "
                "long, or the brokers do not answer. Call close() again to wait longer"
            )
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def clean_up(self) -> None:
        """Delete the local state of this application on this host, before `start` or after `close`.

        The next start restores all stores from their changelogs, so nothing is lost except the rows
        of stores without a changelog. Offsets and topics stay; `headrace reset` deletes those, too.

        Raises:
            RuntimeError: this object runs; nothing is deleted.
            StateLockedError: another application object or process uses the state; nothing is
                deleted.

        Examples:
            >>> from headrace import KafkaStreams, StreamsBuilder
            >>> builder = StreamsBuilder()
            >>> builder.table("prices", store="prices").to_stream().to("out")
            >>> app = KafkaStreams(builder.build(), {
            ...     "application.id": "prices", "bootstrap.servers": "localhost:9092"})
            >>> app.clean_up()
        """
        if self._state not in (State.CREATED, State.NOT_RUNNING, State.ERROR):
            raise RuntimeError(
                f"the application {self.config.application_id} is {self._state.value}, and its "
                "state is in use. Call close() before clean_up()"
            )
        remove_local_state(self.config.state_dir, self.config.application_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            with contextlib.suppress(Exception):
                self.close()

    def _run_quietly(self) -> None:
        try:
            self._run()
        except BaseException as error:  # raised by close
            self._failure = error

    def _run(self) -> None:
        if self._own is not State.CREATED:
            raise RuntimeError("the application ran before. Create a new KafkaStreams")
        try:
            if not self._stopping.is_set():
                self._become(State.CONNECTING)
                self._threads.run_with(self._work_until_stopped)
            self._become(State.PENDING_SHUTDOWN)
            self._become(State.NOT_RUNNING)
        except BaseException as error:
            self._failed = error
            if self._logs_failure and error is not self._threads.failure:
                full = self.config.log_errors == "full"
                log_failure(self._log, describe_failure(error, full=full))
            self._become(State.PENDING_ERROR)
            self._become(State.ERROR)
            raise

    def _work_until_stopped(self) -> None:
        while not self._stopping.is_set():
            started_s = self._clock.monotonic_s()
            try:
                self._work()
                break
            except StopRequestedError as error:
                self._log.warning("stopped_waiting", reason=str(error))
                break
            except Exception as error:
                self._stopping.wait(self._uncaught.pause_s(error, started_s=started_s))
            if not self._stopping.is_set():
                self._become(State.CONNECTING)

    def _work(self) -> None:
        if self._index == 0:
            log_plan_notes(self._topology, self.config, self._log)
        brokers = BrokerMonitor(
            self.config.admin_config(),
            self._log,
            on_lost=self._on_brokers_lost,
            on_reached=self._on_brokers_found,
            report=self._on_unreached,
            stopping=self._stopping.is_set,
        )
        try:
            brokers.reach(self._stopping.is_set)
            self._reached()
            self._work_with(brokers)
        finally:
            brokers.close()

    def _work_with(self, brokers: BrokerMonitor) -> None:
        every_s = self.config.node_times_interval_ms / 1000
        times = NodeTimes([plan.program for plan in self._plans], every_s=every_s)
        usage = process_usage if self._index == 0 else Usage  # reported once per process
        measures = Measures(usage=usage, times=times.times)
        self._connections = Connections(
            brokers=brokers, measures=measures, query_queue=self.query_queue
        )
        cluster = self._memberless_group()
        gate = BackfillGate(self.config.application_id, cluster, self._log)
        deployed = DeployedTopology(self.config, self._plans, cluster, self._log)
        records = self._connections.committed_records(self.config, self._clock)

        def nothing_stored(before: Deployment) -> bool:
            admin = self._connections.make_admin(self.config, self._stopping.is_set)
            wait_s = self.config.session_timeout_ms / 1000 + WAIT_MORE_S
            group = self.config.application_id
            return has_stored_nothing(
                group, before, admin, cluster, records, self._log, wait_s=wait_s
            )

        at_the_same_time(
            self._connections.background("headrace-start"),
            partial(deployed.check, nothing_stored),
            gate.check,
        )
        versions = LiveVersions(
            self.config,
            self._plans,
            deployed,
            clock=self._clock,
            log=self._log,
            stopping=self._stopping.is_set,
        )
        live = WorkerFactory(
            config=self.config,
            plans=self._plans,
            clock=self._clock,
            listener=WorkerListeners((StateTracker(self._worked), self._worker_listener)),
            restore_listener=self._restore_listener,
            probe=self._probe,
            log=self._log,
            stopping=self._stopping.is_set,
            global_plans=self._global_plans,
            connections=self._connections,
            deployed=deployed.before,
            gate=self._gate_watch(gate, versions, deployed, brokers=brokers),
            versions=versions,
            before_start=StartCheck(
                self.config,
                self._plans,
                cluster,
                records,
                deployed.before,
                self._log,
                described=cluster,
            ).begin,
            keeps_partitions=self._uncaught.keeps_partitions,
        ).make()
        self._worker = worker = live.worker
        worker.pausing.follow(self._pause, self._paused)
        try:
            if not self._stopping.is_set():
                profiled = times.watching(threading.get_ident(), lambda: worker.activity)
                watched = self._shutdown.watched(brokers, partial(worker.stop, leave=True))
                with deployed.kept_every(live.recommit_s), profiled, watched:
                    worker.run()
                self._shutdown.check()
        finally:
            live.close()

    def _gate_watch(
        self,
        gate: BackfillGate,
        versions: LiveVersions,
        deployed: DeployedTopology,
        *,
        brokers: BrokerMonitor,
    ) -> GateWatch:
        topics = note_topics(self._plans, deployed.before)

        def may_begin() -> bool:
            gate.check_at(topics)
            return versions.may_begin()

        return GateWatch(
            may_begin,
            watch=versions.refuse_older,
            passed=deployed.running,
            make_background=lambda: self._connections.background("headrace-gate"),
            clock=self._clock,
            timeout_s=self.config.task_timeout_ms / 1000,
            log=self._log,
            waiting=lambda: brokers.is_lost,
        )

    def _memberless_group(self) -> MemberlessGroup:
        return self._connections.memberless_group(self.config, self._stopping.is_set)

    # -- signals and states --------------------------------------------------------------------

    def _stop(self, leave: bool | None = None) -> None:
        self._stopping.set()
        self._threads.stop(leave)
        if self._worker is not None:
            self._worker.stop(leave=leave)

    def _reached(self) -> None:
        """Handle the first answer of a broker since the worker was started."""
        with self._lock:
            self._before_lost = None
            self._become(State.REBALANCING)

    def _on_brokers_lost(self) -> None:
        """Handle the loss of all brokers; called in another thread than the worker's."""
        with self._lock:
            if self._own.works:
                self._before_lost = self._own
                self._become(State.CONNECTING)

    def _on_brokers_found(self) -> None:
        """Handle the return of a broker; the worker may have changed the state since the loss."""
        with self._lock:
            before, self._before_lost = self._before_lost, None
            if self._own is State.CONNECTING and before is not None:
                # `pause` or `resume` may have been called since the loss.
                was_working = before in (State.RUNNING, State.PAUSED)
                self._become(self._working() if was_working else before)

    def _paused(self, is_on: bool) -> None:
        with self._lock:
            self._is_paused = is_on
            if self._own in (State.RUNNING, State.PAUSED):
                self._worked(State.RUNNING)

    def _working(self) -> State:
        return State.PAUSED if self._is_paused else State.RUNNING

    def _worked(self, state: State) -> None:
        with self._lock:
            if self._before_lost is not None and state is State.REBALANCING:
                self._before_lost = state  # partitions were lost, and no broker answers yet
                return
            self._before_lost = None
            self._become(self._working() if state is State.RUNNING else state)

    def _become(self, state: State) -> None:
        with self._lock:
            if state is self._own:
                return
            assert self._own.may_become(state), f"{self._own} -> {state}"
            self._own = state
        self._notify()

    def _notify(self) -> None:
        """Call the state listener if the state of all workers together has changed."""
        with self._lock:  # serializes calls of the listener
            old, state = self._state, self._threads.state_with(self._own)
            if state is old:
                return
            self._state = state
            self._state_changed.notify_all()
            self._log.info("state_changed", old=old.value, new=state.value)
            if self._state_listener is not None:
                self._state_listener(state, old)

    def _query_functions(self) -> dict[int, SendQuery] | None:
        if not self._state.works:
            return None
        return {
            index: one.ask
            for index, one in {0: self.query_queue, **self._threads.query_queues()}.items()
        }

    def add_worker(self) -> str | None:
        """Start another worker in a thread of this process.

        It joins the group and gets a part of the tasks. It has its own clients, identity and
        caches, as a worker of `headrace run` has; the application's functions, serdes, handlers and
        listeners are called in its thread, too. Only one thread of a Python process runs Python
        code at a time: more threads help if functions wait, for example for a database. To use more
        processors, start more processes.

        Returns:
            The name of its thread, which ends with its `index` in `metrics`; None if the
                application does not run or is being stopped.

        Examples:
            >>> from headrace import KafkaStreams, StreamsBuilder
            >>> builder = StreamsBuilder()
            >>> builder.stream("in").to("out")
            >>> app = KafkaStreams(builder.build(), {
            ...     "application.id": "copy", "bootstrap.servers": "localhost:9092"})
            >>> app.add_worker() is None  # it does not run
            True
        """
        return self._threads.add() if self._state.works else None

    def remove_worker(self, timeout: timedelta | None = None) -> str | None:
        """Stop the added worker with the highest number: it commits and leaves the group.

        Do not call it in a listener: it waits for the worker.

        Args:
            timeout: maximum time to wait; None uses ``shutdown.timeout.ms``.

        Returns:
            The worker's name; None if no added worker is left. `close` stops the worker of `run` or
                `start`.

        Raises:
            TimeoutError: it did not stop in time, and continues to stop in the background.
        """
        if timeout is not None:
            require_timedelta("timeout", timeout)
        return self._threads.remove(timeout) if self._state.works else None

    def _require_working(self) -> None:
        failure = self._failed or self._threads.failure
        if failure is not None:
            reason = describe_failure(failure, full=self.config.log_errors == "full").reason
            raise ApplicationFailedError(self.config.application_id, reason) from failure

    def queries(self) -> Queries:
        """Return the interactive queries over this application's stores on this host.

        They read the partitions that any process of this host has; `headrace.connect` queries all
        hosts.
        """
        from headrace.streams.queries.queries import Queries  # loads RocksDB

        with self._queries_lock:
            if self._queries is None:
                self._queries = Queries(
                    self.config,
                    self._plans,
                    self._global_plans,
                    snapshot=self._snapshot,
                    workers=self._query_functions,
                    require_working=self._require_working,
                )
            return self._queries

    def store(self, name: str, *, max_age: timedelta | None = None) -> Any:
        """Return a reader of a store's committed rows, usable in any thread.

        Rows are read from the files in ``state.dir``, so that the worker is not interrupted. Tasks
        of all processes of this host are visible, also while the application does not run. While it
        runs, files of a task that moved to another host more than a minute ago are refused
        (`NotReadableError`). Rows of an in-memory store are requested from the workers of this
        process, which answer between two batches while they run.

        The reader has the partitions of this host only: a key of another host's partition is not
        found. `places()` lists the local partitions, and `headrace.connect` queries all hosts.

        Args:
            name: the store's name.
            max_age: maximum time for which changes may be missing, in place of that rule; a long
                time accepts files of moved tasks as well.

        Returns:
            A reader for the store's kind: `get`, `get_many`, `range`, `prefix_scan`, `all` and
                `count` of a key-value store or a table, `fetch` of a window or session store, and
                `as_of` of a versioned store.

        Raises:
            NoSuchStoreError: the application has no such store; the message lists its stores. Each
                read raises `ApplicationFailedError` after the application has failed.

        Examples:
            >>> from headrace import KafkaStreams, StreamsBuilder, serdes
            >>> builder = StreamsBuilder()
            >>> words = builder.stream("words", key=serdes.string, value=serdes.string)
            >>> words.group_by_key().count(store="counts").to_stream().to("counted")
            >>> app = KafkaStreams(builder.build(), {
            ...     "application.id": "counts", "bootstrap.servers": "localhost:9092"})
            >>> app.store("counts")
            <KeyValueReader of 'counts'>
        """
        return self.queries().store(name, max_age=max_age)

    def serve(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        token_file: Path | None = None,
        queries: bool = False,
    ) -> WebServer:
        """Serve metrics, health and JSON in a thread of this process; requires ``headrace[web]``.

        Args:
            port: the port; 0 uses a free port, which the result's `url` contains.
            host: the address to bind; any address other than loopback requires a token.
            token_file: file with the token that every request except health must send.
            queries: whether to serve the stores as well.

        Returns:
            The server; its `close` stops it.

        Raises:
            ConfigError: the address cannot be bound, or a required package is not installed.
        """

        def health() -> HealthSnapshot:
            return health_of(self.metrics(), time.monotonic(), picture_of(self._topology))

        def set_level(level: str) -> str:
            from headrace.streams import logs  # loads structlog

            logs.set_level(level)
            return logs.LEVEL_SAID.format(level=level)

        return open_web(
            health,
            f"{host}:{port}",
            log=get_logger(),
            token_file=token_file,
            set_level=set_level,
            queries=self.queries if queries else None,
        )

    def metrics(self) -> ApplicationSnapshot:
        """Return metrics of this process: workers, tasks, stores and input partitions.

        The snapshot is at most a second old, and older while the worker is busy with a long call.
        Any thread may call this, at negligible cost. Counters start at zero with the process.

        Examples:
            >>> from headrace import KafkaStreams, StreamsBuilder
            >>> builder = StreamsBuilder()
            >>> builder.stream("in").to("out")
            >>> app = KafkaStreams(builder.build(), {
            ...     "application.id": "copy", "bootstrap.servers": "localhost:9092"})
            >>> (worker,) = app.metrics().workers
            >>> worker.state, worker.snapshot
            ('created', None)
        """
        return self._snapshot()

    def tasks(self) -> tuple[TaskSnapshot, ...]:
        """Return the tasks of this process; see `metrics`."""
        return without_taken(self.metrics()).tasks

    def lags(self) -> tuple[InputSnapshot, ...]:
        """Return the lag of each input partition that this process reads; see `metrics`."""
        return without_taken(self.metrics()).inputs

    def pause(self) -> None:
        """Stop processing until `resume`; the processed records are committed.

        The application stays in its group and keeps its tasks; running restores continue. Its state
        becomes `PAUSED` when the pause takes effect. Wall-clock punctuators are paused, too.
        """
        self._pause.set()

    def resume(self) -> None:
        """Resume processing after `pause`."""
        self._pause.clear()
