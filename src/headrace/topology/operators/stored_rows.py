"""Rows of a store by key, and base classes of specs with a stored table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.state.buffer import Buffer
from headrace.topology.context.context import Headers, OperatorContext, Receive, TableView
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
