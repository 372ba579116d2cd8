"""Records are counted before a repartition topic where nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.key_sample import folds_as_run, log_plan_notes
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
from headrace.topology.describe.picture import to_mermaid
from headrace.topology.graph.combinable import folds_of
from headrace.topology.graph.optimizer import combine_before_repartition

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


def test_a_handler_that_lets_records_go_is_given_them_one_by_one() -> None:
    """A partial result that a function fails on would be many; counts ask no function."""
    settings = {"processing.exception.handler": "continue"}
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


def test_a_handler_of_what_cannot_be_read_does_not_matter() -> None:
    """Such a record is never folded, whichever source it comes from."""
    settings = {"deserialization.exception.handler": "continue"}
    for build in MERGED.values():
        after = optimized(topology_of(build), config(**settings))
        assert combining(after) == ["by-word-repartition"]


# -- why it is left out ----------------------------------------------------------------------------

REASONS: dict[str, str] = {
    "two readers": "(store again) reads the topic too; call group_by for each of them",
    "a fold without a merger": "it has no merger= for partial aggregates",
    "an aggregate without a merger": "it has no merger= for partial aggregates",
    "keys of other bytes behind the topic": "its store has another serde of keys than the topic",
    "suppression behind": "KTABLE-SUPPRESS-0000000006, of the same sub-topology, may depend on",
    "a processor behind": "KSTREAM-PROCESSOR-0000000007, of the same sub-topology, may depend on",
    "a join with a stream": "of the same sub-topology, may depend on the time of each record",
    "a store without a cache": "its store has cached=False",
}


@pytest.mark.parametrize("name", REASONS)
def test_it_is_said_why_a_fold_is_not_combined(name: str) -> None:
    topology = topology_of(CANNOT[name])
    shared = config(
        **{"topology.optimization": "merge.repartition.topics,combine.before.repartition"}
    )
    first = next(folds_as_run(topology, shared))
    assert first.combining is None
    assert first.topic == "by-word-repartition"
    assert REASONS[name] in first.reason


def test_windows_are_no_folds_of_a_whole_stream() -> None:
    for name in ("windows", "windows of a fold that merges"):
        assert list(folds_of(topology_of(CANNOT[name]))) == []


def test_without_a_repartition_topic_there_is_nothing_to_combine() -> None:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    words.group_by_key().reduce(max, merger=merging, store="largest")
    (seen,) = folds_of(builder.build())
    assert (seen.topic, seen.combining) == (None, None)
    assert seen.reason == "its records do not pass through a repartition topic"


def test_a_step_behind_the_topic_sees_each_record() -> None:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    moved = words.repartition(name="moved").filter(lambda _, word: word > "m")
    moved.group_by_key().reduce(max, merger=merging, store="largest")
    (seen,) = folds_of(builder.build())
    assert seen.topic == "moved-repartition"
    assert seen.reason == "an operator is between the repartition topic and the aggregation"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"topology.optimization": "none"},
            "topology.optimization does not include combine.before",
        ),
        ({"statestore.cache.max.bytes": 0}, "statestore.cache.max.bytes is 0"),
        ({"production.exception.handler": "continue"}, "production.exception.handler decides"),
        ({"processing.exception.handler": "continue"}, "processing.exception.handler decides"),
    ],
    ids=str,
)
def test_a_setting_that_leaves_it_out_is_named(settings: dict[str, object], reason: str) -> None:
    (seen,) = folds_as_run(topology_of(MERGED["reduce"]), config(**settings))
    assert seen.reason.startswith(reason)


class Events:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.told.append((event, fields))

    debug = warning = error = info


def test_a_start_says_why_a_merger_is_of_no_use_and_nothing_of_others() -> None:
    log = Events()
    log_plan_notes(topology_of(MERGED["reduce"]), config(), log)
    none = config(**{"topology.optimization": "none"})
    for build in (CANNOT["a fold without a merger"], CANNOT["a store without a cache"]):
        log_plan_notes(topology_of(build), none, log)
    assert log.told == []
    log_plan_notes(topology_of(MERGED["aggregate"]), none, log)
    reason = "topology.optimization does not include combine.before.repartition"
    fields = {"store": "largest", "call": "aggregate", "reason": reason}
    assert log.told == [("pre_aggregation_disabled", fields)]
