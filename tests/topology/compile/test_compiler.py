"""The generated code: what it is like to meet it, and that it does what the graph says."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from headrace.topology import KStream, StreamsBuilder, Topology, serdes
from headrace.topology.compile.compiler import Program
from tests.support.compiled import Message, Runs

Stream = KStream[Any, Any]


def stream_topology(step: Callable[[Stream], Any]) -> Topology:
    builder = StreamsBuilder()
    result = step(builder.stream("in", name="read"))
    if result is not None:
        result.to("out", name="write")
    return builder.build()


# -- meeting the generated code ------------------------------------------------------------------


def test_a_traceback_shows_the_generated_line_under_its_node() -> None:
    def broken(key: Any, value: Any) -> Any:
        raise ValueError

    runs = Runs(stream_topology(lambda s: s.filter(lambda k, v: True).map(broken, name="broken")))
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        runs.pairs(("a", 1))
    frames = traceback.extract_tb(caught.value.__traceback__)
    (generated,) = [f for f in frames if f.filename == runs.program.filename]
    assert generated.line == "pair_2 = function_2(key, value)"
    assert generated.lineno is not None
    above = linecache.getline(generated.filename, generated.lineno - 1)
    assert above.strip() == "# broken"


def test_the_node_of_an_error_is_found() -> None:
    def broken(value: int) -> int:
        return 1 // value

    topology = stream_topology(
        lambda s: s.map_values(broken, name="broken").filter(lambda k, v: True)
    )
    runs = Runs(topology)
    with pytest.raises(ZeroDivisionError) as caught:
        runs.pairs(("a", 1), ("b", 0), ("c", 1))
    assert runs.program.node_of(caught.value.__traceback__) == "broken"


def test_an_error_behind_a_shared_node_or_deep_down_is_found_too() -> None:
    def deep(stream: Stream) -> Stream:
        for level in range(25):
            stream = stream.flat_map_values(lambda v: [v], name=f"level-{level}")
        return stream.merge(stream.map_values(lambda v: 1 // v, name="broken"))

    runs = Runs(stream_topology(deep))
    with pytest.raises(ZeroDivisionError) as caught:
        runs.pairs(("a", 1), ("b", 0))
    assert runs.program.node_of(caught.value.__traceback__) == "broken"


def test_the_source_names_every_node_that_does_something() -> None:
    def step(stream: Stream) -> Stream:
        kept = stream.filter(lambda k, v: v, name="keep").map_values(str, name="text")
        return kept.group_by_key().count(store="counts", name="count").to_stream(name="changes")

    code = Runs(stream_topology(step)).program.source_code
    for name in ("read", "keep", "text", "count", "write"):
        assert f"# {name}\n" in code, name


def test_describe_prints_the_source_when_it_is_asked_to() -> None:
    topology = stream_topology(lambda s: s.map_values(str.upper, name="shout"))
    plain, whole = topology.describe(), topology.describe(code=True)
    assert whole.startswith(plain)
    source = whole[len(plain) :]
    assert "def process_0(batch):" in source
    assert "# shout" in source
    compile(source, "described", "exec")


def test_the_same_topology_gives_the_same_source() -> None:
    def program() -> Program:
        return Runs(stream_topology(lambda s: s.map_values(lambda v: v).filter(bool))).program

    assert program().source_code == program().source_code
    assert program().filename == program().filename


def test_an_application_that_is_made_again_is_compiled_once() -> None:
    """Functions are no part of the code: each application calls its own."""

    def runs(answer: str) -> Runs:
        return Runs(stream_topology(lambda s: s.map_values(lambda _: answer)))

    one, other = runs("1"), runs("2")
    assert one.program._code is other.program._code
    assert one.program._constants != other.program._constants


def test_topologies_of_different_source_do_not_share_a_file_name() -> None:
    one = Runs(stream_topology(lambda s: s.map_values(lambda v: v))).program
    other = Runs(stream_topology(lambda s: s.filter(lambda k, v: v))).program
    assert one.filename != other.filename
    assert linecache.getlines(one.filename) == one.source_code.splitlines(keepends=True)
    assert linecache.getlines(other.filename) == other.source_code.splitlines(keepends=True)


def test_names_that_are_no_identifiers_do_not_get_into_the_code() -> None:
    topology = stream_topology(
        lambda s: s.map_values(str, name="a-b.c").to_table(store="class").to_stream(name="1.2")
    )
    assert Runs(topology).pairs(("a", 1)) == [("out", "a", "1")]


# -- the shape of the graph ------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 14, 15, 20, 21, 60])
def test_deep_nesting_works(depth: int) -> None:
    """Python allows 20 loops in one another; a chain of flat_maps has no bound."""

    def step(stream: Stream) -> Stream:
        for _ in range(depth):
            stream = stream.flat_map(lambda k, v: [(k, v + 1)] if v % 7 else [(k, v + 1)] * 2)
        return stream

    naive = [0]
    for _ in range(depth):
        naive = [v + 1 for v in naive for _ in range(1 if v % 7 else 2)]
    assert [v for _, _, v in Runs(stream_topology(step)).pairs(("a", 0))] == naive


def test_deep_nesting_of_filters_works() -> None:
    def step(stream: Stream) -> Stream:
        for n in range(120):
            stream = stream.filter(lambda k, v, n=n: v != n)
        return stream

    assert Runs(stream_topology(step)).pairs(("a", 119), ("a", 120)) == [("out", "a", 120)]


def test_stateful_steps_deep_down_work() -> None:
    def step(stream: Stream) -> Stream:
        for level in range(6):
            stream = stream.flat_map_values(lambda v: [v, v])
            table = stream.group_by_key().count(store=f"count-{level}", value=serdes.json)
            stream = table.to_stream().filter(lambda k, v: v % 2 == 0)
        return stream

    sent = Runs(stream_topology(step)).pairs(*[("a", 0)] * 4)
    assert [v for _, _, v in sent] == [2, 4, 6, 8]


def test_what_follows_a_merge_is_written_once() -> None:
    def diamond(stream: Stream) -> Stream:
        for level in range(12):
            left = stream.map_values(lambda v: v * 2)
            stream = left.merge(stream.map_values(lambda v: v * 2 + 1), name=f"merge-{level}")
        return stream

    runs = Runs(stream_topology(diamond))
    assert runs.program.source_code.count("# merge-11\n") == 1
    assert len(runs.program.source_code.splitlines()) < 400
    assert [v for _, _, v in runs.pairs(("a", 0))] == list(range(1 << 12))


def test_a_node_that_two_sources_feed_is_written_once() -> None:
    builder = StreamsBuilder()
    one, two = builder.stream("one"), builder.stream("two")
    one.merge(two).map_values(lambda v: v + 1, name="next").to("out")
    runs = Runs(builder.build())
    assert runs.program.source_code.count("# next\n") == 1
    assert runs.pairs(("a", 1), topic="one") == [("out", "a", 2)]
    assert runs.pairs(("a", 5), topic="two") == [("out", "a", 6)]


def test_a_wide_graph_works() -> None:
    def step(stream: Stream) -> None:
        for n in range(200):
            stream.map_values(lambda v, n=n: v + n).to(f"out-{n}")

    sent = Runs(stream_topology(step)).pairs(("a", 1))
    assert sent == [(f"out-{n}", "a", 1 + n) for n in range(200)]


def test_a_source_that_nothing_follows_is_read_and_forgotten() -> None:
    builder = StreamsBuilder()
    builder.stream("in")
    assert Runs(builder.build()).pairs(("a", 1)) == []


def test_a_batch_returns_its_largest_timestamp() -> None:
    runs = Runs(stream_topology(lambda s: s))
    process = runs.bound.process["in"]
    assert process([Message(("a", 1), time) for time in (3, 9, 4)]) == 9
    assert process([]) == -1


def test_tasks_of_one_program_share_nothing() -> None:
    topology = stream_topology(
        lambda s: s.group_by_key().count(store="counts", value=serdes.json).to_stream()
    )
    one = Runs(topology)
    other = Runs(topology, program=one.program)
    one.pairs(("a", 1), ("a", 1))
    assert other.pairs(("a", 1)) == [("out", "a", 1)]
