"""Nodes of merges, processors and tables read from streams, and their stores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypedDict

from headrace.topology.dsl.steps.folding import storing
from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import AnySerde, Operator, Stateless, TableSource
from headrace.topology.graph.materialized import Materialized
from headrace.topology.naming import legal
from headrace.topology.operators.process import Process, supplied
from headrace.topology.operators.versioned import VersionedTable
from headrace.topology.processors.store import Store
from headrace.topology.processors.stores import StoreBuilder, store_names
from headrace.topology.processors.versioned_store import VersionedFace

# Nodes of `KStream.merge`.


def merged(a: Edge, b: Edge, name: str | None) -> Edge:
    """Add a node that merges two streams; it keeps a serde if both streams have the same serde."""
    if a.draft is not b.draft:
        raise TopologyError("merge() was given a stream of another builder; use one builder")
    node_name = a.draft.names.node("KSTREAM-MERGE-", name)
    parents = tuple(dict.fromkeys((a.node, b.node)))
    node = a.draft.add(Stateless(node_name, parents, op="pass"))
    key = a.key if a.key == b.key else None
    value = a.value if a.value == b.value else None
    return Edge(a.draft, node, key, value, a.rekeyed or b.rekeyed)


# Nodes of `KStream.process` and `KStream.process_values`.


AnyStore = StoreBuilder[Any] | str


class ProcessorOptions(TypedDict, total=False):
    """Keyword options of `KStream.process`."""

    stores: Iterable[AnyStore]
    name: str | None


def process_step(
    edge: Edge, supplier: Any, stores: Iterable[AnyStore], name: str | None, *, fixed_key: bool
) -> Edge:
    """Add a processor downstream of an edge, and the stores that it defines."""
    given = supplied(supplier)
    wanted = (*stores, *given.stores)
    kind = "PROCESSVALUES" if fixed_key else "PROCESSOR"
    # Unlike in other methods, a given name does not use up a number here.
    node_name = edge.draft.names.node(f"KSTREAM-{kind}-") if name is None else legal(name)
    spec = Process(given.supplier, fixed_key=fixed_key)
    node = Operator(node_name, (edge.node,), spec=spec, uses=store_names(wanted))
    edge.draft.add_state_stores(wanted)
    added = edge.then(node)
    if fixed_key:
        return replace(added, value=None)
    return replace(added, key=None, value=None, rekeyed=True)


def table_node(
    name: str,
    parent: str,
    kept: Materialized,
    store: str,
    key: AnySerde | None,
    value: AnySerde | None,
) -> tuple[TableSource | Operator, Store, bool]:
    """Return the node of a table, its store, and whether the table must be stored."""
    if kept.history_ms is None:
        node = TableSource(name, (parent,), kept.store)
        return node, Store(kept.spec(store), key, value), kept.store is not None
    versions = storing(name, parent, VersionedTable(store))
    face = VersionedFace(kept.history_ms)
    return versions, Store(kept.versioned_spec(store), key, value, face), True


def to_table(edge: Edge, kept: Materialized, name: str | None) -> Edge:
    """Add the node that reads a stream as a table; repartition if the key may have changed."""
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
