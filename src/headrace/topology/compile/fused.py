"""A step that says its own condition: an ``if`` around what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.topology.compile.codegen import Flow, Generator
from headrace.topology.compile.guarding import attempt, otherwise
from headrace.topology.graph.graph import Fused
from headrace.topology.serdes import Serde

Descend = Callable[[Flow], None]


@dataclass(frozen=True, slots=True)
class _Record:
    """See `headrace.topology.context.fused_spec.FusedRecord`."""

    gen: Generator
    node: Fused
    flow: Flow

    @property
    def key(self) -> str:
        return self.flow.key_object

    @property
    def value(self) -> str:
        return self.flow.value_object

    def key_bytes(self, serde: Serde[Any] | None) -> str:
        wanted = serde or self.gen.options.default_key
        return f"({self.gen.encoded_key(self.flow, wanted, self.node)})"

    def value_bytes(self, serde: Serde[Any] | None) -> str:
        wanted = serde or self.gen.options.default_value
        return f"({self.gen.encoded_value(self.flow, wanted, self.node)})"

    def constant(self, name: str, value: object) -> str:
        return self.gen.constant(f"{name}_{self.gen.ordinal(self.node)}", value)


def emit(gen: Generator, node: Fused, flow: Flow, descend: Descend) -> None:
    """Write the condition, and what follows where it holds."""
    condition = node.spec.condition(_Record(gen, node, flow))
    if gen.options.handles_errors:
        kept = f"kept_{gen.ordinal(node)}"
        with attempt(gen, node, flow):
            gen.writer.line(f"{kept} = True if {condition} else False")
        with otherwise(gen), gen.writer.block(f"if {kept}:"):
            descend(flow)
        return
    with gen.writer.block(f"if {condition}:"):
        descend(flow)
