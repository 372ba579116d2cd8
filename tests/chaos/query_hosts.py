"""The processes that are asked for stores, one a host, and the process that asks them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos import application
from tests.chaos.asked import Asked, Calm, answers_in, followed_in
from tests.chaos.diary import Diary
from tests.chaos.workers import ROOT, Fleet, Place

CALM_S = 3.0
"""For so long no task moves before an answer is to be from its owner; hosts look every 2 s."""
ANSWERS = "answers.jsonl"
REFUSED = "refused.json"


class QueryHost:
    """One of the hosts, and the process that serves it now; whoever strikes it holds `lock`."""

    def __init__(self, name: str) -> None:
        self.name = name
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.endpoint = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        process = self.process
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(number)


class QueryHosts:
    """See the module. What dies is started again.

    Args:
        directory: of the run, with the state of the hosts.
        part_directory: for logs, and for what is told.
        places: the workers, whose hosts these are.
    """

    def __init__(
        self,
        directory: Path,
        part_directory: Path,
        prefix: str,
        places: Sequence[Place],
        diary: Diary,
    ) -> None:
        self._directory = directory
        self._part_directory = part_directory
        self._prefix = prefix
        self._diary = diary
        self._places = places
        self.hosts = [QueryHost(name) for name in sorted({place.host for place in places})]
        self.unprovoked: list[str] = []
        """Ends of processes that nobody provoked."""
        self._bootstrap = ""
        self._asking: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._supervise, name="query-hosts", daemon=True)

    def endpoint_of(self, host: str) -> str:
        """Where a host is asked."""
        return next(one.endpoint for one in self.hosts if one.name == host)

    def start(self, bootstrap: str, *, seed: int) -> None:
        """Start to serve, and to ask."""
        self._bootstrap = bootstrap
        for host in self.hosts:
            self._launch(host)
        self._watch.start()
        plan = {
            "urls": [f"http://{host.endpoint}" for host in self.hosts],
            "seed": seed,
            "directory": str(self._part_directory),
        }
        self._asking = self._spawn("tests.chaos.asking", plan, "asking.log")

    def _launch(self, host: QueryHost) -> None:
        plan = {
            "settings": application.settings(
                self._bootstrap,
                self._directory / f"state-{host.name}",
                prefix=self._prefix,
                application_server=host.endpoint,
            ),
            "prefix": self._prefix,
            "port": host.port,
            "workers": [
                str(self._directory / f"{place.name}.facts")
                for place in self._places
                if place.host == host.name
            ],
        }
        log = f"queries-{host.name}.log"
        host.process = self._spawn("tests.chaos.query_host_process", plan, log)

    def _spawn(self, module: str, plan: dict[str, Any], log: str) -> subprocess.Popen[bytes]:
        with (self._part_directory / log).open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", module, json.dumps(plan)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def _supervise(self) -> None:
        while not self._over.wait(0.05):
            for host in self.hosts:
                process = host.process
                if process is None or process.poll() is None:
                    continue
                code = process.returncode
                self._diary.write("query_host_ended", host=host.name, code=code)
                if code != -signal.SIGKILL:
                    self.unprovoked.append(f"what serves host {host.name} ended with {code}")
                self._over.wait(0.5)
                self._launch(host)

    def wait_calm(self, fleet: Fleet, *, tasks: int, seconds: float) -> Calm | None:
        """Wait for a time in which no task moves, and let questions be asked in it.

        Args:
            tasks: how many there are.
        """
        give_up_s = time.monotonic() + seconds
        owners, since_s = self._owners(fleet), time.time()
        while time.monotonic() < give_up_s:
            time.sleep(0.1)
            now = self._owners(fleet)
            if now != owners or len(now) < tasks:
                owners, since_s = now, time.time()
            elif time.time() - since_s > 2 * CALM_S:
                return Calm(since_s + CALM_S, time.time(), owners)
        return None

    def _owners(self, fleet: Fleet) -> dict[str, str]:
        return {
            task: self.endpoint_of(slot.place.host)
            for slot in fleet.slots
            if slot.lives
            for task in slot.tasks
        }

    def stop(self, calm: Calm | None, *, seconds: float = 30.0) -> Asked:
        """Ask no more, serve no more, and say what was told."""
        asking = self._asking
        if asking is not None:
            asking.terminate()
            try:
                code = asking.wait(seconds)
            except subprocess.TimeoutExpired:
                asking.kill()
                code = asking.wait()
            if code != 0:
                self.unprovoked.append(f"what asks ended with {code}; see asking.log")
        self.close()
        refused = self._part_directory / REFUSED
        followed = sorted(self._part_directory.glob("followed-*.jsonl"))
        return Asked(
            tuple(answers_in(self._part_directory / ANSWERS)),
            tuple(map(followed_in, followed)),
            json.loads(refused.read_text()) if refused.exists() else 0,
            calm,
        )

    def close(self) -> None:
        """End all processes."""
        self._over.set()
        if self._watch.is_alive():
            self._watch.join()
        processes = [self._asking, *(host.process for host in self.hosts)]
        for process in processes:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
