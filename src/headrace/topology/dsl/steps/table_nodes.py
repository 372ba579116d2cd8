"""The node and the store of a stream that is read as a table, with versions or without."""

from __future__ import annotations

from dataclasses import replace

from headrace.topology.dsl.materialized import Materialized
from headrace.topology.dsl.steps.folding import storing
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import AnySerde, Operator, TableSource
from headrace.topology.operators.versioned import VersionedTable
from headrace.topology.processors.store import Store
from headrace.topology.processors.versioned_store import VersionedFace


def table_node(
    name: str,
    parent: str,
    kept: Materialized,
    store: str,
    key: AnySerde | None,
    value: AnySerde | None,
) -> tuple[TableSource | Operator, Store, bool]:
    """Make the node and its store; tells also whether the store is needed in any case."""
    if kept.history_ms is None:
        node = TableSource(name, (parent,), kept.store)
        return node, Store(kept.spec(store), key, value), kept.store is not None
    versions = storing(name, parent, VersionedTable(store))
    face = VersionedFace(kept.history_ms)
    return versions, Store(kept.versioned_spec(store), key, value, face), True


def to_table(edge: Edge, kept: Materialized, name: str | None) -> Edge:
    """Add what reads a stream as a table, behind a repartition topic where the key is a new one."""
    names = edge.draft.names
    node_name = names.node("KSTREAM-TOTABLE-", name)
    reserved = names.store("KSTREAM-TOTABLE-") if kept.store is None else kept.store
    if edge.rekeyed:
        edge = edge.repartitioned(node_name)
    node, rows, stored = table_node(node_name, edge.node, kept, reserved, edge.key, edge.value)
    if stored:
        return replace(edge, node=edge.draft.add(node, store=rows))
    edge.draft.reserve(node_name, rows)
    return replace(edge, node=edge.draft.add(node))
