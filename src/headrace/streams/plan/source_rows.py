"""Restore of a table's rows from the source topic of the table.

Records are decoded and encoded by the same serdes as during processing, so the restored rows have
the same bytes: a key's bytes in the topic can differ from its bytes in the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.streams.kafka.protocols import ReceivedMessage
from headrace.topology.compile.codegen import CompileOptions
from headrace.topology.graph.graph import AnySerde, SubTopology
from headrace.topology.processors.store import Store

Changes = list[tuple[bytes, "bytes | None", int]]


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Conversion of a source topic's records into rows of a store.

    Args:
        read: the key serde and value serde of the source.
        kept: the key serde and value serde of the store.
        skips_undecodable: whether a handler skips records that cannot be decoded.
    """

    store: str
    topic: str
    read: tuple[AnySerde, AnySerde]
    kept: tuple[AnySerde, AnySerde]
    skips_undecodable: bool

    def changes(self, records: Iterable[ReceivedMessage]) -> Changes:
        """Raise ValueError if a record cannot be decoded that was decoded before."""
        changes: Changes = []
        for record in records:
            key, timestamp = record.key(), record.timestamp()[1]
            if key is None or timestamp < 0:
                continue
            try:
                row = self._row(key, record.value())
            except Exception as error:
                if self.skips_undecodable:
                    continue
                raise ValueError(
                    f"{record.topic()}-{record.partition()} has a record at offset "
                    f"{record.offset()} that was processed before and cannot be read again to "
                    f"restore store {self.store!r}: {error}; revert the change of the serdes, or "
                    "reset the application"
                ) from error
            changes.append((*row, timestamp))
        return changes

    def _row(self, key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
        (read_key, read_value), (keep_key, keep_value) = self.read, self.kept
        decoded = read_key.deserialize(key)
        again = getattr(keep_key, "reserialize", None) if read_key is keep_key else None
        row_key = keep_key.serialize(decoded) if again is None else again(decoded, key)
        if value is None:
            return row_key, None
        return row_key, keep_value.serialize(read_value.deserialize(value))


def source_rows(store: Store, sub: SubTopology, options: CompileOptions) -> SourceRows:
    assert store.source_topic is not None, store
    source = next(s for s in sub.sources if store.source_topic in s.topics)
    return SourceRows(
        store.name,
        store.source_topic,
        (source.key or options.default_key, source.value or options.default_value),
        (store.key or options.default_key, store.value or options.default_value),
        options.skips_undecodable,
    )
