"""Kafka cluster in memory: topics, partitions, transactions and committed offsets.

Readers observe the same effects as on a real broker: an open transaction limits `read_committed`
readers (the last stable offset), a commit or an abort takes an offset in each partition of the
transaction, aborted records stay in the log and are skipped, and offsets committed in a transaction
are undecided until it ends.

Responsibilities: only `append` and `end` write to logs, only `delete_before` changes a log's start,
only `commit_offsets` and `end` change a group's offsets. `changes` counts all changes.
"""

from __future__ import annotations

import base64
import operator
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.state.codec import partition_for_key
from headrace.streams.kafka.protocols import Offsets, TopicPartition
from headrace.streams.testing.local_cluster import (
    CREATE_TIME,
    LocalCluster,
    LocalTopic,
    Transaction,
)
from headrace.topology.context.environment import Headers
from headrace.topology.errors import TopologyError
from headrace.topology.naming import require_legal_name


@dataclass(slots=True, eq=False)
class MemoryMessage:
    """Record of a log, with the methods of a client's message.

    `number` orders the records of all partitions by the time of writing.
    """

    tp: TopicPartition
    _offset: int
    _key: bytes | None
    _value: bytes | None
    _timestamp_ms: int
    _headers: Headers | None
    number: int

    def topic(self) -> str:
        """Return the topic."""
        return self.tp.topic

    def partition(self) -> int:
        """Return the partition."""
        return self.tp.partition

    def offset(self) -> int:
        """Return the offset in the partition."""
        return self._offset

    def key(self) -> bytes | None:
        """Return the encoded key."""
        return self._key

    def value(self) -> bytes | None:
        """Return the encoded value."""
        return self._value

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp type and the milliseconds since 1970."""
        return CREATE_TIME, self._timestamp_ms

    def headers(self) -> Headers | None:
        """Return the headers, or None if the record has none."""
        return self._headers


def _new_id(_name: str) -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


class MemoryCluster(LocalCluster[MemoryMessage]):
    """Kafka cluster in memory: topics, partitions, transactions and committed offsets.

    Args:
        partitions: partition count of topics that are created implicitly: one number for all, or
            counts by name, with 1 for topics that are not named.
        seed: seed for the partition of records without a key, and for the order of partitions.
        now_ms: returns the brokers' time, for topics that limit timestamps.

    Examples:
        >>> cluster = MemoryCluster()
        >>> transaction = Transaction()
        >>> _ = cluster.append("t", b"value", b"key", 0, 0, None, transaction)
        >>> log = cluster.log(TopicPartition("t", 0))
        >>> log.end, log.last_stable
        (1, 0)
        >>> cluster.end(transaction, committed=True)
        >>> log.end, log.last_stable, [m.value() for m in log.read(0, 9, committed=True)[0]]
        (2, 2, [b'value'])
    """

    def __init__(
        self,
        *,
        partitions: int | Mapping[str, int] = 1,
        seed: int = 0,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(_new_id)
        self._partitions = partitions
        self.now_ms = now_ms
        self._next_keyless: dict[str, int] = {}
        self._records = 0
        self.random = random.Random(seed)  # noqa: S311 - reproducible on purpose
        self.owners: dict[str, object] = {}
        """The current producer of each transactional id."""
        self.open: dict[object, Transaction] = {}
        """The open transactions by producer."""
        self.changes = 0

    # -- topics --------------------------------------------------------------------------------

    def default_partitions(self, name: str) -> int:
        """Return the partition count of a topic that is created implicitly."""
        if isinstance(self._partitions, int):
            return self._partitions
        return self._partitions.get(name, 1)

    def create(
        self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> LocalTopic[MemoryMessage]:
        """Create a topic, or return the existing topic.

        Raises:
            TopologyError: brokers would refuse the name.
        """
        if name not in self.topics:
            self._require_no_collision(require_legal_name(name, "topic"))
            self.changes += 1
        count = self.default_partitions(name) if partitions is None else partitions
        return super().create(name, count, config or {})

    def _require_no_collision(self, name: str) -> None:
        unified = name.replace(".", "_")
        other = next((topic for topic in self.topics if topic.replace(".", "_") == unified), None)
        if other is not None:
            raise TopologyError(
                f"topic {name!r} collides with topic {other!r}, because brokers do not distinguish "
                "'.' and '_'. Rename either topic."
            )

    def delete(self, name: str) -> None:
        """Delete a topic and its committed offsets, as a broker does."""
        del self.topics[name]
        for offsets in self.offsets.values():
            for tp in [tp for tp in offsets if tp.topic == name]:
                del offsets[tp]
        self.changes += 1

    # -- records -------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp_ms: int,
        headers: Headers | None,
        transaction: Transaction | None = None,
    ) -> MemoryMessage:
        """Write a record, and create the topic if it does not exist.

        Args:
            topic: the topic to write to.
            value: None is a null value.
            key: None is a null key.
            partition: -1 is the partition of the key, and round-robin for a null key.
            timestamp_ms: milliseconds since 1970.
            headers: the headers in their order.
            transaction: the transaction of the record, if any.

        Raises:
            TypeError: Kafka's own producer refuses the timestamp or the headers.
        """
        _require_valid(timestamp_ms, headers)
        logs = self.create(topic).logs
        if partition < 0:
            partition = self._partition_of(topic, key, len(logs))
        tp, log = TopicPartition(topic, partition), logs[partition]
        message = MemoryMessage(
            tp,
            log.end,
            key,
            value,
            timestamp_ms,
            list(headers) if headers else None,
            self._records,
        )
        if transaction is not None and transaction not in log.open:
            assert transaction.committed is None, transaction
            transaction.partitions[tp] = None
        log.append(message, transaction)
        self._records += 1
        self.changes += 1
        return message

    def _partition_of(self, topic: str, key: bytes | None, count: int) -> int:
        if key is not None:
            return partition_for_key(key, count)
        if topic not in self._next_keyless:
            self._next_keyless[topic] = self.random.randrange(count)
        partition = self._next_keyless[topic]
        self._next_keyless[topic] = (partition + 1) % count
        return partition

    # -- transactions and offsets --------------------------------------------------------------

    def end(self, transaction: Transaction, *, committed: bool) -> None:
        """End a transaction: write markers to each of its partitions, then commit its offsets."""
        assert transaction.committed is None, transaction
        transaction.committed = committed
        for tp in transaction.partitions:
            self.log(tp).mark(transaction)
        for group, offsets in transaction.offsets.items() if committed else ():
            self.commit_offsets(group, offsets)
        self.changes += 1

    def own(self, transactional_id: str, producer: object) -> None:
        """Give a transactional id to a producer, and abort its last owner's open transaction."""
        before = self.owners.get(transactional_id)
        self.owners[transactional_id] = producer
        left_open = self.open.pop(before, None)
        if left_open is not None:
            self.end(left_open, committed=False)

    def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit a group's offsets."""
        self.offsets.setdefault(group, {}).update(offsets)
        self.changes += 1

    def is_undecided(self, group: str, tps: Sequence[TopicPartition]) -> bool:
        """Return whether an open transaction contains offsets of these partitions."""
        return any(
            tp in transaction.offsets.get(group, {})
            for transaction in self.open.values()
            for tp in tps
        )


def _require_valid(timestamp_ms: object, headers: Sequence[object] | None) -> None:
    """Raise the errors of confluent-kafka, so that a test does not pass with invalid arguments."""
    operator.index(timestamp_ms)  # type: ignore[arg-type]
    for header in headers or ():
        if not isinstance(header, tuple) or len(header) != 2:
            raise TypeError(
                f"headers must be a list of (key, value) tuples, not of {type(header).__name__}"
            )
        if not isinstance(header[1], bytes | str | None):
            raise TypeError(
                f"a header's value must be bytes, str or None, not {type(header[1]).__name__}"
            )
