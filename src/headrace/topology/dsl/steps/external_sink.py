"""Nodes of `KStream.to_sink` and `KTable.to_sink`.

An external sink is a separate sub-topology that commits in the sink, so its input must be committed
before. Therefore an internal topic comes before it, unless it is direct.
"""

from __future__ import annotations

from typing import Any

from headrace.topology.errors import TopologyError, type_of
from headrace.topology.external_sink import ExternalSink
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import Operator
from headrace.topology.naming import legal
from headrace.topology.operators.outbox import WriteOutside


def add_external_sink(
    edge: Edge, sink: Any, name: str, *, table: bool = False, direct: bool = False
) -> None:
    """Add the sink's node, after an internal topic unless `direct` (`checks.loops` checks it)."""
    _require_sink(sink)
    if table and not sink.keyed:
        raise TopologyError(
            f"to_sink({name!r}) of a table writes and deletes rows by their keys, and the sink "
            "has no key; give it key=, or write each change with .to_stream().to_sink(...)"
        )
    legal(name)
    if direct:
        edge.draft.add(Operator(name, (edge.node,), spec=WriteOutside(sink, direct=True)))
        return
    behind = edge.repartitioned(name)
    # Records without a key are written, too.
    behind.draft.keep_null_keys(behind.node)
    behind.draft.add(Operator(name, (behind.node,), spec=WriteOutside(sink)))


def _require_sink(sink: ExternalSink) -> None:
    if isinstance(sink, type):
        raise TopologyError(f"to_sink() was given the class {sink.__name__}; call it")
    if not callable(getattr(sink, "open", None)) or not hasattr(sink, "keyed"):
        raise TopologyError(
            f"to_sink() takes a sink such as SqliteSink(...), and was given {type_of(sink)}; one "
            "of your own has open() and keyed, which help(headrace.ExternalSink) describes"
        )
