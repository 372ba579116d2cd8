"""Stream of late records, which are otherwise only counted."""

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
"""Function that receives the stream of late records and adds nodes to it."""


def add_late(edge: Edge, node: str, late: Late[Any, Any] | None) -> None:
    """Add a stream of late records downstream of a node, and pass it to the ``late=`` function.

    Kafka Streams has no such stream, so its name uses no number and all other names stay the same.
    The operator finds it with `operators.windows.lateness.split_late`.
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
