"""Records are counted before a repartition topic where nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.plan import optimized
from headrace.topology import (
    Materialized,
    Processor,
    Record,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    serdes,
)
from headrace.topology.graph.optimizer import combine_before_repartition
from headrace.topology.show.mermaid import to_mermaid

Build = Callable[[Any, StreamsBuilder], object]


def topology_of(build: Build) -> Topology:
    """What is built behind words that are grouped by themselves."""
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    build(words.group_by(lambda _, word: word, key=serdes.string, name="by-word"), builder)
    return builder.build()


def combining(topology: Topology) -> list[str]:
    """The topics that partial results are written to."""
    return [str(sink.topic) for sink in topology.sinks if sink.combines is not None]


def joining(_: str, word: str, words: str) -> str:
    """Adds a word."""
    return words + word


def merging(_: str, one: str, other: str) -> str:
    """The words of both."""
    return one + other


def twice(grouped: Any, _: StreamsBuilder) -> None:
    """One topic for two folds, where it is shared."""
    grouped.count(store="counts")
    grouped.count(store="again")


def joined(grouped: Any, builder: StreamsBuilder) -> None:
    """A stream sees the counts as they are when its records come."""
    counts = grouped.count(store="counts")
    others = builder.stream("others", key=serdes.string, value=serdes.string)
    others.join(counts, lambda one, count: [one, count]).to("out")


class Passing(Processor[Any, Any, Any, Any]):
    """Sees each record that comes."""

    def process(self, record: Record[Any, Any]) -> None:
        """Let it go on."""


CANNOT: dict[str, Build] = {
    "two readers": twice,
    "a fold without a merger": lambda grouped, _: grouped.reduce(max, store="largest"),
    "an aggregate without a merger": lambda grouped, _: grouped.aggregate(
        str, joining, store="largest"
    ),
    "keys of other bytes behind the topic": lambda grouped, _: grouped.aggregate(
        str, joining, merger=merging, store="largest", key=serdes.json
    ),
    "windows of a fold that merges": lambda grouped, _: grouped.windowed_by(
        SessionWindows(inactivity_gap=timedelta(seconds=1))
    ).aggregate(str, joining, merging, store="visits"),
    "windows": lambda grouped, _: grouped.windowed_by(TimeWindows(size=timedelta(minutes=1))).count(
        store="counts"
    ),
    "suppression behind": lambda grouped, _: grouped.count(store="counts").suppress(
        Suppressed.until_time_limit(timedelta(minutes=1))
    ),
    "a processor behind": lambda grouped, _: (
        grouped.count(store="counts").to_stream().process(Passing)
    ),
    "a join with a stream": joined,
    "a store without a cache": lambda grouped, _: grouped.count(
        store=Materialized("counts", cached=False)
    ),
}


@pytest.mark.parametrize("build", CANNOT.values(), ids=CANNOT)
def test_what_could_be_told_is_left_alone(build: Build) -> None:
    topology = topology_of(build)
    if build is twice:
        assert combining(topology) == []
        return
    assert combine_before_repartition(topology) is topology


def test_it_is_done_by_default_and_names_stay() -> None:
    topology = topology_of(lambda grouped, _: grouped.count(store="counts").to_stream().to("out"))
    after = optimized(topology, config())
    assert combining(after) == ["by-word-repartition"]
    assert [node.name for node in after.nodes] == [node.name for node in topology.nodes]
    assert optimized(after, config()) is after
    assert "(topic: by-word-repartition, combines: count)" in after.describe()
    assert "by-word-repartition-sink (combines: count)" in to_mermaid(after)


MERGED: dict[str, Build] = {
    "reduce": lambda grouped, _: grouped.reduce(max, merger=merging, store="largest"),
    "aggregate": lambda grouped, _: grouped.aggregate(
        str, joining, merger=merging, store="largest", value=serdes.string
    ),
}


@pytest.mark.parametrize("word", MERGED)
def test_a_fold_with_a_merger_is_made_before_its_topic(word: str) -> None:
    topology = topology_of(MERGED[word])
    after = optimized(topology, config())
    assert combining(after) == ["by-word-repartition"]
    assert optimized(after, config()) is after
    assert f"(topic: by-word-repartition, combines: {word})" in after.describe()
    assert f"by-word-repartition-sink (combines: {word})" in to_mermaid(after)


def test_the_key_does_not_matter_to_what_is_not_given_it() -> None:
    """A reducer is given values alone."""
    topology = topology_of(
        lambda grouped, _: grouped.reduce(max, merger=merging, store="largest", key=serdes.json)
    )
    assert combining(optimized(topology, config())) == ["by-word-repartition"]


@pytest.mark.parametrize(
    "handler", ["processing.exception.handler", "deserialization.exception.handler"]
)
def test_a_handler_that_lets_records_go_is_given_them_one_by_one(handler: str) -> None:
    """A partial result that a function fails on would be many; counts ask no function."""
    settings = {handler: "continue"}
    for build in MERGED.values():
        topology = topology_of(build)
        assert optimized(topology, config(**settings)) is topology
    counts = topology_of(lambda grouped, _: grouped.count(store="counts"))
    assert combining(optimized(counts, config(**settings))) == ["by-word-repartition"]


@pytest.mark.parametrize("build", MERGED.values(), ids=MERGED)
def test_a_merger_changes_nothing_but_the_sink(build: Build) -> None:
    """Names, stores and what is deployed are those without it."""
    topology = topology_of(build)
    after = combine_before_repartition(topology)
    assert [node.name for node in after.nodes] == [node.name for node in topology.nodes]
    assert after.stores == topology.stores
    changed = [a for a, b in zip(after.nodes, topology.nodes, strict=True) if a != b]
    assert [node.as_sink is not None for node in changed] == [True]


@pytest.mark.parametrize(
    "settings",
    [
        {"topology.optimization": "none"},
        {"statestore.cache.max.bytes": 0},
        {"production.exception.handler": "continue"},
    ],
    ids=str,
)
def test_settings_leave_it_out(settings: dict[str, object]) -> None:
    """Switched off, without caches, or where a handler decides about each record."""
    topology = topology_of(lambda grouped, _: grouped.count(store="counts"))
    assert optimized(topology, config(**settings)) is topology


def config(**settings: object) -> StreamsConfig:
    """Settings of an application."""
    least = {"application.id": "app", "bootstrap.servers": "nowhere:1"}
    return StreamsConfig.parse({**least, **settings})
