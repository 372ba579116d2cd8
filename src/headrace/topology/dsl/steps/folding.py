"""What all folds of grouped streams have in common: names, store, repartition.

The order in which names are taken is Kafka Streams': the store, the node, then the repartition.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.topology.graph.draft import Edge
from headrace.topology.graph.fold import Fold
from headrace.topology.graph.graph import Node, Operator
from headrace.topology.graph.materialized import Materialized
from headrace.topology.operators.cogroup import CogroupInput
from headrace.topology.operators.stored_rows import FoldedTable
from headrace.topology.operators.versioned import VersionedTable
from headrace.topology.processors.store import Store

Make = Callable[[str, str, str], tuple[Node, Store]]
"""Makes the node and its store of the node's name, its parent's and the store's."""


def storing(
    name: str,
    parent: str,
    spec: FoldedTable | CogroupInput | VersionedTable,
    *,
    reads_value: bool = True,
) -> Operator:
    """Make the node of a step that has one store, for the table that it makes of records."""
    stores = (spec.store,)
    return Operator(
        name,
        (parent,),
        spec=spec,
        uses=stores,
        view_uses=stores,
        needs_key=True,
        reads_value=reads_value,
    )


def add_fold(
    edge: Edge,
    fold: Fold,
    make: Make,
    *,
    kept: Materialized,
    group: str | None,
    name: str | None,
    burn: bool = False,
) -> tuple[Edge, str]:
    """Add the repartition, if one is needed, and the node that `make` makes.

    Args:
        fold: what it does; its names say so.
        kept: how the store is kept.
        group: the name that was given to the group, after which its repartition is named.
        name: of the node; None generates one.
        burn: whether a store that is given no name uses up one number more.

    Returns:
        The edge that the node reads from, and the node's name.
    """
    names = edge.draft.names
    prefix = f"KSTREAM-{fold.title}-"
    if burn and kept.store is None:
        names.store(prefix)
    store = names.store(prefix) if kept.store is None else kept.store
    node_name = names.node(prefix, name)
    if edge.rekeyed:
        edge = edge.repartitioned(store if group is None else group)
    node, added = make(node_name, edge.node, store)
    edge.draft.add(node, store=added)
    return edge, node_name
