"""Rows of a store by their key objects, and the steps whose tables are such rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.state.buffer import Buffer
from headrace.topology.context.context import Headers, OperatorContext, Receive, TableView
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.graph.fold import Fold
from headrace.topology.graph.graph import AnySerde


class StoredRows:
    """The rows of a store, by their key objects."""

    __slots__ = ("_encode", "_get")

    def __init__(self, buffer: Buffer, key: AnySerde) -> None:
        self._get = buffer.get
        self._encode = key.serialize

    def get(self, key: Any, /) -> tuple[Any, int]:
        """The value and timestamp of a key, or (None, -1)."""
        return self._get(self._encode(key))


@dataclass(frozen=True, slots=True)
class StoredTable(OperatorSpec):
    """What steps have in common that keep the rows of their table in a store."""

    store: str
    is_table: ClassVar[bool] = True

    def view(self, context: OperatorContext, /) -> TableView:
        """The rows as they are stored."""
        return StoredRows(context.buffers[self.store], context.serdes(self.store)[0])


@dataclass(frozen=True, slots=True)
class FoldedTable(StoredTable):
    """What the folds have in common that run as objects."""

    fold: Fold

    def store_advice(self, *, reads_topic: bool) -> str:  # noqa: ARG002
        """The call that it comes from."""
        return f'{self.fold.word}(store="...")'


def to_all(receivers: tuple[Receive, ...]) -> Receive:
    """One receiver that hands each record to several, in their order."""
    if len(receivers) == 1:
        return receivers[0]

    def forward(key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        for receive in receivers:
            receive(key, value, old, timestamp, headers)

    return forward
