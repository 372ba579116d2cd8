"""The command `headrace dev`: broker, topics, application and outputs in a single terminal."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import click

from headrace.streams.cli.options import settings_option, target_argument
from headrace.streams.config.secrets import over, revealed
from headrace.streams.config.settings import origins_of
from headrace.streams.devbroker.cluster import DevBroker
from headrace.streams.devbroker.errors import DevBrokerError
from headrace.streams.web import NEEDED

# Detection of saved project files.


ENDINGS = (".py", ".toml", ".avsc")
FILES_MAX = 5_000
_OTHER_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


class FileWatcher:
    """Watcher of saved project files, by modification time and size.

    Args:
        roots: folders to scan, and single files.
    """

    def __init__(self, roots: Iterable[Path]) -> None:
        self._roots = list(dict.fromkeys(root.absolute() for root in roots))
        self._seen = self._scan()

    def __len__(self) -> int:
        return len(self._seen)

    def since(self) -> list[Path]:
        now = self._scan()
        before, self._seen = self._seen, now
        return sorted(p for p in before.keys() | now.keys() if before.get(p) != now.get(p))

    def _scan(self) -> dict[Path, tuple[int, int]]:
        found = {}
        for path in self._files():
            try:
                stat = path.stat()
            except OSError:
                continue  # an editor is replacing the file
            found[path] = (stat.st_mtime_ns, stat.st_size)
            if len(found) == FILES_MAX:
                break
        return found

    def _files(self) -> Iterator[Path]:
        for root in self._roots:
            if root.is_file():
                yield root
            for folder, folders, files in os.walk(root):
                folders[:] = [f for f in folders if _is_project_folder(Path(folder, f))]
                yield from (Path(folder, f) for f in sorted(files) if f.endswith(ENDINGS))


def _is_project_folder(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in _OTHER_FOLDERS:
        return False
    return not (folder / "pyvenv.cfg").exists()


# Child processes that end with `headrace dev`, even if it is killed.
#
#     python -m headrace.streams.cli.dev FILE run my_app:app …   a command of `headrace`
#     python -m headrace.streams.cli.dev FILE --clean-up SETTINGS [BROKER]
#
# FILE is the read end of a pipe. Only `headrace dev` holds the write end, and never writes to it:
# the pipe closes when that process ends, for whatever reason. The command then gets SIGTERM, and
# SIGKILL if it does not stop in time. With ``--clean-up`` it cleans up instead: it removes the
# directory with the settings, and stops the broker if `headrace dev` has started it or was about
# to.


STOP_S = 40.0
"""Seconds between SIGTERM and SIGKILL; longer than the default shutdown timeout."""


def _await_end(file: int) -> None:
    while os.read(file, 64):
        pass


def _follow(file: int) -> None:
    _await_end(file)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _clean_up(settings: Path, brokers: list[str]) -> None:
    shutil.rmtree(settings, ignore_errors=True)
    if brokers:
        from headrace.streams.devbroker.cluster import DevBroker

        DevBroker(brokers[0]).stop()


def main() -> None:
    """Run a command with a parent-death watchdog, or wait for the parent's end and clean up."""
    file, arguments = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(file, False)
    if arguments[0] == "--clean-up":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal may close first
        _await_end(file)
        _clean_up(Path(arguments[1]), arguments[2:])
        return
    threading.Thread(target=_follow, args=(file,), name="headrace-watchdog", daemon=True).start()
    sys.argv = ["headrace", *arguments]
    runpy.run_module("headrace", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()


class Child:
    """Process of a command whose output is passed on line by line.

    It has its own process group, so that Ctrl-C in the terminal does not reach it, and ends when
    this process ends.
    """

    def __init__(self, *arguments: str, print_line: Callable[[str], None]) -> None:
        self._has_line = False
        self._print = print_line
        watchdog_end, self._watchdog_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                _watched_command(watchdog_end, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_without_settings(os.environ),
                pass_fds=[watchdog_end],
                process_group=0,
                text=True,
                errors="replace",
            )
        finally:
            os.close(watchdog_end)
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    def _pass_on(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._has_line = True
            self._print(line.rstrip("\n"))

    def await_output(self) -> None:
        """Wait until the process has printed a line or has ended, for a limited time."""
        give_up_s = time.monotonic() + _READY_S
        while not self._has_line and self._process.poll() is None and time.monotonic() < give_up_s:
            time.sleep(_POLL_S / 10)

    def wait(self) -> int:
        code = self._process.wait()
        self._reader.join()
        return code

    def stop(self) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.wait()
        os.close(self._watchdog_end)


@contextmanager
def cleaned_up_if_killed(settings: Path, broker: Path | None) -> Iterator[None]:
    """Start a process that cleans up if this process is killed; else the caller cleans up."""
    watchdog_end, ours = os.pipe()
    brokers = [] if broker is None else [str(broker)]
    try:
        process = subprocess.Popen(
            _watched_command(watchdog_end, "--clean-up", str(settings), *brokers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[watchdog_end],
            process_group=0,
        )
    finally:
        os.close(watchdog_end)
    try:
        yield
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _watched_command(watchdog_end: int, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "headrace.streams.cli.dev", str(watchdog_end), *arguments]


def _without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without settings, which `headrace dev` passes in a file."""
    return {name: text for name, text in environ.items() if not name.startswith("HEADRACE_")}


PORT = 8080
_HOST = "127.0.0.1"
_OPEN_WITHIN_S = 60.0
_DASHBOARD_POLL_S = 0.2


class DevDashboard:
    """Dashboard that `headrace dev` serves on this machine.

    Args:
        port: the port; None uses 8080, or a free port if that is taken. Restarts of the application
            keep it.
    """

    def __init__(self, port: int | None) -> None:
        self._port = port if port else _free_port(0 if port == 0 else PORT)

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self._port}/"

    @property
    def options(self) -> tuple[str, ...]:
        return ("--http", f"{_HOST}:{self._port}", "--queries")

    def open_soon(self, show: Callable[[str], object] = webbrowser.open) -> None:
        threading.Thread(target=self._open, args=(show,), daemon=True).start()

    def _open(self, show: Callable[[str], object]) -> None:
        give_up_s = time.monotonic() + _OPEN_WITHIN_S
        while time.monotonic() < give_up_s:
            url = f"{self.url}health/live"
            with suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310 - http
                show(self.url)
                return
            time.sleep(_DASHBOARD_POLL_S)


def missing() -> str | None:
    """Return the name of a missing package that the dashboard requires, or None."""
    return next((name for name in NEEDED if find_spec(name) is None), None)


def _free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket() as probe:
            # As the server does: a port in TIME_WAIT is not taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((_HOST, port))
                return int(probe.getsockname()[1])
    raise OSError(f"no port of {_HOST} is free")


_PARTITIONS = 4
_POLL_S = 0.3
_READY_S = 15.0


@click.command()
@target_argument
@click.option("--partitions", type=click.IntRange(min=1),
              help="Partitions of new topics; without it, existing topics may have any number.  "
              "[default: 4]")  # fmt: skip
@click.option("--dir", "directory", type=click.Path(path_type=Path, file_okay=False),
              default=Path(".headrace", "broker"), show_default=True,
              help="Data directory of the broker.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65_000), default=9092, show_default=True,
              help="Port of the broker; 0 for a free port.")  # fmt: skip
@click.option("--http", "http_port", type=click.IntRange(0, 65_535), metavar="PORT",
              help="Port of the dashboard; 0 for a free port.  "
              "[default: 8080, or a free port]")  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open the dashboard in a browser.")
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
    """Run an application and restart it on each save.

    It starts a Kafka broker on this machine unless --bootstrap-servers, the environment or a file
    names a cluster. Then it creates the topics of the application, runs it in a worker, and
    prints its output. A dashboard shows the progress and answers queries of the stores. Ctrl-C
    stops everything; the data is kept.
    """
    with ExitStack() as stack:
        stack.enter_context(_terminated_as_interrupted())
        try:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-dev-")))
            if "bootstrap.servers" in settings:
                stack.enter_context(cleaned_up_if_killed(home, None))
                given = origins_of(settings).get("bootstrap.servers", "the settings")
                click.echo(f"Cluster: {settings['bootstrap.servers']} (from {given})")
            else:
                servers = stack.enter_context(_broker(directory, port, home))
                settings = over(settings, {"bootstrap.servers": servers})
            file = _write(settings, home)
            changes = FileWatcher(_roots(target))
            files = "1 file" if len(changes) == 1 else f"{len(changes)} files"
            click.echo(f"Watching {files}. Press Ctrl-C to stop.")
            dashboard = _dashboard(http_port)
            if dashboard is not None and opens:
                dashboard.open_soon()
            DevSession(target, str(file), partitions, changes, dashboard).run()
        except KeyboardInterrupt:
            click.echo("Ended.")


def _dashboard(port: int | None) -> DevDashboard | None:
    if (lacking := missing()) is not None:
        click.echo(f"No dashboard: it requires {lacking}. Run: pip install 'headrace[web]'")
        return None
    return DevDashboard(port)


class DevSession:
    """Loop of `headrace dev`: run the application, and restart it on each save."""

    def __init__(
        self,
        target: str,
        file: str,
        partitions: int | None,
        changes: FileWatcher,
        dashboard: DevDashboard | None,
    ) -> None:
        self._target = target
        self._config = ("--config", file)
        self._partitions = partitions
        self._changes = changes
        self._dashboard = dashboard

    def run(self) -> None:
        while True:
            with ExitStack() as children:
                self._start(children)
                saved = self._await_save()
                click.echo(f"Saved: {', '.join(_shown(path) for path in saved)}. Restarting.")

    def _start(self, children: ExitStack) -> None:
        count = ["--partitions", str(self._partitions or _PARTITIONS)]
        if self._partitions is None:
            count.append("--any-count")
        made = self._child(children, "topics", "create", "--app", self._target, *count)
        if made.wait() != 0:
            click.echo("Waiting for the next save.")
            return
        tail = self._child(
            children, "topics", "tail", "--app", self._target, "--follow", "--from", "end"
        )
        tail.await_output()  # the first output must not be missed
        options = ("--log-format", "console", "--status-every", "0")
        served = () if self._dashboard is None else self._dashboard.options
        self._child(children, "run", self._target, *options, *served)
        if self._dashboard is not None:
            click.echo(f"Dashboard: {self._dashboard.url}")

    def _child(self, children: ExitStack, *arguments: str) -> Child:
        child = Child(*arguments, *self._config, print_line=click.echo)
        children.callback(child.stop)
        return child

    def _await_save(self) -> list[Path]:
        saved: list[Path] = []
        while True:
            time.sleep(_POLL_S)
            more = self._changes.since()
            # An editor may write several files, and a file in several steps.
            if saved and not more:
                return list(dict.fromkeys(saved))
            saved += more


def _roots(target: str) -> list[Path]:
    location = target.rpartition(":")[0]
    file = Path(location)
    return [Path.cwd(), *([file.parent] if file.suffix == ".py" or os.sep in location else [])]


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


@contextmanager
def _broker(directory: Path, port: int, home: Path) -> Iterator[str]:
    """Run a local broker and yield its address; stop it afterwards if it was started here."""
    with ExitStack() as stack:
        try:
            status = DevBroker(directory).status()
            ran = status.serving
            is_there = any(node.pid for node in status.nodes)
            broker = DevBroker(directory, port=0 if is_there else port, report=click.echo)
            stack.enter_context(cleaned_up_if_killed(home, None if ran else broker.directory))
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
    """Write the settings to a private file, because command lines are visible to all users."""
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
