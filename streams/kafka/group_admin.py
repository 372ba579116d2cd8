"""What tools ask of a cluster beyond what the runtime does: groups from outside, deletions."""

from __future__ import annotations

import re
import struct
import time
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import confluent_kafka
import confluent_kafka.admin
from confluent_kafka import KafkaError, KafkaException

from headrace.streams.contact.denials import DENIED, denial
from headrace.streams.errors import FatalClientError, MissingTopicError
from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.kafka.kafka_clients import new_admin
from headrace.streams.kafka.reactions import Reaction, reaction_to
from headrace.streams.seams.clients import CommittedOffset, Offsets, TopicPartition
from headrace.streams.seams.group_facts import GroupState, Layout, Member, Target
from headrace.streams.seams.offset_texts import text_of
from headrace.streams.start_errors import ResetRefusedError

# The package offers these classes without declaring it, which a strict type check refuses.
_kafka: Any = confluent_kafka.admin
_Group: Any = confluent_kafka.ConsumerGroupTopicPartitions

_HEAD, _LENGTH, _NUMBER = struct.Struct(">hi"), struct.Struct(">h"), struct.Struct(">i")
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LOOK_AGAIN_S = 0.1
_TRANSACTION_MAX_MS = 900_000
_NOT_EMPTY = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.NON_EMPTY_GROUP,
    }
)


class GroupAdmin(LiveAdmin):
    """A real cluster, seen from outside of a group (see `LiveAdmin` for the arguments)."""

    def members(self, group: str) -> tuple[Member, ...]:
        """The members of a group, those that are just joining too."""
        return tuple(self.group_state(group).members)

    def group_state(self, group: str) -> GroupState:
        """The state of a group, and what its members were given; one that is not there is dead."""

        def send(some: list[str]) -> Mapping[str, Future[Any]]:
            futures: Mapping[str, Future[Any]] = self._client.describe_consumer_groups(
                some, request_timeout=self._request_s
            )
            return futures

        found = self._ask("describe the group", [group], send)[group]
        members = {
            Member(m.group_instance_id or m.member_id, m.client_id, m.host): tuple(
                sorted(TopicPartition(p.topic, p.partition) for p in _given_to(m))
            )
            for m in found.members
        }
        ordered = dict(sorted(members.items(), key=lambda item: str(item[0])))
        return GroupState(found.state.name.lower().replace("_", " "), ordered)

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        """All offsets of a group.

        Args:
            decided: wait until no open transaction may change one of them.

        Raises:
            ResetRefusedError: a transaction stayed open for as long as calls are repeated.
        """
        return self._committed_of(group, None, decided=decided)

    def _committed_of(
        self, group: str, wanted: frozenset[TopicPartition] | None, *, decided: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """The offsets of a group at the places that are wanted; None wants all."""
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            listed = [
                (TopicPartition(p.topic, p.partition), p)
                for p in self._committed(group, decided=decided)
            ]
            found = [(place, p) for place, p in listed if wanted is None or place in wanted]
            failed = [p for _, p in found if p.error is not None]
            if not failed:
                return {
                    place: CommittedOffset(p.offset, text_of(p))
                    for place, p in found
                    if p.offset >= 0
                }
            if time.monotonic() >= give_up_at:
                raise _undecided(group, failed)
            time.sleep(_LOOK_AGAIN_S)

    def committed_at(
        self, group: str, places: Iterable[TopicPartition], *, decided: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """The offsets of a group at some places; undecided transactions or not, if not told."""
        return self._committed_of(group, frozenset(places), decided=decided)

    def undecided_offsets(
        self, group: str, places: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """Those places whose offset in a group an open transaction may change."""
        # Where nothing was committed yet, only what is asked for by name is told of.
        named = [confluent_kafka.TopicPartition(*place) for place in places]
        found = self._committed(group, decided=True, named=named) if named else []
        return [TopicPartition(p.topic, p.partition) for p in found if p.error is not None]

    def _committed(self, group: str, *, decided: bool, named: list[Any] | None = None) -> list[Any]:
        def send(some: list[str]) -> Mapping[str, Future[Any]]:
            futures: Mapping[str, Future[Any]] = self._client.list_consumer_group_offsets(
                [_Group(name, named) for name in some],
                require_stable=decided,
                request_timeout=self._request_s,
            )
            return futures

        # The client ends the process where a broker that is asked for offsets is not the group's
        # coordinator (yet): see `group_offsets`. This question is only repeated then.
        self.group_state(group)
        answer = self._ask("list the offsets of the group", [group], send)[group]
        return list(answer.topic_partitions)

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets of a group without members; the broker refuses it to others.

        Raises:
            ResetRefusedError: the group has a member.
            MissingTopicError: a topic was deleted.
        """
        places = [
            confluent_kafka.TopicPartition(p.topic, p.partition, c.offset, metadata=c.metadata)
            for p, c in offsets.items()
        ]

        def send(some: list[str]) -> Mapping[str, Future[Any]]:
            futures: Mapping[str, Future[Any]] = self._client.alter_consumer_group_offsets(
                [_Group(name, places) for name in some], request_timeout=self._request_s
            )
            return futures

        if not places:
            return
        give_up_at = time.monotonic() + self._timeout_s
        answer = self._ask("set the offsets of the group", [group], send)[group]
        while _is_passing(answer.topic_partitions) and time.monotonic() < give_up_at:
            time.sleep(_LOOK_AGAIN_S)
            answer = self._ask("set the offsets of the group", [group], send)[group]
        for place in answer.topic_partitions:
            if place.error is None:
                continue
            what = f"cannot set the offset of {place.topic}-{place.partition}: {place.error.str()}"
            if place.error.code() in _NOT_EMPTY:
                raise ResetRefusedError(f"{what}; a worker of the application was started")
            if place.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise MissingTopicError(f"{what}; was it deleted?", topics=[place.topic])
            if place.error.code() in DENIED:
                raise denial(
                    place.error, self._config, topic=place.topic, group=group, right="Read"
                )
            raise FatalClientError(what)

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """How many partitions those topics have that exist."""
        return {name: len(found.partitions) for name, found in self._described(names).items()}

    def layout(self, topic: str) -> list[Layout]:
        """Where the partitions of a topic are."""
        found = self._described([topic])[topic]
        return [
            Layout(
                one.id,
                -1 if one.leader is None else one.leader.id,
                tuple(node.id for node in one.replicas),
                tuple(node.id for node in one.isr),
            )
            for one in sorted(found.partitions, key=lambda one: one.id)
        ]

    def delete_groups(self, names: Iterable[str]) -> None:
        """Delete groups without members, with all their offsets; one that is none is no error.

        Raises:
            FatalClientError: one has a member.
        """

        def send(some: list[str]) -> Mapping[str, Future[Any]]:
            futures: Mapping[str, Future[Any]] = self._client.delete_consumer_groups(
                some, request_timeout=self._request_s
            )
            return futures

        gone = frozenset({KafkaError.GROUP_ID_NOT_FOUND})
        self._ask("delete the group", names, send, ignored=gone)

    def transaction_timeout_max_ms(self) -> int:
        """The longest transaction.timeout.ms that the brokers take; Kafka's default if unknown."""
        name = "transaction.max.timeout.ms"
        try:
            brokers = self._client.list_topics(timeout=self._request_s).brokers
            asked = _kafka.ConfigResource(_kafka.ResourceType.BROKER, str(min(brokers)))
            futures = self._client.describe_configs([asked], request_timeout=self._request_s)
            return int(futures[asked].result(2 * self._request_s)[name].value)
        except (KafkaException, KeyError, TypeError, ValueError):
            return _TRANSACTION_MAX_MS

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics and wait until none is there; what is not there already is no error."""

        def send(some: list[str]) -> Mapping[str, Future[Any]]:
            futures: Mapping[str, Future[Any]] = self._client.delete_topics(
                some, request_timeout=self._request_s, operation_timeout=self._request_s
            )
            return futures

        doomed = list(names)
        gone = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
        self._ask("delete", doomed, send, ignored=gone)
        give_up_at = time.monotonic() + self._timeout_s
        while doomed and (left := self.describe(doomed)):
            if time.monotonic() >= give_up_at:
                raise FatalClientError(
                    f"topics {', '.join(left)} were deleted and are still there; look into the "
                    "brokers' logs"
                )
            time.sleep(_LOOK_AGAIN_S)

    def offsets_for(
        self, target: Target, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Where a target is in each partition, within what the partition has.

        A time later than every record is the end.
        """
        asked = list(places)
        starts, ends = self.start_offsets(asked), self.end_offsets(asked)
        if target.kind == "earliest":
            return starts
        if target.kind == "latest":
            return ends
        found: dict[TopicPartition, int | None] = dict.fromkeys(asked, target.number)
        if target.kind == "time":
            found = self.offsets_at(asked, target.number, committed=False)
        return {
            place: ends[place]
            if offset is None or offset < 0
            else min(max(offset, starts[place]), ends[place])
            for place, offset in found.items()
        }


class GroupLook(LiveAdmin):
    """A group, looked at all the time by a process that is to outlive any broker.

    An admin client that describes a group ends the process where the connection to the coordinator
    is lost at the wrong moment (librdkafka's assertion ``eonce->refcnt > 0``). The older call that
    lists groups has no such moment. It asks all brokers, and fails while one is known and silent.
    """

    def __init__(self, config: Mapping[str, Any], *, timeout_s: float) -> None:
        super().__init__(config, timeout_s=timeout_s)
        # It was followed by the one that fails.
        message = r"list_groups\(\) is deprecated"
        warnings.filterwarnings("ignore", message=message, category=DeprecationWarning)

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """How many partitions those topics have that exist."""
        return {name: len(found.partitions) for name, found in self._described(names).items()}

    def group_state(self, group: str) -> GroupState:
        """The state of a group, and what its members were given; one that is not there is dead.

        Raises:
            FatalClientError: not all brokers say so.
        """
        try:
            listed = self._client.list_groups(group, timeout=self._request_s)
        except KafkaException as error:
            # The next one asks the brokers that there are then.
            self._client = new_admin(self._config, self._contact)
            raise FatalClientError(
                f"cannot describe the group {group}: {error.args[0].str()}; ask again later"
            ) from error
        found = next((one for one in listed if one.id == group and one.error is None), None)
        if found is None:
            return GroupState("dead", {})
        members = {
            Member(one.id, one.client_id, one.client_host): places_in(one.assignment)
            for one in found.members
        }
        ordered = dict(sorted(members.items(), key=lambda item: str(item[0])))
        return GroupState(_spaced(found.state), ordered)


def places_in(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions that a member was given, as consumers write it down for each other.

    >>> places_in(bytes.fromhex("0001 00000001 0001 74 00000002 00000000 00000003 00000000"))
    (TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=3))
    """
    if not assignment:
        return ()
    found, at = [], _HEAD.size
    _, topics = _HEAD.unpack_from(assignment)
    for _ in range(topics):
        (length,) = _LENGTH.unpack_from(assignment, at)
        at += _LENGTH.size
        topic = assignment[at : at + length].decode()
        at += length
        (count,) = _NUMBER.unpack_from(assignment, at)
        at += _NUMBER.size
        for _ in range(count):
            found.append(TopicPartition(topic, *_NUMBER.unpack_from(assignment, at)))
            at += _NUMBER.size
    return tuple(sorted(found))


def _spaced(state: str) -> str:
    """Kafka's word as this calls it.

    >>> _spaced("PreparingRebalance")
    'preparing rebalance'
    """
    return _WORD.sub(" ", state).lower()


def _given_to(member: Any) -> Iterable[Any]:
    """What a member was given; one that is just joining has nothing yet."""
    return member.assignment.topic_partitions if member.assignment is not None else ()


def _is_passing(places: Iterable[Any]) -> bool:
    """Whether offsets were not taken for a reason that passes, as a coordinator that moves."""
    errors = [place.error for place in places if place.error is not None]
    return any(reaction_to(error, "query") is Reaction.RETRY for error in errors)


def _undecided(group: str, places: Iterable[Any]) -> ResetRefusedError:
    named = ", ".join(f"{place.topic}-{place.partition}" for place in places)
    return ResetRefusedError(
        f"a transaction on the offsets of {named} in the group {group} is open, of a worker that "
        "was killed perhaps; the broker aborts it after the worker's "
        "producer.transaction.timeout.ms: try again then"
    )
