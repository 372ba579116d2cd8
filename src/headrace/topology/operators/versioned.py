"""Versioned tables, and how their out-of-order changes are forwarded.

A change that is older than the row's last version is stored, but does not change the current row
(KIP-914). It is forwarded with an `OutOfOrder` in place of the old value, for operators that read
the changes as a stream. The compiled code does not pass it to operators that use the current rows:
aggregations, joins, stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from headrace.topology.context.context import Headers, OperatorContext, TableView
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.operators.record_cache import Uncached
from headrace.topology.processors.versioned_store import IS_LATEST, NOT_PUT, VersionedStore
from headrace.topology.serdes.normalise import normaliser


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """Marker in place of the old value: the row has a newer version already.

    Args:
        value: the value that was valid at the change's timestamp before.
    """

    value: Any


class VersionedView(TableView, Protocol):
    """View of the current and former rows of a versioned table."""

    def get_as_of(self, key: Any, timestamp: int, /) -> tuple[Any, int]:
        """Return the value of a key valid at a time, and its start time; or (None, -1)."""


@dataclass(frozen=True, slots=True)
class VersionedTable(OperatorSpec):
    """Spec of a versioned table.

    Args:
        store: its store, see `versioned_store.VersionedStoreFactory`.
    """

    is_table: ClassVar[bool] = True
    reads_as_table: ClassVar[bool] = True
    is_versioned: ClassVar[bool] = True

    rows_have_its_keys: ClassVar[bool] = True

    store: str

    def store_advice(self, *, reads_topic: bool) -> str:
        return 'table(store="...")' if reads_topic else 'to_table(store="...")'

    def make(self, context: OperatorContext, /) -> _VersionedTable:
        return _VersionedTable(self, context)

    def view(self, context: OperatorContext, /) -> VersionedView:
        return _VersionedRows(context.open_store(self.store))


class _VersionedTable(Uncached):
    __slots__ = ("_keep", "_replace")

    def __init__(self, spec: VersionedTable, context: OperatorContext) -> None:
        store: VersionedStore[Any, Any] = context.open_store(spec.store)
        self._replace = store.replace
        self._keep = normaliser(context.serdes(spec.store)[1])
        super().__init__(context.forward)

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        value = self._keep(value)
        valid_to, old_value = self._replace(key, value, timestamp)
        # Equal values of different classes may be encoded differently, such as 1, 1.0 and True.
        is_unchanged = value.__class__ is old_value.__class__ and value == old_value
        if valid_to == NOT_PUT or is_unchanged:
            return
        old = old_value if valid_to == IS_LATEST else OutOfOrder(old_value)
        self._forward(key, value, old, timestamp, headers)


class _VersionedRows:
    __slots__ = ("_store",)

    def __init__(self, store: VersionedStore[Any, Any]) -> None:
        self._store = store

    def get(self, key: Any, /) -> tuple[Any, int]:
        return self._store.get(key) or (None, -1)

    def get_as_of(self, key: Any, timestamp: int, /) -> tuple[Any, int]:
        return self._store.get(key, as_of=timestamp) or (None, -1)
