"""A user of the secured broker, with an application and topics of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.streams.devbroker import DevBroker
from headrace.streams.kafka.acls import Right, of_application
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support import kafka
from tests.support.patience import PATIENCE_S


def word_count(source: str, output: str) -> Topology:
    """Counts words behind a repartition topic."""
    builder = StreamsBuilder()
    words = builder.stream(source, key=serdes.string, value=serdes.string)
    grouped = words.group_by(lambda _, word: word, key=serdes.string, name="by-word")
    grouped.count(store="counts").to_stream().to(output)
    return builder.build()


@dataclass
class Tenant:
    """A user of the secured broker with an application that counts words.

    Args:
        more: settings over those that are chosen here.
    """

    broker: DevBroker
    home: Path
    name: str
    guarantee: str
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return f"{self.name}-in"

    @property
    def output(self) -> str:
        return f"out-of-{self.name}"

    @property
    def application(self) -> str:
        return f"app-{self.name}"

    @property
    def settings(self) -> dict[str, Any]:
        return {
            **self.broker.settings(self.name),
            "application.id": self.application,
            "processing.guarantee": self.guarantee,
            "state.dir": str(self.home),
            "commit.interval.ms": 100,
            "repartition.purge.interval.ms": 200,
            "consumer.session.timeout.ms": 6000,
            "task.timeout.ms": 20_000,
            **self.more,
        }

    @property
    def topology(self) -> Topology:
        return word_count(self.source, self.output)

    @property
    def rights(self) -> list[Right]:
        """Those of the page docs/operations.md."""
        return of_application(self.application, sources=[self.source], outputs=[self.output])

    def prepare(self, *, timestamp: int = 0, partitions: int = 1) -> None:
        self.broker.grant(self.name)
        admin = AdminClient({**self.broker.settings(), "log_level": 2})
        new = [NewTopic(name, partitions) for name in (self.source, self.output)]
        for future in admin.create_topics(new).values():
            future.result(PATIENCE_S)
        self.write("a b a", timestamp=timestamp)

    def write(self, words: str, *, timestamp: int = 0) -> None:
        self.write_records([(word, word) for word in words.split()], timestamp=timestamp)

    def write_records(self, records: Iterable[tuple[str, str]], *, timestamp: int = 0) -> None:
        producer = Producer({**self.broker.settings(), "log_level": 2})
        for key, value in records:
            producer.produce(self.source, value, key, timestamp=timestamp)
        assert producer.flush(PATIENCE_S) == 0

    def read(self, topic: str) -> list[kafka.Record]:
        """Read a topic as the administrator, who may."""
        settings = {**self.broker.settings(), "log_level": "2"}
        return kafka.read(settings.pop("bootstrap.servers"), topic, **settings)
