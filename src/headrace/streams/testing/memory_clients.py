"""Consumer, producers and admin client of a `MemoryCluster`.

They implement the protocols of `headrace.streams.kafka.protocols` like the live clients, but
without waiting: a poll returns the available records, and a sent record is in the log when the call
returns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.streams.errors import (
    OffsetLostError,
    ProducerFencedError,
    RecordTooLargeError,
    record_size,
)
from headrace.streams.kafka.offset_texts import FAR_MS, TimeLimits, advice, format_time
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    GroupMetadata,
    GroupState,
    Offsets,
    RebalanceListener,
    ReceivedMessage,
    TopicDescription,
    TopicPartition,
)
from headrace.streams.testing.local_cluster import LocalAdmin, Transaction
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.topology.context.environment import Headers
from headrace.topology.errors import FarTimeWarning

MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default of max.message.bytes."""
_TIME_CONFIGS = ("message.timestamp.after.max.ms", "message.timestamp.before.max.ms")


class MemoryConsumer:
    """Consumer of an in-memory cluster; the only member of its group.

    Args:
        group: the group whose offsets it commits; None for a consumer without a group.
        committed: whether to skip records of open and aborted transactions.
    """

    def __init__(self, cluster: MemoryCluster, *, group: str | None, committed: bool) -> None:
        self._cluster = cluster
        self._group = group
        self._committed = committed
        self._next: dict[TopicPartition, int] = {}
        self._read_from: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._subscription: tuple[Sequence[str], RebalanceListener] | None = None
        self._assigned: tuple[Sequence[TopicPartition], RebalanceListener] | None = None
        self._failure: Exception | None = None
        self._topics: Sequence[str] = ()

    def fail(self, error: Exception) -> None:
        """Raise an error in the next poll."""
        self._failure = error

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        self._topics = topics
        self._subscription = topics, listener

    def ask_for_rebalance(self) -> None: ...

    def trigger_rejoin(self) -> None: ...

    def send_heartbeat(self) -> None: ...

    def refresh_metadata(self) -> bool:
        return True

    def rejoin(self) -> None:
        assert self._assigned is not None, "rejoin before the first assignment"
        _, listener = self._assigned
        self._subscription, self._assigned = (self._topics, listener), None
        self._next.clear()
        self._read_from.clear()
        self._paused.clear()

    def poll(
        self,
        max_records: int,
        timeout_s: float,  # noqa: ARG002
    ) -> Mapping[TopicPartition, Sequence[ReceivedMessage]]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._subscription is not None:
            (topics, listener), self._subscription = self._subscription, None
            self._cluster.changes += 1
            assigned = [p for topic in topics for p in self._cluster.partitions(topic)]
            self._assigned = assigned, listener
            listener.on_assigned(assigned)
        tps = [tp for tp in self._next if tp not in self._paused]
        self._cluster.random.shuffle(tps)
        batches: dict[TopicPartition, Sequence[ReceivedMessage]] = {}
        for tp in tps:
            found = self._read(tp, max_records)
            if found:
                batches[tp] = found
                max_records -= len(found)
        return batches

    def _read(self, tp: TopicPartition, limit: int) -> Sequence[ReceivedMessage]:
        if tp.topic not in self._cluster.topics:
            return []
        log, before = self._cluster.log(tp), self._next[tp]
        if not log.start <= before <= log.end:
            raise OffsetLostError(str(tp), f"it has offsets {log.start} to {log.end}")
        found, after = log.read(before, limit, committed=self._committed)
        if after > before:
            self._next[tp] = after
            self._read_from.add(tp)
            self._cluster.changes += 1
        return found

    def add(self, offsets: Mapping[TopicPartition, int]) -> None:
        if read := self._next.keys() & offsets.keys():
            raise RuntimeError(f"{min(read)} is already part of the current assignment")
        self._next.update(offsets)
        self._read_from -= offsets.keys()
        self._cluster.changes += 1

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in list(partitions):
            del self._next[tp]
            self._paused.discard(tp)
            self._read_from.discard(tp)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused.difference_update(partitions)

    def committed(
        self,
        partitions: Sequence[TopicPartition],
        timeout_s: float,  # noqa: ARG002
    ) -> Mapping[TopicPartition, CommittedOffset | None] | None:
        assert self._group is not None, "a consumer without a group has no offsets"
        if self._cluster.is_undecided(self._group, partitions):
            return None
        known = self._cluster.committed(self._group)
        return {tp: known.get(tp) for tp in partitions}

    def positions(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {tp: self._next[tp] for tp in partitions if tp in self._read_from}

    def lag(self, tp: TopicPartition, next_offset: int) -> int | None:
        return max(0, self._cluster.log(tp).end - next_offset)

    def member_id(self) -> str:
        return "member"

    def group_metadata(self) -> GroupMetadata:
        return _GroupMetadata(self._group)

    def commit(self, offsets: Offsets) -> None:
        assert self._group is not None, "a consumer without a group has no offsets"
        self._cluster.commit_offsets(self._group, offsets)

    def close(self, *, leave: bool) -> None:  # noqa: ARG002
        if self._assigned is not None:
            (assigned, listener), self._assigned = self._assigned, None
            listener.on_revoked(assigned)
        self._next.clear()
        self._subscription = None


class _GroupMetadata:
    """Group metadata of an in-memory cluster."""

    def __init__(self, group: str | None) -> None:
        self.group = group


class _MemoryProducer:
    """Common base of the producers of both processing guarantees."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._far: set[str] = set()
        self._transaction: Transaction | None = None
        self._ends: dict[TopicPartition, int] = {}
        self.waited_s = 0.0
        self.abandoned_clients = 0
        self.in_flight = 0
        self.send: Callable[[str, bytes | None, bytes | None, int, int, Headers | None], None] = (
            self._send
        )

    def _send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp: int,
        headers: Headers | None,
    ) -> None:
        if not isinstance(topic, str):
            raise TypeError(f"a topic's name must be a str, not {type(topic).__name__}")
        if headers is not None and not isinstance(headers, list):
            raise TypeError(f"headers must be a list, not {type(headers).__name__}")
        for part in (key, value):
            if part is not None and not isinstance(part, (bytes, str)):
                raise TypeError(f"a bytes-like object is required, not {type(part).__name__}")
        size, limit = record_size(key, value, headers), self.limit_of(topic)
        if size > limit:
            raise RecordTooLargeError(topic, size, limit)
        self._append(topic, value, key, partition, timestamp, headers)

    def _append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp: int,
        headers: Headers | None,
    ) -> int:
        self._check()
        self._require_time(topic, timestamp)
        if timestamp > FAR_MS and topic not in self._far:
            self._far.add(topic)
            what = f"a record for {topic} has the timestamp {format_time(timestamp)}"
            then = f"which brokers refuse by default; {advice(topic)}"
            warnings.warn(f"{what}, {then}", FarTimeWarning, stacklevel=2)
        message = self._cluster.append(
            topic, value, key, partition, timestamp, headers, self._transaction
        )
        return message.offset()

    def _require_time(self, topic: str, timestamp: int) -> None:
        found = self._cluster.create(topic)
        if any(name in found.config for name in _TIME_CONFIGS):
            description = TopicDescription(topic, len(found.logs), found.id, found.config)
            now_ms = self._cluster.now_ms()
            TimeLimits.of({topic: description}).require(topic, max(timestamp, 1), now_ms)

    def _check(self) -> None:
        """Raise if a real producer could not write now."""

    def limit_of(self, topic: str) -> int:
        return int(self._cluster.create(topic).config.get("max.message.bytes", MAX_MESSAGE_BYTES))

    def flush(self) -> None: ...

    def send_changelog(
        self,
        tp: TopicPartition,
        rows: Sequence[tuple[bytes, bytes | None, int]],
        last_headers: Headers | None = None,
    ) -> None:
        limit = self.limit_of(tp.topic)
        for number, (key, value, timestamp) in enumerate(rows, start=1):
            if value is not None and len(value) > limit:
                raise RecordTooLargeError(tp.topic, len(value), limit, key_size=len(key))
            headers = last_headers if number == len(rows) else None
            offset = self._append(tp.topic, value, key, tp.partition, timestamp, headers)
            self._ends[tp] = offset + 1

    def apply_backpressure(self, timeout_s: float) -> None: ...

    def close(self) -> None:
        """Do nothing; an open transaction is left to the successor."""


class MemoryTransactionalProducer(_MemoryProducer):
    """Exactly-once producer: records between `begin` and `commit` become visible together."""

    def __init__(self, cluster: MemoryCluster, transactional_id: str) -> None:
        super().__init__(cluster)
        self._id = transactional_id

    def init(self) -> None:
        self._cluster.own(self._id, self)

    def begin(self) -> None:
        assert self._transaction is None, "the transaction before has not ended"
        self._ends.clear()
        self._transaction = Transaction()

    def _check(self) -> None:
        assert self._transaction is not None, "a record outside of a transaction"
        if self._cluster.owners.get(self._id) is not self:
            raise ProducerFencedError("fenced: another producer has this transactional.id")
        self._cluster.open[self] = self._transaction

    def send_offsets(self, offsets: Offsets, metadata: GroupMetadata) -> None:
        self._check()
        assert self._transaction is not None
        assert isinstance(metadata, _GroupMetadata)
        assert metadata.group is not None, "offsets of a consumer without a group"
        self._transaction.offsets[metadata.group] = dict(offsets)

    def commit(self) -> None:
        self._end(committed=True)

    def abort(self) -> None:
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        self._check()
        transaction, self._transaction = self._transaction, None
        assert transaction is not None
        del self._cluster.open[self]
        self._cluster.end(transaction, committed=committed)

    def changelog_ends(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {tp: self._ends[tp] for tp in tps}


class MemoryPlainProducer(_MemoryProducer):
    """At-least-once producer: each record is visible immediately, and offsets follow."""

    def __init__(self, cluster: MemoryCluster, commit_offsets: Callable[[Offsets], None]) -> None:
        super().__init__(cluster)
        self._commit_offsets = commit_offsets
        self._offsets: Offsets = {}

    def init(self) -> None: ...

    def begin(self) -> None: ...

    def send_offsets(self, offsets: Offsets, metadata: GroupMetadata) -> None:  # noqa: ARG002
        self._offsets = offsets

    def commit(self) -> None:
        self._commit_offsets(self._offsets)
        self._offsets = {}

    def changelog_ends(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {tp: self._cluster.log(tp).end for tp in tps}

    def abort(self) -> None:
        self._offsets = {}


class MemoryAdmin(LocalAdmin[MemoryCluster]):
    """Admin client of an in-memory cluster."""

    def assigned(self, group: str) -> frozenset[TopicPartition] | None:  # noqa: ARG002
        return frozenset(
            p for topic in self._cluster.topics for p in self._cluster.partitions(topic)
        )

    def group_state(self, group: str) -> GroupState:  # noqa: ARG002
        return GroupState("empty", {})
