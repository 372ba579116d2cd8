"""Join of a stream with a table: a lookup of each record's key in the table.

Only the stream makes results: a change of the table makes none, but later records are joined with
the new row. A result has the key, timestamp and headers of the stream's record (Kafka Streams:
`KStreamKTableJoinProcessor`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.operators.last_changes import Uncached


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

    repartition_advice: ClassVar[str] = 'join(name="...")'

    def make(self, context: OperatorContext, /) -> _Join:
        return _Join(self, context)


class _Join(Uncached):
    """Hot path: a single lookup per record."""

    __slots__ = ("_drop", "_get", "_get_as_of", "_joiner", "_left", "_with_key")

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
        self._drop = context.dropped

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        if value is None:
            self._drop("null value")
            return
        if key is None:
            if not self._left:
                self._drop("null key")
                return
            row = None
        else:
            get_as_of = self._get_as_of
            row = self._get(key)[0] if get_as_of is None else get_as_of(key, timestamp)[0]
            if row is None and not self._left:
                return
        joined = self._joiner(key, value, row) if self._with_key else self._joiner(value, row)
        self._forward(key, joined, None, timestamp, headers)
