"""Whether a store may hold a value's object itself, or must hold bytes.

A store that holds objects encodes a row once a commit, however often it changes. With mutable
values that is only right while nobody else has the object: a user function downstream could change
it in place, and a function upstream could have kept the value that a reducer returns.
"""

from __future__ import annotations

from headrace.topology.compile.codegen import Hold
from headrace.topology.graph.graph import (
    Node,
    Operator,
    SubTopology,
)


def hold_of(
    sub: SubTopology, store: str, *, immutable: bool, outlives_errors: bool = False
) -> Hold:
    """Decide how `store` holds its values.

    Args:
        immutable: whether its serde makes values that nobody can change.
        outlives_errors: whether a row must stay as it was where a function that was to change it
            failed, and be refused at once where it cannot be encoded.
    """
    users = [node for node in sub.nodes if store in node.stores]
    if outlives_errors and not all(node.counts for node in users):
        return "bytes"
    if immutable:
        return "objects"
    if any(isinstance(node, Operator) for node in users):
        return "bytes"
    if all(_is_alone_above(sub, node) and _is_unseen_below(sub, node) for node in users):
        return "objects"
    return "bytes"


def has_its_own(sub: SubTopology, node: Node) -> bool:
    """Whether nobody else can have got hold of the keys and values that a node is given."""
    return _is_alone_above(sub, node) and not any(
        other.changes_key for other in sub.nodes if other is not node
    )


def _is_unseen_below(sub: SubTopology, node: Node) -> bool:
    below = sub.children(node.name)
    return all(child.is_unseeing and _is_unseen_below(sub, child) for child in below)


def _is_alone_above(sub: SubTopology, node: Node) -> bool:
    nodes = {n.name: n for n in sub.nodes}
    while node.parents:
        if len(node.parents) != 1:
            return False
        node = nodes[node.parents[0]]
        if not node.leaves_value_alone or len(sub.children(node.name)) != 1:
            return False
    return True
