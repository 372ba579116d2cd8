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
    "a fold of the user's": lambda grouped, _: grouped.reduce(max, store="largest"),
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
