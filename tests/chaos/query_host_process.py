"""Serves the stores of one host, as `headrace run --http --queries` does beside its workers.

python -m tests.chaos.query_host_process '{"settings": {...}, "prefix": "", "port": 1, "workers":
["w0.facts"]}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.streams import KafkaStreams
from headrace.streams.metrics.snapshots import (
    ApplicationSnapshot,
    HealthSnapshot,
    WorkerSnapshot,
    WorkerView,
)
from headrace.streams.queries.queries import Queries
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import HttpServer
from tests.chaos import application

# Not in a thread: msgspec crashes if two threads decode the first document of a type.
_decode_snapshot = msgspec.json.Decoder(WorkerSnapshot).decode


class SnapshotFiles:
    """What the workers of this host told last, as their supervisor would know it."""

    def __init__(self, paths: Sequence[Path], name: str) -> None:
        self._paths = paths
        self._name = name

    def __call__(self) -> ApplicationSnapshot:
        views = (self._view(index, path) for index, path in enumerate(self._paths))
        return ApplicationSnapshot(
            application=self._name, version="", topology="", workers=tuple(views)
        )

    @staticmethod
    def _view(index: int, path: Path) -> WorkerView:
        try:
            pid, _, text = path.read_bytes().partition(b" ")
            os.kill(int(pid), 0)
            snapshot = _decode_snapshot(text)
        except (OSError, ValueError, msgspec.DecodeError):
            return WorkerView(index=index, state="", pid=None, restarts=0, snapshot=None)
        return WorkerView(index=index, state="running", pid=int(pid), restarts=0, snapshot=snapshot)


def serve(plan: dict[str, Any]) -> None:
    """Serve until told to stop."""
    app = KafkaStreams(application.build_topology(plan["prefix"]), plan["settings"])
    snapshot = SnapshotFiles([Path(path) for path in plan["workers"]], app.config.application_id)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    queries = Queries(app.config, app.plans, app.global_plans, snapshot=snapshot)

    def health() -> HealthSnapshot:
        now_s = time.monotonic()
        return HealthSnapshot(snapshot=snapshot(), turned_s=now_s, is_loaded=True, has_failed=False)

    address = f"127.0.0.1:{plan['port']}"
    with queries, HttpServer(health, address, log=EventLog(), queries=lambda: queries):
        print("serving", address, flush=True)
        over.wait()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
