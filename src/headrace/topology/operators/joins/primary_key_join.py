"""A join of two tables by their keys: `JoinSide` hands each side's changes to one `JoinMerge`.

A result depends on the two rows of its key and on nothing else. What was forwarded for a key before
is the result of the rows of that time, so the merge computes it from the old values of both sides:

- Without caches a change of one side finds the other as it was.
- With caches the merge waits for its own flush, behind those of both tables. It remembers the rows
  of the last flush from the old values that both sides told in this one; a side that told nothing
  has not changed. Each key gives one result at most.
- Where both sides come from one table, a change of one side finds the other changed already. There,
  and where a store was asked for, the last result is read from a store. It is written at the flush,
  too, unless both tables tell each change at once.

Kafka Streams (`KTableKTableInnerJoin` and its kin) computes the old result from the one old value
and the other row of now, which was never forwarded where both have changed.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, OperatorContext, TableView
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.operators.last_changes import Uncached
from headrace.topology.operators.stored_rows import StoredRows
from headrace.topology.operators.table_rows import TableRows

_NOTHING = object()
"""Stands for a side that has told no change."""


@dataclass(frozen=True, slots=True)
class JoinSide(OperatorSpec):
    """Marks the changes of one table with the side that they are of.

    Args:
        side: 0 for the table that joins, 1 for the other one.
    """

    side: int
    is_timed: ClassVar[bool] = False
    is_table: ClassVar[bool] = True
    needs_old: ClassVar[bool] = True

    def make(self, context: OperatorContext, /) -> _Side:
        """Make the operator of one task."""
        return _Side(self, context)


class _Side(Uncached):
    __slots__ = ("_side",)

    def __init__(self, spec: JoinSide, context: OperatorContext) -> None:
        self._side = spec.side
        super().__init__(context.forward)

    def process(self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        self._forward(key, (self._side, value), old, timestamp, headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinMerge(OperatorSpec):
    """Joins the rows of two tables.

    Args:
        tables: the names of the two tables' nodes.
        keys: a store whose keys are those of the first table.
        joiner: called as ``joiner(value, other value)``.
        alone: for either table, whether its rows are joined without one of the other.
        store: where results are kept; None computes them from the rows of the tables.
    """

    tables: tuple[str, str]
    keys: str
    joiner: Callable[[Any, Any], Any]
    alone: tuple[bool, bool]
    store: str | None = None
    is_timed: ClassVar[bool] = False
    is_table: ClassVar[bool] = True
    needs_old: ClassVar[bool] = True

    store_call: ClassVar[str] = 'join(store="...")'

    def kept_in(self, store: str) -> JoinMerge:
        """The same join with its results kept in a store."""
        return replace(self, store=store)

    def make(self, context: OperatorContext, /) -> _Stored | _StoredLater | _Unstored:
        """Make the operator of one task."""
        if self.store is None:
            return _Unstored(self, context)
        kind = _StoredLater if any(map(context.told_late, self.tables)) else _Stored
        return kind(self, self.store, context)

    def view(self, context: OperatorContext, /) -> TableView:
        """The results, stored or computed."""
        if self.store is None:
            return _Joined(self, context)
        return StoredRows(context.buffers[self.store], context.serdes(self.store)[0])

    def joined(self, one: Any, other: Any) -> Any:
        """The result of two rows, either of which may be None."""
        if (one is None and not self.alone[1]) or (other is None and not self.alone[0]):
            return None
        return None if one is None and other is None else self.joiner(one, other)


class _Joined:
    """The result of each key, computed from the rows of both tables."""

    __slots__ = ("_joined", "_unreadable", "_views")

    def __init__(self, spec: JoinMerge, context: OperatorContext) -> None:
        self._joined = spec.joined
        self._unreadable = context.unreadable
        self._views = [context.view(table) for table in spec.tables]

    def get(self, key: Any, /) -> tuple[Any, int]:
        (one, of_one), (other, of_other) = (view.get(key) for view in self._views)
        try:
            value = self._joined(one, other)
        except Exception as error:
            return self._unreadable(error, max(of_one, of_other))
        if value is None:
            return None, -1
        if one is None or other is None:
            return value, of_other if one is None else of_one
        return value, max(of_one, of_other)


class _Sides:
    """What both kinds of merge read."""

    __slots__ = ("_failed", "_joined", "_views")

    def __init__(self, spec: JoinMerge, context: OperatorContext) -> None:
        self._joined = spec.joined
        self._failed = context.failed
        self._views = tuple(context.view(table) for table in spec.tables)

    def _rows(self, key: Any, side: int, value: Any, timestamp: int) -> tuple[Any, Any, int]:
        """Both rows after a change of one side, and the time of what follows from it."""
        other, since = self._views[1 - side].get(key)
        if other is not None and since > timestamp:
            timestamp = since
        return (value, other, timestamp) if side == 0 else (other, value, timestamp)

    def _rows_now(self, key: Any, timestamp: int) -> tuple[Any, Any, int]:
        """Both rows at a flush, and the time of what follows from them."""
        (one, of_one), (other, of_other) = (view.get(key) for view in self._views)
        if one is not None and of_one > timestamp:
            timestamp = of_one
        if other is not None and of_other > timestamp:
            timestamp = of_other
        return one, other, timestamp

    def _result(self, key: Any, one: Any, other: Any, timestamp: int, headers: Headers) -> Any:
        """What two rows are joined to; none where that fails and a handler goes on."""
        try:
            return self._joined(one, other)
        except Exception as error:
            self._failed(error, key, (one, other), timestamp, headers)
            # What was forwarded before is gone all the same.
            return None


class _Stored(_Sides):
    """A merge that reads the last result from its store."""

    __slots__ = ("_store", "flush", "pending")

    def __init__(self, spec: JoinMerge, store: str, context: OperatorContext) -> None:
        super().__init__(spec, context)
        self._store = TableRows(context, store)
        self.pending: MutableMapping[Any, Any] = self._store.pending
        self.flush = self._store.flush

    def process(
        self, key: Any, change: tuple[int, Any], _: Any, timestamp: int, headers: Headers, /
    ) -> None:
        one, other, timestamp = self._rows(key, *change, timestamp)
        row_key = self._store.encode_key(key)
        value = self._result(key, one, other, timestamp, headers)
        old = self._store.get(row_key)[0]
        self._store.change(key, row_key, value, old, timestamp, headers)


class _StoredLater(_Sides):
    """The same at a flush, behind those of both tables.

    A side that is not cached tells each change at once, and would be joined with a row of the other
    side of which nobody is told any more, where it goes again before that side's flush.
    """

    __slots__ = ("_store", "pending")

    def __init__(self, spec: JoinMerge, store: str, context: OperatorContext) -> None:
        super().__init__(spec, context)
        self._store = TableRows(context, store)
        self.pending: MutableMapping[Any, Any] = {}
        """By row key: the key, the time and the headers of the last change."""

    def process(
        self, key: Any, _: tuple[int, Any], __: Any, timestamp: int, headers: Headers, /
    ) -> None:
        self.pending[self._store.encode_key(key)] = key, timestamp, headers

    def flush(self) -> None:
        """Write and send one result of each key of which either row has changed."""
        held = list(self.pending.items())
        self.pending.clear()
        for row_key, (key, timestamp, headers) in held:
            one, other, timestamp = self._rows_now(key, timestamp)
            value = self._result(key, one, other, timestamp, headers)
            old = self._store.get(row_key)[0]
            try:
                self._store.change(key, row_key, value, old, timestamp, headers)
            except Exception as error:  # the store's serde refuses the value
                self._failed(error, key, (one, other), timestamp, headers)
        self._store.flush()


class _Unstored(_Sides):
    """A merge that computes the last result from the old values of both sides."""

    __slots__ = ("_caching", "_encode", "_forward", "_old_is_read", "pending")

    def __init__(self, spec: JoinMerge, context: OperatorContext) -> None:
        super().__init__(spec, context)
        self._forward = context.forward
        self._old_is_read = context.old_is_read
        self._caching = context.caching
        self._encode = context.serdes(spec.keys)[0].serialize
        self.pending: MutableMapping[Any, Any] = {}
        """By row key: the key, both old values, the time and the headers of the last change."""

    def process(
        self, key: Any, change: tuple[int, Any], old: Any, timestamp: int, headers: Headers, /
    ) -> None:
        side, value = change
        if self._caching:
            self._hold(key, side, old, timestamp, headers)
            return
        one, other, timestamp = self._rows(key, side, value, timestamp)
        before = (old, other) if side == 0 else (one, old)
        self._send(key, one, other, before, timestamp, headers)

    def _hold(self, key: Any, side: int, old: Any, timestamp: int, headers: Headers) -> None:
        row_key = self._encode(key)
        held = self.pending.get(row_key)
        if held is None:
            self.pending[row_key] = held = [key, [_NOTHING, _NOTHING], timestamp, headers]
        if held[1][side] is _NOTHING:
            held[1][side] = old
        held[2:] = max(held[2], timestamp), headers

    def flush(self) -> None:
        """Send one result of each key of which either row has changed."""
        held = list(self.pending.values())
        self.pending.clear()
        for key, olds, timestamp, headers in held:
            one, other, timestamp = self._rows_now(key, timestamp)
            before = tuple(
                row if old is _NOTHING else old for row, old in zip((one, other), olds, strict=True)
            )
            self._send(key, one, other, before, timestamp, headers)

    def _send(
        self, key: Any, one: Any, other: Any, before: tuple[Any, ...], timestamp: int, headers: Any
    ) -> None:
        value = self._result(key, one, other, timestamp, headers)
        old = None
        if self._old_is_read or value is None:
            try:
                old = self._joined(*before)
            except Exception:
                old = None  # it failed then, too, and nothing was forwarded
        if value is not None or old is not None:
            self._forward(key, value, old, timestamp, headers)
