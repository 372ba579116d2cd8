"""Three nodes of real Kafka, and who leads or coordinates what at this moment."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.streams.devbroker import DevBroker, PortTakenError
from headrace.streams.devbroker.cluster import choose_base, load
from headrace.streams.devbroker.process import is_alive, send, wait_until_ended

NODES = (1, 2, 3)
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
_STOP_TIMEOUT = timedelta(seconds=40)
_ANSWER_S = 5.0
_PORTS_FREE_WITHIN_S = 60.0


def java_hash(text: str) -> int:
    """What `String.hashCode` gives, by which Kafka spreads groups and transactional ids.

    >>> java_hash("hello")
    99162322
    """
    result = 0
    for char in text:
        result = (31 * result + ord(char)) & 0xFFFFFFFF
    return result - (1 << 32) if result >= 1 << 31 else result


def coordinating_partition(identity: str, partitions: int) -> int:
    """The partition of an internal topic whose leader coordinates a group or a producer."""
    value = java_hash(identity)
    return 0 if value == -(1 << 31) else abs(value) % partitions


class Cluster:
    """Three nodes; one thread at a time hurts them, any may ask about them."""

    def __init__(self, directory: Path, *, report: Callable[[str], None] = lambda _: None) -> None:
        self.directory = directory
        # A port given by hand stays the same when all nodes are down at once.
        self._broker = DevBroker(directory, nodes=3, port=choose_base(3), report=report)
        self.bootstrap = ""
        self._admin: AdminClient | None = None
        self.is_away = False
        """Whether all nodes were killed and are not whole again: nothing can go on meanwhile."""
        self.is_throttled = False
        """Whether quotas slow all clients down."""

    def __enter__(self) -> Self:
        self.bootstrap = self._broker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._admin = None
        self._broker.stop()

    @property
    def admin(self) -> AdminClient:
        """A client for questions; made once the cluster runs."""
        if self._admin is None:
            self._admin = AdminClient(
                {
                    "bootstrap.servers": self.bootstrap,
                    "log_level": 0,
                    "reconnect.backoff.ms": 50,
                    "reconnect.backoff.max.ms": 500,
                }
            )
        return self._admin

    def create(self, name: str, partitions: int) -> None:
        """Create a topic of three replicas that keeps its records for ever."""
        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=3,
            config={"min.insync.replicas": "2", "retention.ms": "-1"},
        )
        self.admin.create_topics([topic])[name].result(timeout=30)

    # -- who does what -------------------------------------------------------------------------

    def leader(self, topic: str, partition: int) -> int | None:
        """The node that leads a partition now; None while there is none, or nobody answers."""
        try:
            found = self.admin.list_topics(topic, timeout=_ANSWER_S).topics[topic]
        except KafkaException:
            return None
        if partition not in found.partitions:
            return None
        leader = found.partitions[partition].leader
        return leader if leader in NODES else None

    def group_coordinator(self, group: str) -> int | None:
        """The node that coordinates a group now."""
        return self._coordinator(OFFSETS_TOPIC, group)

    def transaction_coordinator(self, transactional_id: str) -> int | None:
        """The node that coordinates a producer's transactions now."""
        return self._coordinator(TRANSACTIONS_TOPIC, transactional_id)

    def _coordinator(self, topic: str, identity: str) -> int | None:
        try:
            partitions = len(
                self.admin.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions
            )
        except (KafkaException, KeyError):
            return None
        if partitions == 0:
            return None
        return self.leader(topic, coordinating_partition(identity, partitions))

    def is_whole(self) -> bool:
        """Whether every partition has a leader and all its replicas in sync."""
        partitions = self._partitions()
        return bool(partitions) and all(
            partition.leader in NODES and len(partition.isrs) == len(partition.replicas)
            for partition in partitions
        )

    def _partitions(self) -> list[Any]:
        try:
            topics = self.admin.list_topics(timeout=_ANSWER_S).topics
        except KafkaException:
            return []
        return [partition for topic in topics.values() for partition in topic.partitions.values()]

    def restart_out_of_sync(self) -> list[int]:
        """Restart the nodes that have replicas out of sync; returns them.

        A broker stops to replicate a partition for good if records were deleted up to the middle
        of a batch, and it fetches that batch anew: UnexpectedAppendOffsetException in its log.
        """
        nodes = {n for one in self._partitions() for n in set(one.replicas) - set(one.isrs)}
        for node in nodes:
            self.stop(node)
        self.start()
        return sorted(nodes)

    def wait_whole(self, seconds: float) -> bool:
        """Wait until everything is led and replicated again; False if it is not in time."""
        deadline = time.monotonic() + seconds
        while not self.is_whole():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.25)
        return True

    # -- what is done to it --------------------------------------------------------------------

    def kill(self, node: int) -> None:
        """SIGKILL."""
        self._broker.kill(node)

    def stop(self, node: int) -> None:
        """SIGTERM: the node hands over what it leads before it goes; killed if that takes long."""
        record = load(self.directory)
        assert record is not None
        process = next(peer.process for peer in record.nodes if peer.id == node)
        assert process is not None
        send(process, signal.SIGTERM)
        if not wait_until_ended(process, timeout=_STOP_TIMEOUT):
            self._broker.kill(node)

    def pause(self, node: int) -> None:
        """SIGSTOP."""
        self._broker.pause(node)

    def resume(self, node: int) -> None:
        """SIGCONT."""
        self._broker.resume(node)

    def running(self) -> list[int]:
        """The nodes whose process lives."""
        record = load(self.directory)
        nodes = record.nodes if record else ()
        return [node.id for node in nodes if node.process and is_alive(node.process)]

    def start(self) -> None:
        """Start what does not run, wait until it serves."""
        deadline = time.monotonic() + _PORTS_FREE_WITHIN_S
        while True:
            try:
                self._broker.start()
            except PortTakenError:
                # On a busy machine a killed process holds its ports a while longer.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return
