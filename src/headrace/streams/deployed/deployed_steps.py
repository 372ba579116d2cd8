"""What of a step its store's rows depend on: its kind, its fold, and the spans of its windows."""

from __future__ import annotations

from headrace.topology.context.operator_spec import RowKind
from headrace.topology.graph.graph import Node, SubTopology
from headrace.topology.processors.store import Store
from headrace.topology.processors.versioned_store import VersionedFace
from headrace.topology.serdes.windows_serde import WindowStoreSerde

Spans = tuple[tuple[str, int], ...]
"""Names and milliseconds, by name."""


def filler_of(sub: SubTopology, store: str) -> Node | None:
    """The node that writes a store; processors only where there is no other."""
    users = [node for node in sub.nodes if store in node.stores]
    others = [node for node in users if not node.is_processor]
    fillers = [node for node in others if node.fills(store)]
    return next(iter(fillers or others or users), None)


def row_kind_of(node: Node | None, store: Store) -> RowKind:
    """What the rows of a store depend on, as the node that fills it says, and the store."""
    told = RowKind("") if node is None else node.row_kind
    spans, fixed = dict(told.spans), told.fixed
    if isinstance(store.face, VersionedFace):
        spans["history"] = store.face.history_ms
    if (node is None or not told.kind or node.is_processor) and isinstance(
        store.key, WindowStoreSerde
    ):
        spans["size"] = store.key.windowed.size_ms
        fixed |= {"size"}
    if store.spec.retention_ms is not None:
        spans["retention"] = store.spec.retention_ms
    return RowKind(told.kind, spans, fixed, told.unsaid)
