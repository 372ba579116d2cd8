"""Filter or map of a table, whose rows are stored.

Old values are read from the store, so the table upstream need not be stored or forward old values
(Kafka Streams: `KTableFilter`, `KTableMapValues`).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from headrace.topology.context.context import Headers, Operator, OperatorContext
from headrace.topology.graph.graph import Function
from headrace.topology.operators.stored_rows import StoredTable
from headrace.topology.operators.table_rows import TableRows


@dataclass(frozen=True, slots=True)
class StoredMapping(StoredTable):
    """Spec of a filter or map of a table with a store.

    Args:
        function: called as ``function(key, value)``, also with None for a deleted row.
    """

    function: Function

    def make(self, context: OperatorContext, /) -> _Mapping:
        return _Mapping(self, context)


class _Mapping(Operator):
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
