"""Worker of `headrace run` in its process: loads and runs the application, exits with a code.

    python -P -m headrace.streams.supervisor.worker_entry word_count:app INDEX CONTROL REPORTS
    ERRORS QUESTIONS

CONTROL, REPORTS and QUESTIONS are the ends of a pipe and two sockets, which
`headrace.streams.supervisor.worker_handle` describes. ERRORS becomes the standard error once
logging is configured. Only the supervisor starts this module.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from headrace.state.log import get_logger
from headrace.streams import logs
from headrace.streams.app import KafkaStreams
from headrace.streams.config.secrets import guarded
from headrace.streams.config.settings import Given
from headrace.streams.errors import RecordError
from headrace.streams.kafka.clocks import SystemClock
from headrace.streams.metrics.snapshots import WorkerSnapshot
from headrace.streams.queries.query_channel import serve_questions
from headrace.streams.supervisor.app_loader import load_app
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of, is_crash
from headrace.streams.supervisor.supervisor import SHUTDOWN_TIMEOUT_S
from headrace.streams.supervisor.worker_handle import LEAVE, LEVEL, STDERR, STOP, Launch
from headrace.streams.supervisor.worker_reports import (
    Activity,
    Ended,
    Loaded,
    Reporter,
    ReportSender,
    Status,
    fitted,
)
from headrace.streams.tasks.failures import describe_failure, log_failure
from headrace.topology.describe.picture import picture_of

_FLUSH_S = 1.0
_ENDING_S = 5.0
"""Time limit for sending the final report."""


class StopSwitch:
    """Stop request for an application that may not be loaded yet; used by signals and threads."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._leave: bool | None = None
        self._close: Callable[[bool | None], None] | None = None

    def stop(self, *, leave: bool | None = None) -> None:
        """Stop now, or as soon as attached; `leave` None follows the application's settings."""
        self._leave = leave
        self._asked.set()
        if self._close is not None:
            self._close(leave)

    def attach(self, close: Callable[[bool | None], None]) -> None:
        self._close = close
        if self._asked.is_set():
            close(self._leave)


class _Leash(threading.Thread):
    """Parent-death watchdog, which also follows the supervisor's commands."""

    def __init__(self, control: int, switch: StopSwitch, flush_log: Callable[[], None]) -> None:
        super().__init__(name="headrace-leash", daemon=True)
        self._control = control
        self._switch = switch
        self.timeout_s = SHUTDOWN_TIMEOUT_S
        self.ended = threading.Event()
        self.flush_log = flush_log

    def run(self) -> None:
        while told := _first_line(self._control):
            if told == STOP.strip():
                self._switch.stop()
                return
            if told == LEAVE.strip():
                self._switch.stop(leave=True)
                return
            if told.startswith(LEVEL):
                logs.set_level(told.removeprefix(LEVEL).decode())
        log = get_logger()
        log.error("supervisor_lost", within_s=self.timeout_s)
        self._switch.stop()
        # Without a supervisor, the worker must enforce the time limit itself.
        if not self.ended.wait(self.timeout_s):
            log.error("worker_killed", reason="it did not close within shutdown.timeout.ms")
            self.flush_log()
            os._exit(ExitCode.STOP_TIMEOUT)


def _load(launch: Launch, index: int, activity: Activity, reports: ReportSender) -> KafkaStreams:
    settings = Given(launch.settings, launch.origins)
    app = load_app(launch.target, settings)
    worker_id = settings.get("worker.id", app.config.worker_id)
    if launch.endpoint is not None and app.config.application_server is None:
        settings.setdefault("application.server", launch.endpoint)
    if worker_id:
        settings["worker.id"] = f"{worker_id}-{index}"
    return app.derived(
        settings,
        worker_listener=activity,
        restore_listener=activity,
        logs_failure=False,
        on_unreached=lambda unreached: reports.send_surely(unreached.bounded()),
    )


@dataclass(slots=True)
class _Says:
    """Parameters of error messages; the application's own setting is known after it is loaded.

    Args:
        full: whether to log texts that may quote a record.
        target: name of the application for `headrace`.
        again: command-line options that reproduce its settings.
        is_final: whether the worker must not be restarted.
    """

    full: bool
    target: str
    again: Sequence[str] = ()
    is_final: Callable[[], bool] = lambda: False


def _work(
    launch: Launch,
    index: int,
    control: int,
    reports: ReportSender,
    says: _Says,
    questions: socket.socket,
    flush_log: Callable[[], None],
) -> None:
    switch = StopSwitch()
    _stop_on_sigterm(switch)
    leash = _Leash(control, switch, flush_log)
    leash.start()
    try:
        activity = Activity(SystemClock())
        app = _load(launch, index, activity, reports)
        if app.config.log_errors is not None:
            says.full = app.config.log_errors == "full"
        says.is_final = lambda: app.uncaught_answered
        leash.timeout_s = app.config.shutdown_timeout_ms / 1000
        config, topology = app.config, app.metrics().topology
        state_dir = str(config.state_dir.absolute())
        picture = picture_of(app.topology)
        reports.send(
            Loaded(config.application_id, config.shutdown_timeout_ms, state_dir, topology, picture)
        )
        switch.attach(lambda leave: app.close(leave_group=leave))
        serve_questions(app.desk, questions)

        def status() -> Status:
            return activity.status(app.state.value, app.records_processed)

        def facts() -> WorkerSnapshot | None:
            return app.metrics().workers[0].facts

        with Reporter(reports, status, facts):
            app.run()
    finally:
        leash.ended.set()


def _stop_on_sigterm(switch: StopSwitch) -> None:
    """Handle stop signals until the application installs its own handlers."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        switch.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def _exit_code(work: Callable[[], None], reports: ReportSender, says: _Says) -> ExitCode:
    """Run the worker and report its failure to the supervisor, which logs it for all workers."""
    try:
        work()
    except BaseException as error:  # SystemExit, too: it counts as a crash
        if isinstance(error, RecordError):
            error.told_for(says.target, says.again)
        failure = describe_failure(error, full=says.full)
        if not reports.send_surely(fitted(failure)):
            log_failure(get_logger(), failure)
        code = exit_code_of(error)
        return ExitCode.SHUT_DOWN if is_crash(code) and says.is_final() else code
    return ExitCode.STOPPED


def _first_line(file: int) -> bytes:
    """Read exactly a line; return an empty result if the supervisor is lost."""
    line = b""
    while byte := os.read(file, 1):
        if byte == b"\n":
            return line
        line += byte
    return b""


def main() -> None:
    target, *numbers = sys.argv[1:]
    index, control, reports, errors, questions = map(int, numbers)
    for file in (control, reports, questions):
        os.set_inheritable(file, False)
    line = _first_line(control)
    if not line:
        sys.exit(ExitCode.STOPPED)
    launch = Launch(**json.loads(line, object_hook=guarded))
    del line  # it may hold passwords
    os.dup2(errors, STDERR)
    os.close(errors)
    faulthandler.enable()
    sys.argv = [target]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # for immediate output of user code
    written = logs.bounded(sys.stderr)
    logs.configure(
        launch.log_format,
        level=launch.log_level,
        stream=written,
        colors=launch.colors,
        fields={"worker_index": index},
    )
    sender = ReportSender(reports)
    full = launch.settings.get("log.errors", "full" if launch.terminal else "places") == "full"
    says = _Says(full, target, launch.again)
    asked = socket.socket(fileno=questions)
    code = _exit_code(
        lambda: _work(launch, index, control, sender, says, asked, written.close), sender, says
    )
    sender.send_surely(Ended(code), within_s=_ENDING_S)
    written.close()
    if code is not ExitCode.STOPPED:
        # A user's thread must not keep a failed process alive.
        _flush_output()
        os._exit(code)


def _flush_output() -> None:
    """Flush the user code's output, without blocking if nothing reads it."""

    def flush() -> None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()

    flushing = threading.Thread(target=flush, daemon=True)
    flushing.start()
    flushing.join(_FLUSH_S)
