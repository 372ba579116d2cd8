"""What `KStream.process` and `KStream.process_values` add to a draft."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypedDict

from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import Operator
from headrace.topology.naming import legal
from headrace.topology.operators.process import Process, supplied
from headrace.topology.processors.stores import StoreBuilder, store_names

AnyStore = StoreBuilder[Any] | str


class ProcessorOptions(TypedDict, total=False):
    """What a step with a processor may be given; see `KStream.process`."""

    stores: Iterable[AnyStore]
    name: str | None


def process_step(
    edge: Edge, supplier: Any, stores: Iterable[AnyStore], name: str | None, *, fixed_key: bool
) -> Edge:
    """Add a processor behind an edge, and the stores that it brings.

    Args:
        supplier: see `operators.process.supplied`.
        stores: to connect it with, those that are described are added.
        name: of the node; None generates one.
        fixed_key: whether it leaves keys as they are.
    """
    given = supplied(supplier)
    wanted = (*stores, *given.stores)
    kind = "PROCESSVALUES" if fixed_key else "PROCESSOR"
    # Unlike elsewhere, a given name uses up no number here.
    node_name = edge.draft.names.node(f"KSTREAM-{kind}-") if name is None else legal(name)
    spec = Process(given.supplier, fixed_key=fixed_key)
    node = Operator(node_name, (edge.node,), spec=spec, uses=store_names(wanted))
    edge.draft.add_state_stores(wanted)
    added = edge.then(node)
    if fixed_key:
        return replace(added, value=None)
    return replace(added, key=None, value=None, rekeyed=True)
