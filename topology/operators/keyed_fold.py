"""A fold of whole streams as an object: what `Aggregate` is as generated lines, for several inputs.

Null keys never come here, null values are left out, the result's timestamp is the larger one of the
row's and the record's, and a result of None deletes the row (Kafka Streams: `KStreamAggregate`).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from headrace.topology.context.context import Headers, OperatorContext, TableView
from headrace.topology.operators.stored_rows import StoredRows
from headrace.topology.serdes.kept import keeper

__all__ = ["KeyedFold", "KeyedFolding"]


@dataclass(frozen=True, slots=True)
class KeyedFold:
    """Folds records into one row a key.

    Args:
        store: the store.
        initializer: makes an empty aggregate.
        aggregator: called as ``aggregator(key, value, aggregate)``; None deletes the row.
    """

    store: str
    initializer: Callable[[], Any]
    aggregator: Callable[[Any, Any, Any], Any]
    is_table: bool = field(default=True, init=False)
    needs_old: bool = field(default=False, init=False)
    needs_record: bool = field(default=False, init=False)

    def make(self, context: OperatorContext, /) -> KeyedFolding:
        """Make the operator of one task."""
        return KeyedFolding(self, context)

    def view(self, context: OperatorContext, /) -> TableView:
        """The rows by key."""
        return StoredRows(context.buffers[self.store], context.serdes(self.store)[0])


class KeyedFolding:
    """The operator of one task; see the module."""

    __slots__ = (
        "_aggregator",
        "_caching",
        "_encode",
        "_forward",
        "_initializer",
        "_keep",
        "_rows",
        "pending",
    )

    def __init__(self, spec: KeyedFold, context: OperatorContext) -> None:
        self._rows = context.buffers[spec.store]
        key, value = context.serdes(spec.store)
        self._encode = key.serialize
        self._keep = keeper(value)
        self._initializer = spec.initializer
        self._aggregator = spec.aggregator
        self._forward = context.forward
        self._caching = context.caching
        self.pending: MutableMapping[Any, Any] = {}
        """By row key: the key, the value that was forwarded last, the latest headers."""

    def process(self, key: Any, value: Any, _old: Any, timestamp: int, headers: Headers, /) -> None:
        """Take one record."""
        row_key = self._encode(key)
        old, before = self._rows.get(row_key)
        # A copy of its own where values can be changed in place: the old one is forwarded.
        mine = self._rows.get(row_key)[0]
        new = self._aggregator(key, value, self._initializer() if mine is None else mine)
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
        self.pending[row_key] = (key, old if held is None else held[1], headers)

    def flush(self) -> None:
        """Forward the last value of each row that changed since the last flush."""
        held = list(self.pending.items())
        self.pending.clear()
        for row_key, (key, old, headers) in held:
            value, timestamp = self._rows.get(row_key)
            if value is not None or old is not None:
                self._forward(key, value, old, timestamp, headers)
