"""The command `headrace run`: an application in supervised worker processes."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Literal

import click

from headrace.state.log import get_logger
from headrace.streams import logs
from headrace.streams.cli.options import again, settings_option
from headrace.streams.cli.store_sources import LoadedQueries
from headrace.streams.config.secrets import over
from headrace.streams.config.settings import given_by, origins_of
from headrace.streams.errors import ConfigError
from headrace.streams.kafka.protocols import Log
from headrace.streams.metrics.snapshots import HealthSnapshot
from headrace.streams.supervisor.channel import Launch
from headrace.streams.supervisor.control_socket import ANSWER_WITHIN_S, ControlServer
from headrace.streams.supervisor.status_line import LoggedStatus, StatusLine
from headrace.streams.supervisor.supervisor import WORKERS_MAX, Supervisor
from headrace.streams.supervisor.worker_handle import Processes
from headrace.streams.web import SetLevel, open_web
from headrace.streams.worker.restarts import RestartLimits

# The options of `headrace run` for the HTTP server.


@dataclass(frozen=True, slots=True)
class Http:
    """Options of the HTTP server."""

    address: str
    token_file: Path | None
    is_open: bool
    queries: bool = False


def http_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the HTTP options; the command gets an `Http`, or None."""

    @click.option("--http", metavar="[HOST:]PORT",
                  help="Address of metrics, health and JSON, by default on this machine only. "
                  "Requires pip install 'headrace[web]'.")  # fmt: skip
    @click.option("--http-token-file", type=click.Path(path_type=Path),
                  help="File with the token of all requests except health.")  # fmt: skip
    @click.option("--http-open", is_flag=True, help="Allow other hosts without a token.")
    @click.option("--queries", is_flag=True,
                  help="Serve the stores, too. The application is also loaded here, for its "
                  "serdes.")  # fmt: skip
    @wraps(command)
    def given(
        http: str | None,
        http_token_file: Path | None,
        http_open: bool,
        queries: bool,
        **others: Any,
    ) -> Any:
        if http is None and (http_token_file is not None or http_open or queries):
            raise click.UsageError("--http-token-file, --http-open and --queries require --http.")
        parsed = None if http is None else Http(http, http_token_file, http_open, queries)
        return command(http=parsed, **others)

    return given


class _RefusedAddressError(click.ClickException):
    """Invalid HTTP address: exits with the code of a usage error, but without the usage text."""

    exit_code = click.UsageError.exit_code


@contextmanager
def served(
    http: Http | None,
    health: Callable[[], HealthSnapshot],
    log: Log,
    set_level: SetLevel,
    queries: Callable[[], object],
    advertise: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Serve metrics, health and stores; `advertise` is called before the first query's answer."""
    if http is None:
        yield
        return
    is_advertised = threading.Event()

    def answered() -> object:
        is_advertised.wait()
        return queries()

    try:
        server = open_web(
            health,
            http.address,
            log=log,
            token_file=http.token_file,
            is_open=http.is_open,
            set_level=set_level,
            queries=answered if http.queries else None,
        )
    except ConfigError as error:
        raise _RefusedAddressError(f"--http: {error}") from error
    with server:
        if http.queries:
            advertise(reached_at(server.url))
        is_advertised.set()
        yield


def reached_at(url: str) -> str:
    """Return the endpoint HOST:PORT at which other hosts reach the server, as well as it is known.

    A wildcard address becomes the address of this machine's outgoing connections.

    >>> reached_at("http://127.0.0.1:9464"), reached_at("http://[::1]:80")
    ('127.0.0.1:9464', '[::1]:80')
    """
    host, _, port = url.partition("://")[2].rpartition(":")
    anywhere = {"0.0.0.0": socket.AF_INET, "[::]": socket.AF_INET6}  # noqa: S104
    if host in anywhere:
        host = _own_address(anywhere[host])
    return f"{host}:{port}"


def _own_address(family: socket.AddressFamily) -> str:
    to = ("192.0.2.1", 9) if family == socket.AF_INET else ("2001:db8::1", 9)
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(to)  # a documentation address: selects a route and sends nothing
            found = str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
    return f"[{found}]" if ":" in found else found


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--workers", type=click.IntRange(1, WORKERS_MAX), default=1, show_default=True,
              help="Number of worker processes.")  # fmt: skip
@settings_option
@click.option("--on-stop", type=click.Choice(["leave", "stay"]),
              help="Release tasks at a stop, or keep them for a restart.  "
              "[default: the setting on.stop]")  # fmt: skip
@click.option("--log-format", type=click.Choice(["console", "json"]),
              help="Format of the log.  [default: console on a terminal, else json]")  # fmt: skip
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True,
              help="Lowest level of the log; " + logs.DEBUG_IS)  # fmt: skip
@click.option("--max-restarts", type=click.IntRange(min=0), default=RestartLimits().most,
              show_default=True, help="Restarts per worker within ten minutes.")  # fmt: skip
@click.option("--status-every", type=click.FloatRange(min=0), default=60.0, show_default=True,
              help="Seconds between status_reported events, except on a terminal; 0 for no "
              "events.")  # fmt: skip
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
    """Run an application in worker processes, and restart them after crashes.

    MODULE:APP is a module or a file and, in it, a KafkaStreams or a function that returns one:
    word_count:app, or path/to/word_count.py:app.

    SIGTERM or Ctrl-C closes the workers cleanly, a second Ctrl-C kills them. `headrace
    exit-codes` lists the exit codes.
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
    processes = Processes(launch, output=None if line is None else line.print)
    supervisor = Supervisor(
        workers=workers,
        start=processes.start,
        monotonic=time.monotonic,
        random=Random(),  # noqa: S311 - jitter
        limits=RestartLimits(most=max_restarts),
        display=line or LoggedStatus(log, status_every),
        log=log,
        loaded=lambda loaded: control.open(Path(loaded.state_dir) / loaded.application),
        set_log_level=logs.set_level,
    )
    control = ControlServer(supervisor.submit, log)

    def set_level(level: str) -> str:
        logs.level_number(level)
        return supervisor.submit(lambda one: one.change_log_level(level)).result(ANSWER_WITHIN_S)

    def advertise(endpoint: str) -> None:
        processes.endpoint = queries.endpoint = endpoint

    try:
        queries = LoadedQueries(
            target, settings, lambda: supervisor.health.snapshot, processes.queries
        )
        server = served(http, lambda: supervisor.health, log, set_level, queries, advertise)
        with server, _signals(supervisor):
            log.info("supervisor_started", target=target, workers=workers, **_origins(settings))
            code = supervisor.run(processes.wait)
    finally:
        control.close()
        (line or written).close()
    sys.exit(code)


def _origins(settings: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    origins = origins_of(settings)
    return {"settings_from": origins} if origins else {}


@contextmanager
def _signals(supervisor: Supervisor) -> Iterator[None]:
    """Pass SIGTERM, SIGINT and, unless `nohup` ignores it, SIGHUP to the supervisor."""

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
