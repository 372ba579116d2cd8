"""Join of two tables by their keys: each `TableJoinSide` passes changes to a `JoinMerge`.

A result depends only on the two rows of its key. The result that was forwarded before is that of
the previous rows, so the merge computes it from the old values of both sides:

- Without caches a change of one side finds the other side's row unchanged.
- With caches the merge waits for its own flush, after the flushes of both tables. It reconstructs
  the rows of the last flush from the old values that both sides forwarded in this flush; a side
  that forwarded nothing has not changed. Each key has at most one result.
- If both sides come from the same table, a change of one side finds the other side changed already.
  In this case, and if a store was requested, the last result is read from a store. It is written at
  the flush, too, unless both tables forward each change immediately.

Kafka Streams (`KTableKTableInnerJoin` and similar classes) computes the old result from one old
value and the other side's current row, which was never forwarded if both have changed.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, Operator, OperatorContext, TableView
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.operators.record_cache import StoredRows, Uncached
from headrace.topology.operators.table_rows import TableRows

_UNCHANGED = object()
"""Placeholder for a side without a change."""


@dataclass(frozen=True, slots=True)
class TableJoinSide(OperatorSpec):
    """Spec of the operator that marks the changes of a table with its side.

    Args:
        side: 0 for the table that joins, 1 for the other table.
    """

    side: int
    is_timed: ClassVar[bool] = False
    is_table: ClassVar[bool] = True
    needs_old: ClassVar[bool] = True

    def make(self, context: OperatorContext, /) -> _JoinSide:
        return _JoinSide(self, context)


class _JoinSide(Uncached):
    __slots__ = ("_side",)

    def __init__(self, spec: TableJoinSide, context: OperatorContext) -> None:
        self._side = spec.side
        super().__init__(context.forward)

    def process(self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        self._forward(key, (self._side, value), old, timestamp, headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinMerge(OperatorSpec):
    """Spec of the operator that joins the rows of two tables.

    Args:
        tables: the names of the two tables' nodes.
        keys: a store whose keys are those of the first table.
        joiner: called as ``joiner(left value, right value)``.
        emits_unmatched: for either table, whether its rows are joined with None if the other table
            has no row.
        store: the store of the results; None computes them from the rows of the tables.
    """

    tables: tuple[str, str]
    keys: str
    joiner: Callable[[Any, Any], Any]
    emits_unmatched: tuple[bool, bool]
    store: str | None = None
    is_timed: ClassVar[bool] = False
    is_table: ClassVar[bool] = True
    needs_old: ClassVar[bool] = True

    store_call: ClassVar[str] = 'join(store="...")'

    def with_store(self, store: str) -> JoinMerge:
        return replace(self, store=store)

    def make(self, context: OperatorContext, /) -> _TableMerge:
        if self.store is None:
            return _UnstoredMerge(self, context)
        at_flush = any(map(context.forwards_later, self.tables))
        kind = _StoredMergeAtFlush if at_flush else _StoredMerge
        return kind(self, self.store, context)

    def view(self, context: OperatorContext, /) -> TableView:
        if self.store is None:
            return _JoinedRows(self, context)
        return StoredRows(context.buffers[self.store], context.serdes(self.store)[0])

    def joined(self, left: Any, right: Any) -> Any:
        if (left is None and not self.emits_unmatched[1]) or (
            right is None and not self.emits_unmatched[0]
        ):
            return None
        return None if left is None and right is None else self.joiner(left, right)


class _JoinedRows:
    """View of the results, computed from the rows of both tables."""

    __slots__ = ("_joined", "_row_error", "_views")

    def __init__(self, spec: JoinMerge, context: OperatorContext) -> None:
        self._joined = spec.joined
        self._row_error = context.row_error
        self._views = [context.view(table) for table in spec.tables]

    def get(self, key: Any, /) -> tuple[Any, int]:
        (left, left_time), (right, right_time) = (view.get(key) for view in self._views)
        try:
            value = self._joined(left, right)
        except Exception as error:
            return self._row_error(error, max(left_time, right_time))
        if value is None:
            return None, -1
        if left is None or right is None:
            return value, right_time if left is None else left_time
        return value, max(left_time, right_time)


class _TableMerge(Operator):
    """Base of the merge operators."""

    __slots__ = ("_failed", "_joined", "_views")

    def __init__(self, spec: JoinMerge, context: OperatorContext) -> None:
        self._joined = spec.joined
        self._failed = context.failed
        self._views = tuple(context.view(table) for table in spec.tables)

    def _rows(self, key: Any, side: int, value: Any, timestamp: int) -> tuple[Any, Any, int]:
        """Return both rows after a change of a side, and the timestamp of their result."""
        other, other_time = self._views[1 - side].get(key)
        if other is not None and other_time > timestamp:
            timestamp = other_time
        return (value, other, timestamp) if side == 0 else (other, value, timestamp)

    def _rows_now(self, key: Any, timestamp: int) -> tuple[Any, Any, int]:
        """Return both current rows at a flush, and the timestamp of their result."""
        (left, left_time), (right, right_time) = (view.get(key) for view in self._views)
        if left is not None and left_time > timestamp:
            timestamp = left_time
        if right is not None and right_time > timestamp:
            timestamp = right_time
        return left, right, timestamp

    def _result(self, key: Any, left: Any, right: Any, timestamp: int, headers: Headers) -> Any:
        """Return the joined rows, or None if joining fails and a handler continues."""
        try:
            return self._joined(left, right)
        except Exception as error:
            self._failed(error, key, (left, right), timestamp, headers)
            # Delete the previous result anyway.
            return None


class _StoredMerge(_TableMerge):
    """Merge that reads the last result from its store."""

    __slots__ = ("_store", "flush", "pending")

    def __init__(self, spec: JoinMerge, store: str, context: OperatorContext) -> None:
        super().__init__(spec, context)
        self._store = TableRows(context, store)
        self.pending: MutableMapping[Any, Any] = self._store.pending
        self.flush: Callable[[], None] = self._store.flush

    def process(
        self, key: Any, change: tuple[int, Any], _: Any, timestamp: int, headers: Headers, /
    ) -> None:
        left, right, timestamp = self._rows(key, *change, timestamp)
        row_key = self._store.encode_key(key)
        value = self._result(key, left, right, timestamp, headers)
        old = self._store.get(row_key)[0]
        self._store.change(key, row_key, value, old, timestamp, headers)


class _StoredMergeAtFlush(_TableMerge):
    """Merge with a store that runs at the flush, after the flushes of both tables.

    An uncached side forwards each change immediately. It would be joined with an uncommitted row of
    the cached side, whose change is never forwarded if the row is deleted again before that side's
    flush.
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
        changes = list(self.pending.items())
        self.pending.clear()
        for row_key, (key, timestamp, headers) in changes:
            left, right, timestamp = self._rows_now(key, timestamp)
            value = self._result(key, left, right, timestamp, headers)
            old = self._store.get(row_key)[0]
            try:
                self._store.change(key, row_key, value, old, timestamp, headers)
            except Exception as error:  # the store's serde refuses the value
                self._failed(error, key, (left, right), timestamp, headers)
        self._store.flush()


class _UnstoredMerge(_TableMerge):
    """Merge that computes the last result from the old values of both sides."""

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
            self._add_pending(key, side, old, timestamp, headers)
            return
        left, right, timestamp = self._rows(key, side, value, timestamp)
        previous = (old, right) if side == 0 else (left, old)
        self._send(key, left, right, previous, timestamp, headers)

    def _add_pending(self, key: Any, side: int, old: Any, timestamp: int, headers: Headers) -> None:
        row_key = self._encode(key)
        pending_change = self.pending.get(row_key)
        if pending_change is None:
            pending_change = self.pending[row_key] = [
                key,
                [_UNCHANGED, _UNCHANGED],
                timestamp,
                headers,
            ]
        if pending_change[1][side] is _UNCHANGED:
            pending_change[1][side] = old
        pending_change[2:] = max(pending_change[2], timestamp), headers

    def flush(self) -> None:
        changes = list(self.pending.values())
        self.pending.clear()
        for key, old_values, timestamp, headers in changes:
            left, right, timestamp = self._rows_now(key, timestamp)
            previous = tuple(
                row if old is _UNCHANGED else old
                for row, old in zip((left, right), old_values, strict=True)
            )
            self._send(key, left, right, previous, timestamp, headers)

    def _send(
        self,
        key: Any,
        left: Any,
        right: Any,
        previous: tuple[Any, ...],
        timestamp: int,
        headers: Any,
    ) -> None:
        value = self._result(key, left, right, timestamp, headers)
        old = None
        if self._old_is_read or value is None:
            try:
                old = self._joined(*previous)
            except Exception:
                old = None  # it also failed before, and nothing was forwarded
        if value is not None or old is not None:
            self._forward(key, value, old, timestamp, headers)
