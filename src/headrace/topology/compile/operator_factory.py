"""Factory of the operators of a task, and of the views of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headrace.topology.compile.batch_order import mixes_downstream
from headrace.topology.compile.codegen import CompileOptions, needs_old, owns_records
from headrace.topology.context.context import Operator as RunningOperator
from headrace.topology.context.context import (
    OperatorContext,
    Receive,
    TableView,
    empty_row,
    raise_earlier,
    raise_error,
)
from headrace.topology.context.environment import TaskEnvironment
from headrace.topology.context.number import Number
from headrace.topology.errors import TopologyError
from headrace.topology.graph.graph import (
    Aggregate,
    AnySerde,
    Function,
    OperatorNode,
    Stateless,
    SubTopology,
    TableSource,
    by_name,
)
from headrace.topology.operators.record_cache import StoredRows, to_all
from headrace.topology.processors.store_wrappers import (
    GlobalView,
    ReadOnlyStore,
    WrappedStore,
    store_key,
)
from headrace.topology.processors.stores import open_store


class OperatorFactory:
    """Factory of the operators of a task, in the order of their nodes.

    Args:
        options: the defaults from the settings.
    """

    def __init__(
        self, sub: SubTopology, options: CompileOptions, environment: TaskEnvironment
    ) -> None:
        self._sub = sub
        self._nodes = by_name(sub.nodes)
        self._stores = {store.name: store for store in sub.stores}
        self._options = options
        self._environment = environment
        self._row_error = empty_row if options.handles_errors else raise_earlier
        self._shared: dict[Any, Any] = {}
        self.operators: dict[str, RunningOperator] = {}

    def make(self, name: str, children: Mapping[str, Receive]) -> RunningOperator:
        node = self._nodes[name]
        assert isinstance(node, OperatorNode), name
        self.operators[name] = operator = node.spec.make(self._context(node, children))
        return operator

    def _context(self, node: OperatorNode, children: Mapping[str, Receive]) -> OperatorContext:
        environment, options = self._environment, self._options
        cached = [self._stores[name].spec.cached for name in node.uses[:1]]
        return OperatorContext(
            node=node.name,
            forward=to_all(tuple(children.values())),
            children=children,
            buffers=environment.buffers,
            serdes=self._serdes,
            view=self._view,
            number=partial(self._number, node.name),
            shared=self._shared,
            dropped=partial(environment.dropped, node.name),
            caching=options.caching and all(cached),
            task=environment.task,
            old_is_read=needs_old(self._sub, node),
            open_store=partial(self._open_store, node),
            failed=partial(environment.failed, node.name)
            if options.handles_errors
            else raise_error,
            send_dead_letter=partial(environment.let_go, node.name, answer="dead_letter"),
            flush_each_record=node.batches_records
            and mixes_downstream(self._sub, node, same_source=True),
            flush_each_run=node.batches_records
            and mixes_downstream(self._sub, node, same_source=False),
            owns_records=owns_records(self._sub, node),
            forwards_later=self._forwards_later,
            row_error=self._row_error,
        )

    def _forwards_later(self, table: str) -> bool:
        """Whether a table's rows may be newer than the changes that it has forwarded."""
        node = self._nodes[table]
        if not self._options.caching:
            return False
        if isinstance(node, Stateless):
            return self._forwards_later(node.parents[0])
        if isinstance(node, (Aggregate, TableSource)) and node.store is not None:
            return self._stores[node.store].spec.cached
        return True

    def _number(self, node: str, name: str, *, owner: str | None = None) -> Number:
        return self._environment.number(f"{name}.{owner or node}")

    def _serdes(self, store: str) -> tuple[AnySerde, AnySerde]:
        serdes = self._stores[store]
        return serdes.key or self._options.default_key, serdes.value or self._options.default_value

    def _open_store(self, node: OperatorNode, name: str) -> Any:
        """Return a store's public object, which is shared within the task."""
        view = self._environment.global_views.get(store_key(name))
        if isinstance(view, GlobalView):
            return ReadOnlyStore(name, view)
        if name not in node.uses:
            connected = ", ".join(node.uses) or "none"
            raise TopologyError(
                f"processor {node.name!r} is not connected with store {name!r} (its stores: "
                f"{connected}). Pass stores=, or call connect_processor_and_state_stores"
            )
        opened = self._shared.get(("open store", name))
        if opened is None:
            environment = self._environment
            key, value = self._serdes(name)
            rows = WrappedStore(
                name=name,
                buffer=environment.buffers[name],
                key=key,
                value=value,
                timestamp=lambda: environment.task.timestamp,
                number=partial(self._number, f"store {name}"),
                dropped=partial(environment.dropped, name),
                watermark=lambda: environment.task.watermark,
            )
            opened = self._shared["open store", name] = open_store(self._stores[name], rows)
        return opened

    def _view(self, name: str) -> TableView:
        if name not in self._nodes:
            return self._global_view(name)
        node = self._nodes[name]
        if isinstance(node, OperatorNode):
            view = node.spec.view(self._context(node, {}))
            if view is not None:
                return view
        elif isinstance(node, (Aggregate, TableSource)) and node.store is not None:
            return StoredRows(self._environment.buffers[node.store], self._serdes(node.store)[0])
        elif isinstance(node, Stateless) and not node.stream and node.op != "pass":
            assert node.function is not None
            rows = self._view(node.parents[0])
            mapped = _MappedVersions if hasattr(rows, "get_as_of") else _MappedRows
            return mapped(rows, node.function, self._row_error)
        raise TopologyError(f"{name!r} is not a table with a store; give it store=")

    def _global_view(self, name: str) -> TableView:
        try:
            return self._environment.global_views[name]
        except KeyError:
            raise TopologyError(
                f"{name!r} is a global table, which this test runner does not support. Use "
                "TopologyTestDriver, or run the application"
            ) from None


class _MappedRows:
    """View of the rows of a filtered or mapped table."""

    __slots__ = ("_function", "_row_error", "_rows")

    def __init__(
        self,
        rows: TableView,
        function: Function,
        row_error: Callable[[Exception, int], tuple[None, int]],
    ) -> None:
        self._rows = rows
        self._function = function
        self._row_error = row_error

    def get(self, key: Any, /) -> tuple[Any, int]:
        value, timestamp = self._rows.get(key)
        try:
            return self._function(key, value), timestamp
        except Exception as error:
            return self._row_error(error, timestamp)


class _MappedVersions(_MappedRows):
    """View of the rows of a filtered or mapped versioned table."""

    __slots__ = ()

    def get_as_of(self, key: Any, timestamp: int, /) -> tuple[Any, int]:
        rows: Any = self._rows
        value, since = rows.get_as_of(key, timestamp)
        try:
            return self._function(key, value), since
        except Exception as error:
            return self._row_error(error, since)
