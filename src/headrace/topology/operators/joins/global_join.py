"""Joining a stream with a global table: a look-up of each record by a key that it is mapped to.

The mapper is called for every record, those with a null value included; the joiner is not (both as
in Kafka Streams). A result has the key, timestamp and headers of the stream's record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.errors import Arguments
from headrace.topology.operators.last_changes import Uncached

_KEY_OF_TABLE = "the global table's key"


@dataclass(frozen=True, slots=True)
class GlobalJoin(OperatorSpec):
    """What a join of a stream with a global table is (see `headrace.topology.context.context`).

    Args:
        table: the name of the table's node.
        mapper: called as ``mapper(key, value)``, returns the key to look up.
        joiner: called as ``joiner(value, row)``.
        with_key: call ``joiner(key, value, row)`` instead, with the key of the record.
        left: whether records without a row are joined too, with None.
    """

    table: str
    mapper: Callable[..., Any]
    joiner: Callable[..., Any]
    with_key: bool
    left: bool

    @property
    def serde_arguments(self) -> Arguments:
        """It writes none but the key that it looks up, and the table has named how."""
        return {"key": _KEY_OF_TABLE, "value": _KEY_OF_TABLE}

    def make(self, context: OperatorContext, /) -> _Join:
        """Make the operator of one task."""
        return _Join(self, context)


class _Join(Uncached):
    """Hot path: one look-up a record."""

    __slots__ = ("_drop", "_get", "_joiner", "_left", "_mapper", "_with_key")

    def __init__(self, spec: GlobalJoin, context: OperatorContext) -> None:
        self._get = context.view(spec.table).get
        self._mapper = spec.mapper
        self._joiner = spec.joiner
        self._with_key = spec.with_key
        self._left = spec.left
        super().__init__(context.forward)
        self._drop = context.dropped

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        wanted = self._mapper(key, value)
        if value is None:
            self._drop("null value")
            return
        if wanted is None:
            if not self._left:
                self._drop("null key of the global table")
                return
            row = None
        else:
            row = self._get(wanted)[0]
            if row is None and not self._left:
                return
        joined = self._joiner(key, value, row) if self._with_key else self._joiner(value, row)
        self._forward(key, joined, None, timestamp, headers)
