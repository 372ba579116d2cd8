"""The run's diary: one JSON line for each thing that was done or happened, with its time."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any


class Diary:
    """Written by several threads; kept in memory for the report as well."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self.entries: list[dict[str, Any]] = []

    def write(self, event: str, **fields: Any) -> None:
        """Write down what happened; `at_s` counts from the beginning of the run."""
        with self._lock:
            entry = {
                "at_s": round(time.monotonic() - self._began, 3),
                "time": time.strftime("%H:%M:%S", time.gmtime()),
                "event": event,
                **fields,
            }
            self.entries.append(entry)
            self._file.write(json.dumps(entry, default=str) + "\n")
            self._file.flush()

    def of(self, event: str) -> list[dict[str, Any]]:
        """All entries of a kind."""
        with self._lock:
            return [entry for entry in self.entries if entry["event"] == event]

    def close(self) -> None:
        self._file.close()
