"""The lines that let the results of a step go on that gathers records (see `operators.calls`).

They stand in a function of their own, which is called when enough is gathered, at the end of each
run and at a flush. In it `m` is the message that a result comes from, as in the loop over a batch,
so whatever fails behind it is told with its own record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from headrace.topology.compile.codegen import Flow, Generator
from headrace.topology.compile.guarding import attempt, otherwise
from headrace.topology.graph.graph import Node, Operator

Children = Callable[[Node, Flow], None]


def gathering(nodes: Iterable[Node]) -> list[Operator]:
    """Those of some nodes that gather records, each behind those that feed it."""
    return [node for node in nodes if isinstance(node, Operator) and node.gathers]


def emit_release(gen: Generator, node: Operator, children: Children) -> None:
    """Write the function that lets go on what a node has gathered."""
    w, i = gen.writer, gen.ordinal(node)
    given = Flow("key", None, None, "value", None, None)
    each = w.block(f"for one in operator_{i}.joined():")
    with w.block(f"def release_{i}():"), w.of(node), each:
        w.line("m = one.message")
        w.line("key, value, timestamp, headers = one.record")
        with _answering(gen, node, given):
            w.line(f"value_{i} = one.result()")
        with otherwise(gen) if node.answer is None else w.block("else:"):
            children(node, given.with_value(f"value_{i}"))


@contextmanager
def _answering(gen: Generator, node: Operator, flow: Flow) -> Iterator[None]:
    """Write who is told where the call has failed: the handler, or what the step itself says."""
    answer = node.answer
    if answer is None:
        with attempt(gen, node, flow):
            yield
        return
    w = gen.writer
    with w.block("try:"):
        yield
    with w.block("except Exception as error:"):
        w.line(f"let_go({node.name!r}, error, key, value, timestamp, headers, {answer!r})")


def emit_full(gen: Generator, node: Operator) -> None:
    """Write what follows a record that was handed over."""
    i = gen.ordinal(node)
    with gen.writer.block(f"if operator_{i}.is_full:"):
        gen.writer.line(f"release_{i}()")


def emit_run_ended(gen: Generator) -> None:
    """Write what the end of a run means for those that gather."""
    for node in gathering(gen.sub.nodes):
        i = gen.ordinal(node)
        with gen.writer.of(node), gen.writer.block(f"if operator_{i}.ends_with_run:"):
            gen.writer.line(f"release_{i}()")
