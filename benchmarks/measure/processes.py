"""Process of a benchmark's application, and the events that it prints."""

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


class ApplicationProcess:
    """Handle of a running `benchmarks.service`, with its events."""

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
        self._received = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._received:
                self.events.append(json.loads(line))
                self._received.notify_all()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def require_running(self) -> None:
        """Raise if the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the application ended with {self._process.returncode}")

    def wait_for(self, event: str, *, records: int = 0) -> float:
        """Wait for an event; return its time since the start of the process, in seconds.

        Args:
            event: name of the event.
            records: total number of records of all events of this name.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            with self._received:
                found = [e for e in self.events if e["event"] == event]
                if found and sum(e.get("records", 0) for e in found) >= records:
                    at_s: float = found[-1 if records else 0]["at_s"]
                    return at_s - self.started_s
                self._received.wait(0.2)
            self.require_running()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {event!r} within {TIMEOUT_S:.0f} s")

    def total(self, event: str) -> int:
        """Return the number of records of all events of this name."""
        return sum(e["records"] for e in self.events if e["event"] == event)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._reader.join(5)

    def stop(self) -> None:
        """Stop the process with SIGTERM, and wait for it."""
        self._process.terminate()
        self._process.wait(TIMEOUT_S)
        self._reader.join(5)
