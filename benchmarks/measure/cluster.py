"""Cluster of a benchmark: creates, fills and reads topics."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.jobs.job import Record
from headrace.streams.devbroker import DevBroker

TIMEOUT_S = 60.0


@contextmanager
def open_cluster(bootstrap: str | None) -> Iterator[Cluster]:
    """Connect to the given cluster, or start a temporary broker."""
    if bootstrap is not None:
        yield Cluster(bootstrap)
        return
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory,
        DevBroker(Path(directory, "broker"), port=0) as broker,
    ):
        yield Cluster(broker.bootstrap, broker.status().nodes[0].pid, broker.directory)


@dataclass(slots=True)
class Outcome:
    """Content of a topic: number of records, and the last value of each key."""

    count: int
    last: dict[bytes, bytes | None]


class Cluster:
    """Topics and records of benchmarks on one cluster."""

    def __init__(
        self, bootstrap: str, broker_pid: int | None = None, directory: Path | None = None
    ) -> None:
        self.bootstrap = bootstrap
        self.broker_pid = broker_pid
        self._directory = directory
        # Silent: a temporary broker stops before its clients.
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})

    def create(self, *names: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create topics and wait until each partition has a leader."""
        # Timestamps are generated, and a broker deletes old records.
        chosen = {"retention.ms": "-1", **(config or {})}
        topics = [NewTopic(n, num_partitions=partitions, config=chosen) for n in names]
        for created in self.admin.create_topics(topics).values():
            created.result(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while not all(self._leads(name, partitions) for name in names):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{', '.join(names)}: no leader for every partition")
            time.sleep(0.05)

    def _leads(self, name: str, partitions: int) -> bool:
        found = self.admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions
        return len(found) == partitions and all(p.leader >= 0 for p in found.values())

    def delete(self, prefix: str) -> None:
        """Delete every topic whose name begins with `prefix`."""
        names = [
            n for n in self.admin.list_topics(timeout=TIMEOUT_S).topics if n.startswith(prefix)
        ]
        for deleted in self.admin.delete_topics(names).values() if names else ():
            try:
                deleted.result(TIMEOUT_S)
            except KafkaException as error:
                # A repeated request fails if the first one succeeded.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise

    def stored_bytes(self, prefix: str) -> int:
        """Return the size of topics with a prefix, and of Kafka's internal topics.

        0 if the broker was not started here.
        """
        found = [] if self._directory is None else self._directory.rglob("*.log")
        return sum(
            file.stat().st_size
            for file in found
            if file.parent.name.startswith((prefix, "__consumer_offsets-", "__transaction_state-"))
        )

    def fill(self, topic: str, records: Iterable[Record]) -> None:
        """Write records; equal keys go to the same partition, records without a key to any."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 2,
                "linger.ms": 20,
                "compression.type": "lz4",
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "queue.buffering.max.messages": 500_000,
            }
        )
        for key, value, time_ms in records:
            while True:
                try:
                    producer.produce(topic, value, key, timestamp=time_ms)
                except BufferError:
                    producer.poll(0.1)
                    continue
                break
        if producer.flush(TIMEOUT_S):
            raise TimeoutError(f"{topic} could not be filled within {TIMEOUT_S:.0f} s")

    def read(self, topic: str, *, each_record: bool = False) -> Outcome:
        """Read the committed records of a topic.

        Args:
            topic: the topic.
            each_record: whether the result has all records, by key and value together.
        """
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"{topic}-check",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.queue.backoff.ms": 2,
            }
        )
        ends = {}
        for partition in consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions:
            end = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)[1]
            if end > 0:
                ends[partition] = end
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        outcome = Outcome(0, {})
        deadline = time.monotonic() + TIMEOUT_S
        while any(
            p.offset < ends[p.partition]
            for p in consumer.position([TopicPartition(topic, partition) for partition in ends])
        ):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} could not be read within {TIMEOUT_S:.0f} s")
            batch = consumer.consume(20_000, 0.1)
            if any(map(Message.error, batch)):
                raise KafkaException(next(m.error() for m in batch if m.error()))
            outcome.count += len(batch)
            messages: list[Any] = batch
            keys: Any = map(Message.key, batch)
            if each_record:
                keys = (m.key() + m.value() for m in messages)
            pairs: Any = zip(keys, map(Message.value, batch), strict=True)
            outcome.last.update(pairs)
        consumer.close()
        return outcome
