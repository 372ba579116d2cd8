"""`headrace run` in a process, as a user starts it, with a counting application in a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.support import kafka, oracle
from tests.support.patience import PATIENCE_S
from tests.support.processes import IMPORT_PATH, wait_until
from tests.support.topics import Topics

APP = """
import ctypes
import time
from pathlib import Path
from headrace.streams import KafkaStreams, serdes
from headrace.topology import StreamsBuilder

def step(value):
    if value == "poison":
        raise ValueError("a secret of the record")
    if value == "hang":
        print("hanging", flush=True)
        while True:
            time.sleep(1)
    if value == "freeze" and not Path("frozen").exists():
        Path("frozen").touch()
        ctypes.PyDLL(None).pause()  # without end, and with Python's lock
    return value

builder = StreamsBuilder()
stream = builder.stream({input!r}, key=serdes.string, value=serdes.string)
counted = stream.map_values(step, name="step").group_by_key().count(store="counts")
counted.to_stream().to({output!r})
app = KafkaStreams(builder.build(), {settings!r})
"""
COMMAND = [sys.executable, "-P", "-c", "from headrace.streams.cli.main import main; main()", "run"]


class Run:
    """`headrace run` with its log in a file.

    Args:
        home: the current directory; the log goes there too.
        arguments: of the command.
        log: the file's name.
    """

    def __init__(self, home: Path, *arguments: str, log: str = "log") -> None:
        self._log = home / log
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=home,
                env={**os.environ, "PYTHONPATH": IMPORT_PATH},
                stdout=out,
                stderr=subprocess.STDOUT,
                # A process group as that of a command in a terminal.
                start_new_session=True,
            )

    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log's events of a name."""
        found = []
        for line in self.text().splitlines():
            if name not in line:
                continue  # most are of others, and whoever waits asks ten times a second
            with suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and event.get("event") == name:
                    found.append(event)
        return found

    def wait(self, seconds: float = PATIENCE_S) -> int:
        """Wait for the end; returns the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.text()[-6000:]}") from None

    def wait_for(self, event: str, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
        """Wait until the log has so many events with these fields."""

        def found() -> list[dict[str, Any]]:
            return [e for e in self.events(event) if fields.items() <= e.items()]

        wait_until(
            lambda: len(found()) >= count or self.process.poll() is not None,
            what=f"{count} {event}:\n{self.text()[-6000:]}",
        )
        assert len(found()) >= count, f"no {event}:\n{self.text()[-6000:]}"
        return found()

    def wait_running(self, workers: int) -> None:
        """Wait until each worker has tasks and processes records."""

        def running() -> bool:
            by_worker = {e["worker_index"]: e for e in self.events("status_reported")}
            return len(by_worker) == workers and all(
                e["state"] == "running" and e.get("tasks") for e in by_worker.values()
            )

        wait_until(
            lambda: running() or self.process.poll() is not None, what="all workers have tasks"
        )
        assert self.process.poll() is None, self.text()[-6000:]

    def pid(self, index: int) -> int:
        """The last process of a worker."""
        started = [e for e in self.events("worker_started") if e["worker_index"] == index]
        return int(started[-1]["pid"])

    def pids(self) -> list[int]:
        """All processes of workers that there ever were."""
        return [int(e["pid"]) for e in self.events("worker_started")]

    def identity(self, index: int) -> list[str]:
        """The identities that a worker had, over its restarts."""
        events = [e for e in self.events("partitions_assigned") if e["worker_index"] == index]
        return list(dict.fromkeys(e["worker"] for e in events))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def discard(self) -> None:
        """Leave nothing behind, whatever happened."""
        for pid in [self.process.pid, *self.pids()]:
            if is_alive(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()


def is_alive(pid: int) -> bool:
    """Whether a process still does anything."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Counted:
    """An application that counts by key, in a file, with topics of its own.

    Args:
        topics: of the test.
        home: where the file goes.
        partitions: of the input.
    """

    def __init__(self, topics: Topics, home: Path, *, partitions: int = 4, **settings: Any) -> None:
        self.home = home
        self.bootstrap = topics.bootstrap
        self.input = topics.create("in", partitions=partitions)
        self.output = topics.create("out", partitions=partitions)
        self.group = topics.name("app")
        self.expected: Counter[bytes] = Counter()
        self.settings = {
            "application.id": self.group,
            "bootstrap.servers": self.bootstrap,
            "processing.guarantee": "exactly_once_v2",
            "state.dir": str(home / "state"),
            "commit.interval.ms": 20,
            "statestore.cache.max.bytes": 0,
            "consumer.session.timeout.ms": 6_000,
            "consumer.heartbeat.interval.ms": 200,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        (home / "my_app.py").write_text(
            APP.format(input=self.input, output=self.output, settings=self.settings)
        )

    @contextmanager
    def running(self, workers: int, *arguments: str, log: str = "log") -> Iterator[Run]:
        """Run it; whatever happens, no process is left afterwards."""
        own = (f"--workers={workers}", "--status-every=0.3")
        run = Run(self.home, "my_app:app", *own, *arguments, log=log)
        try:
            yield run
        finally:
            run.discard()

    def write(self, count: int = 400, keys: int = 20) -> None:
        """Write input, and expect its counts."""
        records = [b"key-%02d" % (number % keys) for number in range(count)]
        # Before any of them can be counted: others look at what may be there meanwhile.
        self.expected.update(records)
        kafka.write(self.bootstrap, self.input, [(key, b"x") for key in records])

    def write_one(self, value: bytes) -> None:
        kafka.write(self.bootstrap, self.input, [(b"key-00", value)])

    def wait_counted(self, run: Run) -> None:
        def counted() -> bool:
            found = kafka.read(self.bootstrap, self.output)
            return oracle.last_counts(found) == self.expected

        wait_until(lambda: counted() or run.process.poll() is not None, what="all counts")
        assert counted(), run.text()[-6000:]

    def check_exact(self) -> None:
        """Each key's counts are 1, 2, 3 … up to its number of records."""
        oracle.check_exact(kafka.read(self.bootstrap, self.output), self.expected)
