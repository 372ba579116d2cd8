"""Rows of a handover: the clients of a transaction, and the writer of rows into it.

Client libraries are imported on first use. Hot path: `write` runs for each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.spark_bridge.cleanup import cleanup_after
from headrace.spark_bridge.handover.units import UnitCounts
from headrace.spark_bridge.read import OpenConsumer, read_range
from headrace.streams.kafka.protocols import GroupAdminClient, GroupMetadata, TopicPartition
from headrace.topology.context.environment import Send

if TYPE_CHECKING:
    from headrace.streams.kafka.transactional_producer import TransactionalProducer

_ROWS_PER_S = 20_000
"""Minimum rows per second of a transaction, including Spark; the usual rate is ten times higher."""
_BYTES_PER_S = 10_000_000
"""Minimum bytes per second of a transaction."""

CALL_TIMEOUT_MS = 60_000
"""Time limit for retries of a call after temporary errors, and for a transaction of few rows."""


def expected_ms(rows: int, size: int = 0) -> int:
    """Return how long a transaction with these rows and bytes may take.

    >>> expected_ms(1_000_000), expected_ms(1_000_000, 10_000_000_000)
    (110000, 1060000)
    """
    return CALL_TIMEOUT_MS + 1000 * max(rows // _ROWS_PER_S, size // _BYTES_PER_S)


def make_producer(settings: Mapping[str, Any]) -> TransactionalProducer:
    """Create a producer whose `apply_backpressure` waits until the brokers have all records."""
    from headrace.streams.kafka.transactional_producer import TransactionalProducer

    return TransactionalProducer(settings, timeout_s=CALL_TIMEOUT_MS / 1000, max_in_flight=0)


def group_metadata(settings: Mapping[str, Any], group: str) -> GroupMetadata:
    """Return the metadata with which a client outside of a group commits the group's offsets."""
    from headrace.streams.kafka.clients import BrokerState, new_consumer

    consumer = new_consumer({**settings, "group.id": group}, BrokerState())
    with cleanup_after(consumer.close, quietly=True):
        metadata: GroupMetadata = consumer.consumer_group_metadata()
        return metadata


_COLUMNS = ("kind", "topic", "partition", "key", "value", "timestamp", "headers")

OldKeys = dict[TopicPartition, set[bytes]]
"""Keys in changelogs before a backfill, without the keys that the backfill has written."""


class RowWriter:
    """Writer that sends rows, and collects the offset metadata of the inputs.

    Args:
        send: of a producer with an open transaction.
        with_sinks: send the records for topics outside of the application.
        old: keys that changelogs have now; a key that is not written again gets a tombstone.
        now_ms: the timestamp of tombstones.
    """

    def __init__(self, send: Send, *, with_sinks: bool, old: OldKeys, now_ms: int) -> None:
        self._send = send
        self._with_sinks = with_sinks
        self._old = old
        self._now_ms = now_ms
        self.progress: dict[TopicPartition, str] = {}
        self.counts = UnitCounts()

    def write(self, batch: Any) -> None:
        """Send the rows of an Arrow batch of `headrace.spark_bridge.records.packs.RESULT`."""
        columns = [batch.column(name).to_pylist() for name in _COLUMNS]
        send, with_sinks, old = self._send, self._with_sinks, self._old
        changelog = sink = 0
        for kind, topic, partition, key, value, timestamp, headers in zip(*columns, strict=True):
            if kind == "changelog":
                send(topic, value, key, partition, timestamp, None)
                changelog += 1
                if old:
                    old.get(TopicPartition(topic, partition), set()).discard(key)
            elif kind == "sink":
                if with_sinks:
                    pairs = headers and [(pair["name"], pair["value"]) for pair in headers]
                    send(topic, value, key, partition, timestamp, pairs or None)
                    sink += 1
            elif kind == "progress":
                self.progress[TopicPartition(topic, partition)] = value.decode()
        self.counts.changelog += changelog
        self.counts.sink += sink

    def delete_old(self, tps: Iterable[TopicPartition]) -> None:
        """Send a tombstone for each old key that was not written."""
        for tp in tps:
            for key in sorted(self._old.pop(tp, ())):
                self._send(tp.topic, None, key, tp.partition, self._now_ms, None)
                self.counts.tombstones += 1


def read_old_keys(
    admin: GroupAdminClient,
    open_consumer: OpenConsumer,
    tps: Sequence[TopicPartition],
    timeout_s: float,
) -> OldKeys:
    """Return the keys with a value, up to the last stable offsets."""
    starts, ends = admin.start_offsets(tps), admin.stable_offsets(tps)
    found: OldKeys = {}
    for tp in tps:
        keys: set[bytes] = set()
        for records in read_range(open_consumer, tp, starts[tp], ends[tp], timeout_s=timeout_s):
            for record in records:
                key = record.key()
                if key is None:
                    continue
                if record.value() is None:
                    keys.discard(key)
                else:
                    keys.add(key)
        if keys:
            found[tp] = keys
    return found
