"""The plan of a backfill: its text, its stages."""

from __future__ import annotations

import base64
import json
import sys
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark_bridge.errors import CannotBackfillError, SparkMissingError
from headrace.spark_bridge.history.planning import (
    refuse_other_topics,
    refuse_other_topology,
    stages_of,
    topology_digest,
)
from headrace.spark_bridge.plan.job import CompiledApplication, pack_application
from headrace.spark_bridge.plan.plan import ArchivedRows, BackfillPlan, PlanFormatError
from headrace.streams.kafka.protocols import TopicDescription, TopicPartition
from headrace.streams.plan.progress import MAX_BYTES
from headrace.topology import StreamsBuilder, TopologyError, serdes

Offsets = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b.c", "d_e"]), st.integers(0, 200)),
    st.integers(0, 2**62),
)


@given(Offsets, Offsets, st.integers(0, 2**45))
def test_a_plan_is_what_its_text_says(
    ends: dict[TopicPartition, int], tables: dict[TopicPartition, int], now_ms: int
) -> None:
    starts = {place: end // 2 for place, end in ends.items()}
    begins = {place: end // 3 for place, end in tables.items()}
    plan = BackfillPlan(
        "app", "b-1", now_ms, ((0,), (1, 2)), {"a": 3}, starts, ends, begins, tables
    )
    assert BackfillPlan.from_text(plan.to_text()) == plan


def test_a_plan_of_many_partitions_fits_beside_an_offset() -> None:
    ends = {TopicPartition("sentences", p): 1_000_000_000 + 7919 * p for p in range(200)}
    plan = BackfillPlan("app", "b", 0, ((0,),), {}, dict.fromkeys(ends, 0), ends)
    assert len(plan.to_text()) < MAX_BYTES


def test_a_plan_says_what_it_reads_of_archives_and_older_ones_do_not() -> None:
    place = TopicPartition("a", 0)
    older = BackfillPlan("app", "b", 0, ((0,),), {"a": 1}, {place: 5}, {place: 9}, archived=("a",))
    assert BackfillPlan.from_text(older.to_text()).archived_rows is None
    found = {place: ArchivedRows(5, 0, 4), TopicPartition("b", -1): ArchivedRows(1, 7, 7)}
    for rows in (found, {}):
        plan = replace(older, archived_rows=rows)
        assert BackfillPlan.from_text(plan.to_text()) == plan
        assert plan.to_text() != older.to_text()


@pytest.mark.parametrize("text", ["", "hello", base64.b64encode(b"hello").decode()])
def test_another_text_is_no_plan(text: str) -> None:
    with pytest.raises(PlanFormatError):
        BackfillPlan.from_text(text)


def test_a_plan_of_another_version_is_refused() -> None:
    text = base64.b64encode(zlib.compress(json.dumps({"format": 99}).encode())).decode()
    with pytest.raises(PlanFormatError, match="has format 99"):
        BackfillPlan.from_text(text)


def test_a_plan_keeps_the_ids_of_its_topics_and_one_of_before_has_none() -> None:
    """Its text, and so its digest, is what it was."""
    place = TopicPartition("in", 0)
    before = BackfillPlan("app", "b", 0, ((0,),), {"in": 1}, {place: 0}, {place: 9})
    assert not {"ids", "topology"} & before.to_json().keys()
    assert BackfillPlan.from_text(before.to_text()).topic_ids == {}
    plan = replace(before, topic_ids={"in": "Zo1", "out": "x_-Q"}, topology="0f3c")
    assert BackfillPlan.from_text(plan.to_text()) == plan


def _descriptions(**ids: str) -> dict[str, TopicDescription]:
    return {name: TopicDescription(name, 1, topic_id) for name, topic_id in ids.items()}


def test_topics_that_were_made_again_or_are_gone_are_named() -> None:
    plan = BackfillPlan("app", "b", 0, ((0,),), {}, {}, {}, topic_ids={"a": "1", "c": "2"})
    refuse_other_topics(plan, _descriptions(a="1", c="2"))
    with pytest.raises(CannotBackfillError, match=r"c was deleted and created .*--drop --id b"):
        refuse_other_topics(plan, _descriptions(a="1", c="3"))
    with pytest.raises(CannotBackfillError, match="a does not exist"):
        refuse_other_topics(plan, _descriptions(c="2"))
    refuse_other_topics(replace(plan, topic_ids={}), {})


def _application(store: str, sink: str = "out") -> CompiledApplication:
    builder = StreamsBuilder()
    counted = builder.stream("in").group_by(lambda k, v: v, name="by").count(store=store)
    counted.to_stream().to(sink)
    settings = {"application.id": "app", "bootstrap.servers": "nowhere:1"}
    return CompiledApplication.of(builder.build(), settings)


def test_a_topology_is_told_from_one_with_other_stores_or_topics() -> None:
    plan = BackfillPlan("app", "b", 0, ((0,),), {}, {}, {})
    refuse_other_topology(_application("n"), plan)
    plan = replace(plan, topology=topology_digest(_application("n")))
    refuse_other_topology(_application("n"), plan)
    for other in (_application("m"), _application("n", "elsewhere")):
        with pytest.raises(CannotBackfillError, match=r"another topology .*--drop --id b"):
            refuse_other_topology(other, plan)


def test_stages_follow_the_repartition_topics() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in").group_by(lambda k, v: v, name="one").count(store="c1")
    counts.to_stream().group_by(lambda k, v: v, name="two").count(store="c2")
    builder.stream("other").for_each(print)
    settings = {"application.id": "app", "bootstrap.servers": "nowhere:1"}
    plans = list(CompiledApplication.of(builder.build(), settings).plans.values())
    stages = stages_of(plans[::-1])
    at = {sub: stages.index((sub,)) for sub in range(4)}
    assert sorted(stages) == [(0,), (1,), (2,), (3,)]
    assert at[0] < at[1] < at[2]


def test_sub_topologies_that_write_to_each_other_are_one_stage() -> None:
    builder = StreamsBuilder()
    left = builder.table("left", key=serdes.string, value=serdes.string)
    right = builder.table("right", key=serdes.string, value=serdes.string)
    joined = left.join(
        right, lambda a, b: a + b, foreign_key=lambda a: a, value=serdes.string, name="fk"
    )
    joined.to_stream().group_by(lambda k, v: v, name="by").count(store="c")
    settings = {"application.id": "app", "bootstrap.servers": "nowhere:1"}
    plans = list(CompiledApplication.of(builder.build(), settings).plans.values())
    circle, behind = stages_of(plans)
    assert len(circle) == 2
    assert len(behind) == 1


def test_keys_of_unequal_bytes_that_would_never_meet_are_refused() -> None:
    builder = StreamsBuilder()
    both = builder.stream("a", key=serdes.string).merge(builder.stream("b"))
    both.group_by_key().count(store="counts")
    settings = {"application.id": "app", "bootstrap.servers": "nowhere:1"}
    with pytest.raises(TopologyError, match="reads b with serde 'json'"):
        CompiledApplication.of(builder.build(), settings)


def test_ties_between_inputs_go_by_topic_and_partition() -> None:
    """In whatever order they were found, and after the plan was read back."""
    ends = {TopicPartition(topic, p): 9 for topic, p in (("b", 10), ("b", 9), ("a", 1), ("a", 0))}
    plan = BackfillPlan("app", "b", 0, ((0,),), {"a": 2, "b": 11}, dict.fromkeys(ends, 0), ends)
    for one in (plan, BackfillPlan.from_text(plan.to_text())):
        assert [str(place) for place in one.inputs] == ["a-0", "a-1", "b-9", "b-10"]


def test_a_pyspark_that_is_missing_is_named_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.cloudpickle", None)
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with pytest.raises(SparkMissingError, match=r"pyspark is not installed\. Run: pip"):
        pack_application(builder.build(), {})
