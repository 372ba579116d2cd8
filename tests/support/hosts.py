"""Several hosts of one application in this process: each has some tasks, and serves its stores.

The files are those of one test driver. Which host has what is what its workers tell and what the
group says, so a host that answered for what it was not given would be seen by its name.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace import KafkaStreams, Topology, TopologyTestDriver
from headrace.streams.config.endpoints import with_endpoint
from headrace.streams.kafka.protocols import GroupState, Member, TopicPartition
from headrace.streams.metrics.snapshots import ApplicationSnapshot, HealthSnapshot, TaskSnapshot
from headrace.streams.queries.queries import Queries
from headrace.streams.queries.query_queue import (
    NO_PARTITION,
    Outcome,
    QueryRefusal,
    StateQueryRequest,
    StateQueryResponse,
    UnansweredError,
)
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import HttpServer
from tests.support.snapshots import application_snapshot, task_snapshot

SETTINGS = {"application.id": "asked", "bootstrap.servers": "nowhere:1"}


@dataclass
class Group:
    """The group as brokers describe it.

    Args:
        given: the partitions of each endpoint, the same ones of all sub-topologies.
        asked: how often it was described.
    """

    plans: Any
    partitions: int
    given: dict[str, set[int]] = field(default_factory=dict)
    state: str = "stable"
    asked: int = 0
    failure: Exception | None = None

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(names, self.partitions)

    def group_state(self, group: str) -> GroupState:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        members = {
            Member(f"member-{n}", with_endpoint("asked-consumer", endpoint), "/h"): tuple(
                TopicPartition(
                    plan.subscribed_topic(self.partition_counts(plan.topics.all_sources)), p
                )
                for plan in self.plans
                for p in sorted(some)
                if self.state == "stable"
            )
            for n, (endpoint, some) in enumerate(self.given.items())
        }
        return GroupState(self.state, members)


class Host:
    """One of the hosts."""

    def __init__(
        self, app: KafkaStreams, group: Group, driver: TopologyTestDriver, **options: Any
    ) -> None:
        self._driver: Any = driver
        self.tasks: set[int] = set()
        """The partitions that its workers have, of each sub-topology."""
        self.remaining = 0
        self.loaded: Queries | None = None
        health = HealthSnapshot(
            snapshot=application_snapshot(), turned_s=1.0, is_loaded=True, has_failed=False
        )
        self.server = HttpServer(
            lambda: health, "0", log=EventLog(), queries=lambda: self.loaded, **options
        )
        self.endpoint = self.server.url.removeprefix("http://")
        self.queries = self.loaded = Queries(
            replace(app.config, application_server=self.endpoint),
            app.plans,
            app.global_plans,
            snapshot=lambda: self._snapshot(app),
            workers=lambda: {0: self._ask},
            cluster=lambda: group,
        )

    def _ask(self, question: StateQueryRequest, _: float) -> StateQueryResponse:
        """What a worker of this host says of rows in its memory: of its own tasks alone."""
        outcome: Outcome | None = None
        if question.partition not in {*self.tasks, NO_PARTITION}:
            outcome = QueryRefusal("another worker has the task", is_elsewhere=True)
        while outcome is None:
            outcome = self._driver._worker.present()._queries.answer(question)
        if isinstance(outcome, QueryRefusal):
            raise UnansweredError(outcome)
        return outcome

    def _snapshot(self, app: KafkaStreams) -> ApplicationSnapshot:
        told = application_snapshot(at_s=time.monotonic())
        (view,) = told.workers
        assert view.snapshot is not None
        tasks: tuple[TaskSnapshot, ...] = tuple(
            task_snapshot(p, sub=plan.id) for plan in app.plans for p in sorted(self.tasks)
        )
        return replace(told, workers=(replace(view, snapshot=replace(view.snapshot, tasks=tasks)),))

    def get(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"{self.server.url}/api/stores{path}", data, headers)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                found = error.code, json.load(error)
                print(path, found)  # shown of a test that fails
                return found

    def close(self) -> None:
        self.server.close()
        self.queries.close()


class Hosts:
    """See the module.

    Args:
        given: the partitions of each host.
        options: of the servers.
    """

    def __init__(
        self, path: Path, topology: Topology, given: list[set[int]], **options: Any
    ) -> None:
        self.partitions = max(max(some) for some in given if some) + 1
        settings = {**SETTINGS, "state.dir": str(path)}
        self.driver = TopologyTestDriver(
            topology,
            settings,
            state_dir=path,
            partitions=self.partitions,
            commit="manual",
            now=time.time_ns() // 1_000_000,
        )
        app = KafkaStreams(topology, settings)
        self.group = Group(app.plans, self.partitions)
        self.hosts = [Host(app, self.group, self.driver, **options) for _ in given]
        for host, some in zip(self.hosts, given, strict=True):
            self.give(host, some)

    def give(self, host: Host, partitions: set[int]) -> None:
        """Have a host have these partitions, and the group say so."""
        host.tasks = set(partitions)
        self.group.given[host.endpoint] = set(partitions)

    def send(self, topic: str, *records: tuple[Any, Any], timestamp: int = 7) -> None:
        for key, value in records:
            self.driver.input(topic).send(key, value, timestamp=timestamp)
        self.driver.commit()

    def close(self) -> None:
        for host in self.hosts:
            host.close()
        self.driver.close()
