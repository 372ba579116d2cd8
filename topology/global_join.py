"""The step that joins a stream with a global table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from topology.draft import Edge
from topology.global_table import GlobalKTable, node_of
from topology.graph import Operator
from topology.operators.global_join import GlobalJoin

__all__ = ["join_global"]


def join_global(
    edge: Edge,
    table: GlobalKTable[Any, Any],
    joiner: Callable[..., Any],
    key_mapper: Callable[[Any, Any], Any],
    *,
    with_key: bool,
    left: bool,
    name: str | None,
) -> Edge:
    """Add the step behind `edge`.

    Args:
        edge: the stream.
        table: what it is joined with.
        joiner: called as ``joiner(value, row)``, or with the record's key in front.
        key_mapper: called as ``key_mapper(key, value)``, returns the table's key.
        with_key: whether the joiner takes the key.
        left: whether records without a row are joined too.
        name: name of the node; None generates one.

    Raises:
        TopologyError: the table is another builder's, or the name is not legal.
    """
    spec = GlobalJoin(node_of(table, edge.draft), key_mapper, joiner, with_key, left)
    # Kafka Streams names inner joins with a table so too.
    node = Operator(edge.draft.names.node("KSTREAM-LEFTJOIN-", name), (edge.node,), spec=spec)
    return replace(edge.then(node), value=None)
