"""Records that came too late for their window, taken as a stream instead of only counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from headrace.topology.dsl import kstream
from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import Stateless
from headrace.topology.naming import legal
from headrace.topology.operators.windows.lateness import late_name

K = TypeVar("K")
V = TypeVar("V")

Late = Callable[["kstream.KStream[K, V]"], object]
"""Is given the stream of late records and adds to it what is to happen with them."""


def add_late(edge: Edge, node: str, late: Late[Any, Any] | None) -> None:
    """Put a stream of late records behind a node, and hand it to the program.

    Kafka Streams has no such stream: it takes no number, so that all other names stay as they are.
    The operator finds it with `operators.lateness.split_late`.

    Args:
        edge: where the node's own input comes from: the late records are those.
        node: the name of the node, which is there already.
        late: what the program gave as ``late=``; with None nothing is added.

    Raises:
        TopologyError: a node of that name is there already, or a topic is returned.
    """
    if late is None:
        return
    name = legal(late_name(node))
    edge.draft.add(Stateless(name, (node,), op="pass"))
    returned = late(kstream.KStream(replace(edge, node=name)))
    if isinstance(returned, str):
        raise TopologyError(
            f"late= of {node!r} returned a str, which writes nothing; have it add to the stream: "
            f"late=lambda stream: stream.to({returned!r})"
        )
