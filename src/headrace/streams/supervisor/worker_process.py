"""Worker of `headrace run` in its process: loads and runs the application, exits with a code.

    python -P -m headrace.streams.supervisor.worker_entry word_count:app INDEX CHANNEL ERRORS

CHANNEL is the worker's end of the socket that `headrace.streams.supervisor.channel` describes.
ERRORS becomes the standard error once logging is configured. Only the supervisor starts this
module.
"""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType

from headrace.state.log import get_logger
from headrace.streams import logs
from headrace.streams.app import KafkaStreams
from headrace.streams.config.settings import Given
from headrace.streams.errors import RecordError
from headrace.streams.kafka.clocks import SystemClock
from headrace.streams.queries.query_queue import Outcome, QueryQueue, StateQueryResponse
from headrace.streams.supervisor.app_loader import WRONG_CODE, failed_call, load_app
from headrace.streams.supervisor.channel import (
    Answer,
    Channel,
    Launch,
    QueryCommand,
    SetLogLevel,
    Stop,
)
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of, is_crash
from headrace.streams.supervisor.supervisor import SHUTDOWN_TIMEOUT_S
from headrace.streams.supervisor.worker_handle import STDERR
from headrace.streams.supervisor.worker_reports import Activity, Ended, Loaded, Reporter, Status
from headrace.streams.tasks.failures import describe_failure, log_failure
from headrace.topology.describe.picture import picture_of

_FLUSH_S = 1.0
_ENDING_S = 5.0
"""Time limit for sending the final report."""


class StopSwitch:
    """Stop request for an application that may not be loaded yet; used by signals and threads."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._leave: bool | None = None
        self._close: Callable[[bool | None], None] | None = None

    def stop(self, *, leave: bool | None = None) -> None:
        """Stop now, or as soon as attached; `leave` None follows the application's settings."""
        self._leave = leave
        self._requested.set()
        if self._close is not None:
            self._close(leave)

    def attach(self, close: Callable[[bool | None], None]) -> None:
        self._close = close
        if self._requested.is_set():
            close(self._leave)


class _Commands(threading.Thread):
    """Thread that follows the supervisor's commands, and detects the supervisor's death."""

    def __init__(self, channel: Channel, switch: StopSwitch, flush_log: Callable[[], None]) -> None:
        super().__init__(name="headrace-commands", daemon=True)
        self._channel = channel
        self._switch = switch
        self._flush_log = flush_log
        self.timeout_s = SHUTDOWN_TIMEOUT_S
        self.ended = threading.Event()
        self.queue = QueryQueue()
        """Takes the supervisor's queries; that of the application after it is loaded."""

    def run(self) -> None:
        is_stopping = False
        for message in self._channel.receive():
            if isinstance(message, Stop):
                is_stopping = True
                self._switch.stop(leave=message.leave)
            elif isinstance(message, SetLogLevel):
                logs.set_level(message.level)
            elif isinstance(message, QueryCommand):
                future = self.queue.submit(message.request)
                future.add_done_callback(partial(self._answer, message.number))
        if is_stopping:
            return
        log = get_logger()
        log.error("supervisor_lost", within_s=self.timeout_s)
        self._switch.stop()
        # Without a supervisor, the worker must enforce the time limit itself.
        if not self.ended.wait(self.timeout_s):
            log.error("worker_killed", reason="it did not close within shutdown.timeout.ms")
            self._flush_log()
            os._exit(ExitCode.STOP_TIMEOUT)

    def _answer(self, number: int, future: Future[Outcome]) -> None:
        outcome = future.result()
        if isinstance(outcome, StateQueryResponse):
            self._channel.send(Answer(number, response=outcome))
        else:
            self._channel.send(Answer(number, refused=outcome))


def _load(launch: Launch, *, index: int, activity: Activity, channel: Channel) -> KafkaStreams:
    settings = Given(launch.settings, launch.origins)
    try:
        app = load_app(launch.target, settings)
    except WRONG_CODE as error:
        if isinstance(error, OSError):  # such as requests.exceptions.InvalidJSONError
            raise
        raise failed_call(launch.target, error) from error
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
        on_unreached=lambda unreached: channel.send_and_flush(unreached),
    )


@dataclass(slots=True)
class _FailureFormat:
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
    channel: Channel,
    *,
    format_: _FailureFormat,
    flush_log: Callable[[], None],
) -> None:
    switch = StopSwitch()
    _stop_on_sigterm(switch)
    commands = _Commands(channel, switch, flush_log)
    commands.start()
    try:
        activity = Activity(SystemClock())
        app = _load(launch, index=index, activity=activity, channel=channel)
        if app.config.log_errors is not None:
            format_.full = app.config.log_errors == "full"
        format_.is_final = lambda: app.uncaught_answered
        commands.timeout_s = app.config.shutdown_timeout_ms / 1000
        commands.queue = app.query_queue
        channel.send(
            Loaded(
                app.config.application_id,
                app.config.shutdown_timeout_ms,
                app.config.max_poll_interval_ms,
                state_dir=str(app.config.state_dir.absolute()),
                topology=app.metrics().topology,
                picture=picture_of(app.topology),
            )
        )
        switch.attach(lambda leave: app.close(leave_group=leave))

        def status() -> Status:
            return activity.status(app.state.value, app.records_processed)

        with Reporter(channel.send, status, lambda: app.metrics().workers[0].snapshot):
            app.run()
    finally:
        commands.ended.set()


def _stop_on_sigterm(switch: StopSwitch) -> None:
    """Handle stop signals until the application installs its own handlers."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        switch.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def _exit_code(work: Callable[[], None], channel: Channel, format_: _FailureFormat) -> ExitCode:
    """Run the worker and report its failure to the supervisor, which logs it for all workers."""
    try:
        work()
    except BaseException as error:  # SystemExit, too: it counts as a crash
        if isinstance(error, RecordError):
            error.told_for(format_.target, format_.again)
        failure = describe_failure(error, full=format_.full)
        if not channel.send_and_flush(failure):
            log_failure(get_logger(), failure)
        code = exit_code_of(error)
        return ExitCode.SHUT_DOWN if is_crash(code) and format_.is_final() else code
    return ExitCode.STOPPED


def main() -> None:
    target, *numbers = sys.argv[1:]
    index, file, errors = map(int, numbers)
    os.set_inheritable(file, False)
    channel = Channel(socket.socket(fileno=file))
    launch = next(channel.receive(), None)
    if not isinstance(launch, Launch):
        sys.exit(ExitCode.STOPPED)
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
    full = launch.settings.get("log.errors", "full" if launch.terminal else "places") == "full"
    format_ = _FailureFormat(full, target, launch.again)
    work = partial(_work, launch, index, channel, format_=format_, flush_log=written.close)
    code = _exit_code(work, channel, format_)
    channel.send_and_flush(Ended(code), within_s=_ENDING_S)
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
