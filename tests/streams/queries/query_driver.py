"""Stores in the memory of a test driver's worker, asked as a live worker is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace import KafkaStreams, Topology, TopologyTestDriver
from headrace.streams.metrics.snapshots import ApplicationSnapshot, embedded
from headrace.streams.queries.queries import Queries
from headrace.streams.queries.query_queue import (
    QueryRefusal,
    SendQuery,
    StateQueryRequest,
    StateQueryResponse,
    UnansweredError,
)

SETTINGS = {"application.id": "asked", "bootstrap.servers": "nowhere:1"}


class Held:
    """A topology that runs in a test driver, and what its stores are asked with."""

    def __init__(self, driver: Any, topology: Topology, path: Path) -> None:
        self.driver = driver
        self.questions: list[StateQueryRequest] = []
        self.between: list[Any] = []
        """What is done before the next questions."""
        app = KafkaStreams(topology, {**SETTINGS, "state.dir": str(path)})
        self.queries = Queries(
            app.config, app.plans, app.global_plans, snapshot=self._snapshot, workers=self._workers
        )

    def send(self, *keys: str, topic: str = "words", value: Any = "", timestamp: int = 7) -> None:
        for key in keys:
            self.driver.input(topic).send(key, value, timestamp=timestamp)
        self.driver.run()

    def _worker(self) -> Any:
        return self.driver._worker.worker

    def _snapshot(self) -> ApplicationSnapshot:
        worker = self._worker()
        if worker is None:
            return embedded("asked", "", "running", None)
        worker._snapshots.collect()
        return embedded("asked", "", "running", worker.latest_snapshot)

    def _workers(self) -> dict[int, SendQuery] | None:
        return {} if self._worker() is None else {0: self._ask}

    def _ask(self, question: StateQueryRequest, _: float) -> StateQueryResponse:
        if self.between:
            self.between.pop(0)()
        self.questions.append(question)
        outcome = None
        while outcome is None:
            outcome = self._worker()._queries.answer(question)
        if isinstance(outcome, QueryRefusal):
            raise UnansweredError(outcome)
        return outcome


@contextmanager
def held(topology: Topology, path: Path, **options: Any) -> Iterator[Held]:
    settings = {**SETTINGS, "state.dir": str(path), "processing.guarantee": "exactly_once_v2"}
    with TopologyTestDriver(
        topology, settings, state_dir=path, commit="manual", **options
    ) as driver:
        found = Held(driver, topology, path)
        with found.queries:
            yield found
