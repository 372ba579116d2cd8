"""Join of a stream with a global table: a lookup of each record by a mapped key.

The mapper is called for every record, including null values; the joiner is not called for null
values (both as in Kafka Streams). A result has the key, timestamp and headers of the stream's
record.
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
    """Spec of a join of a stream with a global table.

    Args:
        table: the name of the table's node.
        mapper: called as ``mapper(key, value)``, returns the key to look up.
        joiner: called as ``joiner(value, row)``.
        with_key: call ``joiner(key, value, row)`` instead, with the key of the record.
        left: whether records without a row are joined, too, with None.
    """

    table: str
    mapper: Callable[..., Any]
    joiner: Callable[..., Any]
    with_key: bool
    left: bool

    @property
    def serde_arguments(self) -> Arguments:
        """Names of the serdes: only the lookup key is encoded, with the table's serde."""
        return {"key": _KEY_OF_TABLE, "value": _KEY_OF_TABLE}

    def make(self, context: OperatorContext, /) -> _Join:
        return _Join(self, context)


class _Join(Uncached):
    """Hot path: a single lookup per record."""

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
