"""The seam to `headrace.streams.kafka.connectivity`: what a worker asks about the brokers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from headrace.topology.context.environment import Headers, Message

# The seams to Kafka: what the runtime asks of a consumer and a producer, and nothing more.
#
# The live ones are in `headrace.streams.kafka.consumer` and `headrace.streams.kafka.producer`; the
# test driver and the simulation bring their own. Both sides raise the runtime's own errors
# (`headrace.streams.errors`), never a client's.


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next offset to read of a partition, with the progress that was committed beside it."""

    offset: int
    metadata: str = ""


Offsets = Mapping[TopicPartition, CommittedOffset]


class ReceivedMessage(Message, Protocol):
    """A record with its place."""

    def topic(self) -> str:
        """The topic that it was read from."""

    def partition(self) -> int:
        """The partition that it was read from."""

    def offset(self) -> int:
        """Its offset in the partition."""


class GroupMetadata(Protocol):
    """The membership under which offsets are committed; opaque, as the client gave it."""


class RebalanceListener(Protocol):
    """What a group consumer calls while it is polled, in this order for each rebalance.

    One that leaves polls once more; one that closes tells nothing of what its client says then.
    The consumer adds and removes nothing itself: the listener does, within the call.
    """

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions of the subscribed topics were added."""

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions are about to move; what was processed can still be committed."""

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions are gone already; nothing of them may be committed any more."""


class Consumer(Protocol):
    """Reads records: of a group's partitions, or of partitions it was told to read."""

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Join the group for these topics."""

    def rejoin(self) -> None:
        """Join it anew after a `MemberFencedError`; nothing that was added before is read."""

    def ask_for_rebalance(self) -> None:
        """Have the group share out its partitions again; what stays where it is goes on.

        Nothing is asked where the client is about to join: ask again later.
        """

    def hasten(self) -> None:
        """Have the client take part at once in the rebalance that comes next."""

    def keep_in_touch(self) -> None:
        """Have the client send a heartbeat if one is due."""

    def hear_of_partitions(self) -> bool:
        """Ask what partitions there are, so that the group shares out new ones; whether it was."""

    def poll(
        self, max_records: int, timeout_s: float
    ) -> Mapping[TopicPartition, Sequence[ReceivedMessage]]:
        """Return what is there at once, or wait for the first record until the timeout.

        Records of one partition are in the order of their offsets.

        Args:
            timeout_s: how long to wait when nothing is there, in seconds.

        Raises:
            StreamsError: the one whose reaction the client's error needs.
        """

    def add(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Start to read these partitions at these offsets."""

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop to read these partitions."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until they are resumed."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out records of paused partitions again."""

    def committed(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> Mapping[TopicPartition, CommittedOffset | None] | None:
        """Return the group's committed offsets, or None while a transaction on them is undecided.

        None for a partition means that nothing was ever committed for it.
        """

    def positions(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offset after what was handed out last, control records passed over.

        Partitions of which nothing was handed out yet are left out, and all within a callback.
        """

    def lag(self, place: TopicPartition, next_offset: int) -> int | None:
        """Return how many offsets the broker is known to have from `next_offset` on."""

    def member_id(self) -> str:
        """Return what the group knows the consumer by since it joined; empty without a group."""

    def group_metadata(self) -> GroupMetadata | None:
        """Return the present membership; None where a client that closes has none any more."""

    def commit(self, offsets: Offsets) -> None:
        """Commit offsets outside of a transaction, and wait for the answer."""

    def close(self, *, leave: bool) -> None:
        """Stop; with `leave`, leave the group so that others need not wait for a time-out."""


class Producer(Protocol):
    """Writes records, and under exactly-once ends transactions.

    Calls that return nothing have succeeded; everything else raises one of
    `headrace.streams.errors`.
    """

    send: Callable[[str, bytes | None, bytes | None, int, int, Headers | None], None]
    """Topic, value, key, partition (-1: by the key's murmur2), timestamp in ms, headers."""
    waited_s: float
    """How long sends have waited for room, as the brokers did not take what was sent before."""
    given_up: int
    """Clients that got no identity in time, each of which was followed by a new one."""

    @property
    def in_flight(self) -> int:
        """Records that were sent and are not acknowledged yet."""

    def init(self) -> None:
        """Decide what an earlier producer of the same identity left open."""

    def begin(self) -> None:
        """Begin a transaction; nothing reaches the broker before the first send."""

    def limit_of(self, topic: str) -> int | None:
        """Return the bytes of the largest record that a topic takes; None if that is not known."""

    def settle(self) -> None:
        """Return when no changelog's record can outlive what was sent before it.

        Without a transaction that means to wait for the brokers. A row that is written while what
        followed from it is lost would not be followed by it again.
        """

    def send_changelog(
        self,
        place: TopicPartition,
        rows: Sequence[tuple[bytes, bytes | None, int]],
        last_headers: Headers | None = None,
    ) -> None:
        """Write a store's delta of ``(key, value, timestamp)``, remembering where it ends.

        Args:
            last_headers: the headers of the last row's record; the others have none.
        """

    def send_offsets(self, offsets: Offsets, metadata: GroupMetadata) -> None:
        """Add the input offsets to the transaction; at-least-once keeps them for `commit`."""

    def commit(self) -> None:
        """Make everything since `begin` final, once."""

    def changelog_ends(self, places: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offsets behind the last committed records of changelogs."""

    def abort(self) -> None:
        """Make everything since `begin` void."""

    def pressure(self, timeout_s: float) -> None:
        """Serve delivery reports, and wait while too much is under way."""

    def close(self) -> None:
        """Let go of the connections; an open transaction is left to its successor."""


class Clock(Protocol):
    """Time, as a parameter."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970."""

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back, for durations."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class Log(Protocol):
    """A structlog logger with its context bound; events are ``noun_verbed`` with fields."""

    def info(self, event: str, /, **fields: Any) -> Any:
        """Say what happened."""

    def warning(self, event: str, /, **fields: Any) -> Any:
        """Say what went wrong and was put right."""

    def error(self, event: str, /, **fields: Any) -> Any:
        """Say what stopped the worker."""


Probe = Callable[[str], Any]
"""Called with the name of each step of the commit and the restore, so that tests can fail there."""


def no_probe(step: str) -> None:
    """Do nothing: what runs in production."""


# What a cluster says of a group's members and of partitions, and what offsets are set to.


_HEAD, _LENGTH, _NUMBER = struct.Struct(">hi"), struct.Struct(">h"), struct.Struct(">i")

TargetKind = Literal["earliest", "latest", "offset", "time"]


@dataclass(frozen=True, slots=True)
class Target:
    """Where the inputs are set to.

    Args:
        kind: "offset" and "time" need a number, the others none.
        number: an offset, or milliseconds since the epoch.
    """

    kind: TargetKind = "earliest"
    number: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group."""

    id: str
    client_id: str
    host: str

    def __str__(self) -> str:
        return f"{self.id} ({self.client_id} on {self.host.removeprefix('/')})"


@dataclass(frozen=True, slots=True)
class Layout:
    """Which brokers have a partition, by their numbers; a leader of -1 is none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as its coordinator has it.

    Args:
        state: Kafka's word, in small letters: "stable", "empty", "preparing rebalancing", ...
        members: what each member was given.
    """

    state: str
    members: Mapping[Member, tuple[TopicPartition, ...]]


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


# What a cluster says of a topic, and what it is asked to make.


_NO_LIMIT_MS = 2**63 - 1
"""Kafka's word for any time."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the cluster says of a topic; `config` is empty where reading it is not allowed."""

    name: str
    partitions: int
    topic_id: str
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def cleanup_policy(self) -> frozenset[str] | None:
        """The policies, without order: compact, delete or both."""
        policy = self.config.get("cleanup.policy")
        return None if policy is None else policies_of(policy)

    @property
    def max_message_bytes(self) -> int | None:
        """The largest record batch that the topic takes."""
        return self._number("max.message.bytes")

    @property
    def delete_retention_ms(self) -> int | None:
        """How long a tombstone stays after compaction, in milliseconds."""
        return self._number("delete.retention.ms")

    @property
    def retention_ms(self) -> int | None:
        """How long records stay where the policy deletes, in milliseconds; -1 is for ever."""
        return self._number("retention.ms")

    @property
    def min_compaction_lag_ms(self) -> int | None:
        """How long a record stays before it may be compacted, in milliseconds."""
        return self._number("min.compaction.lag.ms")

    @property
    def max_ahead_ms(self) -> int | None:
        """How far a timestamp may be ahead of the broker's clock; None is any time."""
        return self._time_limit("message.timestamp.after.max.ms")

    @property
    def max_behind_ms(self) -> int | None:
        """How far a timestamp may be behind the broker's clock; None is any time."""
        return self._time_limit("message.timestamp.before.max.ms")

    def _time_limit(self, name: str) -> int | None:
        """Return a limit; there is none where the broker replaces the timestamp by its own."""
        limit = self._number(name)
        is_replaced = self.config.get("message.timestamp.type") == "LogAppendTime"
        return None if is_replaced or limit == _NO_LIMIT_MS else limit

    def _number(self, name: str) -> int | None:
        value = self.config.get(name)
        return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """An internal topic as it should be; `because` says where its partition count comes from."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]
    because: str
    changelog: bool


def policies_of(policy: str) -> frozenset[str]:
    """The words of a cleanup.policy."""
    return frozenset(part.strip() for part in policy.split(",") if part.strip())


# The seam to traces: what a worker tells of its commits, and of the records that go into them.


class Tracer(Protocol):
    """Hears of commits; a live one is `headrace.streams.metrics.otel_tracer.OtelTracer`."""

    @property
    def samples(self) -> bool:
        """Whether it wants to see records before the next commit."""

    def sample(self, records: Iterable[ReceivedMessage]) -> None:
        """See some of the records that go into the next commit."""

    def committing(self, tasks: Sequence[str], records: int) -> AbstractContextManager[object]:
        """The context of a commit of tasks, after so many records."""

    def forget(self) -> None:
        """The records that were seen go into no commit."""


class NoTracer:
    """Where nobody traces."""

    samples = False

    def sample(self, records: Iterable[ReceivedMessage]) -> None:
        """Do nothing."""

    def committing(self, tasks: Sequence[str], records: int) -> AbstractContextManager[object]:  # noqa: ARG002
        """Do nothing."""
        return nullcontext()

    def forget(self) -> None:
        """Do nothing."""


class Contact(Protocol):
    """What a worker asks about the brokers."""

    @property
    def is_lost(self) -> bool:
        """Whether none can be reached now."""

    def turn(self) -> None:
        """Raise what a person has to put right, if there is anything."""


class NoContact:
    """Where nobody listens to clients: the brokers are always there."""

    @property
    def is_lost(self) -> bool:
        """They are there."""
        return False

    def turn(self) -> None:
        """Nothing to raise."""
