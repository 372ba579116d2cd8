"""Which records may be folded before their repartition topic in a backfill."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace.spark_bridge.plan.job import combined_topics
from headrace.streams.config.config import StreamsConfig
from headrace.topology import Materialized, StreamsBuilder, TimeWindows, Topology, serdes


def _counts(builder: StreamsBuilder) -> Any:
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    table = words.group_by(lambda _, word: word, name="by-word").count(store="counts")
    return table.to_stream()


def _latest(key: Any, value: Any, aggregate: Any) -> Any:
    return value


@pytest.mark.parametrize("windowed", [False, True])
def test_a_count_whose_updates_meet_windows_of_several_streams_is_not_combined(
    windowed: bool,
) -> None:
    """Which windows an update falls into depends on when it is made."""
    builder = StreamsBuilder()
    folded: Any = _counts(builder).group_by_key(value=serdes.long).cogroup(_latest)
    if windowed:
        folded = folded.windowed_by(TimeWindows(size=timedelta(minutes=1)))
    folded.aggregate(int, store="latest", value=serdes.long)
    found = combined_topics(builder.build(), config(), "combine")
    assert found == (set() if windowed else {"by-word-repartition"})


def config(**settings: Any) -> StreamsConfig:
    least = {"application.id": "app", "bootstrap.servers": "nowhere:1"}
    return StreamsConfig.parse({**least, **settings})


def counted(**options: Any) -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    grouped = words.group_by(lambda _, word: word, name="by-word")
    grouped.count(store=Materialized("counts", **options)).to_stream().to("out")
    return builder.build()


FOUND = frozenset({"by-word-repartition"})


@pytest.mark.parametrize(
    ("settings", "auto", "combine"),
    [
        ({}, FOUND, FOUND),
        ({"statestore.cache.max.bytes": 0}, frozenset(), FOUND),
        ({"topology.optimization": "none"}, frozenset(), FOUND),
        ({"production.exception.handler": "continue"}, frozenset(), frozenset()),
    ],
    ids=str,
)
def test_a_backfill_combines_what_live_does(settings: Any, auto: Any, combine: Any) -> None:
    """Where it is asked to, also what a setting leaves out; never what somebody could tell."""
    chosen = config(**settings)
    assert combined_topics(counted(), chosen, "exact") == frozenset()
    assert combined_topics(counted(), chosen, "auto") == auto
    assert combined_topics(counted(), chosen, "combine") == combine


def test_a_store_that_is_to_forward_each_update_has_each_record() -> None:
    assert combined_topics(counted(cached=False), config(), "combine") == frozenset()
