"""Names, store and repartition topic that all aggregations of grouped streams have in common.

Names are generated in Kafka Streams' order: the store, the node, then the repartition topic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.state.spec import StoreSpec
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.fold import Fold
from headrace.topology.graph.graph import Node, OperatorNode
from headrace.topology.graph.materialized import Materialized
from headrace.topology.operators.cogroup import CogroupInput
from headrace.topology.operators.record_cache import FoldedTable
from headrace.topology.operators.versioned import VersionedTable
from headrace.topology.operators.windows.emission import Emit
from headrace.topology.operators.windows.sliding import SlidingFold
from headrace.topology.operators.windows.windowed import AlignedFold
from headrace.topology.processors.store import Store
from headrace.topology.serdes.windows_serde import UNLIMITED_MS
from headrace.topology.windows import SlidingWindows, TimeWindows, UnlimitedWindows

Make = Callable[[str, str, str], tuple[Node, Store]]
"""Function of the node's, the parent's and the store's name that returns the node and its store."""


def storing(
    name: str,
    parent: str,
    spec: FoldedTable | CogroupInput | VersionedTable,
    *,
    reads_value: bool = True,
) -> OperatorNode:
    """Create the node of an operator with a single store, which contains the table it builds."""
    stores = (spec.store,)
    return OperatorNode(
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
    options: Materialized,
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
    if burn and options.store is None:
        names.store(prefix)
    store = names.store(prefix) if options.store is None else options.store
    node_name = names.node(prefix, name)
    if edge.rekeyed:
        edge = edge.repartitioned(store if group is None else group)
    node, added = make(node_name, edge.node, store)
    edge.draft.add(node, store=added)
    return edge, node_name


# Operators of time-windowed aggregations, and the retention that they need.


TimeSpans = TimeWindows | SlidingWindows | UnlimitedWindows


def size_ms(windows: TimeSpans) -> int:
    """Return the window size in milliseconds, as in the windowed keys."""
    if isinstance(windows, UnlimitedWindows):
        return UNLIMITED_MS
    if isinstance(windows, SlidingWindows):
        return windows.time_difference_ms
    return windows.size_ms


def windowed_fold(
    windows: TimeSpans,
    fold: Fold,
    store: str,
    options: Materialized,
    emit: Emit = "on_window_update",
) -> tuple[AlignedFold | SlidingFold, StoreSpec]:
    rows = options.timed_spec(store, "window", least_ms=_least_ms(windows))
    # Rows that are emitted when their windows close are read in the order of time.
    if emit == "on_window_close":
        rows = replace(rows, cached=False)
    else:
        rows = replace(rows, segmented=True)
    return _fold(windows, fold, store, rows.retention_ms, emit), rows


def _least_ms(windows: TimeSpans) -> int | None:
    """Return the minimum retention of rows after their window's start; None for ever."""
    if isinstance(windows, UnlimitedWindows):
        return None
    if isinstance(windows, SlidingWindows):
        # A record's windows are computed from windows of records up to one window size earlier.
        return 2 * windows.time_difference_ms + windows.grace_ms
    return windows.size_ms + windows.grace_ms


def _fold(
    windows: TimeSpans, fold: Fold, store: str, retention_ms: int | None, emit: Emit
) -> AlignedFold | SlidingFold:
    if isinstance(windows, UnlimitedWindows):
        return AlignedFold(
            store=store,
            fold=fold,
            size_ms=UNLIMITED_MS,
            closes_after_ms=UNLIMITED_MS,
            keep_ms=None,
            advance_ms=None,
            start_ms=windows.start_ms,
        )
    assert retention_ms is not None
    if isinstance(windows, SlidingWindows):
        return SlidingFold(
            store=store,
            fold=fold,
            size_ms=windows.time_difference_ms,
            closes_after_ms=windows.time_difference_ms + windows.grace_ms + 1,
            # The record before the earliest relevant record may have a window that is needed.
            keep_ms=retention_ms + 1,
            emit=emit,
        )
    return AlignedFold(
        store=store,
        fold=fold,
        size_ms=windows.size_ms,
        closes_after_ms=windows.size_ms + windows.grace_ms,
        keep_ms=retention_ms - 1,
        emit=emit,
        advance_ms=windows.advance_ms,
    )
