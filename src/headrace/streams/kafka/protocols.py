"""Protocols of the runtime for Kafka clients, clocks, logs and traces, and shared types."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from headrace.topology.context.environment import Headers, Message

# Protocols of the consumer and the producer, limited to the methods that the runtime uses.
#
# The live implementations are in `headrace.streams.kafka.consumer` and
# `headrace.streams.kafka.producer`; the test driver and the simulation have their own. All of them
# raise the runtime's own errors (`headrace.streams.errors`), never a client's.


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next offset to read of a partition, with the metadata that was committed with it."""

    offset: int
    metadata: str = ""


Offsets = Mapping[TopicPartition, CommittedOffset]


class ReceivedMessage(Message, Protocol):
    """A record with its topic, partition and offset."""

    def topic(self) -> str:
        """Return the topic of the record."""

    def partition(self) -> int:
        """Return the partition of the record."""

    def offset(self) -> int:
        """Return the offset of the record in its partition."""


class GroupMetadata(Protocol):
    """The membership under which offsets are committed; an opaque object of the client."""


class RebalanceListener(Protocol):
    """Rebalance callbacks of a group consumer, called within polls in this order.

    A consumer that leaves polls once more. A consumer that is closing does not forward the
    callbacks of its client. The consumer itself adds and removes no partitions: the listener does
    so in the call.
    """

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle added partitions of the subscribed topics."""

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle partitions that are about to move; processed records can still be committed."""

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle partitions that are already lost; their records must not be committed."""


class Consumer(Protocol):
    """Consumer of records, of a group's partitions or of explicit partitions."""

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Join the group for these topics."""

    def rejoin(self) -> None:
        """Rejoin after a `MemberFencedError`; partitions that were added before are not read."""

    def ask_for_rebalance(self) -> None:
        """Trigger a rebalance of the group; partitions that do not move are read without a pause.

        Has no effect while the client is joining; call it again later.
        """

    def trigger_rejoin(self) -> None:
        """Make the client take part in the next rebalance immediately."""

    def send_heartbeat(self) -> None:
        """Make the client send a heartbeat if it is due."""

    def refresh_metadata(self) -> bool:
        """Refresh metadata so that the group assigns new partitions; return whether it worked."""

    def poll(
        self, max_records: int, timeout_s: float
    ) -> Mapping[TopicPartition, Sequence[ReceivedMessage]]:
        """Return available records, or wait for the first record until the timeout.

        Records of one partition are in the order of their offsets. Errors of the client are raised
        as the `StreamsError` of their reaction.
        """

    def add(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Start to read these partitions at these offsets."""

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until they are resumed."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of paused partitions again."""

    def committed(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> Mapping[TopicPartition, CommittedOffset | None] | None:
        """Return the group's committed offsets, or None while a transaction on them is undecided.

        None for a partition means that no offset was ever committed for it.
        """

    def positions(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offset after the last returned record, past control records.

        Partitions without a returned record are omitted. In a callback, the result is empty.
        """

    def lag(self, tp: TopicPartition, next_offset: int) -> int | None:
        """Return the number of offsets that the broker is known to have from `next_offset`."""

    def member_id(self) -> str:
        """Return the member ID since the last join; empty without a group."""

    def group_metadata(self) -> GroupMetadata | None:
        """Return the current membership; None if a client that is closing has none."""

    def commit(self, offsets: Offsets) -> None:
        """Commit offsets outside of a transaction, and wait for the answer."""

    def close(self, *, leave: bool) -> None:
        """Close; with `leave`, leave the group so that other members do not wait for a timeout."""


class Producer(Protocol):
    """Producer of records, with transactions under exactly-once.

    Methods that return None have succeeded; all failures raise an error of
    `headrace.streams.errors`.
    """

    send: Callable[[str, bytes | None, bytes | None, int, int, Headers | None], None]
    """Topic, value, key, partition (-1: by the key's murmur2), timestamp in ms, headers."""
    waited_s: float
    """Seconds that sends have waited for space because brokers did not accept earlier records."""
    abandoned_clients: int
    """Number of clients that were replaced because they got no producer ID in time."""

    @property
    def in_flight(self) -> int:
        """Number of sent records that are not acknowledged yet."""

    def init(self) -> None:
        """End the transaction of an earlier producer with the same identity."""

    def begin(self) -> None:
        """Begin a transaction; the broker is contacted by the first send."""

    def limit_of(self, topic: str) -> int | None:
        """Return the maximum record size of a topic in bytes, or None if it is not known."""

    def flush(self) -> None:
        """Ensure that changelog records cannot be durable without the records sent before them.

        Without a transaction this waits for the brokers. If a row were durable and its output lost,
        the output would not be written again.
        """

    def send_changelog(
        self,
        tp: TopicPartition,
        rows: Sequence[tuple[bytes, bytes | None, int]],
        last_headers: Headers | None = None,
    ) -> None:
        """Write a store's changes as ``(key, value, timestamp)``, and track the changelog's end.

        Args:
            last_headers: the headers of the last row's record; the other records have none.
        """

    def send_offsets(self, offsets: Offsets, metadata: GroupMetadata) -> None:
        """Add input offsets to the transaction; at-least-once keeps them until `commit`."""

    def commit(self) -> None:
        """Commit all work since `begin`, with a single attempt."""

    def changelog_ends(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offsets after the last committed records of changelogs."""

    def abort(self) -> None:
        """Roll back all work since `begin`."""

    def apply_backpressure(self, timeout_s: float) -> None:
        """Process delivery reports, and wait while too many records are in flight."""

    def close(self) -> None:
        """Close the connections; a successor ends an open transaction."""


class Clock(Protocol):
    """Clock as a dependency, so that tests can control time."""

    def now_ms(self) -> int:
        """Return wall-clock time in milliseconds since 1970."""

    def monotonic_s(self) -> float:
        """Return seconds of a monotonic clock, for durations."""

    def sleep(self, seconds: float) -> None:
        """Sleep."""


class Log(Protocol):
    """A structlog logger with its context bound; events are ``noun_verbed`` with fields."""

    def info(self, event: str, /, **fields: Any) -> Any:
        """Log an event."""

    def warning(self, event: str, /, **fields: Any) -> Any:
        """Log a problem that was handled."""

    def error(self, event: str, /, **fields: Any) -> Any:
        """Log an error that is not handled, such as the error that stopped the worker."""


Probe = Callable[[str], Any]
"""Called with the name of each step of the commit and the restore, so that tests can inject faults.
"""


def no_probe(step: str) -> None:
    """Do nothing; the default in production."""


# Members of groups, replicas of partitions, and targets of offset changes.


_HEAD, _LENGTH, _NUMBER = struct.Struct(">hi"), struct.Struct(">h"), struct.Struct(">i")

TargetKind = Literal["earliest", "latest", "offset", "time"]


@dataclass(frozen=True, slots=True)
class OffsetTarget:
    """Target position of input offsets; `number` is an offset, or milliseconds since the epoch."""

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
class PartitionReplicas:
    """Leader and replicas of a partition by broker ID; a leader of -1 means no leader."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupState:
    """State of a consumer group, according to its coordinator, with assigned partitions.

    `state` is Kafka's in lower case: "stable", "empty", "preparing rebalancing", ...
    """

    state: str
    members: Mapping[Member, tuple[TopicPartition, ...]]


def partitions_in(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Decode the partitions of a member's assignment in Kafka's consumer protocol.

    >>> partitions_in(bytes.fromhex("0001 00000001 0001 74 00000002 00000000 00000003 00000000"))
    (TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=3))
    """
    if not assignment:
        return ()
    tps, position = [], _HEAD.size
    _, topics = _HEAD.unpack_from(assignment)
    for _ in range(topics):
        (length,) = _LENGTH.unpack_from(assignment, position)
        position += _LENGTH.size
        topic = assignment[position : position + length].decode()
        position += length
        (count,) = _NUMBER.unpack_from(assignment, position)
        position += _NUMBER.size
        for _ in range(count):
            tps.append(TopicPartition(topic, *_NUMBER.unpack_from(assignment, position)))
            position += _NUMBER.size
    return tuple(sorted(tps))


# Descriptions of topics, and topics to create.


_NO_LIMIT_MS = 2**63 - 1
"""Kafka's value for no limit."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """Description of a topic; `config` is empty without the ACL to read it."""

    name: str
    partitions: int
    topic_id: str
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def cleanup_policy(self) -> frozenset[str] | None:
        policy = self.config.get("cleanup.policy")
        return None if policy is None else policies_of(policy)

    @property
    def max_message_bytes(self) -> int | None:
        """Maximum size of a record batch."""
        return self._number("max.message.bytes")

    @property
    def delete_retention_ms(self) -> int | None:
        return self._number("delete.retention.ms")

    @property
    def retention_ms(self) -> int | None:
        """Time that records are kept if the policy deletes; -1 is forever."""
        return self._number("retention.ms")

    @property
    def min_compaction_lag_ms(self) -> int | None:
        return self._number("min.compaction.lag.ms")

    @property
    def max_ahead_ms(self) -> int | None:
        """Maximum time of a timestamp ahead of the broker's clock; None for no limit."""
        return self._time_limit("message.timestamp.after.max.ms")

    @property
    def max_behind_ms(self) -> int | None:
        """Maximum time of a timestamp before the broker's clock; None for no limit."""
        return self._time_limit("message.timestamp.before.max.ms")

    def _time_limit(self, name: str) -> int | None:
        """Return a limit, or None if the broker replaces timestamps with its own time."""
        limit = self._number(name)
        is_replaced = self.config.get("message.timestamp.type") == "LogAppendTime"
        return None if is_replaced or limit == _NO_LIMIT_MS else limit

    def _number(self, name: str) -> int | None:
        value = self.config.get(name)
        return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """An internal topic to create; `because` explains its partition count."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]
    because: str
    changelog: bool


def policies_of(policy: str) -> frozenset[str]:
    return frozenset(part.strip() for part in policy.split(",") if part.strip())


# Admin clients.


class AdminClient(Protocol):
    """Admin client of the runtime (live: `headrace.streams.kafka.admin.LiveAdmin`).

    Every call is retried after temporary errors. It raises an error of `headrace.streams.errors`
    after other errors, or after its time limit.
    """

    def describe(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Return descriptions of the topics that exist."""

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """Return the partition counts of the topics that exist."""

    def ask_ids(self, topics: Sequence[str]) -> Callable[[float], Mapping[str, str] | None]:
        """Request the ids of topics, and return a function that waits for the response.

        Its argument is the time to wait in seconds, and it returns None without a response. Topics
        that do not exist are missing in the result. Nothing is retried or raised.
        """

    def names(self) -> frozenset[str]:
        """Return all topics visible to this client, for suggestions; empty if unknown."""

    def groups(self) -> frozenset[str]:
        """Return all groups visible to this client; empty if unknown."""

    def create(self, topics: Sequence[NewTopic]) -> None:
        """Create topics, and leave existing topics unchanged."""

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermarks: the offset after the last record, committed or not."""

    def stable_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offsets: no transaction before them is open."""

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the first record that still exists."""

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records before these offsets."""

    def alter_config(self, topic: str, config: Mapping[str, str | None]) -> None:
        """Set some configs of a topic and leave the rest; None restores the default."""

    def broker_configs(self, name: str) -> Sequence[str]:
        """Return each broker's value of a setting, without retries."""

    def assigned(self, group: str) -> frozenset[TopicPartition] | None:
        """Return the partitions assigned to a group's members, or None in an unstable group."""

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return a group's committed offsets with their metadata, where an offset was committed."""

    def group_state(self, group: str) -> GroupState:
        """Return the state of a group and the assignment of its members."""


class OffsetClient(Protocol):
    """Offsets of consumer groups, without being a member (live: `MemberlessGroup`)."""

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        """Return all committed offsets of a group.

        With `decided`, wait until no open transaction may change an offset.
        """

    def committed_at(
        self, group: str, tps: Iterable[TopicPartition], *, decided: bool = ...
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return a group's committed offsets of the given partitions."""

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets of a group without members."""


class GroupAdminClient(AdminClient, OffsetClient, Protocol):
    """Admin client for operations on a stopped application (live: `GroupAdmin`)."""

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int, *, committed: bool = True
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset of each partition at or after a time, or None."""

    def offsets_for(
        self, target: OffsetTarget, tps: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return the offset of a target position in each partition."""

    def members(self, group: str) -> tuple[Member, ...]:
        """Return the members of a group."""

    def undecided_offsets(self, group: str, tps: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions whose offset in the group an open transaction may change."""

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics, and wait until they are gone."""

    def delete_groups(self, names: Iterable[str]) -> None:
        """Delete groups without members, with all their offsets."""

    def transaction_timeout_max_ms(self) -> int:
        """Return the maximum transaction.timeout.ms of the brokers."""


# Protocol of the tracer of commits and their records.


class Tracer(Protocol):
    """Tracer of commits (live: `headrace.streams.metrics.otel_tracer.OtelTracer`)."""

    @property
    def samples(self) -> bool:
        """Whether the tracer needs records before the next commit."""

    def sample(self, records: Iterable[ReceivedMessage]) -> None:
        """Record some of the records that are part of the next commit."""

    def committing(self, tasks: Sequence[str], records: int) -> AbstractContextManager[object]:
        """Return the context of a commit of tasks, with the number of its records."""

    def discard(self) -> None:
        """Discard sampled records that will not be committed."""


class NoTracer:
    """Tracer that does nothing."""

    samples = False

    def sample(self, records: Iterable[ReceivedMessage]) -> None: ...

    def committing(self, tasks: Sequence[str], records: int) -> AbstractContextManager[object]:  # noqa: ARG002
        return nullcontext()

    def discard(self) -> None: ...


class BrokerReachability(Protocol):
    """Reachability of the brokers, as the worker uses it."""

    @property
    def is_lost(self) -> bool:
        """Whether no broker is reachable now."""

    def turn(self) -> None:
        """Raise an error that requires intervention by an operator, if any."""


class AlwaysReachable:
    """Reachability without clients: brokers always count as reachable."""

    @property
    def is_lost(self) -> bool:
        return False

    def turn(self) -> None: ...
