"""The command `headrace dev`: broker, topics, application and its outputs in one terminal."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from headrace.streams.cli.dev.changes import Changes
from headrace.streams.cli.dev.children import Child, tidied
from headrace.streams.cli.dev.page import Page, missing
from headrace.streams.cli.options import settings_option, target_argument
from headrace.streams.devbroker.cluster import DevBroker
from headrace.streams.devbroker.errors import DevBrokerError
from headrace.streams.secrets import over, revealed
from headrace.streams.settings import origins_of

_PARTITIONS = 4
_LOOK_S = 0.3
_READY_S = 15.0


@click.command()
@target_argument
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help="Of the topics that are made; without it, those that exist may have any.  [default: 4]",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".headrace", "broker"),
    show_default=True,
    help="Where the data of the broker live.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_000),
    default=9092,
    show_default=True,
    help="Where the broker listens; 0: a free one.",
)
@click.option(
    "--http",
    "http_port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Where the page is, on this machine; 0: a free port.  "
    "[default: 8080, or one that is free]",
)
@click.option("--open", "opens", is_flag=True, help="Show the page in a browser.")
@settings_option
def dev(
    target: str,
    partitions: int | None,
    directory: Path,
    port: int,
    http_port: int | None,
    opens: bool,
    settings: dict[str, Any],
) -> None:
    """Run an application while it is written: started again whenever a file is saved.

    Starts a Kafka on this machine unless --bootstrap-servers, the environment or a file names one,
    makes the topics that the application reads and writes, runs it in one worker, and prints what
    it writes. A page shows it at work and answers what is in its stores. A mistake is shown, and
    the next save is tried. Ctrl-C ends all of it; the data stay.

    MODULE:APP is what `headrace run` takes.
    """
    with ExitStack() as stack:
        stack.enter_context(_terminated_as_interrupted())
        try:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-dev-")))
            if "bootstrap.servers" in settings:
                stack.enter_context(tidied(home, None))
                given = origins_of(settings).get("bootstrap.servers", "the settings")
                click.echo(f"Cluster: {settings['bootstrap.servers']} (from {given})")
            else:
                servers = stack.enter_context(_broker(directory, port, home))
                settings = over(settings, {"bootstrap.servers": servers})
            file = _write(settings, home)
            changes = Changes(_roots(target))
            files = "1 file" if len(changes) == 1 else f"{len(changes)} files"
            click.echo(f"Watching {files}. Ctrl-C ends.")
            page = _page(http_port)
            if page is not None and opens:
                page.open_soon()
            Session(target, str(file), partitions, changes, page).run()
        except KeyboardInterrupt:
            click.echo("Ended.")


def _page(port: int | None) -> Page | None:
    if (lacking := missing()) is not None:
        click.echo(f"No page: it needs {lacking}; pip install 'headrace[web]'")
        return None
    return Page(port)


class Session:
    """One run of `headrace dev`, from a save to the next, over and over."""

    def __init__(
        self, target: str, file: str, partitions: int | None, changes: Changes, page: Page | None
    ) -> None:
        self._target = target
        self._config = ("--config", file)
        self._partitions = partitions
        self._changes = changes
        self._page = page

    def run(self) -> None:
        """Go on until Ctrl-C."""
        while True:
            with ExitStack() as children:
                self._start(children)
                saved = self._await_save()
                click.echo(f"Saved: {', '.join(_shown(path) for path in saved)}. Starting again.")

    def _start(self, children: ExitStack) -> None:
        count = ["--partitions", str(self._partitions or _PARTITIONS)]
        if self._partitions is None:
            count.append("--any-count")
        made = self._child(children, "topics", "create", "--app", self._target, *count)
        if made.wait() != 0:
            click.echo("It waits for the next save.")
            return
        tail = self._child(
            children, "topics", "tail", "--app", self._target, "--follow", "--from", "end"
        )
        # What the application writes first is to be seen.
        give_up_s = time.monotonic() + _READY_S
        while not tail.has_said() and tail.poll() is None and time.monotonic() < give_up_s:
            time.sleep(_LOOK_S / 10)
        options = ("--log-format", "console", "--status-every", "0")
        served = () if self._page is None else self._page.options
        self._running = self._child(children, "run", self._target, *options, *served)
        if self._page is not None:
            click.echo(f"The page: {self._page.url}")

    def _child(self, children: ExitStack, *arguments: str) -> Child:
        child = Child(*arguments, *self._config, say=click.echo)
        children.callback(child.stop)
        return child

    def _await_save(self) -> list[Path]:
        saved: list[Path] = []
        while True:
            time.sleep(_LOOK_S)
            more = self._changes.since()
            # An editor may write several files, and one of them in several steps.
            if saved and not more:
                return list(dict.fromkeys(saved))
            saved += more


def _roots(target: str) -> list[Path]:
    place = target.rpartition(":")[0]
    file = Path(place)
    return [Path.cwd(), *([file.parent] if file.suffix == ".py" or os.sep in place else [])]


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


@contextmanager
def _broker(directory: Path, port: int, home: Path) -> Iterator[str]:
    """A broker on this machine; stopped at the end where it was started here.

    Gives its servers. From before it is started on, it and `home` are put away where this process
    is killed.
    """
    with ExitStack() as stack:
        try:
            status = DevBroker(directory).status()
            ran = status.serving
            is_there = any(node.pid for node in status.nodes)
            broker = DevBroker(directory, port=0 if is_there else port, report=click.echo)
            stack.enter_context(tidied(home, None if ran else broker.directory))
            servers = broker.start()
        except DevBrokerError as error:
            raise click.ClickException(
                f"{error}\nOr name a cluster: headrace dev ... --bootstrap-servers HOST:PORT"
            ) from error
        if not ran:
            stack.callback(broker.stop)
        click.echo(f"{'Already running' if ran else 'Started'}: {servers} ({broker.directory})")
        yield servers


def _write(settings: Mapping[str, Any], home: Path) -> Path:
    """The settings in a file that nobody else may read: a command line is seen by all."""
    path = home / "settings.toml"
    path.touch(mode=0o600)
    # JSON's strings, numbers and lists are TOML's.
    lines = [f"{json.dumps(n)} = {json.dumps(v)}\n" for n, v in revealed(settings).items()]
    path.write_text("".join(lines))
    return path


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        sys.stdout.flush()
