"""The command `headrace run`: an application in several processes, kept running."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Literal

import click

from headrace.state.events.log import get_logger
from headrace.streams import logs
from headrace.streams.cli.http import Http, http_options, served
from headrace.streams.cli.options import again, settings_option, target_argument
from headrace.streams.cli.stores.loaded_queries import LoadedQueries
from headrace.streams.control.door import ANSWER_WITHIN_S, Door
from headrace.streams.secrets import over
from headrace.streams.settings import given_by, origins_of
from headrace.streams.supervise.restarts import RestartLimits
from headrace.streams.supervise.status_line import LoggedStatus, StatusLine
from headrace.streams.supervise.supervisor import WORKERS_MAX, StatusDisplay, Supervisor
from headrace.streams.supervise.worker_handle import Launch, Processes


@click.command()
@target_argument
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=1,
    show_default=True,
    help="Worker processes.",
)
@settings_option
@click.option(
    "--on-stop",
    type=click.Choice(["leave", "stay"]),
    help="Give tasks away at a stop, or keep them for a restart.  [default: the setting on.stop]",
)
@click.option(
    "--log-format",
    type=click.Choice(["console", "json"]),
    help="[default: console on a terminal, else json]",
)
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True,
              help="The lowest that is logged; " + logs.DEBUG_IS)  # fmt: skip
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=RestartLimits().most,
    show_default=True,
    help="Restarts of one worker within ten minutes.",
)
@click.option("--status-every", type=click.FloatRange(min=0), default=60.0, show_default=True,
              help="Seconds between status_reported events in the log, where it is no terminal; "
              "0 for none.")  # fmt: skip
@http_options
def run(
    target: str,
    workers: int,
    settings: dict[str, Any],
    on_stop: Literal["leave", "stay"] | None,
    log_format: logs.LogFormat | None,
    log_level: str,
    max_restarts: int,
    status_every: float,
    http: Http | None,
) -> None:
    """Run an application in worker processes, and start them again when they crash.

    MODULE:APP is a module or a file and, in it, a KafkaStreams or a function that returns one:
    word_count:app, or path/to/word_count.py:app.

    SIGTERM or Ctrl-C closes the workers cleanly, a second Ctrl-C kills them. `headrace
    exit-codes` prints what the codes mean that it ends with.
    """
    terminal = sys.stderr.isatty()
    colors = terminal and not os.environ.get("NO_COLOR")
    chosen = log_format or ("console" if terminal else "json")
    settings = over(settings, given_by({"on.stop": on_stop} if on_stop else {}, "--on-stop"))
    launch = Launch(
        target=target,
        settings=settings,
        again=again(settings),
        log_format=chosen,
        log_level=log_level,
        colors=colors,
        terminal=terminal,
    )
    written = logs.bounded(sys.stderr)
    line = StatusLine(written) if terminal else None
    logs.configure(chosen, level=log_level, stream=line or written, colors=colors)
    log = get_logger().bind(supervisor=os.getpid())
    display: StatusDisplay = line or LoggedStatus(log, status_every)
    processes = Processes(launch, output=None if line is None else line.print)
    supervisor = Supervisor(
        workers=workers,
        start=processes.start,
        monotonic=time.monotonic,
        random=Random(),  # noqa: S311 - jitter
        limits=RestartLimits(most=max_restarts),
        display=display,
        log=log,
        loaded=lambda loaded: door.open(Path(loaded.state_dir) / loaded.application),
        set_log_level=logs.set_level,
    )
    door = Door(supervisor.ask, log)

    def set_level(level: str) -> str:
        logs.level_number(level)
        return supervisor.ask(lambda one: one.change_log_level(level)).result(ANSWER_WITHIN_S)

    def advertise(endpoint: str) -> None:
        processes.endpoint = queries.endpoint = endpoint

    try:
        queries = LoadedQueries(target, settings, lambda: supervisor.board.facts, processes.asked)
        served_here = served(
            http, lambda: supervisor.board, log, set_level, queries, advertise=advertise
        )
        with served_here, _signals(supervisor):
            log.info("supervisor_started", target=target, workers=workers, **_places(settings))
            code = supervisor.run(processes.wait)
    finally:
        door.close()
        (line or written).close()
    sys.exit(code)


def _places(settings: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Where the settings were given that lie over the application's own, as a field of the log."""
    origins = origins_of(settings)
    return {"settings_from": origins} if origins else {}


@contextmanager
def _signals(supervisor: Supervisor) -> Iterator[None]:
    """Pass SIGTERM, SIGINT and, unless `nohup` said otherwise, SIGHUP to the supervisor."""

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        supervisor.signalled(number)

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
