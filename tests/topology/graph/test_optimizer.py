"""Rewrites keep what a topology computes."""

from __future__ import annotations

import pytest

from headrace.streams import TopologyTestDriver
from headrace.topology import Materialized, StreamsBuilder, Topology, serdes
from headrace.topology.graph.optimizer import (
    REWRITES,
    reuse_table_sources,
    share_repartitions,
)


def two_aggregations() -> Topology:
    """Counts and largest values of one unnamed grouped stream."""
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=serdes.json, value=serdes.json).group_by(
        lambda _, number: number % 3
    )
    grouped.count(store="counts").to_stream().to("counts-out")
    grouped.reduce(max, store="largest").to_stream().to("largest-out")
    return builder.build()


def test_aggregations_of_one_grouped_stream_share_its_repartition_topic() -> None:
    """The first topic stays, under its own name, and both aggregations read it."""
    before = two_aggregations()
    after = share_repartitions(before)
    topics = [s.topics for sub in after.sub_topologies for s in sub.sources if s.internal]
    assert topics == [next(s.topics for s in before.sub_topologies[1].sources)]
    assert {store.name for store in after.sub_topologies[1].stores} == {"counts", "largest"}


@pytest.mark.parametrize("optimization", ["none", "all"])
def test_the_setting_changes_the_topics_and_not_the_results(optimization: str) -> None:
    """The same input gives the same tables with one repartition topic or two."""
    settings = {"topology.optimization": optimization}
    with TopologyTestDriver(two_aggregations(), settings, partitions=3) as driver:
        driver.input("in").send_many([(None, n) for n in (1, 2, 3, 4, 7, 9, 3)])
        assert driver.output("counts-out").as_dict() == {1: 3, 2: 1, 0: 3}
        assert driver.output("largest-out").as_dict() == {1: 7, 2: 2, 0: 9}


def test_repartitions_of_different_streams_stay_apart() -> None:
    """Other keys, or other partition counts, are other topics."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.group_by(lambda _, v: v["a"], name="a").count(store="a")
    stream.group_by(lambda _, v: v["b"], name="b").count(store="b")
    topology = builder.build()
    assert share_repartitions(topology) is topology


def test_a_rewrite_leaves_a_topology_alone_that_it_has_nothing_to_do_in() -> None:
    """The very object comes back."""
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    topology = builder.build()
    for rewrite in REWRITES:
        assert rewrite(topology) is topology


def test_repartitions_of_other_serdes_or_partition_counts_stay_apart() -> None:
    """Of one stream with new keys: the same key is in another partition."""
    builder = StreamsBuilder()
    rekeyed = builder.stream("in", value=serdes.string).select_key(lambda _, v: v)
    rekeyed.group_by_key(key=serdes.string).count(store="strings")
    rekeyed.group_by_key(key=serdes.json).count(store="documents")
    rekeyed.repartition(partitions=2).to("two")
    rekeyed.repartition(partitions=3).to("three")
    topology = builder.build()
    assert share_repartitions(topology) is topology


def test_a_table_that_is_not_logged_is_not_restored_from_its_topic_either() -> None:
    builder = StreamsBuilder()
    builder.table("in", store=Materialized("rows", logged=False))
    topology = builder.build()
    assert reuse_table_sources(topology) is topology


def test_a_topic_is_the_changelog_of_one_store_alone() -> None:
    builder = StreamsBuilder()
    for store in ("one", "two"):
        builder.stream("in", key=serdes.string, value=serdes.string).to_table(store=store)
    found = {s.name: s.source_topic for s in reuse_table_sources(builder.build()).stores}
    assert found == {"one": "in", "two": None}
