"""The plan of a backfill: its text, its stages."""

from __future__ import annotations

import base64
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.job import Application
from spark_bridge.plan import BackfillPlan, PlanFormatError
from spark_bridge.planning import stages_of
from streams.clients import TopicPartition
from streams.progress import MAX_BYTES
from topology import StreamsBuilder, serdes

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


@pytest.mark.parametrize("text", ["", "hello", base64.b64encode(b"hello").decode()])
def test_another_text_is_no_plan(text: str) -> None:
    with pytest.raises(PlanFormatError):
        BackfillPlan.from_text(text)


def test_a_plan_of_another_version_is_refused() -> None:
    text = base64.b64encode(zlib.compress(json.dumps({"format": 99}).encode())).decode()
    with pytest.raises(PlanFormatError, match="has format 99"):
        BackfillPlan.from_text(text)


def test_stages_follow_the_repartition_topics() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in").group_by(lambda k, v: v, name="one").count(store="c1")
    counts.to_stream().group_by(lambda k, v: v, name="two").count(store="c2")
    builder.stream("other").for_each(print)
    settings = {"application.id": "app", "bootstrap.servers": "nowhere:1"}
    plans = list(Application.of(builder.build(), settings).plans.values())
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
    plans = list(Application.of(builder.build(), settings).plans.values())
    circle, behind = stages_of(plans)
    assert len(circle) == 2
    assert len(behind) == 1
