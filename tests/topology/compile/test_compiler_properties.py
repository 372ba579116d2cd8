"""Whatever the graph: fused code gives what a naive interpreter gives, record by record."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.topology import KStream, StreamsBuilder, serdes
from headrace.topology.graph.fold import Aggregating, Fold, Reducing
from headrace.topology.graph.graph import Aggregate, Node, Stateless, SubTopology
from tests.support.compiled import Message, Runs, decoded
from tests.support.examples import examples
from tests.support.interpreter import Interpreter

Stream = KStream[Any, Any]

KEYS = st.one_of(st.none(), st.integers(0, 2), st.integers(0, 2))
VALUES = st.one_of(st.none(), st.integers(-2, 7))
OPERATIONS = (
    "filter filter_not map map_values map_values_key flat_map flat_map_values flat_map_values_key "
    "select_key peek for_each merge split to choose"
)
FOLDS = "count reduce aggregate mutate mutate_twice to_table to_table_unstored repartition"
MESSAGES = st.builds(Message, st.tuples(KEYS, VALUES), st.integers(0, 9))
INPUT = st.lists(st.tuples(st.integers(0, 9), MESSAGES), min_size=1, max_size=12)


def steps(operations: str) -> st.SearchStrategy[list[Any]]:
    numbers = st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 6))
    return st.lists(st.tuples(st.sampled_from(operations.split()), numbers), max_size=25)


def number(part: Any) -> int:
    """What the functions below take a key or value for, whatever it is."""
    if isinstance(part, int):
        return part
    return 0 if part is None else len(part)


class Drawn:
    """A topology from drawn numbers; each step goes on from a stream that is there already."""

    def __init__(self, steps: list[Any], sources: int) -> None:
        self.trace: list[tuple[int, Any, Any]] = []
        builder = StreamsBuilder()
        self.streams: list[Stream] = [builder.stream(f"in-{n}") for n in range(sources)]
        for place, (op, (index, other, n)) in enumerate(steps):
            stream = self.streams[index % len(self.streams)]
            if op == "merge":
                self.streams.append(stream.merge(self.streams[other % len(self.streams)]))
            else:
                getattr(self, f"_{op}")(stream, n, place)
        for place, stream in enumerate(self.streams):
            if place % 2 == 0:
                stream.to(f"end-{place}")
        self.topology = builder.build()

    def _filter(self, stream: Stream, n: int, place: int) -> None:
        self.streams.append(stream.filter(lambda k, v: number(v) % 3 != n % 3))

    def _filter_not(self, stream: Stream, n: int, place: int) -> None:
        self.streams.append(stream.filter_not(lambda k, v: number(k) % 3 == n % 3))

    def _map(self, stream: Stream, n: int, place: int) -> None:
        self.streams.append(stream.map(lambda k, v: (v, None if n == 0 else number(k) + n)))

    def _map_values(self, stream: Stream, n: int, place: int) -> None:
        self.streams.append(stream.map_values(lambda v: None if v == n else number(v) + n))

    def _map_values_key(self, stream: Stream, n: int, place: int) -> None:
        self.streams.append(
            stream.map_values(lambda k, v: number(k) - number(v) + n, with_key=True)
        )

    def _flat_map(self, stream: Stream, n: int, place: int) -> None:
        self.streams.append(stream.flat_map(lambda k, v: [(v, i) for i in range(n % 3)]))

    def _flat_map_values(self, stream: Stream, n: int, place: int) -> None:
        self.streams.append(stream.flat_map_values(lambda v: [v] * (number(v) % 3)))

    def _flat_map_values_key(self, stream: Stream, n: int, place: int) -> None:
        self.streams.append(stream.flat_map_values(lambda k, v: (k, v)[: n % 3], with_key=True))

    def _select_key(self, stream: Stream, n: int, place: int) -> None:
        self.streams.append(stream.select_key(lambda k, v: None if n == 0 else number(v) * n))

    def _peek(self, stream: Stream, n: int, place: int) -> None:
        self.streams.append(stream.peek(self._tracer(place)))

    def _for_each(self, stream: Stream, n: int, place: int) -> None:
        stream.for_each(self._tracer(place))

    def _tracer(self, place: int) -> Callable[[Any, Any], None]:
        return lambda k, v: self.trace.append((place, k, copy.deepcopy(v)))

    def _to(self, stream: Stream, n: int, place: int) -> None:
        stream.to(f"topic-{n}")

    def _choose(self, stream: Stream, n: int, place: int) -> None:
        stream.to(lambda k, v: f"chosen-{number(v) % (n + 1)}")

    def _split(self, stream: Stream, n: int, place: int) -> None:
        split = stream.split()
        for bound in range(n % 4):
            split.branch(lambda k, v, bound=bound: number(v) % 5 <= bound)
        branches = split.default_branch() if n % 2 else split.no_default_branch()
        self.streams += branches.values()

    def _count(self, stream: Stream, n: int, place: int) -> None:
        table = stream.group_by_key().count(store=f"store-{place}", value=serdes.json)
        self.streams.append(table.to_stream())

    def _reduce(self, stream: Stream, n: int, place: int) -> None:
        def reducer(old: Any, new: Any) -> Any:
            return None if number(new) % 5 == n else number(old) + number(new)

        table = stream.group_by_key().reduce(reducer, store=f"store-{place}")
        self.streams.append(table.to_stream())

    def _aggregate(self, stream: Stream, n: int, place: int) -> None:
        def aggregator(key: Any, value: Any, old: list[Any]) -> Any:
            return None if number(value) % 5 == n else [*old, number(value)]

        table = stream.group_by_key().aggregate(list, aggregator, store=f"store-{place}")
        self.streams.append(table.to_stream())

    def _mutate(self, stream: Stream, n: int, place: int) -> None:
        def aggregator(key: Any, value: Any, seen: list[Any]) -> Any:
            seen.append(number(value))
            return seen

        table = stream.group_by_key().aggregate(list, aggregator, store=f"store-{place}")
        self.streams.append(table.to_stream())

    def _mutate_twice(self, stream: Stream, n: int, place: int) -> None:
        """Two stores that get hold of one list, which the first of them changes."""
        self._mutate(stream, n, place)
        changes = self.streams[-1].group_by_key()
        self.streams.append(
            changes.reduce(lambda old, new: [*old, *new], store=f"again-{place}").to_stream()
        )

    def _to_table(self, stream: Stream, n: int, place: int) -> None:
        self.streams.append(stream.to_table(store=f"store-{place}").to_stream())

    def _to_table_unstored(self, stream: Stream, n: int, place: int) -> None:
        self.streams.append(stream.to_table().to_stream())

    def _repartition(self, stream: Stream, n: int, place: int) -> None:
        self.streams.append(stream.repartition(name=f"again-{place}"))


def copied(sub: SubTopology) -> SubTopology:
    """The same graph with functions that take and return copies, as nothing may be shared."""

    def private(function: Any) -> Any:
        return function and (lambda *args: copy.deepcopy(function(*copy.deepcopy(args))))

    def node_of(node: Node) -> Node:
        if isinstance(node, Stateless):
            return replace(node, function=private(node.function))
        if isinstance(node, Aggregate) and isinstance(node.fold, (Reducing, Aggregating)):
            fold: Fold = replace(node.fold, adder=private(node.fold.adder))
            return replace(node, fold=fold)
        return node

    return replace(sub, nodes=tuple(map(node_of, sub.nodes)))


def check_equals_naive(drawn: Drawn, messages: list[tuple[int, Message]]) -> None:
    """Also the order in which functions are called: depth first, siblings as they were written."""
    for sub in drawn.topology.sub_topologies:
        runs, naive = Runs(drawn.topology, sub.id), Interpreter(copied(sub))
        internal = {s.topics[0] for s in sub.sources if s.internal}
        topics = [topic for source in sub.sources for topic in source.topics]
        for which, message in messages:
            topic = topics[which % len(topics)]
            drawn.trace.clear()
            expected = naive.process(topic, *message.pair, message.time)
            called = list(drawn.trace)
            drawn.trace.clear()
            sent = runs.process(message, topic=f"app-{topic}" if topic in internal else topic)
            assert [(name.removeprefix("app-"), *rest) for name, *rest in sent] == expected
            assert drawn.trace == called
            if which % 3 == 0:
                runs.commit(evict=which % 2 == 0)
        for name, buffer in runs.buffers.items():
            rows = [(decoded(key), value, time) for key, value, time in buffer.scan()]
            assert rows == naive.rows(name)


@settings(max_examples=examples(300), deadline=None)
@given(drawn=st.builds(Drawn, steps(OPERATIONS), st.integers(1, 3)), messages=INPUT)
def test_fused_results_equal_a_naive_interpreter(
    drawn: Drawn, messages: list[tuple[int, Message]]
) -> None:
    check_equals_naive(drawn, messages)


@settings(max_examples=examples(300), deadline=None)
@given(
    drawn=st.builds(Drawn, steps(f"{OPERATIONS} {FOLDS} {FOLDS}"), st.integers(1, 3)),
    messages=INPUT,
)
def test_so_do_those_of_graphs_with_state(
    drawn: Drawn, messages: list[tuple[int, Message]]
) -> None:
    check_equals_naive(drawn, messages)


@settings(max_examples=examples(60), deadline=None)
@given(
    drawn=st.builds(Drawn, steps(OPERATIONS), st.just(1)), messages=st.lists(MESSAGES, max_size=8)
)
def test_a_batch_gives_what_its_records_give_one_after_the_other(
    drawn: Drawn, messages: list[Message]
) -> None:
    runs = Runs(drawn.topology)
    one_by_one = [sent for message in messages for sent in runs.process(message, topic="in-0")]
    assert runs.process(*messages, topic="in-0") == one_by_one
