"""A table whose source topic is its changelog too: ``reuse.ktable.source.topics``."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.streams import StreamsConfig
from headrace.streams.errors import MisconfiguredTopicError
from headrace.streams.kafka.protocols import CommittedOffset, TopicDescription, TopicPartition
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.deployment_changes import changes
from headrace.streams.plan.plan import SourceRows, plan_application
from headrace.streams.plan.topic_plan import SubTopologyTopics, plan_internal_topics
from headrace.streams.testing.driver import CrashPoint
from headrace.topology import StreamsBuilder, Topology, serdes, timestamps
from headrace.topology.graph.optimizer import reuse_table_sources
from tests.support.examples import examples
from tests.support.operators import pairs
from tests.support.tables import (
    ACTIONS,
    SETTINGS,
    Action,
    Table,
    driver_of,
    last_rows,
    outputs,
    run,
    two_tables,
)

REUSED: dict[str, object] = {"topology.optimization": "reuse.ktable.source.topics"}
GUARANTEES: list[dict[str, object]] = [
    {"processing.guarantee": "at_least_once"},
    {"processing.guarantee": "exactly_once_v2"},
]
CRASHES = [None, *get_args(CrashPoint)]


def copied() -> Topology:
    builder = StreamsBuilder()
    builder.table("in", key=serdes.string, store="rows").to_stream().to("out")
    return builder.build()


def reused(topology: Topology) -> list[str | None]:
    return [store.source_topic for store in reuse_table_sources(topology).stores]


@pytest.mark.parametrize("setting", ["all", "reuse.ktable.source.topics", list(REUSED.values())])
def test_such_a_table_has_no_changelog_topic(setting: Any) -> None:
    driver = driver_of(copied(), {"topology.optimization": setting})
    driver.input("in").send_many([("a", 1), ("b", 2), ("a", None)])
    assert dict(driver.store("rows")) == {"b": 2}
    assert sorted(driver.cluster.topics) == ["in", "out"]


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("at", CRASHES)
@pytest.mark.parametrize("keep", [True, False])
def test_it_is_restored_up_to_the_committed_offset_and_no_further(
    guarantee: dict[str, object], at: CrashPoint | None, keep: bool
) -> None:
    """Trap 25: a row that was restored from a record would not change when that is processed."""
    driver = driver_of(copied(), {**REUSED, **guarantee}, commit="manual")
    driver.input("in").send_many([("a", 1), ("b", 2)])
    driver.commit()
    driver.input("in").send_many([("a", 3), ("b", None), ("c", 4)])
    driver.crash(at, keep=keep)
    driver.commit()
    driver.commit()
    assert dict(driver.store("rows", committed=True)) == {"a": 3, "c": 4}
    found = outputs(driver)
    if guarantee is GUARANTEES[1]:
        assert found == {"a": [1, 3], "b": [2, None], "c": [4]}
    else:
        assert {key: values[-1] for key, values in found.items()} == {"a": 3, "b": None, "c": 4}
        assert {key: values[0] for key, values in found.items()} == {"a": 1, "b": 2, "c": 4}


def test_local_rows_beyond_the_committed_offset_are_dropped() -> None:
    """Such as after a reset, or where another host has set offsets back."""
    driver = driver_of(copied(), {**REUSED, "processing.guarantee": "exactly_once_v2"})
    driver.input("in").send_many([("a", 1), ("b", 2), ("a", 3)])
    driver.crash()
    driver.cluster.commit_offsets("test", {TopicPartition("in", 0): CommittedOffset(1)})
    driver.run()
    assert dict(driver.store("rows", committed=True)) == {"a": 3, "b": 2}
    assert outputs(driver) == {"a": [1, 3, 3], "b": [2, 2]}


def test_rows_go_through_the_serdes_again() -> None:
    """Keys of other bytes stand for one row."""
    builder = StreamsBuilder()
    builder.table("in", key=serdes.json, store="rows").to_stream().to("out")
    driver = driver_of(builder.build(), REUSED)
    raw = driver.input("in", key=serdes.bytes, value=serdes.bytes)
    raw.send_many([(b'{"b":1,"a":2}', b"1"), (b'{ "a": 2, "b": 1 }', b"[ 2 ]")])
    driver.crash(keep=False)
    driver.run()
    rows = driver.store("rows", committed=True).rows()
    assert [(key, value) for key, value, _ in rows] == [({"a": 2, "b": 1}, [2])]


def test_the_timestamp_of_a_row_is_that_of_the_last_record_before_a_restore_and_after() -> None:
    driver = driver_of(copied(), REUSED)
    for timestamp in (5, 9):
        driver.input("in").send("a", [1], timestamp=timestamp)
    assert pairs(driver) == [("a", [1])]
    for keep in (True, False):
        driver.crash(keep=keep)
        driver.run()
        assert list(driver.store("rows", committed=True).rows()) == [("a", [1], 9)]


def test_a_record_that_was_passed_over_is_passed_over_again() -> None:
    skipping = {**REUSED, "deserialization.exception.handler": "continue"}
    driver = driver_of(copied(), {**skipping, "null.key.policy": "drop"})
    driver.input("in", value=serdes.bytes).send_many(
        [("a", b"1"), (None, b"1"), ("a", b"{"), ("b", b"2")]
    )
    driver.crash(keep=False)
    driver.run()
    assert dict(driver.store("rows", committed=True)) == {"a": 1, "b": 2}


def test_a_record_that_cannot_be_read_again_is_named() -> None:
    class Record:
        def key(self) -> bytes:
            return b"a"

        def value(self) -> bytes:
            return b"{"

        def topic(self) -> str:
            return "in"

        def partition(self) -> int:
            return 3

        def offset(self) -> int:
            return 7

        def timestamp(self) -> tuple[int, int]:
            return 1, 0

    both = (serdes.string, serdes.json)
    with pytest.raises(ValueError, match=r"in-3 has a record at offset 7.*store 'rows'"):
        SourceRows("rows", "in", both, both, skips_undecodable=False).changes([Record()])  # type: ignore[list-item]


def test_tables_whose_rows_are_not_in_the_topic_keep_a_changelog() -> None:
    builder = StreamsBuilder()
    builder.table("late", store="late", offset_reset="latest")
    builder.table("own-time", store="own-time", timestamps=lambda *_: 1)
    builder.stream("mapped").map_values(str).to_table(store="mapped")
    builder.stream(["x", "y"]).to_table(store="several")
    builder.stream("in").group_by_key().count(store="counts")
    topology = builder.build()
    assert set(reused(topology)) == {None}
    assert reuse_table_sources(topology) is topology


@pytest.mark.parametrize(
    "setting",
    [
        {"default.timestamp.extractor": timestamps.wallclock_timestamp},
        {"consumer.auto.offset.reset": "latest"},
    ],
)
def test_so_do_all_where_a_setting_says_so(setting: dict[str, object]) -> None:
    config = StreamsConfig.parse(
        {"application.id": "a", "bootstrap.servers": "b:1", **REUSED, **setting}
    )
    (plan,) = plan_application(copied(), config)
    assert plan.source_rows == {}
    assert plan.changelogs == {"rows": "a-rows-changelog"}


def test_a_topic_that_deletes_old_records_is_refused() -> None:
    topics = SubTopologyTopics(0, ("in",), reused=("in",))
    kept = {"cleanup.policy": "delete", "retention.ms": "604800000"}
    with pytest.raises(MisconfiguredTopicError, match=r"topic in .*cleanup\.policy=compact"):
        plan_internal_topics([topics], {"in": TopicDescription("in", 1, "id", kept)})
    for config in (
        {"cleanup.policy": "compact", "retention.ms": "604800000"},
        {"cleanup.policy": "delete", "retention.ms": "-1"},
        {},
    ):
        plan_internal_topics([topics], {"in": TopicDescription("in", 1, "id", config)})


def test_a_change_from_one_to_the_other_is_told() -> None:
    deployed = {}
    for optimization in ("none", "all"):
        config = StreamsConfig.parse(
            {
                "application.id": "a",
                "bootstrap.servers": "b:1",
                "topology.optimization": optimization,
            }
        )
        deployed[optimization] = Deployment.of(plan_application(copied(), config), config)
        assert Deployment.decode(deployed[optimization].encode()) == deployed[optimization]
    (there,) = changes(deployed["none"], deployed["all"])
    (back,) = changes(deployed["all"], deployed["none"])
    assert not there.refused
    assert back.refused


@settings(max_examples=examples(100), deadline=None)
@given(
    actions=ACTIONS,
    partitions=st.sampled_from([1, 3]),
    chosen=st.sampled_from(SETTINGS),
)
def test_what_is_made_of_such_tables_is_what_a_recount_makes(
    actions: list[Action], partitions: int, chosen: dict[str, object]
) -> None:
    def build(left: Table, right: Table) -> Table:
        joined = left.outer_join(right, lambda a, b: f"{a}{b}")
        grouped = joined.group_by(lambda k, v: (v, k), key=serdes.string, name="by-value")
        return grouped.count(store="counts", value=serdes.json)

    driver = driver_of(
        two_tables(build), {**chosen, **REUSED}, partitions=partitions, commit="manual"
    )
    run(driver, actions)
    left, right = last_rows(actions)
    expected: dict[str, int] = {}
    for key in left.keys() | right.keys():
        value = f"{left.get(key)}{right.get(key)}"
        expected[value] = expected.get(value, 0) + 1
    found = dict(driver.store("counts", committed=True))
    assert {k: n for k, n in found.items() if n} == expected
    assert sum("STATE-STORE" in topic for topic in driver.cluster.topics) == 0
