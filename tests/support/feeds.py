"""Changes of stores on a cluster in memory, and those who follow them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.queries.feeds import Feeds, Start
from headrace.streams.queries.subscription import Event
from headrace.streams.testing.local_cluster import Transaction
from headrace.streams.testing.memory_clients import MemoryAdmin, MemoryConsumer
from headrace.streams.testing.memory_cluster import MemoryCluster
from tests.support.processes import wait_until

Raw = tuple[int, bytes, bytes | None]
"""Partition, key and value."""


class _Consumer(MemoryConsumer):
    """Waits where nothing is there, and reads nothing while somebody writes."""

    def __init__(self, memory: MemoryFeeds, *, committed: bool) -> None:
        super().__init__(memory.cluster, group=None, committed=committed)
        self._memory = memory
        self._mute = 0 if committed else memory.mute_polls
        memory.open.append(self)
        memory.made += 1

    def poll(self, max_records: int, timeout_s: float) -> Mapping[TopicPartition, Sequence[Any]]:
        found: Mapping[TopicPartition, Sequence[Any]] = {}
        with self._memory.lock:
            if self._memory.failure is not None:
                raise self._memory.failure
            self._mute -= 1
            if self._mute < 0:
                found = super().poll(max_records, timeout_s)
        if not found:
            time.sleep(0.001)
        return found

    def close(self, *, leave: bool) -> None:
        super().close(leave=leave)
        self._memory.open.remove(self)


class MemoryFeeds:
    """A cluster in memory as `Feeds` reaches it."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.lock = threading.RLock()
        self.admin = MemoryAdmin(cluster)
        self.committed = partial(_Consumer, self, committed=True)
        self.all = partial(_Consumer, self, committed=False)
        self.open: list[_Consumer] = []
        """The consumers that there are."""
        self.made = 0
        self.failure: Exception | None = None
        """What reading raises."""
        self.away: Exception | None = None
        """What is raised where somebody looks whether it is there."""
        self.mute_polls = 0
        """So often those who read aborted records, too, get nothing at first."""

    def reach(self) -> None:
        """It is there, unless it is said to be away."""
        if self.away is not None:
            raise self.away

    def write(self, topic: str, *records: Raw, committed: bool | None = True) -> None:
        """Write records in a transaction."""
        with self.lock:
            transaction = Transaction()
            for number, (partition, key, value) in enumerate(records):
                self.cluster.append(topic, value, key, partition, number, None, transaction)
            if committed is not None:
                self.cluster.end(transaction, committed=committed)

    def compact(self, place: TopicPartition) -> None:
        """Take away what came before the last record of its key, as brokers do."""
        with self.lock:
            log = self.cluster.log(place)
            last = {one.key(): at for at, one in enumerate(log.entries) if one is not None}
            log.entries[:] = [
                one if one is not None and last[one.key()] == at else None
                for at, one in enumerate(log.entries)
            ]


class Follower:
    """Follows changes and keeps what it is told."""

    def __init__(self, feeds: Feeds, store: str, start: Start | None = None, **more: Any) -> None:
        self._feeds = feeds
        self.told: list[Event] = []
        self._woken = threading.Event()
        self.subscription = feeds.follow(
            store, start=start or Start(), wake=self._woken.set, **more
        )

    def take(self) -> list[Event]:
        self.told += self.subscription.take()[0]
        return self.told

    def named(self, *names: str) -> list[Any]:
        """The documents of events with these names, so far."""
        return [json.loads(event.data) for event in self.take() if event.name in names]

    def changes(self, count: int) -> list[Any]:
        """Wait for so many changes; there are no more."""
        wait_until(lambda: len(self.named("change")) >= count, what=f"{count} changes")
        found = self.named("change")
        assert len(found) == count, found
        return found

    def closed(self) -> str:
        """Wait for the end; returns why."""
        wait_until(lambda: bool(self.named("closed")), what="the end")
        return str(self.named("closed")[0]["reason"])

    def positions(self) -> list[str | None]:
        """Where it was behind each change."""
        return [event.position for event in self.take() if event.name == "change"]

    def leave(self) -> None:
        self._feeds.leave(self.subscription)


def bare(documents: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Keys and values."""
    return [(one["key"], one["value"]) for one in documents]
