"""Tables that are computed from another table: their stored rows and the changes to forward.

A value that does not change the row is neither stored nor forwarded, nor is the deletion of a
missing row.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from headrace.state.buffer import ATOMS
from headrace.topology.context.context import Headers, Operator, OperatorContext
from headrace.topology.graph.graph import Function
from headrace.topology.operators.record_cache import RecordCache, StoredTable
from headrace.topology.serdes.normalise import normaliser


def is_same_value(first: Any, second: Any, encode: Callable[[Any], bytes]) -> bool:
    """Whether two values have the same class, are equal, and encode to equal bytes.

    For example 1, 1.0 and True are equal but not the same.

    >>> from headrace import serdes
    >>> encode = serdes.json.serialize
    >>> is_same_value([1], [1], encode), is_same_value([1], [True], encode)
    (True, False)
    """
    if first.__class__ is not second.__class__ or first != second:
        return False
    return first.__class__ in ATOMS or encode(first) == encode(second)


class TableRows(RecordCache):
    """Rows of a task."""

    __slots__ = (
        "_caching",
        "_encode_value",
        "_keep",
        "encode_key",
        "get",
        "immutable",
        "put",
    )

    def __init__(self, context: OperatorContext, store: str) -> None:
        key, value = context.serdes(store)
        self.encode_key: Callable[[Any], bytes] = key.serialize
        self._encode_value: Callable[[Any], bytes] = value.serialize
        self._keep = normaliser(value)
        self.immutable = value.immutable
        buffer = context.buffers[store]
        self.get = buffer.get
        self.put = buffer.put
        self._caching = context.caching
        super().__init__(context.forward, buffer.get)

    def change(
        self,
        key: Any,
        row_key: bytes,
        value: Any,
        old: Any,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Write a row, and forward or cache its change; `old` must be as it was when read."""
        value = self._keep(value)
        if is_same_value(value, old, self._encode_value):
            return
        self.put(row_key, value, timestamp)
        if not self._caching:
            self._forward(key, value, old, timestamp, headers)
            return
        update = self.pending.get(row_key)
        if update is None:
            self.pending[row_key] = [key, old, headers]
        else:
            update[2] = headers


@dataclass(frozen=True, slots=True)
class StoredMapping(StoredTable):
    """Spec of a filter or map of a table, whose rows are stored.

    Old values are read from the store, so the table upstream need not be stored or forward old
    values (Kafka Streams: `KTableFilter`, `KTableMapValues`).

    Args:
        function: called as ``function(key, value)``, also with None for a deleted row.
    """

    function: Function

    def make(self, context: OperatorContext, /) -> _StoredMapping:
        return _StoredMapping(self, context)


class _StoredMapping(Operator):
    __slots__ = ("_failed", "_function", "_rows", "flush", "pending")

    def __init__(self, spec: StoredMapping, context: OperatorContext) -> None:
        self._function = spec.function
        self._failed = context.failed
        self._rows = TableRows(context, spec.store)
        self.pending: MutableMapping[Any, Any] = self._rows.pending
        self.flush: Callable[[], None] = self._rows.flush

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        try:
            new = self._function(key, value)
        except Exception as error:
            self._failed(error, key, value, timestamp, headers)
            new = None
        row_key = self._rows.encode_key(key)
        self._rows.change(key, row_key, new, self._rows.get(row_key)[0], timestamp, headers)
