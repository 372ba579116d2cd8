"""Supervisor: keeps worker processes running, and stops them together.

    worker:  waiting ─► running ─► ended
                ▲          │ crash, within the limits
                └──────────┘

It runs neither user code nor a Kafka client. After a crash it restarts the worker with a back-off.
After any other error all workers stop, because the same record or setting would stop the next
worker too. A worker that hangs but reports is left alone: the group reassigns its tasks if it no
longer polls, and the cause may be a slow user function, which a restart would only call again. A
worker that does not report is killed when the group has removed it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from random import Random
from typing import Protocol

from headrace import __version__
from headrace.streams import logs
from headrace.streams.config.client_settings import MAX_POLL_INTERVAL_MS
from headrace.streams.kafka.protocols import Log
from headrace.streams.kafka.unreached import Unreached
from headrace.streams.metrics.snapshots import (
    UNRESPONSIVE,
    UNRESPONSIVE_S,
    ApplicationSnapshot,
    HealthSnapshot,
    WorkerSnapshot,
)
from headrace.streams.supervisor.channel import Report
from headrace.streams.supervisor.exit_codes import TABLE, ExitCode, is_crash
from headrace.streams.supervisor.status_line import WorkerStatus
from headrace.streams.supervisor.worker_reports import Ended, Loaded
from headrace.streams.tasks.failures import FailureReport, log_failure
from headrace.streams.worker.restarts import RestartLimits, Restarts
from headrace.topology.describe.picture import Picture

# Detection of unresponsive workers.


_ASLEEP_S = 2.0
"""Gap between two checks, normally 0.1 s, above which the supervisor itself was suspended."""
_ADVICE = (
    "its process is stopped, or a C function of yours or of the Kafka client holds Python's lock. "
    "Other workers get its tasks after consumer.session.timeout.ms, or, if the client still runs, "
    "consumer.max.poll.interval.ms; after the latter it is killed and restarted"
)


class HeartbeatMonitor:
    """Monitor that reports each unresponsive worker once, and its recovery."""

    def __init__(self, log: Log, now_s: float) -> None:
        self._log = log
        self._checked_s = self._awake_s = now_s
        self._unresponsive: dict[int, tuple[int | None, float]] = {}
        """By worker: the process ID, and the time of its last report."""

    def check(self, workers: Sequence[WorkerStatus], now_s: float) -> None:
        """Log the workers that became unresponsive or recovered since the last check."""
        if now_s - self._checked_s > _ASLEEP_S:
            self._awake_s = now_s  # no report could be received meanwhile
        self._checked_s = now_s
        for worker in workers:
            is_unresponsive = worker.view().state_at(now_s) == UNRESPONSIVE
            known = self._unresponsive.get(worker.index)
            if known is not None and (not is_unresponsive or known[0] != worker.pid):
                self._end(worker, known)
            elif known is None and is_unresponsive and now_s - self._awake_s > UNRESPONSIVE_S:
                self._begin(worker, now_s)

    def lasting(self, for_s: float, now_s: float) -> frozenset[int]:
        """Return the process IDs that have been unresponsive for a time."""
        return frozenset(
            pid
            for pid, at_s in self._unresponsive.values()
            if pid is not None and now_s - max(at_s, self._awake_s) > for_s
        )

    def _begin(self, worker: WorkerStatus, now_s: float) -> None:
        assert worker.snapshot is not None, "a worker without a report is not unresponsive"
        self._unresponsive[worker.index] = worker.pid, worker.snapshot.at_s
        self._log.warning(
            "worker_unresponsive",
            worker_index=worker.index,
            worker=worker.snapshot.id,
            pid=worker.pid,
            unresponsive_s=round(worker.snapshot.age_s(now_s), 1),
            advice=_ADVICE,
        )

    def _end(self, worker: WorkerStatus, known: tuple[int | None, float]) -> None:
        pid, since_s = known
        del self._unresponsive[worker.index]
        if worker.pid != pid or worker.snapshot is None:
            return  # it has ended, which is logged
        self._log.info(
            "worker_recovered",
            worker_index=worker.index,
            worker=worker.snapshot.id,
            pid=pid,
            unresponsive_s=round(worker.snapshot.at_s - since_s, 1),
        )


WORKERS_MAX = 1_000
SHUTDOWN_TIMEOUT_S = 30.0
"""Default until a worker has reported its settings."""
REACHED = frozenset({"rebalancing", "running", "paused"})
"""States of an application whose brokers answer."""
EARLY = 0.75
"""Fraction of a worker's report interval after which the warning may be logged again."""
AGAIN_AFTER_S = 0.25
"""Signals within this time are duplicates: wrapper programs forward a Ctrl-C a second time."""


_NOT_REPORTED = (
    "the process ended with exit code {code} and had not closed: look for os._exit in the "
    "application, or for a library that ends the process"
)
_NOT_CLOSED = "it did not close within shutdown.timeout.ms"
_UNRESPONSIVE = (
    "it has not reported for consumer.max.poll.interval.ms: the group has removed it, so that it "
    "cannot commit its work"
)


class WorkerProcess(Protocol):
    """Worker process, as seen by the supervisor."""

    @property
    def pid(self) -> int:
        """Process ID."""

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal, or None while it runs."""

    def reports(self) -> Iterable[Report]:
        """Return its reports since the last call."""

    def last_output(self) -> Sequence[str]:
        """Return the last lines of its standard error before it could log."""

    def stop(self) -> None:
        """Request a clean stop; called once."""

    def leave(self) -> None:
        """Request a clean stop that leaves the group; called in place of `stop`."""

    def set_log_level(self, level: str) -> None:
        """Change its log level."""

    def kill(self) -> None:
        """Kill it."""

    def close(self) -> None:
        """Release the resources of an ended process."""


class StatusDisplay(Protocol):
    """Display of the workers' status."""

    def show(self, workers: Sequence[WorkerStatus], now_s: float) -> None:
        """Show the status if a refresh is due."""


@dataclass(slots=True)
class _Slot:
    """Worker over its restarts."""

    status: WorkerStatus
    restarts: Restarts
    start_at_s: float | None
    """Time of its next start; None while it runs and after its final end."""
    process: WorkerProcess | None = None
    started_s: float = 0.0
    killed: bool = False
    killed_pid: int | None = None
    """Process that was killed because it was unresponsive."""
    reported_end: int | None = None
    """Exit code that its process reported before it ended."""
    error: str = ""
    """Type of the last error that its process reported."""
    leave_by_s: float | None = None
    """Time to kill it if it has not left; None unless it must leave."""

    @property
    def index(self) -> int:
        return self.status.index

    @property
    def is_over(self) -> bool:
        return self.process is None and self.start_at_s is None


class CommandRefusedError(Exception):
    """Rejected command; the message contains the reason."""


@dataclass(slots=True)
class Supervisor:
    """Supervisor of worker processes, which runs until they have ended or it is stopped.

    The first worker starts alone, and the others after it has loaded the application, so that an
    error in the code or the settings is logged only once.

    Args:
        start: starts the worker with an index; an OSError counts as a crash.
        monotonic: monotonic clock, in seconds.
        loaded: called once, when the application is known.
        set_log_level: changes the supervisor's own log level.
    """

    workers: int
    start: Callable[[int], WorkerProcess]
    monotonic: Callable[[], float]
    random: Random
    limits: RestartLimits
    display: StatusDisplay
    log: Log
    loaded: Callable[[Loaded], None] = lambda _: None
    set_log_level: Callable[[str], None] = lambda _: None
    _slots: list[_Slot] = field(init=False)
    health: HealthSnapshot = field(init=False)
    """Health at the last turn; replaced atomically, so that any thread can read it."""
    _application: str = field(init=False, default="")
    _topology: str = field(init=False, default="")
    _picture: Picture | None = field(init=False, default=None)
    _loaded: bool = field(init=False, default=False)
    _shutdown_timeout_s: float = field(init=False, default=SHUTDOWN_TIMEOUT_S)
    _max_poll_s: float = field(init=False, default=MAX_POLL_INTERVAL_MS / 1000)
    _code: ExitCode | None = field(init=False, default=None)
    """Exit code; None until the end is decided."""
    _why: str = field(init=False, default="")
    """Reason of the end, unless it was requested."""
    _kill_at_s: float | None = field(init=False, default=None)
    _signals: list[tuple[int, float]] = field(init=False, default_factory=list)
    """Received signals that no turn has handled yet."""
    _signalled_s: float | None = field(init=False, default=None)
    _unreached_again_s: float = field(init=False, default=0.0)
    """Earliest time to log again that no broker is reached."""
    _waiting: set[int] = field(init=False, default_factory=set)
    """Workers that reach no broker."""
    _logged: set[tuple[str, str, str]] = field(init=False, default_factory=set)
    """Kinds of worker failures that were logged."""
    _commands: SimpleQueue[_Command] = field(init=False, default_factory=SimpleQueue)
    _heartbeats: HeartbeatMonitor = field(init=False)
    _level: str | None = field(init=False, default=None)
    """Changed log level; None if it was not changed."""

    def __post_init__(self) -> None:
        now_s = self.monotonic()
        self._slots = [
            _Slot(WorkerStatus(index), Restarts(self.limits, self.random), now_s)
            for index in range(self.workers)
        ]
        self._heartbeats = HeartbeatMonitor(self.log, now_s)
        self.health = self._health(now_s)

    def run(self, wait: Callable[[], None]) -> ExitCode:
        """Run until all workers have ended; `wait` returns after a report or a short time."""
        while not self.turn():
            wait()
        code = ExitCode.STOPPED if self._code is None else self._code
        self.log.info("supervisor_ended", exit_code=int(code), outcome=code.name.lower())
        return code

    def signalled(self, number: int) -> None:
        """Record a signal for the next turn. May be called from a signal handler."""
        self._signals.append((number, self.monotonic()))

    def turn(self) -> bool:
        """Handle signals, commands, reports and restarts; return whether all workers have ended."""
        self._handle_signals()
        self._run_commands()
        for slot in self._slots:
            if slot.process is not None:
                self._read_reports(slot, slot.process)
        now_s = self.monotonic()
        for slot in self._slots:
            if slot.start_at_s is not None and now_s >= slot.start_at_s and self._may_start(slot):
                self._start(slot)
        if self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._kill_all(_NOT_CLOSED)
        self._remove_left(now_s)
        statuses = [slot.status for slot in self._slots]
        self._heartbeats.check(statuses, now_s)
        self._kill_unresponsive(now_s)
        self.display.show(statuses, now_s)
        self.health = self._health(now_s)
        return all(slot.is_over for slot in self._slots)

    def _health(self, now_s: float) -> HealthSnapshot:
        return HealthSnapshot(
            snapshot=ApplicationSnapshot(
                application=self._application,
                version=__version__,
                topology=self._topology,
                workers=tuple(slot.status.view() for slot in self._slots),
            ),
            turned_s=now_s,
            is_loaded=self._loaded,
            has_failed=self._code not in (None, ExitCode.STOPPED, ExitCode.INTERRUPTED),
            why=self._why,
            picture=self._picture,
        )

    # -- one worker ----------------------------------------------------------------------------

    def _may_start(self, slot: _Slot) -> bool:
        if self._code is not None:
            return False
        return self._loaded or slot is next(slot for slot in self._slots if not slot.is_over)

    def _start(self, slot: _Slot) -> None:
        slot.start_at_s = None
        slot.reported_end = None
        slot.started_s = self.monotonic()
        try:
            slot.process = self.start(slot.index)
        except OSError as error:  # perhaps a temporary lack of resources
            self._crashed(slot, {"worker_index": slot.index, "outcome": f"not started: {error}"})
            return
        slot.status.started(slot.process.pid)
        if self._level is not None:
            slot.process.set_log_level(self._level)
        self.log.info("worker_started", worker_index=slot.index, pid=slot.process.pid)

    def _read_reports(self, slot: _Slot, process: WorkerProcess) -> None:
        code = process.poll()
        # After `poll`, so that no report of an ended process is missed.
        for report in process.reports():
            if isinstance(report, Loaded):
                if not self._loaded:
                    self.loaded(report)
                self._loaded = True
                self._shutdown_timeout_s = report.shutdown_timeout_ms / 1000
                self._max_poll_s = report.max_poll_interval_ms / 1000
                self._application, self._topology = report.application, report.topology
                self._picture = report.picture
            elif isinstance(report, FailureReport):
                self._failed(slot, report)
            elif isinstance(report, Unreached):
                self._on_unreached(slot, report)
            elif isinstance(report, Ended):
                slot.reported_end = report.code
            elif isinstance(report, WorkerSnapshot):
                slot.status.snapshot = report
            else:
                if report.state in REACHED:
                    self._on_reached(slot)
                slot.status.reported(report, self.monotonic())
        if code is not None:
            process.close()
            slot.process = None
            self._on_reached(slot)
            self._ended(slot, code, process.last_output())

    def _ended(self, slot: _Slot, code: int, last_output: Sequence[str]) -> None:
        log_fields: dict[str, object] = {"worker_index": slot.index, "exit_code": code}
        outcome = _outcome(code)
        if not is_crash(code) and slot.reported_end != code:
            outcome = "ended without closing"
            log_fields["advice"] = _NOT_REPORTED.format(code=code)
            code = ExitCode.CRASHED
        log_fields["outcome"] = outcome
        if last_output:
            log_fields["last_output"] = list(last_output)
        slot.status.ended(outcome)
        if code == ExitCode.STOPPED or slot.killed:
            self.log.info("worker_ended", **log_fields)
        elif self._code is not None or slot.leave_by_s is not None:
            self.log.warning("worker_ended", **log_fields)
            if self._code is ExitCode.STOPPED and code != -signal.SIGTERM:
                self._code = _as_exit_code(code)
                self._why = f"worker {slot.index} did not close cleanly ({outcome})"
        elif is_crash(code):
            self._crashed(slot, log_fields)
        else:
            self.log.error(
                "worker_failed", **log_fields, start_again=_fix_before_restart(code, slot.error)
            )
            self._why = f"worker {slot.index} failed ({outcome}), and all are stopped"
            if code == ExitCode.SHUT_DOWN:
                self._why = "the application was shut down after an error"
            self._stop_all(_as_exit_code(code), f"worker {slot.index} failed")

    def _failed(self, slot: _Slot, failure: FailureReport) -> None:
        """Log a failure, unless another worker has failed at the same place in the same way."""
        slot.error = failure.error
        if failure.kind not in self._logged:
            self._logged.add(failure.kind)
            log_failure(self.log, failure, worker_index=slot.index)

    def _on_unreached(self, slot: _Slot, report: Unreached) -> None:
        """Log once for all workers that no broker is reached; repeat it after an interval."""
        now_s = self.monotonic()
        self._waiting.add(slot.index)
        if now_s >= self._unreached_again_s:
            self._unreached_again_s = now_s + EARLY * report.again_in_s
            self.log.warning("brokers_not_reached", **report.fields())

    def _on_reached(self, slot: _Slot) -> None:
        """Reset the log interval as soon as no worker is without brokers."""
        if slot.index in self._waiting:
            self._waiting.remove(slot.index)
            if not self._waiting:
                self._unreached_again_s = 0.0

    def _crashed(self, slot: _Slot, log_fields: dict[str, object]) -> None:
        now_s = self.monotonic()
        pause_s = slot.restarts.pause_s(started_s=slot.started_s, ended_s=now_s)
        if pause_s is None:
            self.log.error(
                "worker_abandoned",
                **log_fields,
                restarts_max=self.limits.most,
                within_s=self.limits.within_s,
            )
            self._why = f"worker {slot.index} crashed too often and is not restarted"
            self._stop_all(ExitCode.RESTARTS, f"worker {slot.index} crashed too often")
            return
        self.log.warning("worker_crashed", **log_fields, restart_in_s=round(pause_s, 3))
        slot.start_at_s = now_s + pause_s
        slot.status.restarts += 1

    # -- all workers ---------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        while self._signals:
            number, at_s = self._signals.pop(0)
            name = signal.Signals(number).name
            again = self._signalled_s is not None and at_s - self._signalled_s >= AGAIN_AFTER_S
            self._signalled_s = at_s
            if self._code is None:
                self._stop_all(ExitCode.STOPPED, name)
            elif number == signal.SIGINT and again:
                if self._code is ExitCode.STOPPED:
                    self._code = ExitCode.INTERRUPTED
                self._kill_all(f"a second {name} came while it was closing")

    def _stop_all(self, code: ExitCode, reason: str) -> None:
        """Request a stop of all workers; the first reason determines the exit code."""
        assert self._code is None
        self._code = code
        self._kill_at_s = self.monotonic() + self._shutdown_timeout_s
        self.log.info("workers_stopping", reason=reason, within_s=self._shutdown_timeout_s)
        for slot in self._slots:
            slot.start_at_s = None
            if slot.process is not None and slot.leave_by_s is None:
                slot.status.state = "stopping"
                slot.process.stop()

    def _kill_all(self, reason: str) -> None:
        self._kill_at_s = None
        if self._code is ExitCode.STOPPED:
            self._code, self._why = ExitCode.STOP_TIMEOUT, f"a worker was killed: {_NOT_CLOSED}"
        for slot in self._slots:
            self._kill(slot, reason)

    def _kill(self, slot: _Slot, reason: str, *, is_final: bool = True) -> None:
        if slot.process is not None:
            slot.killed = slot.killed or is_final
            pid = slot.process.pid
            self.log.error("worker_killed", worker_index=slot.index, pid=pid, reason=reason)
            slot.process.kill()

    def _kill_unresponsive(self, now_s: float) -> None:
        """Kill workers that have been unresponsive too long; their end counts as a crash."""
        for slot in self._slots:
            pid = None if slot.process is None else slot.process.pid
            if pid != slot.killed_pid and pid in self._heartbeats.lasting(self._max_poll_s, now_s):
                slot.killed_pid = pid
                self._kill(slot, _UNRESPONSIVE, is_final=False)

    # -- commands ------------------------------------------------------------------------------

    def submit(self, command: Callable[[Supervisor], str]) -> Future[str]:
        """Queue a command for the next turn; the future gets its result or error. Thread-safe."""
        future: Future[str] = Future()
        self._commands.put((command, future))
        return future

    def _run_commands(self) -> None:
        while True:
            try:
                command, future = self._commands.get_nowait()
            except Empty:
                return
            try:
                future.set_result(command(self))
            except (CommandRefusedError, ValueError) as error:
                future.set_exception(error)

    def scale(self, workers: int) -> str:
        """Change the number of workers; the highest numbers leave. Return a message about it."""
        if self._code is not None:
            raise CommandRefusedError("all workers are being stopped")
        if not 1 <= workers <= WORKERS_MAX:
            raise CommandRefusedError(
                f"there are 1 to {WORKERS_MAX} workers; SIGTERM stops all of them"
            )
        staying = [slot for slot in self._slots if slot.leave_by_s is None]
        now_s = self.monotonic()
        taken = {slot.index for slot in self._slots}
        free = (index for index in range(workers + len(taken)) if index not in taken)
        for _ in range(workers - len(staying)):
            restarts = Restarts(self.limits, self.random)
            self._slots.append(_Slot(WorkerStatus(next(free)), restarts, now_s))
        for slot in staying[workers:]:
            slot.start_at_s = None
            slot.leave_by_s = now_s + self._shutdown_timeout_s
            if slot.process is not None:
                slot.status.state = "stopping"
                slot.process.leave()
        self._slots.sort(key=lambda slot: slot.index)
        self.log.info("workers_scaled", before=len(staying), workers=workers)
        if workers == len(staying):
            return f"there {_are(workers)} {_workers_text(workers)} already"
        more = abs(workers - len(staying))
        verbs = ("starts", "start")
        if workers < len(staying):
            verbs = ("closes and gives its tasks away", "close and give their tasks away")
        what = verbs[more > 1]
        return (
            f"{_workers_text(more)} {what}; there {_are(workers)} "
            f"{_workers_text(workers)} from now on, {len(staying)} before"
        )

    def change_log_level(self, level: str) -> str:
        self.set_log_level(level)
        self._level = level
        for slot in self._slots:
            if slot.process is not None:
                slot.process.set_log_level(level)
        return logs.LEVEL_SAID.format(level=level)

    def _remove_left(self, now_s: float) -> None:
        """Kill leaving workers that are overdue, and remove workers that have left."""
        for slot in self._slots:
            if slot.leave_by_s is not None and now_s >= slot.leave_by_s and not slot.killed:
                self._kill(slot, _NOT_CLOSED)
        self._slots = [s for s in self._slots if s.leave_by_s is None or not s.is_over]


_Command = tuple[Callable[[Supervisor], str], Future[str]]


def _workers_text(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _are(workers: int) -> str:
    return "is" if workers == 1 else "are"


def _as_exit_code(code: int) -> ExitCode:
    try:
        return ExitCode(code)
    except ValueError:
        return ExitCode.CRASHED


def _outcome(code: int) -> str:
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    try:
        return ExitCode(code).name.lower().replace("_", " ")
    except ValueError:
        return "crashed"


def _fix_before_restart(code: int, error: str = "") -> str:
    """Return the fix before a restart as text without links; `error` is the type of the error."""
    endings = [ending for ending in TABLE if ending.code == code]
    exact = [ending for ending in endings if ending.error and ending.error.__name__ == error]
    again = (exact or endings)[0].again
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", again)
