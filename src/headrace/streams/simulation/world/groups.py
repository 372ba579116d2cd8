"""Group coordinator of a simulated cluster: static members, generations, cooperative rebalances.

    STABLE ─► (a member joins, leaves or expires) ─► JOINING ─► (all have joined) ─► STABLE

A member keeps its membership under its group.instance.id until its session ends, and a new process
with the same id takes it over without a rebalance. Partitions move in two generations, as with
cooperative-sticky: the old owner releases them in the first, and the new owner receives them in the
second.

Offsets in a transaction are checked for membership only, never for ownership.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from confluent_kafka import KafkaError

from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.simulation.world.kernel import MS, Kernel
from headrace.streams.simulation.world.process import SimulatedProcess
from headrace.streams.simulation.world.transactions import BrokerResponseError, Txn


@dataclass(frozen=True, slots=True)
class Metadata:
    """Membership of a client, which is sent with offsets."""

    group: str
    generation: int
    member_id: str
    instance_id: str | None


class MemberClient(Protocol):
    """Callbacks from the coordinator to a member, which arrive with a delay."""

    process: SimulatedProcess
    client_id: str

    def must_rejoin(self) -> None:
        """Handle the start of a rebalance."""

    def synced(self, generation: int, partitions: Sequence[TopicPartition]) -> None:
        """Handle the start of a generation."""

    def expelled(self) -> None:
        """Handle the end of the session."""

    def fenced(self) -> None:
        """Handle another process with the same group.instance.id."""


@dataclass(slots=True, eq=False)
class SimulatedMember:
    """Member of the group, with its subscription and its assignment."""

    instance_id: str
    member_id: str
    client: MemberClient
    topics: tuple[str, ...]
    session_us: int
    client_id: str
    """The client.id of the first process; a process that takes over the membership keeps it."""
    has_joined: bool = False
    partitions: list[TopicPartition] = field(default_factory=list)


class Group:
    """Consumer group with its committed offsets."""

    def __init__(
        self, kernel: Kernel, name: str, tps: Callable[[str], Sequence[TopicPartition]]
    ) -> None:
        self._kernel = kernel
        self._partitions_of = tps
        self.name = name
        self.generation = 0
        self.joining = False
        self.members: dict[str, SimulatedMember] = {}
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        self.pending: dict[Txn, None] = {}
        """The transactions whose offsets are undecided."""
        self._numbers = 0
        self._round = 0

    # -- members -------------------------------------------------------------------------------

    def join(
        self, client: MemberClient, instance_id: str, topics: Sequence[str], session_us: int
    ) -> str:
        """Join the group, or take over an earlier process's membership; return the member id."""
        self._numbers += 1
        member_id = f"{instance_id}#{self._numbers}"
        before = self.members.get(instance_id)
        client_id = client.client_id if before is None else before.client_id
        member = SimulatedMember(
            instance_id, member_id, client, tuple(topics), session_us, client_id, has_joined=True
        )
        self.members[instance_id] = member
        client.process.on_silence.append(lambda: self._watch(member))
        if before is not None:
            member.partitions = before.partitions
            self._note(f"{instance_id} is back as {member_id}")
            old = before.client
            if old is not client:
                old.process.when_up(self._kernel.between(MS, 300 * MS), old.fenced)
            if not self.joining:
                self._send(member)
                return member_id
        else:
            self._note(f"{member_id} joins")
        self._rebalance(member)
        return member_id

    def rejoin(self, member_id: str, instance_id: str) -> None:
        self._rebalance(self._member(member_id, instance_id))

    def leave(self, member_id: str, instance_id: str) -> None:
        member = self.members.get(instance_id)
        if member is not None and member.member_id == member_id:
            self._note(f"{member_id} leaves")
            self._remove(member)

    def silence(self, member_id: str, instance_id: str) -> None:
        """Let the session of a member expire that sends no more heartbeats."""
        member = self.members.get(instance_id)
        if member is None or member.member_id != member_id:
            return

        def expire() -> None:
            if self.members.get(instance_id) is member:
                self._note(f"session of {member_id} ends")
                self._remove(member)

        self._kernel.after(member.session_us, expire)

    def check(self, metadata: Metadata, *, transactional: bool) -> None:
        """Refuse offsets of a client that is not a member of this generation."""
        if metadata.instance_id is not None:
            member = self.members.get(metadata.instance_id)
            if member is None:
                raise BrokerResponseError(KafkaError.UNKNOWN_MEMBER_ID)
            if member.member_id != metadata.member_id:
                raise BrokerResponseError(KafkaError.FENCED_INSTANCE_ID)
        elif metadata.generation < 0 and transactional:
            return
        elif not any(m.member_id == metadata.member_id for m in self.members.values()):
            raise BrokerResponseError(KafkaError.UNKNOWN_MEMBER_ID)
        if metadata.generation != self.generation:
            raise BrokerResponseError(KafkaError.ILLEGAL_GENERATION)

    def _member(self, member_id: str, instance_id: str) -> SimulatedMember:
        member = self.members.get(instance_id)
        if member is None:
            raise BrokerResponseError(KafkaError.UNKNOWN_MEMBER_ID)
        if member.member_id != member_id:
            raise BrokerResponseError(KafkaError.FENCED_INSTANCE_ID)
        return member

    def _watch(self, member: SimulatedMember) -> None:
        """Remove a member whose process is silent without interruption for the session time-out."""
        process = member.client.process
        since_us = process.silent_since_us
        left_us = since_us + member.session_us - self._kernel.now_us

        def expire() -> None:
            still = self.members.get(member.instance_id) is member
            if still and process.is_silent and process.silent_since_us == since_us:
                self._note(f"session of {member.member_id} ends")
                self._remove(member)
                process.when_up(self._kernel.between(0, 200 * MS), member.client.expelled)

        self._kernel.after(max(0, left_us), expire)

    def _remove(self, member: SimulatedMember) -> None:
        del self.members[member.instance_id]
        if self.members:
            self._rebalance(None)
        else:
            self.joining = False
            self.generation += 1

    # -- rebalances ----------------------------------------------------------------------------

    def _rebalance(self, first: SimulatedMember | None) -> None:
        """Start a rebalance, or let a member take part in the current rebalance."""
        if not self.joining:
            self.joining = True
            self._round += 1
            for member in self.members.values():
                member.has_joined = member is first
                if member is not first:
                    # The next heartbeat reports the rebalance.
                    delay_us = self._kernel.between(MS, 400 * MS)
                    member.client.process.when_up(delay_us, member.client.must_rejoin)
        elif first is not None:
            first.has_joined = True
        self._complete_if_all_joined()

    def _complete_if_all_joined(self) -> None:
        if self.joining and all(m.has_joined for m in self.members.values()):
            number = self._round
            self._kernel.after(self._kernel.between(MS, 30 * MS), lambda: self._complete(number))

    def _complete(self, number: int) -> None:
        if not self.joining or number != self._round:
            return
        if not all(m.has_joined for m in self.members.values()):
            return
        self.joining = False
        self.generation += 1
        self._assign()
        given = {m.instance_id: ",".join(map(str, m.partitions)) for m in self.members.values()}
        self._note(f"generation {self.generation}: {given}")
        for member in self.members.values():
            self._send(member)

    def _send(self, member: SimulatedMember) -> None:
        generation, partitions = self.generation, list(member.partitions)

        def arrive() -> None:
            if self.members.get(member.instance_id) is member and self.generation == generation:
                member.client.synced(generation, partitions)

        member.client.process.when_up(self._kernel.between(MS, 20 * MS), arrive)

    def _assign(self) -> None:
        """Balance each topic: keep partitions within quotas, and assign free partitions."""
        members = sorted(self.members.values(), key=lambda m: m.instance_id)
        topics = sorted({topic for m in members for topic in m.topics})
        owner = {tp: m for m in members for tp in m.partitions}
        wanted: dict[str, list[TopicPartition]] = {m.instance_id: [] for m in members}
        tps = [tp for topic in topics for tp in self._partitions_of(topic)]
        quota, extra = divmod(len(tps), len(members))
        room = {m.instance_id: quota for m in members}
        # Members with the most partitions get the remainder, so that few partitions move.
        for m in sorted(members, key=lambda m: (-len(m.partitions), m.instance_id))[:extra]:
            room[m.instance_id] += 1
        free: list[TopicPartition] = []
        for tp in tps:
            normaliser = owner.get(tp)
            others = [m for m in members if tp.topic in m.topics and m is not normaliser]
            if normaliser is None or tp.topic not in normaliser.topics:
                free.append(tp)
            elif room[normaliser.instance_id] > 0 or all(room[m.instance_id] <= 0 for m in others):
                room[normaliser.instance_id] -= 1
                wanted[normaliser.instance_id].append(tp)
        for tp in free:
            subscribed = [m for m in members if tp.topic in m.topics]
            m = max(subscribed, key=lambda m: room[m.instance_id])
            room[m.instance_id] -= 1
            wanted[m.instance_id].append(tp)
        # Moving partitions have no owner in this generation; the old owner rejoins when released.
        for m in members:
            m.partitions = wanted[m.instance_id]

    # -- offsets -------------------------------------------------------------------------------

    def settle(self, txn: Txn) -> None:
        self.pending.pop(txn, None)
        if txn.committed:
            self.offsets.update(txn.offsets.get(self.name, {}))

    def is_undecided(self, tps: Sequence[TopicPartition]) -> bool:
        return any(tp in txn.offsets.get(self.name, {}) for txn in self.pending for tp in tps)

    def _note(self, what: str) -> None:
        self._kernel.note("group", what)
