"""The line that keeps a record for a table outside of Kafka, without a call of Python.

A table that nobody else can change the objects of takes them as they are, in the loop over a batch.
Elsewhere, such as behind a merge, the operator's own method is called.
"""

from __future__ import annotations

from headrace.topology.compile.codegen import Flow, Generator, Writer
from headrace.topology.compile.holding import has_its_own
from headrace.topology.graph.graph import Operator


def is_kept(gen: Generator, node: Operator) -> bool:
    """Whether the records of a node may be kept as they are."""
    return node.writes_outside is not None and has_its_own(gen.sub, node)


def emit_kept(gen: Generator, node: Operator, flow: Flow) -> None:
    """Write the line; `m` is the message that is processed."""
    record = f"{flow.key_object}, {flow.value_object}, {flow.timestamp}, m"
    gen.writer.line(f"keep_{gen.ordinal(node)}(({record}))")


def emit_keeper(gen: Generator, node: Operator, w: Writer) -> None:
    """Write what the line calls."""
    i = gen.ordinal(node)
    w.line(f"keep_{i} = operator_{i}.kept.append")
