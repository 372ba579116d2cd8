"""What of a step its store's rows depend on: its kind, its fold, and the spans of its windows."""

from __future__ import annotations

from typing import Any

from headrace.topology.graph.graph import Aggregate, Node, Operator, SubTopology, stores_of
from headrace.topology.operators.cogroup import CogroupInput
from headrace.topology.operators.joins.stream_join import JoinSide
from headrace.topology.operators.joins.table_join_grace import PostponedTableJoin
from headrace.topology.operators.process import Process
from headrace.topology.operators.table_group import TableFold
from headrace.topology.operators.windows.sessions import SessionFold
from headrace.topology.operators.windows.sliding import SlidingFold
from headrace.topology.operators.windows.suppress import Suppress
from headrace.topology.operators.windows.windowed import AlignedFold, WindowedFold
from headrace.topology.processors.store import Store
from headrace.topology.processors.versioned_store import VersionedFace
from headrace.topology.serdes.windows_serde import WindowStoreSerde

__all__ = ["FIXED", "Spans", "filler_of", "step_of"]

Spans = tuple[tuple[str, int], ...]
"""Names and milliseconds, by name."""

FIXED = frozenset({"size", "advance", "start", "gap", "difference"})
"""The spans that say which window a row is of; with another one rows are misread."""


def filler_of(sub: SubTopology, store: str) -> Node | None:
    """The node that writes a store; processors only where there is no other."""
    users = [node for node in sub.nodes if store in stores_of(node)]
    others = [n for n in users if not (isinstance(n, Operator) and isinstance(n.spec, Process))]
    sides = [n for n in others if isinstance(n, Operator) and _is_own_side(n.spec, store)]
    return next(iter(sides or others or users), None)


def _is_own_side(spec: Any, store: str) -> bool:
    return isinstance(spec, JoinSide) and spec.own == store


def step_of(node: Node | None, store: Store) -> tuple[str, Spans]:
    """The kind of the step that fills a store, and its spans.

    Returns:
        The kind, "" where the node's own word says it; the spans, sorted.
    """
    kind, spans = _step(node.spec) if isinstance(node, Operator) else ("", {})
    if isinstance(node, Aggregate):
        kind = ""
    if isinstance(store.face, VersionedFace):
        spans["history"] = store.face.history_ms
    if kind in ("", "processor") and isinstance(store.key, WindowStoreSerde):
        spans["size"] = store.key.windowed.size_ms
    if store.spec.retention_ms is not None:
        spans["retention"] = store.spec.retention_ms
    return kind, tuple(sorted(spans.items()))


def _step(spec: Any) -> tuple[str, dict[str, int]]:
    if isinstance(spec, CogroupInput):
        kind, spans = _step(spec.fold)
        return f"cogroup{kind[kind.find(' ') :] if ' ' in kind else ''}", spans
    if isinstance(spec, WindowedFold):
        return _windowed(spec)
    if isinstance(spec, SessionFold):
        windows = spec.windows
        return f"{spec.fold.word} in sessions", {"gap": windows.gap_ms, "grace": windows.grace_ms}
    if isinstance(spec, TableFold):
        return f"{spec.fold.word} of a grouped table", {}
    if isinstance(spec, JoinSide):
        return "join of streams", {"before": spec.before_ms, "after": spec.after_ms}
    if isinstance(spec, PostponedTableJoin):
        return "join with a table", {"grace": spec.grace_ms}
    if isinstance(spec, Suppress):
        what = "final results" if spec.final else "a time limit"
        return f"suppress until {what}", {"wait": spec.wait_ms}
    return ("processor" if isinstance(spec, Process) else type(spec).__name__), {}


def _windowed(spec: WindowedFold) -> tuple[str, dict[str, int]]:
    word = spec.fold.word
    if isinstance(spec, AlignedFold) and spec.advance_ms is not None:
        grace = spec.closes_after_ms - spec.size_ms
        spans = {"size": spec.size_ms, "advance": spec.advance_ms, "grace": grace}
        return f"{word} in windows", spans
    if isinstance(spec, SlidingFold):
        grace = spec.closes_after_ms - spec.size_ms - 1
        return f"{word} in sliding windows", {"difference": spec.size_ms, "grace": grace}
    return f"{word} in an unlimited window", {"start": getattr(spec, "start_ms", 0)}
