"""Simulated Kafka cluster: topics, coordinators, and external producers.

Clients observe the same effects as on a real cluster: an open transaction limits `read_committed`
readers, markers are written later and at different times in each partition, the offsets of a
transaction are undecided until the group has its marker, and a zombie is refused by its epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from confluent_kafka import KafkaError, Message

from headrace.state.codec import partition_for_key
from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.protocols import GroupState, Member, Offsets, TopicPartition
from headrace.streams.simulation.world.faults import Faults
from headrace.streams.simulation.world.groups import Group, Metadata
from headrace.streams.simulation.world.kernel import MS, Kernel
from headrace.streams.simulation.world.process import SimulatedProcess
from headrace.streams.simulation.world.transactions import (
    BrokerResponseError,
    TransactionCoordinator,
    Txn,
)
from headrace.streams.testing.local_cluster import (
    CREATE_TIME,
    LocalAdmin,
    LocalCluster,
    LocalTopic,
)
from headrace.topology.context.environment import Headers

T = TypeVar("T")


class SimulatedCluster(LocalCluster[Message]):
    """Simulated Kafka cluster: topics, coordinators and external writers."""

    def __init__(self, kernel: Kernel, group: str) -> None:
        super().__init__(lambda name: f"id-{len(self.topics) + self._deleted}-{name}")
        self.kernel = kernel
        self.group = Group(kernel, group, self.partitions)
        self.offsets[group] = self.group.offsets
        self.transactions = TransactionCoordinator(kernel, write_marker=self._mark, pend=self._pend)
        self.readers: list[tuple[SimulatedProcess, set[TopicPartition]]] = []
        """Processes that wait for records, with the partitions that they read."""
        self._claims: dict[TopicPartition, tuple[int, str]] = {}
        """The last generation and member to which each partition was assigned."""
        self.violations: list[str] = []
        """Violations of invariants detected by the cluster."""
        self._keyless = 0
        self._deleted = 0

    # -- topics --------------------------------------------------------------------------------

    def delete(self, name: str) -> LocalTopic[Message]:
        """Delete a topic; a topic created later with the same name has another id."""
        self._deleted += 1
        return self.topics.pop(name)

    def all_partitions(self) -> list[TopicPartition]:
        return [tp for topic in self.topics for tp in self.partitions(topic)]

    def route(self, topic: str, key: bytes | None, partition: int) -> TopicPartition:
        found = self.topics.get(topic)
        if found is None:
            raise BrokerResponseError(KafkaError._UNKNOWN_TOPIC, topic)
        if partition < 0:
            self._keyless += 1
            count = len(found.logs)
            partition = self._keyless % count if key is None else partition_for_key(key, count)
        return TopicPartition(topic, partition)

    # -- records -------------------------------------------------------------------------------

    def append(
        self,
        tp: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers | None,
        txn: Txn | None,
    ) -> Message:
        log = self.log(tp)
        message = Message(
            topic=tp.topic,
            partition=tp.partition,
            offset=log.end,
            key=key,
            value=value,
            timestamp=(CREATE_TIME, timestamp_ms),
            headers=list(headers) if headers else None,
        )
        log.append(message, txn)
        self._notify_readers(tp)
        return message

    def _mark(self, tp: TopicPartition | None, txn: Txn) -> None:
        if tp is None:
            self.group.settle(txn)
            return
        self.log(tp).mark(txn)
        self._notify_readers(tp)

    def _notify_readers(self, tp: TopicPartition) -> None:
        for process, tps in self.readers:
            if tp in tps and process.alive:
                process.wake(300)

    def _pend(self, txn: Txn) -> None:
        self.group.pending[txn] = None

    # -- offsets -------------------------------------------------------------------------------

    def transactional_offsets(
        self,
        transactional_id: str,
        epoch: int,
        offsets: Offsets,
        metadata: Metadata,
    ) -> None:
        """Handle TxnOffsetCommit, which checks epoch and membership, but not ownership."""
        # The transaction coordinator is called before the group coordinator.
        self.transactions.join(transactional_id, epoch, None)
        self.group.check(metadata, transactional=True)
        self._check_claims(offsets, metadata)
        self.transactions.add_offsets(transactional_id, epoch, self.group.name, offsets)

    def plain_offsets(self, offsets: Offsets, metadata: Metadata) -> None:
        """Handle OffsetCommit."""
        self.group.check(metadata, transactional=False)
        self._check_claims(offsets, metadata)
        self.group.offsets.update(offsets)

    def claim(self, tps: Iterable[TopicPartition], generation: int, instance_id: str) -> None:
        """Record that a member was assigned partitions; ignore outdated generations."""
        for tp in tps:
            if generation >= self._claims.get(tp, (0, ""))[0]:
                self._claims[tp] = (generation, instance_id)

    def disclaim(self, tps: Iterable[TopicPartition], instance_id: str) -> None:
        for tp in tps:
            if tp in self._claims and self._claims[tp][1] == instance_id:
                del self._claims[tp]

    def _check_claims(self, offsets: Offsets, metadata: Metadata) -> None:
        subscribed = {topic for m in self.group.members.values() for topic in m.topics}
        for tp in offsets:
            if tp.topic not in subscribed:
                continue  # the members that subscribed to it may have left
            # The other partitions of a task follow its subscribed topic.
            generation, holder = self._claims.get(tp, (-1, metadata.instance_id))
            if metadata.instance_id != holder and generation >= 0:
                what = f"{metadata.instance_id} commits offsets of {tp}, which {holder} has"
                self.violations.append(what)
                self.kernel.note("cluster", f"VIOLATION: {what}")

    # -- the end of a run ----------------------------------------------------------------------

    def is_settled(self) -> bool:
        return not self.transactions.busy and all(
            not self.log(p).open for p in self.all_partitions()
        )


class SimulatedAdmin(LocalAdmin[SimulatedCluster]):
    """Admin client whose requests are delayed, fail or kill the process."""

    def __init__(
        self, cluster: SimulatedCluster, process: SimulatedProcess, faults: Faults
    ) -> None:
        super().__init__(cluster)
        self._process = process
        self._faults = faults

    def _request(self, call: str, effect: Callable[[], T]) -> T:
        process, faults = self._process, self._faults
        if call == "delete_records" and faults.draw(process, call) == "failure":
            raise FatalClientError("simulated: records could not be deleted")
        if call != "describe":
            process.sleep(process.kernel.between(200, 2 * MS))
        return faults.around(process, call, effect)

    def assigned(self, group: str) -> frozenset[TopicPartition] | None:
        found = self._cluster.group
        assert group == found.name
        if found.joining or not found.members:
            return None
        return frozenset(tp for m in found.members.values() for tp in m.partitions)

    def group_state(self, group: str) -> GroupState:
        found = self._cluster.group
        assert group == found.name
        self._process.sleep(self._process.kernel.between(200, 2 * MS))
        members = {
            Member(m.instance_id, m.client_id, "/simulated"): ()
            if found.joining
            else tuple(m.partitions)
            for m in found.members.values()
        }
        state = "preparing rebalance" if found.joining else "stable" if members else "empty"
        return GroupState(state, members)
