"""Which nodes read the decoded key or value of a record; what nobody reads stays bytes."""

from __future__ import annotations

from headrace.topology.compile.codegen import Generator
from headrace.topology.graph.graph import (
    Aggregate,
    Branch,
    Node,
    Operator,
    Sink,
    Stateless,
    SubTopology,
    TableSource,
)


def reads_key(node: Node) -> bool:
    """Whether the node hands the decoded key to a user function."""
    if isinstance(node, Stateless):
        if node.op in ("pass", "null_key_filter"):
            return False
        return node.with_key
    if isinstance(node, (Branch, Operator)):
        return True
    if isinstance(node, Aggregate):
        return node.fold.reads_key
    return isinstance(node, Sink) and _asks_user(node)


def _asks_user(node: Sink) -> bool:
    return callable(node.topic) or node.partitioner is not None


def reads_value(node: Node) -> bool:
    """Whether the node hands the decoded value to a user function, or keeps it."""
    if isinstance(node, Stateless):
        return node.op not in ("pass", "null_key_filter")
    if isinstance(node, Aggregate):
        return node.fold.reads_value
    if isinstance(node, TableSource):
        return node.store is not None
    if isinstance(node, Operator):
        return node.reads_value
    return isinstance(node, Branch) or (isinstance(node, Sink) and _asks_user(node))


def needs_key(gen: Generator, node: Node, serde: object) -> bool:
    """Whether anything below `node` reads the decoded key, or writes it in another serde."""
    if gen.options.handles_errors:
        return True  # a handler is shown the record
    for child in gen.sub.children(node.name):
        if len(child.parents) > 1 or reads_key(child):
            return True
        if isinstance(child, Sink) and (child.key or gen.options.default_key) is not serde:
            return True
        if isinstance(child, (Aggregate, TableSource)):
            store = child.store
            if store is not None and gen.store_serdes(store)[0] is not serde:
                return True
        if _keeps_key(child) and needs_key(gen, child, serde):
            return True
    return False


def _keeps_key(node: Node) -> bool:
    return not (isinstance(node, Stateless) and node.op in ("map", "flat_map", "select_key"))


def needs_value(gen: Generator, node: Node, serde: object) -> bool:
    """Whether anything below `node` reads the decoded value, or writes it in another serde."""
    if gen.options.handles_errors:
        return True
    for child in gen.sub.children(node.name):
        if len(child.parents) > 1 or reads_value(child):
            return True
        if isinstance(child, Sink) and (child.value or gen.options.default_value) is not serde:
            return True
        if _keeps_value(child) and needs_value(gen, child, serde):
            return True
    return False


def needs_old(sub: SubTopology, node: Node) -> bool:
    """Whether anything below `node` reads the value that it forwarded before."""
    for child in sub.children(node.name):
        if isinstance(child, Operator) and child.spec.needs_old:
            return True
        if isinstance(child, Stateless) and not child.stream and child.op != "pass":
            return True
    return False


def _keeps_value(node: Node) -> bool:
    if isinstance(node, (Aggregate, Operator)):
        return False
    changing = ("map", "map_values", "flat_map", "flat_map_values")
    return not (isinstance(node, Stateless) and node.op in changing)
