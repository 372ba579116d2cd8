"""The group coordinator of a simulated cluster: static members, generations, two-phase moves.

    STABLE ─► (someone joins, leaves or expires) ─► JOINING ─► (all have joined) ─► STABLE

A member keeps its place under its group.instance.id until its session ends, and a new process with
that id takes the place over without a rebalance. Partitions move in two generations, as
cooperative-sticky has it: the old owner gives them up in one, the new owner gets them in the next.

Offsets that come with a transaction are checked for membership alone, never for ownership.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from confluent_kafka import KafkaError

from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.simulation.world.kernel import MS, Kernel
from headrace.streams.simulation.world.log import Txn
from headrace.streams.simulation.world.process import Process
from headrace.streams.simulation.world.transactions import RefusedError


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a client knows of its membership, to be sent along with offsets."""

    group: str
    generation: int
    member_id: str
    instance_id: str | None


class MemberClient(Protocol):
    """What the coordinator tells a member, some time later."""

    process: Process
    client_id: str

    def must_rejoin(self) -> None:
        """A rebalance is under way."""

    def synced(self, generation: int, partitions: Sequence[TopicPartition]) -> None:
        """A generation has begun."""

    def expelled(self) -> None:
        """The member is unknown: its session has ended."""

    def fenced(self) -> None:
        """Another process has this member's group.instance.id."""


@dataclass(slots=True, eq=False)
class Member:
    """A member: who it is, what it wants, and what it has been given."""

    instance_id: str
    member_id: str
    client: MemberClient
    topics: tuple[str, ...]
    session_us: int
    client_id: str
    """As long as it keeps its place: one that takes the place over does not change it."""
    has_joined: bool = False
    partitions: list[TopicPartition] = field(default_factory=list)


class Group:
    """One group and its committed offsets.

    Args:
        places: the partitions of a topic.
    """

    def __init__(
        self, kernel: Kernel, name: str, places: Callable[[str], Sequence[TopicPartition]]
    ) -> None:
        self._kernel = kernel
        self._places = places
        self.name = name
        self.generation = 0
        self.joining = False
        self.members: dict[str, Member] = {}
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        self.pending: dict[Txn, None] = {}
        """The transactions whose offsets are not decided yet."""
        self._numbers = 0
        self._round = 0

    # -- members -------------------------------------------------------------------------------

    def join(
        self, client: MemberClient, instance_id: str, topics: Sequence[str], session_us: int
    ) -> str:
        """Become a member, or take over the place of the process before; returns the member id."""
        self._numbers += 1
        member_id = f"{instance_id}#{self._numbers}"
        before = self.members.get(instance_id)
        client_id = client.client_id if before is None else before.client_id
        member = Member(
            instance_id, member_id, client, tuple(topics), session_us, client_id, has_joined=True
        )
        self.members[instance_id] = member
        client.process.when_it_stands.append(lambda: self._watch(member))
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
        """Take part in the rebalance under way, or start one."""
        self._rebalance(self._member(member_id, instance_id))

    def leave(self, member_id: str, instance_id: str) -> None:
        """End a membership at once."""
        member = self.members.get(instance_id)
        if member is not None and member.member_id == member_id:
            self._note(f"{member_id} leaves")
            self._remove(member)

    def silence(self, member_id: str, instance_id: str) -> None:
        """A member sends nothing any more: its session ends by itself."""
        member = self.members.get(instance_id)
        if member is None or member.member_id != member_id:
            return

        def expire() -> None:
            if self.members.get(instance_id) is member:
                self._note(f"session of {member_id} ends")
                self._remove(member)

        self._kernel.after(member.session_us, expire)

    def check(self, metadata: Metadata, *, transactional: bool) -> None:
        """Refuse offsets of who is no member of this generation."""
        if metadata.instance_id is not None:
            member = self.members.get(metadata.instance_id)
            if member is None:
                raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)
            if member.member_id != metadata.member_id:
                raise RefusedError(KafkaError.FENCED_INSTANCE_ID)
        elif metadata.generation < 0 and transactional:
            return
        elif not any(m.member_id == metadata.member_id for m in self.members.values()):
            raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)
        if metadata.generation != self.generation:
            raise RefusedError(KafkaError.ILLEGAL_GENERATION)

    def _member(self, member_id: str, instance_id: str) -> Member:
        member = self.members.get(instance_id)
        if member is None:
            raise RefusedError(KafkaError.UNKNOWN_MEMBER_ID)
        if member.member_id != member_id:
            raise RefusedError(KafkaError.FENCED_INSTANCE_ID)
        return member

    def _watch(self, member: Member) -> None:
        """Expel a member that is silent for longer than its session, all that time at once."""
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

    def _remove(self, member: Member) -> None:
        del self.members[member.instance_id]
        if self.members:
            self._rebalance(None)
        else:
            self.joining = False
            self.generation += 1

    # -- rebalances ----------------------------------------------------------------------------

    def _rebalance(self, first: Member | None) -> None:
        """Begin a new generation, or let one more take part in the one that is to begin."""
        if not self.joining:
            self.joining = True
            self._round += 1
            for member in self.members.values():
                member.has_joined = member is first
                if member is not first:
                    # It hears of the rebalance with its next heartbeat.
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

    def _send(self, member: Member) -> None:
        generation, partitions = self.generation, list(member.partitions)

        def arrive() -> None:
            if self.members.get(member.instance_id) is member and self.generation == generation:
                member.client.synced(generation, partitions)

        member.client.process.when_up(self._kernel.between(MS, 20 * MS), arrive)

    def _assign(self) -> None:
        """Balance each topic: keep what fits, take away the rest, give only what is free."""
        members = sorted(self.members.values(), key=lambda m: m.instance_id)
        topics = sorted({topic for m in members for topic in m.topics})
        owner = {place: m for m in members for place in m.partitions}
        wanted: dict[str, list[TopicPartition]] = {m.instance_id: [] for m in members}
        places = [place for topic in topics for place in self._places(topic)]
        quota, extra = divmod(len(places), len(members))
        room = {m.instance_id: quota for m in members}
        # Who has most already keeps one more, so that as little as possible moves.
        for m in sorted(members, key=lambda m: (-len(m.partitions), m.instance_id))[:extra]:
            room[m.instance_id] += 1
        free: list[TopicPartition] = []
        for place in places:
            keeper = owner.get(place)
            others = [m for m in members if place.topic in m.topics and m is not keeper]
            if keeper is None or place.topic not in keeper.topics:
                free.append(place)
            elif room[keeper.instance_id] > 0 or all(room[m.instance_id] <= 0 for m in others):
                room[keeper.instance_id] -= 1
                wanted[keeper.instance_id].append(place)
        for place in free:
            subscribed = [m for m in members if place.topic in m.topics]
            m = max(subscribed, key=lambda m: room[m.instance_id])
            room[m.instance_id] -= 1
            wanted[m.instance_id].append(place)
        # What moves belongs to nobody in this generation; its owner joins again when it let go.
        for m in members:
            m.partitions = wanted[m.instance_id]

    # -- offsets -------------------------------------------------------------------------------

    def settle(self, txn: Txn) -> None:
        """A transaction's offsets are decided."""
        self.pending.pop(txn, None)
        if txn.committed:
            self.offsets.update(txn.offsets)

    def is_undecided(self, places: Sequence[TopicPartition]) -> bool:
        """Whether a transaction has offsets of these partitions that are not final."""
        return any(place in txn.offsets for txn in self.pending for place in places)

    def _note(self, what: str) -> None:
        self._kernel.note("group", what)
