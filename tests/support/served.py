"""The pages that a run serves, and probes that ask for its health all the while."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.supervised import Run

EVERY_S = 0.1


class Served:
    """The pages of a run."""

    def __init__(self, run: Run) -> None:
        self.url = run.wait_for("web_started")[0]["url"]

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def metrics(self) -> dict[str, float]:
        """The sums of all samples, by name."""
        found: dict[str, float] = {}
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            for line in answer.read().decode().splitlines():
                if not line.startswith("#"):
                    name, _, value = line.rpartition(" ")
                    name = name.partition("{")[0]
                    found[name] = found.get(name, 0.0) + float(value)
        return found

    @contextmanager
    def probed(self) -> Iterator[Probes]:
        """Ask for the health until the end of the block."""
        probes = Probes(self)
        probes.start()
        try:
            yield probes
        finally:
            probes.stop()


class Probes(threading.Thread):
    """Asks all the time whether an application lives and whether it is ready."""

    def __init__(self, served: Served) -> None:
        super().__init__(daemon=True)
        self._served = served
        self._ended = threading.Event()
        self.lives: list[int] = []
        """What was answered to each question whether it lives."""
        self.readies: list[tuple[int, dict[str, Any]]] = []
        """What was answered to each question whether it is ready."""

    def run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.lives.append(self._served.get("/health/live")[0])
            self.readies.append(self._served.get("/health/ready"))

    @property
    def reasons(self) -> list[str]:
        """Why it was not ready, in the order of the answers."""
        return [one for code, said in self.readies if code == 503 for one in said["reasons"]]

    @property
    def is_ready(self) -> bool:
        """By the last answer."""
        return bool(self.readies) and self.readies[-1][0] == 200

    def stop(self) -> None:
        """Ask no more."""
        self._ended.set()
        self.join(60)
