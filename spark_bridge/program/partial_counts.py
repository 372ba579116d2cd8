"""Counts of keys before a repartition topic, made in bulk.

Hot path: `process` runs for each record and only keeps it; Arrow counts many at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.topology.context.context import Headers, OperatorContext, Receive
from headrace.topology.context.context import Operator as RunningOperator
from headrace.topology.context.operator_spec import OperatorSpec

COUNTED_AT_ONCE = 100_000
"""How many records are kept before they are counted."""
PARTIALS_MAX = 1_000_000
"""How many partial counts are kept, at least, before they are added up."""
KEYS_MAX = 500_000
"""How many keys are counted before the counts are told."""

_ARROW: dict[type, Any] = {str: pa.string(), bytes: pa.binary(), int: pa.int64()}
"""Types of keys that are equal only where their bytes are; ``1 == 1.0 == True`` are not."""


@dataclass(frozen=True, slots=True)
class CountPartials(OperatorSpec):
    """Counts the records of each key; tells all counts at a flush."""

    def make(self, context: OperatorContext, /) -> RunningOperator:
        """Make the operator of one task."""
        return _Counting(context.forward)


class _Counting:
    """Keeps keys and times, and counts them by and by.

    A count is told with the largest time of its records and without headers; records that have
    headers, or keys of other types, are told one by one.
    """

    def __init__(self, forward: Receive) -> None:
        self._forward = forward
        self._keys: list[Any] = []
        self._times: list[int] = []
        self._tables: dict[type, list[Any]] = {kind: [] for kind in _ARROW}
        # The counts do not count as held back: they have a bound of their own.
        self.pending: dict[Any, Any] = {}
        keys, times = self._keys, self._times
        add_key, add_time = keys.append, times.append

        def process(key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
            del old
            if value is None:
                return  # a null does not count
            if headers:
                forward(key, 1, None, timestamp, headers)
                return
            add_key(key)
            add_time(timestamp)
            if len(keys) >= COUNTED_AT_ONCE:
                self._count()

        self.process = process

    def _count(self) -> None:
        keys, times = self._keys, self._times
        if not keys:
            return
        kinds = set(map(type, keys))
        kind = kinds.pop()
        counted = None if kinds else _counted(kind, keys, times)
        if counted is None:
            for key, timestamp in zip(keys, times, strict=True):
                self._forward(key, 1, None, timestamp, None)
        else:
            tables = self._tables[kind]
            tables.append(counted)
            if sum(table.num_rows for table in tables) > PARTIALS_MAX:
                tables[:] = [_added_up(tables)]
                if tables[0].num_rows > KEYS_MAX:
                    self._tell(kind)
        keys.clear()
        times.clear()

    def flush(self) -> None:
        self._count()
        for kind in _ARROW:
            self._tell(kind)

    def _tell(self, kind: type) -> None:
        tables = self._tables[kind]
        if not tables:
            return
        columns = [column.to_pylist() for column in _added_up(tables).columns]
        tables.clear()
        for key, count, timestamp in zip(*columns, strict=True):
            self._forward(key, count, None, timestamp, None)


def _counted(kind: type, keys: Sequence[Any], times: Sequence[int]) -> Any:
    """Count keys of one type; None where Arrow does not take them."""
    if kind not in _ARROW:
        return None
    try:
        column = pa.array(keys, _ARROW[kind])
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None
    ones = pa.repeat(pa.scalar(1, pa.int64()), len(keys))
    return _added_up([pa.table([column, ones, pa.array(times, pa.int64())], names=_NAMES)])


_NAMES = ["key", "count", "time"]


def _added_up(tables: Sequence[Any]) -> Any:
    """One row for each key, in the order in which they came first."""
    whole = pa.concat_tables(tables).group_by("key", use_threads=False)
    found = whole.aggregate([("count", "sum"), ("time", "max")])
    return found.select(["key", "count_sum", "time_max"]).rename_columns(_NAMES)
