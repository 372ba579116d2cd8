"""The demo's operations on a cluster, with plain clients and without Headrace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka import admin as _admin
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace import serdes

_TIMEOUT_S = 30
_SLICE_S = 0.03
"""How long a client gathers records: all of it passes at a topic's end."""
_OFFSETS: Any = _admin.OffsetSpec  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Visible:
    """Numbers of visible and of aborted records of a topic."""

    committed: int
    aborted: int


class Cluster:
    """The clients of one run of the demo.

    Args:
        bootstrap: the cluster.
        group: the application that is watched.
    """

    def __init__(self, bootstrap: str, group: str) -> None:
        self.bootstrap = bootstrap
        self._group = group
        # Errors are raised as exceptions; the clients' own log would clutter the console.
        self._common: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
        }
        self._admin = AdminClient(self._common)
        self._known: dict[str, list[int]] = {}
        # Under read_committed the request waits for an open transaction; here it must not.
        self._watcher = self._consumer(isolation="read_uncommitted")

    # -- topics ------------------------------------------------------------------------------

    def create(self, topics: Iterable[str], *, partitions: int) -> None:
        """Create topics."""
        wanted = [NewTopic(topic, num_partitions=partitions) for topic in topics]
        for creation in self._admin.create_topics(wanted).values():
            creation.result(_TIMEOUT_S)

    def delete(self, prefix: str) -> None:
        """Delete the topics and groups whose names have a prefix."""
        topics = [t for t in self._admin.list_topics(timeout=_TIMEOUT_S).topics if _is(t, prefix)]
        groups = self._admin.list_consumer_groups().result(_TIMEOUT_S).valid
        names = [g.group_id for g in groups if _is(g.group_id, prefix)]
        deletions = [*self._admin.delete_topics(topics).values()] if topics else []
        deletions += [*self._admin.delete_consumer_groups(names).values()] if names else []
        for deletion in deletions:
            deletion.result(_TIMEOUT_S)

    # -- writing -----------------------------------------------------------------------------

    def write(self, topic: str, lines: Sequence[str], show: Callable[[int], None]) -> None:
        """Write one record for each line, and wait until all are on the broker."""
        failed: list[KafkaError] = []
        producer = Producer(
            {
                **self._common,
                "enable.idempotence": True,
                "on_delivery": lambda error, _: failed.append(error) if error else None,
            }
        )
        for number, line in enumerate(lines, 1):
            producer.produce(topic, line)
            if number % 1000 == 0:
                producer.poll(0)
                show(number)
        producer.flush(_TIMEOUT_S)
        if failed or len(producer):
            raise RuntimeError(f"the text could not be written to {topic}: {failed[:1]}")
        show(len(lines))

    # -- watching ----------------------------------------------------------------------------

    def committed(self, topic: str) -> dict[int, int]:
        """Return the committed offset of the application in each partition, or 0."""
        places = [TopicPartition(topic, p) for p in self._partitions(topic)]
        found = self._watcher.committed(places, _TIMEOUT_S)
        return {place.partition: max(0, place.offset) for place in found}

    def ends(self, topic: str, *, stable: bool = False) -> dict[int, int]:
        """Return the end of each partition; with `stable`, the last stable offset."""
        level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(topic, p): _OFFSETS.latest() for p in self._partitions(topic)}
        answers = self._admin.list_offsets(wanted, isolation_level=level)
        return {place.partition: a.result(_TIMEOUT_S).offset for place, a in answers.items()}

    def open_records(self, topic: str) -> int:
        """Count the records of open transactions."""
        stable = self.ends(topic, stable=True)
        return sum(self.ends(topic).values()) - sum(stable.values())

    def unread(self, topic: str) -> int:
        """Count the committed records that the application has not committed as read."""
        return sum(1 for _ in self._records(topic, start=self.committed(topic)))

    def offsets_left(self, topic: str) -> int:
        """Like `unread`, without waiting, but including transaction markers and aborted records."""
        return sum(self.ends(topic).values()) - sum(self.committed(topic).values())

    def close(self) -> None:
        """Close the clients."""
        self._watcher.close()

    # -- reading -----------------------------------------------------------------------------

    def counts(self, topic: str) -> dict[str, int]:
        """Return the last count of each word in the topic."""
        last = {}
        for message in self._records(topic):
            key, value = message.key(), message.value()
            assert key is not None
            assert value is not None
            last[serdes.string.deserialize(key)] = serdes.long.deserialize(value)
        return last

    def visible(self, topic: str) -> Visible:
        """Read a whole topic twice: without and with aborted records."""
        committed = sum(1 for _ in self._records(topic))
        everything = sum(1 for _ in self._records(topic, isolation="read_uncommitted"))
        return Visible(committed, everything - committed)

    def _records(
        self,
        topic: str,
        *,
        start: dict[int, int] | None = None,
        isolation: str = "read_committed",
    ) -> Iterator[Message]:
        consumer = self._consumer(isolation=isolation)
        partitions = self._partitions(topic)
        # A client needs half a second to look up the beginning of a partition.
        consumer.assign([TopicPartition(topic, p, start[p] if start else 0) for p in partitions])
        unfinished = set(partitions)
        deadline = time.monotonic() + _TIMEOUT_S
        try:
            while unfinished:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{topic} could not be read to its end")
                for message in consumer.consume(1000, _SLICE_S):
                    error = message.error()
                    if error is None:
                        deadline = time.monotonic() + _TIMEOUT_S
                        yield message
                    elif error.code() == KafkaError._PARTITION_EOF:
                        unfinished.discard(message.partition())
                    else:
                        raise KafkaException(error)
        finally:
            consumer.close()

    def _partitions(self, topic: str) -> list[int]:
        if topic not in self._known:
            found = self._admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
            if found.error is not None:
                return []  # not created yet
            self._known[topic] = sorted(found.partitions)
        return self._known[topic]

    def _consumer(self, *, isolation: str) -> Consumer:
        return Consumer(
            {
                **self._common,
                "group.id": self._group,
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.queue.backoff.ms": 2,
                "fetch.wait.max.ms": 10,
            }
        )


def _is(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}-")
