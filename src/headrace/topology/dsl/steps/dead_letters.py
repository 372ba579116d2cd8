"""Node of `KStream.to_dead_letters`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.topology.errors import TopologyError
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import Operator
from headrace.topology.operators.dead_letters import ToDeadLetters


def add_dead_letters(edge: Edge, reason: str | Callable[[Any, Any], str], name: str | None) -> None:
    if reason == "":
        raise TopologyError(
            "to_dead_letters() was given an empty reason; give a text that says what is wrong "
            "with the record, or a function of (key, value) that returns it"
        )
    node_name = edge.draft.names.node("KSTREAM-DEADLETTERS-", name)
    spec = ToDeadLetters(reason)
    edge.draft.add(Operator(node_name, (edge.node,), spec=spec, reads_value=callable(reason)))
