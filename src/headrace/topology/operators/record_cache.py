"""Stored tables of operators, and the cache of their rows' last changes until the next flush.

Downstream of a cached table, each row has at most one change per flush: from the value that was
forwarded last to the current value. So the cache holds the old value of the first change and the
headers of the last; the new value is read from the row at the flush. Generated code does the same
for whole streams (`compile.update`).

Hot path: operators note a change inline, without a call: the first as ``pending[row_key] = [key,
old, headers]``, later changes only by their headers.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.state.buffer import Buffer
from headrace.topology.context.context import Headers, Operator, OperatorContext, Receive, TableView
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.graph.fold import Fold
from headrace.topology.graph.graph import AnySerde


class StoredRows:
    """View of the rows of a store by key."""

    __slots__ = ("_encode", "_get")

    def __init__(self, buffer: Buffer, key: AnySerde) -> None:
        self._get = buffer.get
        self._encode = key.serialize

    def get(self, key: Any, /) -> tuple[Any, int]:
        return self._get(self._encode(key))


@dataclass(frozen=True, slots=True)
class StoredTable(OperatorSpec):
    """Base of specs that store the rows of their table."""

    store: str
    is_table: ClassVar[bool] = True

    def view(self, context: OperatorContext, /) -> TableView:
        return StoredRows(context.buffers[self.store], context.serdes(self.store)[0])


@dataclass(frozen=True, slots=True)
class FoldedTable(StoredTable):
    """Base of specs of aggregations that run as objects."""

    fold: Fold

    def store_advice(self, *, reads_topic: bool) -> str:  # noqa: ARG002
        return f'{self.fold.word}(store="...")'


def to_all(receivers: tuple[Receive, ...]) -> Receive:
    if len(receivers) == 1:
        return receivers[0]

    def forward(key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        for receive in receivers:
            receive(key, value, old, timestamp, headers)

    return forward


class Uncached(Operator):
    """Base of operators without a record cache."""

    __slots__ = ("_forward", "pending")

    def __init__(self, forward: Receive) -> None:
        self._forward = forward
        self.pending: MutableMapping[bytes, list[Any]] = {}


class RecordCache:
    """Cache of uncommitted changes of a store's rows.

    Args:
        forward: receives the changes at a flush; None if the node has no children.
        read: returns the value and timestamp of a row by its key bytes.
    """

    __slots__ = ("_forward", "_read", "pending")

    def __init__(self, forward: Receive | None, read: Callable[[bytes], tuple[Any, int]]) -> None:
        self._forward = to_all(()) if forward is None else forward
        self._read = read
        self.pending: MutableMapping[bytes, list[Any]] = {}
        """By row key: the key, the value that was forwarded last, the latest headers."""

    def flush(self) -> None:
        """Forward the last change of each row, in the order of the first changes."""
        updates = list(self.pending.items())
        self.pending.clear()
        for row_key, (key, old, headers) in updates:
            value, timestamp = self._read(row_key)
            # A row that was added and deleted since the last flush was never forwarded.
            if value is not None or old is not None:
                self._forward(key, value, old, timestamp, headers)
