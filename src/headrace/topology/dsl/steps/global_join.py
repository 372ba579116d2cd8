"""Node of a join of a stream with a global table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headrace.topology.dsl.global_table import GlobalKTable, node_of
from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import Operator
from headrace.topology.operators.joins.table_join import GlobalJoin

_REFUSED = {
    "windows": "a row is valid until it changes",
    "key": "nothing is partitioned anew for it",
    "value": "nothing is partitioned anew for it",
    "other_value": "the table has its own serdes",
    "store": "the table has its own store",
    "late": "a record finds the row of the moment, however late it comes",
    "other_late": "a record finds the row of the moment, however late it comes",
}


def global_join(
    edge: Edge,
    table: GlobalKTable[Any, Any],
    joiner: Callable[..., Any],
    key_mapper: Callable[[Any, Any], Any] | None,
    kind: str,
    options: Mapping[str, Any],
) -> Edge:
    """Add the node; `options` are the other arguments of `KStream.join`."""
    if kind == "outer":
        raise TopologyError(
            "a stream has no outer join with a global table, as a row alone makes no result; use "
            "left_join()"
        )
    if key_mapper is None:
        raise TopologyError(
            "a join with a global table needs key_mapper=: it tells the key to look up, called as "
            "key_mapper(key, value)"
        )
    for argument, reason in _REFUSED.items():
        if options[argument] is not None:
            raise TopologyError(f"a join with a global table takes no {argument}=: {reason}")
    spec = GlobalJoin(
        node_of(table, edge.draft),
        joiner,
        with_key=options["with_key"],
        left=kind == "left",
        mapper=key_mapper,
    )
    # Kafka Streams uses this prefix for inner joins with a global table, too.
    name = edge.draft.names.node("KSTREAM-LEFTJOIN-", options["name"])
    return replace(edge.then(Operator(name, (edge.node,), spec=spec)), value=None)
