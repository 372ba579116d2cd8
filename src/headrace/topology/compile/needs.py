"""Which nodes read the decoded key or value of a record; what nobody reads stays bytes."""

from __future__ import annotations

from headrace.topology.compile.codegen import Generator
from headrace.topology.graph.graph import (
    Aggregate,
    Node,
    SubTopology,
    TableSource,
)


def needs_key(gen: Generator, node: Node, serde: object) -> bool:
    """Whether anything below `node` reads the decoded key, or writes it in another serde."""
    if gen.options.handles_errors:
        return True  # a handler is shown the record
    for child in gen.sub.children(node.name):
        if len(child.parents) > 1 or child.reads_key:
            return True
        sink = child.as_sink
        if sink is not None and (sink.key or gen.options.default_key) is not serde:
            return True
        if isinstance(child, (Aggregate, TableSource)):
            store = child.store
            if store is not None and gen.store_serdes(store)[0] is not serde:
                return True
        if not child.changes_key and needs_key(gen, child, serde):
            return True
    return False


def needs_value(gen: Generator, node: Node, serde: object) -> bool:
    """Whether anything below `node` reads the decoded value, or writes it in another serde."""
    if gen.options.handles_errors:
        return True
    for child in gen.sub.children(node.name):
        if len(child.parents) > 1 or child.reads_value:
            return True
        sink = child.as_sink
        if sink is not None and (sink.value or gen.options.default_value) is not serde:
            return True
        if not child.changes_value and needs_value(gen, child, serde):
            return True
    return False


def needs_old(sub: SubTopology, node: Node) -> bool:
    """Whether anything below `node` reads the value that it forwarded before."""
    return any(child.needs_old for child in sub.children(node.name))
