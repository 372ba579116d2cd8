"""What `KStream.merge` adds to a draft."""

from __future__ import annotations

from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import Stateless


def merged(a: Edge, b: Edge, name: str | None) -> Edge:
    """Add a node behind two edges; it has the serdes that both of them have.

    Raises:
        TopologyError: they are of two builders.
    """
    if a.draft is not b.draft:
        raise TopologyError("merge() was given a stream of another builder; use one builder")
    node_name = a.draft.names.node("KSTREAM-MERGE-", name)
    parents = tuple(dict.fromkeys((a.node, b.node)))
    node = a.draft.add(Stateless(node_name, parents, op="pass"))
    key = a.key if a.key == b.key else None
    value = a.value if a.value == b.value else None
    return Edge(a.draft, node, key, value, a.rekeyed or b.rekeyed)
