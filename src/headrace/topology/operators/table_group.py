"""Grouped tables: the change of groups of a row, and the aggregation over groups.

`SelectGroup` sends each group its removed and added values, over a repartition topic: a single
record with both if the row stays in its group, otherwise two, the removal first. `TableFold`
subtracts first and then adds. Both require that the old value is the value that was forwarded last,
so that each added value is subtracted exactly once (Kafka Streams: `KTableRepartitionMap`,
`KTableAggregate`, `KTableReduce`).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, Operator, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec, RowKind
from headrace.topology.graph.graph import AnySerde
from headrace.topology.operators.record_cache import FoldedTable, Uncached
from headrace.topology.operators.table_rows import TableRows
from headrace.topology.serdes.changed import ValueChange
from headrace.topology.serdes.normalise import as_pair

_NONE = (None, None)
"""No group, and no value in it."""


@dataclass(frozen=True, slots=True)
class SelectGroup(OperatorSpec):
    """Spec of the operator that computes the groups of a row before and after a change.

    Args:
        mapper: called as ``mapper(key, value)``, returns the group's key and the value for it.
        key: the serde of groups' keys; None takes the default.
        topic: a unique name, for serdes that depend on a topic.
    """

    mapper: Callable[[Any, Any], tuple[Any, Any]]
    key: AnySerde | None
    topic: str
    is_timed: ClassVar[bool] = False
    changes_key: ClassVar[bool] = True
    needs_old: ClassVar[bool] = True

    def bound(self, bind: Callable[..., AnySerde]) -> SelectGroup:
        return replace(self, key=bind(self.key, self.topic, is_key=True))

    def make(self, context: OperatorContext, /) -> _SelectGroup:
        return _SelectGroup(self, context)


class _SelectGroup(Uncached):
    __slots__ = ("_encode", "_failed", "_mapper")

    def __init__(self, spec: SelectGroup, context: OperatorContext) -> None:
        assert spec.key is not None, "the plan sets the serde of groups' keys"
        self._encode = spec.key.serialize
        self._mapper = spec.mapper
        super().__init__(context.forward)
        self._failed = context.failed

    def process(self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        try:
            pair = _NONE if old is None else self._mapper(key, old)
            old_group, old_value = pair if pair.__class__ is tuple else as_pair(pair)
        except Exception:
            # It also failed when the row was added, so the row is in no group.
            old_group, old_value = _NONE
        try:
            pair = _NONE if value is None else self._mapper(key, value)
            new_group, new_value = pair if pair.__class__ is tuple else as_pair(pair)
        except Exception as error:
            self._failed(error, key, value, timestamp, headers)
            # Remove the previous value anyway.
            new_group, new_value = _NONE
        is_removed = old_group is not None and old_value is not None
        is_added = new_group is not None and new_value is not None
        # Compare bytes, because equal keys may be encoded differently.
        if is_removed and is_added and self._encode(old_group) == self._encode(new_group):
            self._forward(new_group, ValueChange(new_value, old_value), None, timestamp, headers)
            return
        if is_removed:
            self._forward(old_group, ValueChange(None, old_value), None, timestamp, headers)
        if is_added:
            self._forward(new_group, ValueChange(new_value, None), None, timestamp, headers)


@dataclass(frozen=True, slots=True)
class TableFold(FoldedTable):
    """Spec of the aggregation of removed and added values into a row per group."""

    is_timed: ClassVar[bool] = False

    @property
    def row_kind(self) -> RowKind:
        return RowKind(f"{self.fold.word} of a grouped table")

    def make(self, context: OperatorContext, /) -> _TableFold:
        return _TableFold(self, context)


class _TableFold(Operator):
    __slots__ = ("_add", "_dropped", "_remove", "_rows", "flush", "pending")

    def __init__(self, spec: TableFold, context: OperatorContext) -> None:
        self._add, self._remove = spec.fold.step, spec.fold.remove
        self._rows = TableRows(context, spec.store)
        self._dropped = context.dropped
        self.pending: MutableMapping[Any, Any] = self._rows.pending
        self.flush: Callable[[], None] = self._rows.flush

    def process(
        self, key: Any, value: ValueChange | None, _: Any, timestamp: int, headers: Headers, /
    ) -> None:
        if value is None:
            self._dropped("null value")
            return
        rows = self._rows
        row_key = rows.encode_key(key)
        old, row_time = rows.get(row_key)
        new = old
        if old is not None:
            # A separate copy if values can be changed in place, because the old value is forwarded.
            new = old if rows.immutable else rows.get(row_key)[0]
            timestamp = max(timestamp, row_time)
            if value.old is not None:
                new = self._remove(key, value.old, new)
        if value.new is not None:
            new = self._add(key, value.new, new)
        rows.change(key, row_key, new, old, timestamp, headers)
