"""Lines that may fail for one record, where a handler may let the others go on.

A node that fails on a record lets it go; its siblings, and the other records that a node above it
made, go on (KIP-1033). Only what a node does itself is tried, never what follows from it: that
stands in the ``else`` of the ``try``, so each failure is that of its own node. Where errors stop
the application in any case, nothing of all this is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.topology.compile.codegen import Flow, Generator
from headrace.topology.graph.graph import Node


@contextmanager
def attempt(
    gen: Generator, node: Node, flow: Flow, *, part: str = "None", instead: str | None = None
) -> Iterator[None]:
    """Write what a node does itself, and who is told where it fails.

    Args:
        flow: the record that it was given.
        part: the expression of what could not be written, for a sink.
        instead: a line to do instead where what follows is done all the same, without `otherwise`.
    """
    w = gen.writer
    if not gen.options.handles_errors:
        yield
        return
    with w.block("try:"):
        yield
    with w.block("except Exception as error:"):
        tell(gen, node, flow, "error", part=part)
        if instead is not None:
            w.line(instead)


@contextmanager
def otherwise(gen: Generator) -> Iterator[None]:
    """Write what follows where the attempt just before has not failed."""
    if not gen.options.handles_errors:
        yield
        return
    with gen.writer.block("else:"):
        yield


def tell(gen: Generator, node: Node, flow: Flow, error: str, *, part: str = "None") -> None:
    """Write the call that asks the handler; it raises where the application is to stop."""
    record = f"{flow.key_or_bytes}, {flow.value_or_bytes}, {flow.timestamp}, {flow.headers}"
    gen.writer.line(f"failed({node.name!r}, {error}, {record}, {part})")
