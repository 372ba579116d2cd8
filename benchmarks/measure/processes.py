"""Starting a benchmark's application and listening to what it tells."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 600.0

Event = dict[str, Any]


class Service:
    """A running `benchmarks.service`."""

    def __init__(
        self,
        topology: str,
        *,
        bootstrap: str,
        run: str,
        source: str,
        state: Path,
        options: Sequence[str] = (),
    ) -> None:
        self.started_s = time.monotonic()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.service", topology),
                *("--bootstrap", bootstrap, "--run", run, "--source", source),
                *("--state-dir", str(state), *options),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.events: list[Event] = []
        self._heard = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._heard:
                self.events.append(json.loads(line))
                self._heard.notify_all()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def require_running(self) -> None:
        """Raise if the process has ended, which nobody asked it to."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the application ended with {self._process.returncode}")

    def wait_for(self, event: str, *, records: int = 0) -> float:
        """Wait for an event; returns its time since the start of the process, in seconds.

        Args:
            event: its name.
            records: how many records the events of this name must have told of together.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            with self._heard:
                found = [e for e in self.events if e["event"] == event]
                if found and sum(e.get("records", 0) for e in found) >= records:
                    at_s: float = found[-1 if records else 0]["at_s"]
                    return at_s - self.started_s
                self._heard.wait(0.2)
            self.require_running()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {event!r} within {TIMEOUT_S:.0f} s")

    def total(self, event: str) -> int:
        """How many records the events of this name told of together."""
        return sum(e["records"] for e in self.events if e["event"] == event)

    def kill(self) -> None:
        """End the process at once, as a power cut would."""
        self._process.kill()
        self._process.wait()
        self._reader.join(5)

    def stop(self) -> None:
        """Ask the process to stop, and wait for it."""
        self._process.terminate()
        self._process.wait(TIMEOUT_S)
        self._reader.join(5)
