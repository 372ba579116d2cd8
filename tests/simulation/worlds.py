"""One script, two worlds: Kafka's own clients on a broker, and the simulated ones."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import confluent_kafka
from confluent_kafka import KafkaException

from headrace.simulation import CALM
from headrace.streams.simulation.world.cluster import SimulatedCluster
from headrace.streams.simulation.world.consumer_client import SimulatedConsumer
from headrace.streams.simulation.world.faults import Faults
from headrace.streams.simulation.world.kernel import SECOND, Kernel
from headrace.streams.simulation.world.process import SimulatedProcess
from headrace.streams.simulation.world.producer_client import SimulatedProducer
from tests.support.topics import Topics

MAX_POLL_MS = 6_000
SESSION_MS = 6_000
POLL_S = 0.05


class World(Protocol):
    """Where a script runs."""

    topic: str
    group: str

    def consumer(self, **config: Any) -> Any:
        """A consumer client."""

    def producer(self, **config: Any) -> Any:
        """A producer client."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def connect(self, consumer: Any) -> None:
        """Wait until a client that has joined knows a broker for other questions, too."""

    def be_late(self, consumer: Any, *others: Heard) -> None:
        """Poll others, but not this one until its time and its session are over."""


@dataclass
class RealWorld:
    """A broker, and a topic and a group that nobody else uses."""

    topics: Topics
    topic: str = field(init=False)
    group: str = field(init=False)
    made: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic = self.topics.create(partitions=2)
        self.group = self.topics.name("group")

    def config(self, **config: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.topics.bootstrap,
            "group.id": self.group,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": SESSION_MS,
            "max.poll.interval.ms": MAX_POLL_MS,
            "heartbeat.interval.ms": 500,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 2,
            "isolation.level": "read_committed",
            **{name.replace("_", "."): value for name, value in config.items()},
        }

    def consumer(self, **config: Any) -> Any:
        consumer = confluent_kafka.Consumer(self.config(**config))
        self.made.append(consumer)
        return consumer

    def producer(self, **config: Any) -> Any:
        named = {name.replace("_", "."): value for name, value in config.items()}
        named["transactional.id"] = f"{self.topic}-{named.get('transactional.id', 'id')}"
        return confluent_kafka.Producer(
            {"bootstrap.servers": self.topics.bootstrap, "retry.backoff.ms": 5, **named}
        )

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def connect(self, consumer: Any) -> None:
        consumer.list_topics(self.topic, timeout=60)

    def be_late(self, consumer: Any, *others: Heard) -> None:
        del consumer
        poll_for(self, (MAX_POLL_MS + SESSION_MS) / 1000 + 2, others)


class SimulatedWorld:
    """A simulated cluster on which nothing goes wrong."""

    def __init__(self) -> None:
        self.kernel = Kernel(0)
        self.topic, self.group = "t", "g"
        self.cluster = SimulatedCluster(self.kernel, self.group)
        self.cluster.create(self.topic, 2, {})
        self._faults = Faults(CALM, random.Random(0))

    def _process(self) -> SimulatedProcess:
        process = SimulatedProcess(self.kernel, "main")
        process.actor = self.kernel.main
        return process

    def consumer(self, **config: Any) -> Any:
        named = {name.replace("_", "."): value for name, value in config.items()}
        settings = {
            "session.timeout.ms": SESSION_MS,
            "isolation.level": "read_committed",
            **named,
        }
        return SimulatedConsumer(self.cluster, self._process(), self._faults, settings)

    def producer(self, **config: Any) -> Any:
        named = {name.replace("_", "."): value for name, value in config.items()}
        named.setdefault("transactional.id", "id")
        return SimulatedProducer(self.cluster, self._process(), self._faults, named)

    def sleep(self, seconds: float) -> None:
        self.kernel.sleep(int(seconds * SECOND))

    def connect(self, consumer: Any) -> None:
        del consumer

    def be_late(self, consumer: Any, *others: Heard) -> None:
        poll_for(self, 1, others)
        consumer._group.silence(consumer._member_id, consumer._instance_id)
        consumer.expelled()
        poll_for(self, SESSION_MS / 1000 + 2, others)


def poll_for(world: World, seconds: float, others: tuple[Heard, ...]) -> None:
    """Let some members go on for a while."""
    for _ in range(round(seconds / 0.2)):
        for other in others:
            other.poll()
        world.sleep(0.2 - POLL_S * len(others))


def until(world: World, is_so: Callable[[], bool], *, tries: int = 2_000) -> None:
    """Wait until something is so."""
    for _ in range(tries):
        if is_so():
            return
        world.sleep(0.05)
    raise AssertionError("it does not come to be so")


def error_of(function: Callable[..., Any], *args: Any) -> Any:
    """What a call says: None, or its error's code and marks."""
    try:
        function(*args)
    except KafkaException as error:
        cause = error.args[0]
        marks = [
            name for name in ("fatal", "retriable", "txn_requires_abort") if getattr(cause, name)()
        ]
        return cause.name(), *marks
    return None


class Heard:
    """Joins the group and writes down what the callbacks say, as numbers of partitions."""

    def __init__(self, world: World, consumer: Any) -> None:
        self.said: list[tuple[str, int]] = []
        self.has: set[int] = set()
        self.consumer = consumer

        self.subscribe(world.topic)

    def subscribe(self, *topics: str) -> None:
        self.consumer.subscribe(
            list(topics),
            on_assign=self._hear("assign"),
            on_revoke=self._hear("revoke"),
            on_lost=self._hear("lost"),
        )

    def _hear(self, kind: str) -> Callable[[Any, Any], None]:
        def callback(client: Any, partitions: Any) -> None:
            numbers = {p.partition for p in partitions}
            self.said.append((kind, len(numbers)))
            self.has = self.has | numbers if kind == "assign" else self.has - numbers
            # Nothing is read: a call of one's own keeps the client from doing it.
            if kind == "assign":
                client.incremental_assign([])
            else:
                client.incremental_unassign([])

        return callback

    def poll(self) -> None:
        self.consumer.poll(POLL_S)
