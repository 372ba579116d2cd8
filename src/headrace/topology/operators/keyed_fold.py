"""Aggregation of whole streams as an object, for several inputs (`Aggregate` is generated).

Null keys never arrive here, null values are dropped, the result's timestamp is the larger of the
row's and the record's, and a result of None deletes the row (Kafka Streams: `KStreamAggregate`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, Operator, OperatorContext
from headrace.topology.operators.last_changes import RecordCache
from headrace.topology.operators.stored_rows import FoldedTable
from headrace.topology.serdes.kept import keeper


@dataclass(frozen=True, slots=True)
class KeyedFold(FoldedTable):
    """Spec of an aggregation of records into a row per key."""

    is_timed: ClassVar[bool] = False

    def make(self, context: OperatorContext, /) -> KeyedFolding:
        return KeyedFolding(self, context)


class KeyedFolding(RecordCache, Operator):
    """Operator of a `KeyedFold`; see the module."""

    __slots__ = ("_add", "_caching", "_encode", "_initial", "_keep", "_rows")

    def __init__(self, spec: KeyedFold, context: OperatorContext) -> None:
        self._rows = context.buffers[spec.store]
        key, value = context.serdes(spec.store)
        self._encode = key.serialize
        self._keep = keeper(value)
        self._initial, self._add = spec.fold.initial, spec.fold.add
        self._caching = context.caching
        super().__init__(context.forward, self._rows.get)

    def process(self, key: Any, value: Any, _old: Any, timestamp: int, headers: Headers, /) -> None:
        row_key = self._encode(key)
        old, before = self._rows.get(row_key)
        # A separate copy if values can be changed in place, because the old value is forwarded.
        mine = self._rows.get(row_key)[0]
        new = self._add(key, value, self._initial() if mine is None else mine)
        new = self._keep(new)
        if old is None and new is None:
            return
        if old is not None and before > timestamp:
            timestamp = before
        self._rows.put(row_key, new, timestamp)
        if not self._caching:
            self._forward(key, new, old, timestamp, headers)
            return
        held = self.pending.get(row_key)
        if held is None:
            self.pending[row_key] = [key, old, headers]
        else:
            held[2] = headers
