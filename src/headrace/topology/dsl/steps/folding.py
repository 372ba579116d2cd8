"""Names, store and repartition topic that all aggregations of grouped streams have in common.

Names are generated in Kafka Streams' order: the store, the node, then the repartition topic.
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
"""Function of the node's, the parent's and the store's name that returns the node and its store."""


def storing(
    name: str,
    parent: str,
    spec: FoldedTable | CogroupInput | VersionedTable,
    *,
    reads_value: bool = True,
) -> Operator:
    """Create the node of an operator with a single store, which contains the table it builds."""
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
    """Add the aggregation's node; return the edge that it reads from, and its name.

    Args:
        group: prefix of the name of the repartition topic, which is added if necessary.
        burn: whether a store without a name uses up an additional number.
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
