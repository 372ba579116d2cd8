"""Nodes of a join of two tables by their keys (see `operators.joins.primary_key_join`)."""

from __future__ import annotations

from dataclasses import replace

from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import AnySerde, Function, Operator
from headrace.topology.graph.materialized import Materialized, materialized
from headrace.topology.operators.joins.primary_key_join import JoinMerge, JoinSide
from headrace.topology.processors.store import Store

_MERGE = "KTABLE-MERGE-"


def primary_key_join(
    left: Edge,
    right: Edge,
    joiner: Function,
    *,
    alone: tuple[bool, bool] = (False, False),
    store: str | Materialized | None = None,
    key: AnySerde | None = None,
    value: AnySerde | None = None,
    name: str | None = None,
) -> Edge:
    """Add the nodes and return the edge of the results, a table with the same keys.

    `alone`: for the left and the right table, whether rows without a match are joined with None.
    """
    draft = left.draft
    if draft is not right.draft:
        raise TopologyError("tables of two builders are joined; read both with one StreamsBuilder")
    names, kept = draft.names, materialized(store)
    is_stored = store is not None or key is not None or value is not None
    result_store = kept.store
    if is_stored and result_store is None:
        result_store = names.store(_MERGE)
    merge = names.node(_MERGE, name)
    sides = [
        names.node(f"KTABLE-JOIN{side}-", None if name is None else f"{name}-join-{side.lower()}")
        for side in ("THIS", "OTHER")
    ]
    stores = draft.readable(left.node), draft.readable(right.node)
    spec = JoinMerge(
        tables=(left.node, right.node),
        keys=stores[0][0],
        joiner=joiner,
        alone=alone,
        store=result_store,
    )
    draft.add(Operator(sides[0], (left.node,), spec=JoinSide(0), uses=stores[1]))
    draft.add(Operator(sides[1], (right.node,), spec=JoinSide(1), uses=stores[0]))
    node = Operator(merge, tuple(sides), spec=spec, view_uses=tuple(dict.fromkeys(sum(stores, ()))))
    result = replace(left, key=key or left.key, value=value)
    if result_store is None and draft.tables_above(left.node) & draft.tables_above(right.node):
        # A single record can change both rows before either side has forwarded its change.
        result_store = f"{merge}-STATE-STORE"
        node = replace(node, spec=spec.kept_in(result_store))
    if result_store is None:
        return replace(result, node=draft.add(node))
    node = replace(node, uses=(result_store,), view_uses=(result_store,))
    rows = Store(kept.spec(result_store), result.key, value)
    return replace(result, node=draft.add(node, store=rows))
