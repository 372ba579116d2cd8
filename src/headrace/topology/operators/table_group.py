"""A table grouped anew: which rows leave a group and which join it, and the fold over them.

`SelectGroup` tells each group what it loses and what it gains, over a repartition topic: one record
with both where a row stays in its group, else two, the loss first. `TableFold` takes away first and
then adds. Both rest on the old value being the one that was forwarded last: it is taken away once
for each time that it was added (Kafka Streams: `KTableRepartitionMap`, `KTableAggregate`,
`KTableReduce`).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec, RowKind
from headrace.topology.graph.graph import AnySerde
from headrace.topology.operators.last_changes import Uncached
from headrace.topology.operators.stored_rows import FoldedTable
from headrace.topology.operators.table_rows import TableRows
from headrace.topology.serdes.changed import Change
from headrace.topology.serdes.kept import as_pair

_NONE = (None, None)
"""No group, and no value in it."""


@dataclass(frozen=True, slots=True)
class SelectGroup(OperatorSpec):
    """Finds the groups of a row, before and after a change.

    Args:
        mapper: called as ``mapper(key, value)``, returns the group's key and the value for it.
        key: the serde of groups' keys; None takes the default.
        topic: any name that is the step's own, for serdes that ask for a topic.
    """

    mapper: Callable[[Any, Any], tuple[Any, Any]]
    key: AnySerde | None
    topic: str
    is_timed: ClassVar[bool] = False
    changes_key: ClassVar[bool] = True
    needs_old: ClassVar[bool] = True

    def bound(self, bind: Callable[..., AnySerde]) -> SelectGroup:
        """The same spec with a complete serde."""
        return replace(self, key=bind(self.key, self.topic, is_key=True))

    def make(self, context: OperatorContext, /) -> _SelectGroup:
        """Make the operator of one task."""
        return _SelectGroup(self, context)


class _SelectGroup(Uncached):
    __slots__ = ("_encode", "_failed", "_mapper")

    def __init__(self, spec: SelectGroup, context: OperatorContext) -> None:
        assert spec.key is not None, "the serde of groups' keys is filled in by the plan"
        self._encode = spec.key.serialize
        self._mapper = spec.mapper
        super().__init__(context.forward)
        self._failed = context.failed

    def process(self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        try:
            pair = _NONE if old is None else self._mapper(key, old)
            loses, lost = pair if pair.__class__ is tuple else as_pair(pair)
        except Exception:
            # It failed when the row came, too, so the row is in no group.
            loses, lost = _NONE
        try:
            pair = _NONE if value is None else self._mapper(key, value)
            gains, gained = pair if pair.__class__ is tuple else as_pair(pair)
        except Exception as error:
            self._failed(error, key, value, timestamp, headers)
            # What was there before is taken away all the same.
            gains, gained = _NONE
        leaves = loses is not None and lost is not None
        joins = gains is not None and gained is not None
        # Equal keys may be other documents, so their bytes tell.
        if leaves and joins and self._encode(loses) == self._encode(gains):
            self._forward(gains, Change(gained, lost), None, timestamp, headers)
            return
        if leaves:
            self._forward(loses, Change(None, lost), None, timestamp, headers)
        if joins:
            self._forward(gains, Change(gained, None), None, timestamp, headers)


@dataclass(frozen=True, slots=True)
class TableFold(FoldedTable):
    """Folds what groups lose and gain into one row a group."""

    is_timed: ClassVar[bool] = False

    @property
    def row_kind(self) -> RowKind:
        """Which fold it is."""
        return RowKind(f"{self.fold.word} of a grouped table")

    def make(self, context: OperatorContext, /) -> _TableFold:
        """Make the operator of one task."""
        return _TableFold(self, context)


class _TableFold:
    __slots__ = ("_add", "_dropped", "_remove", "_rows", "flush", "pending")

    def __init__(self, spec: TableFold, context: OperatorContext) -> None:
        self._add, self._remove = spec.fold.step, spec.fold.remove
        self._rows = TableRows(context, spec.store)
        self._dropped = context.dropped
        self.pending: MutableMapping[Any, Any] = self._rows.pending
        self.flush = self._rows.flush

    def process(
        self, key: Any, value: Change | None, _: Any, timestamp: int, headers: Headers, /
    ) -> None:
        if value is None:
            self._dropped("null value")
            return
        rows = self._rows
        row_key = rows.encode_key(key)
        old, before = rows.get(row_key)
        new = old
        if old is not None:
            # A copy of its own where values can be changed in place: the old one is forwarded.
            new = old if rows.immutable else rows.get(row_key)[0]
            timestamp = max(timestamp, before)
            if value.old is not None:
                new = self._remove(key, value.old, new)
        if value.new is not None:
            new = self._add(key, value.new, new)
        rows.change(key, row_key, new, old, timestamp, headers)
