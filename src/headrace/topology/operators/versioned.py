"""A table that keeps the versions of its rows, and what its out-of-order changes look like.

A change that is older than the row's last version is stored, but changes nothing about the present
row (KIP-914). It goes on all the same, with an `OutOfOrder` in the place of the old value: to what
reads the changes as a stream. The compiled code keeps it from what computes with the present rows:
aggregations, joins, stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from headrace.topology.context.context import Headers, OperatorContext, TableView
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.operators.last_changes import Uncached
from headrace.topology.processors.versioned_store import IS_LATEST, NOT_PUT, VersionedStore
from headrace.topology.serdes.kept import keeper


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """In the place of an old value: a newer version is there already.

    Args:
        value: what was valid at the time of the change before.
    """

    value: Any


class VersionedView(TableView, Protocol):
    """The present rows of a versioned table, and its former ones."""

    def get_as_of(self, key: Any, timestamp: int, /) -> tuple[Any, int]:
        """The value of a key that was valid at a time, and since when; or (None, -1)."""


@dataclass(frozen=True, slots=True)
class VersionedTable(OperatorSpec):
    """The spec of a versioned table.

    Args:
        store: its store, see `versioned_store.VersionedFace`.
    """

    is_table: ClassVar[bool] = True
    reads_as_table: ClassVar[bool] = True
    is_versioned: ClassVar[bool] = True

    rows_have_its_keys: ClassVar[bool] = True

    store: str

    def store_advice(self, *, reads_topic: bool) -> str:
        """The call that it comes from."""
        return 'table(store="...")' if reads_topic else 'to_table(store="...")'

    def make(self, context: OperatorContext, /) -> _VersionedTable:
        """Make the operator of one task."""
        return _VersionedTable(self, context)

    def view(self, context: OperatorContext, /) -> VersionedView:
        """The rows of the table."""
        return _VersionedRows(context.open_store(self.store))


class _VersionedTable(Uncached):
    __slots__ = ("_keep", "_replace")

    def __init__(self, spec: VersionedTable, context: OperatorContext) -> None:
        store: VersionedStore[Any, Any] = context.open_store(spec.store)
        self._replace = store.replace
        self._keep = keeper(context.serdes(spec.store)[1])
        super().__init__(context.forward)

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        value = self._keep(value)
        valid_to, before = self._replace(key, value, timestamp)
        # Equal values of other classes may be other documents, as 1, 1.0 and true are.
        same = value.__class__ is before.__class__ and value == before
        if valid_to == NOT_PUT or same:
            return
        old = before if valid_to == IS_LATEST else OutOfOrder(before)
        self._forward(key, value, old, timestamp, headers)


class _VersionedRows:
    __slots__ = ("_store",)

    def __init__(self, store: VersionedStore[Any, Any]) -> None:
        self._store = store

    def get(self, key: Any, /) -> tuple[Any, int]:
        return self._store.get(key) or (None, -1)

    def get_as_of(self, key: Any, timestamp: int, /) -> tuple[Any, int]:
        return self._store.get(key, as_of=timestamp) or (None, -1)
