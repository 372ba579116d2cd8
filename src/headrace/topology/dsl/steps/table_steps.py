"""Nodes of tables that are read from streams, or computed from another table, and their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from headrace.topology.dsl.steps.folding import storing
from headrace.topology.dsl.steps.stream_steps import AnyStore
from headrace.topology.functions import is_true, wraps_function
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import AnySerde, Function, OperatorNode, Stateless, TableSource
from headrace.topology.graph.materialized import Materialized, materialized
from headrace.topology.operators.table_rows import StoredMapping
from headrace.topology.operators.transform_values import TransformValues, checked_supplier
from headrace.topology.operators.versioned import VersionedTable
from headrace.topology.processors.store import Store
from headrace.topology.processors.stores import store_names
from headrace.topology.processors.versioned_store import VersionedStoreFactory

FILTER, MAP_VALUES = "KTABLE-FILTER-", "KTABLE-MAPVALUES-"
"""Prefixes of the nodes' names."""


def table_node(
    name: str,
    parent: str,
    options: Materialized,
    store: str,
    key: AnySerde | None,
    value: AnySerde | None,
) -> tuple[TableSource | OperatorNode, Store, bool]:
    """Return the node of a table, its store, and whether the table must be stored."""
    if options.history_ms is None:
        node = TableSource(name, (parent,), options.store)
        return node, Store(options.spec(store), key, value), options.store is not None
    versions = storing(name, parent, VersionedTable(store))
    factory = VersionedStoreFactory(options.history_ms)
    return versions, Store(options.versioned_spec(store), key, value, factory), True


def to_table(edge: Edge, options: Materialized, name: str | None) -> Edge:
    """Add the node that reads a stream as a table; repartition if the key may have changed."""
    names = edge.draft.names
    node_name = names.node("KSTREAM-TOTABLE-", name)
    reserved = names.store("KSTREAM-TOTABLE-") if options.store is None else options.store
    if edge.rekeyed:
        edge = edge.repartitioned(node_name)
    node, rows, stored = table_node(node_name, edge.node, options, reserved, edge.key, edge.value)
    if stored:
        return replace(edge, node=edge.draft.add(node, store=rows))
    edge.draft.reserve(node_name, rows)
    return replace(edge, node=edge.draft.add(node))


def filtered(predicate: Function) -> Function:
    """Return a function that returns the value if the predicate is true, and None otherwise."""

    @wraps_function(predicate)
    def filtered(key: Any, value: Any) -> Any:
        return value if value is not None and is_true(predicate(key, value)) else None

    return filtered


def filtered_not(predicate: Function) -> Function:
    @wraps_function(predicate)
    def filtered(key: Any, value: Any) -> Any:
        return None if value is None or is_true(predicate(key, value)) else value

    return filtered


def mapped_values(mapper: Function, *, with_key: bool) -> Function:
    """Return a function that maps existing rows, by their values or by keys and values."""
    if with_key:

        @wraps_function(mapper)
        def mapped(key: Any, value: Any) -> Any:
            return None if value is None else mapper(key, value)

    else:

        @wraps_function(mapper)
        def mapped(key: Any, value: Any) -> Any:  # noqa: ARG001
            return None if value is None else mapper(value)

    return mapped


def mapped_table(
    edge: Edge,
    prefix: str,
    function: Function,
    *,
    store: str | Materialized | None,
    key: AnySerde | None,
    value: AnySerde | None,
    name: str | None,
) -> Edge:
    """Add a filter or a mapping; it is stored only if its store has a name."""
    names, options = edge.draft.names, materialized(store)
    if options.store is None and (store, key, value) != (None, None, None):
        # Kafka Streams uses up an additional number if a store has options and no name.
        names.store(prefix)
    node_name = names.node(prefix, name)
    given = value or (edge.value if prefix == FILTER else None)
    result = replace(edge, key=key or edge.key, value=given)
    if options.store is None:
        node = Stateless(node_name, (edge.node,), op="map_values", function=function, stream=False)
        return result.then(node)
    own = (options.store,)
    spec = StoredMapping(options.store, function)
    rows = Store(options.spec(options.store), result.key, given)
    step = OperatorNode(node_name, (edge.node,), spec=spec, uses=own, view_uses=own)
    return replace(result, node=edge.draft.add(step, store=rows))


def transformed_table(
    edge: Edge,
    supplier: Callable[[], Any],
    *,
    stores: Iterable[AnyStore],
    store: str | Materialized | None,
    key: AnySerde | None,
    value: AnySerde | None,
    name: str | None,
) -> Edge:
    """Add a transformer; its results are stored if the store has a name, or if they are read."""
    options, wanted, draft = materialized(store), tuple(stores), edge.draft
    node_name = draft.names.node("KTABLE-TRANSFORMVALUES-", name)
    result = replace(edge, key=key or edge.key, value=value)
    spec = TransformValues(checked_supplier(supplier), options.store)
    draft.add_state_stores(wanted)
    node = OperatorNode(node_name, (edge.node,), spec=spec, uses=store_names(wanted))
    rows = Store(options.spec(options.store or f"{node_name}-STATE-STORE"), result.key, value)
    if options.store is None:
        draft.reserve(node_name, rows)
        return replace(result, node=draft.add(node))
    node = replace(node, uses=(options.store, *node.uses), view_uses=(options.store,))
    return replace(result, node=draft.add(node, store=rows))
