"""A simulated Kafka cluster: topics, the two coordinators, and external writers.

What a client may see of a real cluster is told apart here: open transactions end what
`read_committed` sees, markers come later and at a time of their own in each partition, offsets of a
transaction are undecided until its marker is with the group, and a zombie is refused by its epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, Message

from headrace.streams.kafka.protocols import CommittedOffset, GroupState, Member, TopicPartition
from headrace.streams.simulation.world.groups import Group, Metadata
from headrace.streams.simulation.world.kernel import Kernel
from headrace.streams.simulation.world.log import Log, Topic, Txn
from headrace.streams.simulation.world.process import Process
from headrace.streams.simulation.world.transactions import RefusedError, TransactionCoordinator
from headrace.streams.testing.local_admin import LocalAdmin
from headrace.topology.context.environment import Headers

CREATE_TIME = 1
"""Kafka's mark for a timestamp that the producer set."""


class Cluster:
    """Simulated Kafka cluster: topics, coordinators and external writers."""

    def __init__(self, kernel: Kernel, group: str) -> None:
        self.kernel = kernel
        self.topics: dict[str, Topic] = {}
        self.group = Group(kernel, group, self.places)
        self.memberless: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        """The offsets of groups without members."""
        self.transactions = TransactionCoordinator(kernel, write_marker=self._mark, pend=self._pend)
        self.readers: list[tuple[Process, set[TopicPartition]]] = []
        """Processes that wait for records, and of which partitions."""
        self._claims: dict[TopicPartition, tuple[int, str]] = {}
        """Who was told last that it has a partition of the group, and in which generation."""
        self.violations: list[str] = []
        """What must never happen, noticed by the cluster."""
        self._keyless = 0
        self._deleted = 0

    # -- topics --------------------------------------------------------------------------------

    def create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic, unless it is there."""
        if name not in self.topics:
            topic_id = f"id-{len(self.topics) + self._deleted}-{name}"
            logs = [Log() for _ in range(partitions)]
            self.topics[name] = Topic(name, topic_id, logs, dict(config))

    def delete(self, name: str) -> Topic:
        """Delete a topic; one that is made later under its name is another one."""
        self._deleted += 1
        return self.topics.pop(name)

    def log(self, place: TopicPartition) -> Log:
        """One partition's log."""
        return self.topics[place.topic].logs[place.partition]

    def places(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic; none of one that is not there."""
        found = self.topics.get(topic)
        return [TopicPartition(topic, p) for p in range(len(found.logs))] if found else []

    def delete_before(self, place: TopicPartition, offset: int) -> None:
        """Delete the records before an offset."""
        log = self.log(place)
        log.start = max(log.start, min(offset, log.end))

    def all_places(self) -> list[TopicPartition]:
        """Every partition of every topic."""
        return [place for topic in self.topics for place in self.places(topic)]

    def route(self, topic: str, key: bytes | None, partition: int) -> TopicPartition:
        """Where a record goes."""
        found = self.topics.get(topic)
        if found is None:
            raise RefusedError(KafkaError._UNKNOWN_TOPIC, topic)
        if partition < 0:
            self._keyless += 1
            partition = found.partition_of(key, self._keyless)
        return TopicPartition(topic, partition)

    # -- records -------------------------------------------------------------------------------

    def append(
        self,
        place: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers | None,
        txn: Txn | None,
    ) -> Message:
        """Write a record."""
        log = self.log(place)
        message = Message(
            topic=place.topic,
            partition=place.partition,
            offset=log.end,
            key=key,
            value=value,
            timestamp=(CREATE_TIME, timestamp_ms),
            headers=list(headers) if headers else None,
        )
        log.append(message, txn)
        self._tell_readers(place)
        return message

    def _mark(self, place: TopicPartition | None, txn: Txn) -> None:
        if place is None:
            self.group.settle(txn)
            return
        self.log(place).mark(txn)
        self._tell_readers(place)

    def _tell_readers(self, place: TopicPartition) -> None:
        for process, places in self.readers:
            if place in places and process.alive and process.actor is not None:
                self.kernel.wake(process.actor, 300)

    def _pend(self, txn: Txn) -> None:
        self.group.pending[txn] = None

    # -- offsets -------------------------------------------------------------------------------

    def transactional_offsets(
        self,
        transactional_id: str,
        epoch: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
        metadata: Metadata,
    ) -> None:
        """TxnOffsetCommit: the epoch is checked, the membership is, ownership is not."""
        # The coordinator of transactions comes first, that of the group second.
        self.transactions.join(transactional_id, epoch, None)
        self.group.check(metadata, transactional=True)
        self._check_claims(offsets, metadata)
        self.transactions.add_offsets(transactional_id, epoch, offsets)

    def plain_offsets(
        self, offsets: Mapping[TopicPartition, CommittedOffset], metadata: Metadata
    ) -> None:
        """OffsetCommit."""
        self.group.check(metadata, transactional=False)
        self._check_claims(offsets, metadata)
        self.group.offsets.update(offsets)

    def claim(self, places: Iterable[TopicPartition], generation: int, instance_id: str) -> None:
        """A member is told that it has these; what it is told too late does not count."""
        for place in places:
            if generation >= self._claims.get(place, (0, ""))[0]:
                self._claims[place] = (generation, instance_id)

    def disclaim(self, places: Iterable[TopicPartition], instance_id: str) -> None:
        """A member has let go of these."""
        for place in places:
            if place in self._claims and self._claims[place][1] == instance_id:
                del self._claims[place]

    def _check_claims(
        self, offsets: Mapping[TopicPartition, CommittedOffset], metadata: Metadata
    ) -> None:
        subscribed = {topic for m in self.group.members.values() for topic in m.topics}
        for place in offsets:
            if place.topic not in subscribed:
                continue  # nor is it once those that did subscribe to it are gone
            # The other partitions of a task go with that of its lead topic.
            generation, holder = self._claims.get(place, (-1, metadata.instance_id))
            if metadata.instance_id != holder and generation >= 0:
                what = f"{metadata.instance_id} commits offsets of {place}, which {holder} has"
                self.violations.append(what)
                self.kernel.note("cluster", f"VIOLATION: {what}")

    # -- the end of a run ----------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Whether no transaction is open or waits for a marker."""
        return not self.transactions.busy and all(not self.log(p).open for p in self.all_places())


class SimulatedAdmin(LocalAdmin[Cluster]):
    """What the runtime asks about topics."""

    def assigned(self, group: str) -> frozenset[TopicPartition] | None:
        """What the members of a settled group have; None while it shares out."""
        found = self._cluster.group
        assert group == found.name
        if found.joining or not found.members:
            return None
        return frozenset(place for m in found.members.values() for place in m.partitions)

    def group_state(self, group: str) -> GroupState:
        """The state of the group; while it shares out, nothing is known of what members have."""
        found = self._cluster.group
        assert group == found.name
        members = {
            Member(m.instance_id, m.client_id, "/simulated"): ()
            if found.joining
            else tuple(m.partitions)
            for m in found.members.values()
        }
        state = "preparing rebalance" if found.joining else "stable" if members else "empty"
        return GroupState(state, members)

    def progress(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """What the group has committed."""
        return {
            p: c.offset
            for p, c in SimulatedAdmin.committed_offsets(self, group, partitions).items()
        }

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed, with the text beside each offset."""
        found = self._cluster.group
        assert group == found.name
        return {p: found.offsets[p] for p in partitions if p in found.offsets}
