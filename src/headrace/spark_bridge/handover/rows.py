"""Writer of rows into an open transaction: changelogs, sinks, and tombstones for old keys.

Hot path: `write` runs for each row that is handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from headrace.spark_bridge.handover.units import UnitCounts
from headrace.spark_bridge.read import OpenConsumer, read_range
from headrace.streams.kafka.protocols import TopicPartition
from headrace.topology.context.environment import Headers

_COLUMNS = ("kind", "topic", "partition", "key", "value", "timestamp", "headers")

OldKeys = dict[TopicPartition, set[bytes]]
"""Keys in changelogs before a backfill, without the keys that the backfill has written."""


class Sender(Protocol):
    """Producer with an open transaction."""

    send: Callable[[str, bytes | None, bytes | None, int, int, Headers | None], None]


class RowWriter:
    """Writer that sends rows, and collects the offset metadata of the inputs.

    Args:
        with_sinks: send the records for topics outside of the application.
        old: keys that changelogs have now; a key that is not written again gets a tombstone.
        now_ms: the timestamp of tombstones.
    """

    def __init__(self, producer: Sender, *, with_sinks: bool, old: OldKeys, now_ms: int) -> None:
        self._send = producer.send
        self._with_sinks = with_sinks
        self._old = old
        self._now_ms = now_ms
        self.progress: dict[TopicPartition, str] = {}
        self.counts = UnitCounts()

    def write(self, batch: Any) -> None:
        """Send the rows of an Arrow batch of `headrace.spark_bridge.records.records.RESULT`."""
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

    def forget_old(self, tps: Iterable[TopicPartition]) -> None:
        """Send a tombstone for each old key that was not written."""
        for tp in tps:
            for key in sorted(self._old.pop(tp, ())):
                self._send(tp.topic, None, key, tp.partition, self._now_ms, None)
                self.counts.tombstones += 1


def read_old_keys(
    open_consumer: OpenConsumer,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    *,
    timeout_s: float,
) -> OldKeys:
    """Return the keys with a value; `ranges` are start and last stable offset."""
    found: OldKeys = {}
    for tp, (start, end) in ranges.items():
        keys: set[bytes] = set()
        for records in read_range(open_consumer, tp, start, end, timeout_s=timeout_s):
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
