"""What `to_sink` of a stream or a table adds to a draft.

A topic of its own comes in front, unless it is said to be direct: an external sink is a
sub-topology of its own, whose commit is that of the sink, and what it reads must be committed
before.
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
    """Add the topic, and the step behind it.

    Args:
        sink: where the records go.
        name: of the step; the topic is named after it.
        table: whether the records are the changes of a table.
        direct: whether there is no such topic; `checks.direct_sinks` says where that is right.

    Raises:
        TopologyError: it is no sink, or has no keys for the rows of a table.
    """
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
    # Rows without a key are rows all the same.
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
