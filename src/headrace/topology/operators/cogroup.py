"""Cogroup: aggregation of several streams into a table, with an operator per stream and a merge.

The operators of the streams pass their records to one shared aggregation, which is created for the
first stream. It alone has the stream time and the cached changes, so the order in which the streams
change a row is also the order of its old values. Each record carries the aggregator of its stream.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, Operator, OperatorContext, Receive, TableView
from headrace.topology.context.operator_spec import OperatorSpec, RowKind
from headrace.topology.operators.record_cache import FoldedTable, RecordCache, Uncached
from headrace.topology.serdes.normalise import normaliser

Aggregator = Callable[[Any, Any, Any], Any]


def aggregate_tagged(key: Any, tagged: tuple[Aggregator, Any], aggregate: Any) -> Any:
    """Call the aggregator of the record's stream, which is passed along with the value.

    >>> aggregate_tagged("k", (lambda key, value, total: total + value, 2), 3)
    5
    """
    aggregator, value = tagged
    return aggregator(key, value, aggregate)


@dataclass(frozen=True, slots=True)
class KeyedFold(FoldedTable):
    """Spec of an aggregation of records into a row per key.

    Null keys never arrive here, null values are dropped, the result's timestamp is the larger of
    the row's and the record's, and a result of None deletes the row (Kafka Streams:
    `KStreamAggregate`). For a single stream the aggregation is generated (`Aggregate`).
    """

    is_timed: ClassVar[bool] = False

    def make(self, context: OperatorContext, /) -> KeyedFoldOperator:
        return KeyedFoldOperator(self, context)


class KeyedFoldOperator(RecordCache, Operator):
    """Operator of a `KeyedFold`."""

    __slots__ = ("_add", "_caching", "_encode", "_initial", "_keep", "_rows")

    def __init__(self, spec: KeyedFold, context: OperatorContext) -> None:
        self._rows = context.buffers[spec.store]
        key, value = context.serdes(spec.store)
        self._encode = key.serialize
        self._keep = normaliser(value)
        self._initial, self._add = spec.fold.initial, spec.fold.add
        self._caching = context.caching
        super().__init__(context.forward, self._rows.get)

    def process(self, key: Any, value: Any, _old: Any, timestamp: int, headers: Headers, /) -> None:
        row_key = self._encode(key)
        old, row_time = self._rows.get(row_key)
        # A separate copy if values can be changed in place, because the old value is forwarded.
        current = self._rows.get(row_key)[0]
        new = self._add(key, value, self._initial() if current is None else current)
        new = self._keep(new)
        if old is None and new is None:
            return
        if old is not None and row_time > timestamp:
            timestamp = row_time
        self._rows.put(row_key, new, timestamp)
        if not self._caching:
            self._forward(key, new, old, timestamp, headers)
            return
        update = self.pending.get(row_key)
        if update is None:
            self.pending[row_key] = [key, old, headers]
        else:
            update[2] = headers


@dataclass(frozen=True, slots=True)
class CogroupInput(OperatorSpec):
    """Input of a cogroup: the aggregation of a single stream.

    Args:
        fold: the aggregation that all streams share; its aggregator is `aggregate_tagged`.
        folds_nulls: whether null values are aggregated, too.
    """

    store: str
    fold: OperatorSpec
    aggregator: Aggregator
    folds_nulls: bool
    is_table: ClassVar[bool] = True
    rows_have_its_keys: ClassVar[bool] = True

    @property
    def is_timed(self) -> bool:
        return self.fold.is_timed

    @property
    def makes_windows(self) -> bool:
        return self.fold.makes_windows

    @property
    def close_wait_ms(self) -> int | None:
        return self.fold.close_wait_ms

    @property
    def row_kind(self) -> RowKind:
        of_fold = self.fold.row_kind
        _, space, windows = of_fold.kind.partition(" ")
        return replace(of_fold, kind=f"cogroup{space}{windows}")

    store_call: ClassVar[str] = 'aggregate(store="...")'

    def make(self, context: OperatorContext, /) -> _CogroupInput:
        shared, shared_key = context.shared, ("cogroup", self.store)
        if shared_key not in shared:
            shared[shared_key] = self.fold.make(context)
        return _CogroupInput(shared[shared_key], self, context)

    def view(self, context: OperatorContext, /) -> TableView | None:
        return self.fold.view(context)


class _CogroupInput(Operator):
    __slots__ = (
        "_aggregator",
        "_dropped",
        "_fold",
        "_folds_nulls",
        "_shared",
        "close_idle",
        "flush",
        "pending",
    )

    def __init__(self, fold: Any, spec: CogroupInput, context: OperatorContext) -> None:
        self._shared = fold
        self._fold: Receive = fold.process
        self._aggregator = spec.aggregator
        self._folds_nulls = spec.folds_nulls
        self._dropped = context.dropped
        self.flush: Callable[[], None] = fold.flush
        self.close_idle: Callable[[], None] = fold.close_idle
        self.pending: MutableMapping[Any, Any] = fold.pending

    @property
    def stream_time(self) -> int:
        time: int = self._shared.stream_time
        return time

    def process(self, key: Any, value: Any, _old: Any, timestamp: int, headers: Headers, /) -> None:
        if value is None and not self._folds_nulls:
            self._dropped("null value")
            return
        self._fold(key, (self._aggregator, value), None, timestamp, headers)


@dataclass(frozen=True, slots=True)
class CogroupMerge(OperatorSpec):
    """Merge of the changes that the streams of a cogroup make."""

    fold: OperatorSpec
    is_table: ClassVar[bool] = True
    needs_old: ClassVar[bool] = True

    @property
    def is_timed(self) -> bool:
        return self.fold.is_timed

    def make(self, context: OperatorContext, /) -> _Merge:
        return _Merge(context)

    def view(self, context: OperatorContext, /) -> TableView | None:
        return self.fold.view(context)


class _Merge(Uncached):
    __slots__ = ("process",)

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context.forward)
        self.process: Receive = context.forward
