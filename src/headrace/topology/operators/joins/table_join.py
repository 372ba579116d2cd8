"""Join of a stream with a table: a lookup of each record's key, or of a mapped key, in the table.

Only the stream makes results: a change of the table makes none, but later records are joined with
the new row. A result has the key, timestamp and headers of the stream's record (Kafka Streams:
`KStreamKTableJoinProcessor`).

A key is mapped for a global table. The mapper is called for every record, including null values;
the joiner is not called for null values (both as in Kafka Streams).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.errors import Arguments
from headrace.topology.operators.record_cache import Uncached

_TABLE_KEY = "the global table's key"


@dataclass(frozen=True, slots=True)
class TableJoin(OperatorSpec):
    """Spec of a join of a stream with a table.

    Args:
        table: the name of the table's node.
        joiner: called as ``joiner(value, row)``.
        with_key: call ``joiner(key, value, row)`` instead.
        left: whether records without a row are joined, too, with None.
    """

    table: str
    joiner: Callable[..., Any]
    with_key: bool
    left: bool

    repartition_advice: ClassVar[str | None] = 'join(name="...")'

    def make(self, context: OperatorContext, /) -> _TableJoin:
        return _TableJoin(self, context)


@dataclass(frozen=True, slots=True)
class GlobalJoin(TableJoin):
    """Spec of a join of a stream with a global table.

    Args:
        mapper: called as ``mapper(key, value)``, returns the key to look up; the joiner gets the
            key of the record.
    """

    mapper: Callable[..., Any]

    repartition_advice: ClassVar[str | None] = None

    @property
    def serde_arguments(self) -> Arguments:
        """Names of the serdes: only the lookup key is encoded, with the table's serde."""
        return {"key": _TABLE_KEY, "value": _TABLE_KEY}

    def make(self, context: OperatorContext, /) -> _GlobalJoin:
        return _GlobalJoin(self, context)


class _TableJoin(Uncached):
    """Hot path: a single lookup per record."""

    __slots__ = ("_dropped", "_get", "_get_as_of", "_joiner", "_left", "_with_key")

    def __init__(self, spec: TableJoin, context: OperatorContext) -> None:
        view = context.view(spec.table)
        self._get = view.get
        # A versioned table returns the row that was valid at the record's timestamp.
        self._get_as_of: Callable[[Any, int], tuple[Any, int]] | None = getattr(
            view, "get_as_of", None
        )
        self._joiner = spec.joiner
        self._with_key = spec.with_key
        self._left = spec.left
        super().__init__(context.forward)
        self._dropped = context.dropped

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        if value is None:
            self._dropped("null value")
            return
        if key is None:
            if not self._left:
                self._dropped("null key")
                return
            row = None
        else:
            get_as_of = self._get_as_of
            row = self._get(key)[0] if get_as_of is None else get_as_of(key, timestamp)[0]
            if row is None and not self._left:
                return
        joined = self._joiner(key, value, row) if self._with_key else self._joiner(value, row)
        self._forward(key, joined, None, timestamp, headers)


class _GlobalJoin(_TableJoin):
    """Hot path: a single lookup per record."""

    __slots__ = ("_mapper",)

    def __init__(self, spec: GlobalJoin, context: OperatorContext) -> None:
        super().__init__(spec, context)
        self._mapper = spec.mapper

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        table_key = self._mapper(key, value)
        if value is None:
            self._dropped("null value")
            return
        if table_key is None:
            if not self._left:
                self._dropped("null key of the global table")
                return
            row = None
        else:
            row = self._get(table_key)[0]
            if row is None and not self._left:
                return
        joined = self._joiner(key, value, row) if self._with_key else self._joiner(value, row)
        self._forward(key, joined, None, timestamp, headers)
