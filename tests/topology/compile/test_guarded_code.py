"""Whatever fails, wherever: guarded code lets go of what a naive interpreter lets go of."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.topology import StreamsBuilder, serdes
from headrace.topology.compile.compiler import compile_sub_topology
from headrace.topology.graph.fold import Aggregating, Fold, Reducing
from headrace.topology.graph.graph import Aggregate, Branch, Node, Sink, Stateless, SubTopology
from tests.support.compiled import OPTIONS, Message, Runs, decoded
from tests.support.examples import examples
from tests.support.interpreter import Interpreter
from tests.topology.compile.test_compiler_properties import (
    FOLDS,
    INPUT,
    OPERATIONS,
    Drawn,
    copied,
    steps,
)

GUARDED = replace(OPTIONS, handles_errors=True, skips_undecodable=True)


class BrokenError(Exception):
    """What the functions below raise."""


class Forgiving(Interpreter):
    """A node that fails lets the record go."""

    def __init__(self, sub: SubTopology) -> None:
        super().__init__(sub)
        self.failures: list[str] = []

    def _visit(self, node: Node, key: Any, value: Any, timestamp: int) -> None:
        # What fails below is let go there, so this is the node's own.
        try:
            super()._visit(node, key, value, timestamp)
        except BrokenError:
            self.failures.append(node.name)


def breaking(function: Callable[..., Any], odds: int) -> Callable[..., Any]:
    """The function, which fails on some arguments, after it may have changed them in place."""

    def broken(*arguments: Any) -> Any:
        is_bad = odds and zlib.crc32(repr(arguments).encode()) % odds == 0
        result = function(*arguments)
        if is_bad:
            raise BrokenError
        return result

    return broken


def broken(sub: SubTopology, odds: int) -> SubTopology:
    """The same graph with functions that fail."""

    def node_of(node: Node) -> Node:
        if isinstance(node, Stateless) and node.function is not None:
            return replace(node, function=breaking(node.function, odds))
        if isinstance(node, Aggregate) and isinstance(node.fold, (Reducing, Aggregating)):
            fold: Fold = replace(node.fold, adder=breaking(node.fold.adder, odds))
            return replace(node, fold=fold)
        if isinstance(node, Branch):
            return replace(node, predicates=tuple(p and breaking(p, odds) for p in node.predicates))
        if isinstance(node, Sink) and callable(node.topic):
            return replace(node, topic=breaking(node.topic, odds))
        return node

    return replace(sub, nodes=tuple(map(node_of, sub.nodes)))


@settings(max_examples=examples(300), deadline=None)
@given(
    drawn=st.builds(Drawn, steps(f"{OPERATIONS} {FOLDS}"), st.integers(1, 3)),
    messages=INPUT,
    odds=st.sampled_from([0, 2, 4]),
)
def test_what_goes_on_is_what_a_naive_interpreter_lets_go_on(
    drawn: Drawn, messages: list[tuple[int, Message]], odds: int
) -> None:
    for sub in drawn.topology.sub_topologies:
        failures: list[str] = []
        changed = broken(sub, odds)
        runs = Runs(
            drawn.topology,
            sub.id,
            program=compile_sub_topology(changed, GUARDED),
            failed=lambda node, *_: failures.append(node),  # noqa: B023 - called in this round
        )
        naive = Forgiving(copied(changed))
        internal = {s.topics[0] for s in sub.sources if s.internal}
        topics = [topic for source in sub.sources for topic in source.topics]
        for which, message in messages:
            topic = topics[which % len(topics)]
            expected = naive.process(topic, *message.pair, message.time)
            sent = runs.process(message, topic=f"app-{topic}" if topic in internal else topic)
            assert [(name.removeprefix("app-"), *rest) for name, *rest in sent] == expected
            assert failures == naive.failures
            if which % 3 == 0:
                runs.commit(evict=which % 2 == 0)
        for name, buffer in runs.buffers.items():
            rows = [(decoded(key), value, time) for key, value, time in buffer.scan()]
            assert rows == naive.rows(name)


def test_a_chain_of_any_length_can_be_guarded() -> None:
    """Python bounds how deep blocks nest; what is too deep becomes a function."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    for _ in range(60):
        stream = stream.flat_map_values(lambda v: [v]).filter(lambda k, v: True)
    stream.to("out")
    topology = builder.build()
    program = compile_sub_topology(topology.sub_topologies[0], GUARDED)
    assert Runs(topology, program=program).pairs(("k", 1)) == [("out", "k", 1)]


def test_without_handlers_nothing_is_guarded() -> None:
    """So that the application pays for handlers only where it has them."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string).map_values(str).filter(lambda k, v: v)
    stream.group_by_key().count(store="rows").to_stream().to("out")
    sub = builder.build().sub_topologies[0]
    plain, guarded = (compile_sub_topology(sub, o).source_code for o in (OPTIONS, GUARDED))
    assert "try:" not in plain
    assert "failed" not in plain
    assert guarded.count("try:") == 5
