from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.patience import PATIENCE_S


class Topics:
    """Topics of one test. Everything whose name begins with a name given out here is its own."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._names: list[str] = []

    def name(self, prefix: str = "topic") -> str:
        """A name that nobody else uses; fit for a topic, a group or an application."""
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        self._names.append(name)
        return name

    def own(self, name: str) -> str:
        """Have what begins with a name deleted at the end; returns it."""
        self._names.append(name)
        return name

    def create(
        self,
        prefix: str = "topic",
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic and return its name once every partition has a leader.

        Records keep for ever unless `config` says otherwise: tests write old timestamps.
        """
        return self.create_named(self.name(prefix), partitions=partitions, config=config)

    def create_named(
        self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic of a given name, as an application's internal topics need it."""
        self._names.append(name)
        settings = {"retention.ms": "-1", **(config or {})}
        topic = NewTopic(name, num_partitions=partitions, config=settings)
        self._admin.create_topics([topic])[name].result(timeout=PATIENCE_S)
        self._await_leaders(name, partitions)
        return name

    def partitions(self, name: str) -> int:
        """How many partitions a topic has; 0 if there is no such topic."""
        metadata = self._admin.list_topics(timeout=PATIENCE_S)
        return len(metadata.topics[name].partitions) if name in metadata.topics else 0

    def delete_all(self) -> None:
        """Delete every topic whose name begins with one of this test's names."""
        prefixes = tuple(self._names)
        present = self._admin.list_topics(timeout=PATIENCE_S).topics
        doomed = [name for name in present if prefixes and name.startswith(prefixes)]
        for deletion in self._admin.delete_topics(doomed).values() if doomed else ():
            deletion.result(timeout=PATIENCE_S)

    def _await_leaders(self, name: str, partitions: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = self._admin.list_topics(name, timeout=PATIENCE_S).topics[name]
            leaders = [partition.leader for partition in found.partitions.values()]
            if len(leaders) == partitions and min(leaders) >= 0:
                return
            time.sleep(0.02)
        raise AssertionError(f"topic {name} has no leader for every partition")
