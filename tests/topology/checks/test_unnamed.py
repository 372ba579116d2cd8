"""Which stores and repartition topics have no name of their own, and how to name them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.topology import (
    JoinWindows,
    Materialized,
    StreamsBuilder,
    TimeWindows,
    Topology,
    serdes,
)
from headrace.topology.checks.unnamed import Unnamed, unnamed_steps


def _found(write: Callable[[StreamsBuilder], Any]) -> list[Unnamed]:
    builder = StreamsBuilder()
    write(builder)
    return list(unnamed_steps(builder.build().sub_topologies))


def _lines(builder: StreamsBuilder) -> Any:
    return builder.stream("lines", key=serdes.string, value=serdes.string)


def _words(builder: StreamsBuilder, name: str | None = None) -> Any:
    return _lines(builder).group_by(lambda _, word: word, name=name)


def _reversed(_: str, value: str) -> tuple[str, str]:
    return value, value


@pytest.mark.parametrize(
    ("write", "advice"),
    [
        (lambda b: _lines(b).group_by_key().count(), ['count(store="...")']),
        (lambda b: _lines(b).group_by_key().reduce(max), ['reduce(store="...")']),
        (
            lambda b: _lines(b).group_by_key().aggregate(int, lambda k, v, a: a),
            ['aggregate(store="...")'],
        ),
        (lambda b: b.table("rows", store=None).to_stream().to("out"), []),
        (lambda b: _words(b).count(), ['group_by(name="...")', 'count(store="...")']),
        (lambda b: _words(b, "by-word").count(), ['count(store="...")']),
        (lambda b: _words(b).count(store="counts"), []),
        (lambda b: _lines(b).repartition().to("out"), ['repartition(name="...")']),
        (lambda b: _lines(b).repartition(name="spread").to("out"), []),
        (lambda b: _lines(b).map(_reversed).to("out"), []),
    ],
)
def test_each_step_without_a_name_is_found_with_how_to_name_it(
    write: Callable[[StreamsBuilder], Any], advice: list[str]
) -> None:
    assert [unnamed.advice for unnamed in _found(write)] == advice


def test_what_lies_behind_a_topic_of_the_topology_is_told_with_what_is_read_in_front() -> None:
    def write(builder: StreamsBuilder) -> None:
        merged = _lines(builder).merge(builder.stream("more"))
        words = merged.group_by(lambda _, word: word).count()
        words.to_stream().group_by(lambda _, count: count, name="by-count").count()

    for unnamed in _found(write):
        assert unnamed.reads == ("lines", "more")
        assert "downstream of lines, more: write " in str(unnamed)


MS = timedelta(milliseconds=1)
NEAR = JoinWindows(time_difference=MS)
PAST = Materialized("rows", history=MS)


class Upper:
    def transform(self, _: str, value: str | None) -> str | None:
        return value and value.upper()


STEPS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "a join of streams": (
        lambda b, **o: _lines(b).join(b.stream("more"), max, NEAR, **o),
        ['join(store="...")'],
    ),
    "an outer join of streams": (
        lambda b, **o: _lines(b).outer_join(b.stream("more"), max, NEAR, **o),
        ['join(store="...")'],
    ),
    "a join of streams with other keys": (
        lambda b, **o: _lines(b).map(_reversed).left_join(b.stream("more"), max, NEAR, **o),
        ['join(name="...")', 'join(store="...")'],
    ),
    "a join with a table of a stream with other keys": (
        lambda b, **o: _lines(b).map(_reversed).join(b.table("rows", store="rows"), max, **o),
        ['join(name="...")'],
    ),
    "a join that waits for the rows of a table": (
        lambda b, **o: _lines(b).left_join(b.table("rows", store=PAST), max, grace=MS, **o),
        ['join(name="...")'],
    ),
    "a join of a table with a part of itself": (
        lambda b, **o: (rows := b.table("rows", store="rows")).join(
            rows.filter(lambda k, v: bool(v)), max, **o
        ),
        ['join(store="...")'],
    ),
    "a windowed fold": (
        lambda b, **o: _lines(b).group_by_key().windowed_by(TimeWindows(size=MS)).count(**o),
        ['count(store="...")'],
    ),
    "a windowed reduction": (
        lambda b, **o: _lines(b).group_by_key().windowed_by(TimeWindows(size=MS)).reduce(max, **o),
        ['reduce(store="...")'],
    ),
    "a cogroup": (
        lambda b, **o: _lines(b).group_by_key().cogroup(lambda k, v, a: a).aggregate(int, **o),
        ['aggregate(store="...")'],
    ),
    "a transformer": (
        lambda b, **o: (
            b.table("rows", store="rows")
            .transform_values(Upper, **o)
            .group_by(_reversed, name="by-value")
            .count(store="counts")
        ),
        ['transform_values(store="...")'],
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_what_is_advised_for_a_step_names_all_that_it_keeps(step: str) -> None:
    write, advice = STEPS[step]
    assert list(dict.fromkeys(unnamed.advice for unnamed in _found(write))) == advice
    options = {text.split("(")[1].split("=")[0]: "given" for text in advice}
    assert _found(lambda builder: write(builder, **options)) == []


def test_a_table_of_a_changed_key_is_named_once_for_its_topic_and_once_for_its_store() -> None:
    def write(builder: StreamsBuilder) -> None:
        _lines(builder).map(_reversed).to_table(store="rows").to_stream().to("out")

    assert [unnamed.advice for unnamed in _found(write)] == ['to_table(name="...")']


def test_a_node_with_a_number_is_no_matter_as_it_keeps_nothing() -> None:
    assert _found(lambda b: _lines(b).filter(lambda k, v: True).to("out")) == []


def _counting(
    *, group: str | None = None, store: str | None = None, step: bool = False
) -> Topology:
    builder = StreamsBuilder()
    lines = _lines(builder)
    if step:
        lines = lines.filter(lambda k, v: True)
    grouped = lines.group_by(lambda _, word: word, name=group)
    grouped.count(store=store).to_stream().to("out")
    return builder.build()


def _kept(topology: Topology) -> set[str]:
    subs = topology.sub_topologies
    topics = {topic for sub in subs for source in sub.sources for topic in source.topics}
    return topics | {store.name for store in topology.stores}


def test_giving_each_the_name_that_is_printed_keeps_it_when_a_step_is_added() -> None:
    """What the command advises for an application that is deployed.

    Trap 20: a step more gives another number to all behind it.
    """
    deployed = _counting()
    printed = {u.kind: u.name for u in unnamed_steps(deployed.sub_topologies)}
    group = printed["repartition topic"]
    assert _kept(_counting(step=True)) != _kept(deployed)
    assert _kept(_counting(group=group, store=printed["store"])) == _kept(deployed)
    assert _kept(_counting(group=group, store=printed["store"], step=True)) == _kept(deployed)


def test_the_topics_and_stores_of_a_foreign_key_join_take_the_names_of_the_join() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left", store="l"), builder.table("right", store="r")
    left.join(right, max, foreign_key=str)
    found = {step.name: step.advice for step in unnamed_steps(builder.build().sub_topologies)}
    assert found == {
        "KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000004-topic": 'join(name="...")',
        "KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-0000000008": 'join(name="...")',
        "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000012-topic": 'join(name="...")',
        "KTABLE-FK-JOIN-OUTPUT-STATE-STORE-0000000017": 'join(store="...")',
    }


def test_a_store_that_several_steps_use_is_listed_once_with_the_one_it_belongs_to() -> None:
    builder = StreamsBuilder()
    left, right = builder.table("left"), builder.table("right")
    left.join(right, max, foreign_key=str, name="fk", store="rows")
    found = [(step.name, step.advice) for step in unnamed_steps(builder.build().sub_topologies)]
    assert found == [
        ("left-STATE-STORE-0000000000", 'table(store="...")'),
        ("right-STATE-STORE-0000000003", 'table(store="...")'),
    ]
