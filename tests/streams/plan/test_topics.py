from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.errors import ConfigError, MisconfiguredTopicError, MissingTopicError
from headrace.streams.kafka.protocols import NewTopic, TopicDescription
from headrace.streams.plan.topic_plan import (
    ChangelogTopic,
    RepartitionTopic,
    SubTopologyTopics,
    TopicPlan,
    plan_internal_topics,
    topic_names,
)

MIB = 1024 * 1024


def facts(name: str, partitions: int, **config: str) -> TopicDescription:
    named = {key.replace("_", "."): value for key, value in config.items()}
    return TopicDescription(name, partitions, f"id-of-{name}", named)


def cluster(**partitions: int) -> dict[str, TopicDescription]:
    """Topics that exist, by their partition counts; underscores stand for hyphens."""
    topics = [facts(name.replace("_", "-"), count) for name, count in partitions.items()]
    return {topic.name: topic for topic in topics}


def planned(plan: TopicPlan) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in plan.internal}


def as_facts(topic: NewTopic) -> TopicDescription:
    return TopicDescription(topic.name, topic.partitions, f"id-of-{topic.name}", topic.config)


def counting(
    *, asked: int | None = None, config: Mapping[str, str] | None = None
) -> list[SubTopologyTopics]:
    """Word count: lines are split and written by word, words are counted."""
    return [
        SubTopologyTopics(0, ("lines",), repartition_sinks=("by-word",)),
        SubTopologyTopics(
            1,
            repartition_sources=(RepartitionTopic("by-word", asked),),
            changelogs=(ChangelogTopic("counts", config or {}),),
        ),
    ]


def joining(left: str, right: str) -> list[SubTopologyTopics]:
    return [SubTopologyTopics(0, (left, right), changelogs=(ChangelogTopic("table"),))]


def test_a_repartition_topic_has_as_many_partitions_as_the_widest_source_upstream() -> None:
    merged = [SubTopologyTopics(0, ("a", "b"), (), ("r",), copartitioned=())]
    reading = [SubTopologyTopics(1, (), (RepartitionTopic("r"),))]
    assert planned(plan_internal_topics(merged + reading, cluster(a=2, b=6))) == {"r": 6}


def test_the_widest_source_is_looked_up_through_other_repartition_topics() -> None:
    chain = [
        SubTopologyTopics(2, (), (RepartitionTopic("second"),)),
        SubTopologyTopics(1, ("narrow",), (RepartitionTopic("first"),), ("second",), (), ()),
        SubTopologyTopics(0, ("wide",), repartition_sinks=("first",)),
    ]
    plan = plan_internal_topics(chain, cluster(wide=5, narrow=1))
    assert planned(plan) == {"second": 5, "first": 5}


def test_a_sub_topology_may_read_what_it_writes() -> None:
    looped = SubTopologyTopics(
        0, ("a",), (RepartitionTopic("r"),), ("r",), (ChangelogTopic("c"),), copartitioned=()
    )
    assert planned(plan_internal_topics([looped], cluster(a=3))) == {"r": 3, "c": 3}


def test_a_count_that_was_asked_for_wins_and_is_passed_on() -> None:
    assert planned(plan_internal_topics(counting(asked=2), cluster(lines=8))) == {
        "by-word": 2,
        "counts": 2,
    }


def test_a_repartition_topic_adopts_the_count_of_what_it_is_joined_with() -> None:
    subs = [
        SubTopologyTopics(0, ("clicks",), repartition_sinks=("by-user",)),
        SubTopologyTopics(
            1, ("users",), (RepartitionTopic("by-user"),), (), (ChangelogTopic("users-log"),)
        ),
    ]
    plan = plan_internal_topics(subs, cluster(clicks=12, users=4))
    assert planned(plan) == {"by-user": 4, "users-log": 4}


@pytest.mark.parametrize(("asked", "expected"), [((None, None), 6), ((None, 3), 3), ((3, 3), 3)])
def test_joined_repartition_topics_agree_on_what_was_asked_for_or_on_the_most(
    asked: tuple[int | None, int | None], expected: int
) -> None:
    left, right = RepartitionTopic("left", asked[0]), RepartitionTopic("right", asked[1])
    subs = [
        SubTopologyTopics(0, ("a",), repartition_sinks=("left",)),
        SubTopologyTopics(1, ("b",), repartition_sinks=("right",)),
        SubTopologyTopics(2, (), (left, right)),
    ]
    plan = plan_internal_topics(subs, cluster(a=2, b=6))
    assert planned(plan) == {"left": expected, "right": expected}


def test_joined_topics_of_unequal_counts_are_named_with_their_counts() -> None:
    with pytest.raises(MisconfiguredTopicError) as raised:
        plan_internal_topics(joining("orders", "users"), cluster(orders=4, users=6))
    text = str(raised.value)
    assert "orders has 4, users has 6" in text
    assert "put .repartition() before the join" in text


def test_an_asked_count_that_contradicts_a_joined_topic_is_an_error() -> None:
    subs = [
        SubTopologyTopics(0, ("a",), repartition_sinks=("r",)),
        SubTopologyTopics(1, ("users",), (RepartitionTopic("r", 3),)),
    ]
    with pytest.raises(MisconfiguredTopicError, match=r"r has 3, users has 4; leave out part"):
        plan_internal_topics(subs, cluster(a=1, users=4))


def test_topics_that_are_only_merged_may_have_unequal_counts() -> None:
    merged = SubTopologyTopics(0, ("a", "b"), changelogs=(ChangelogTopic("c"),), copartitioned=())
    assert planned(plan_internal_topics([merged], cluster(a=2, b=6))) == {"c": 6}


def test_missing_sources_are_listed_with_what_was_perhaps_meant() -> None:
    subs = joining("order", "zebra")
    with pytest.raises(MissingTopicError) as raised:
        plan_internal_topics(subs, {}, names=["orders", "__consumer_offsets"])
    assert raised.value.topics == ("order", "zebra")
    assert "order (did you mean orders?), zebra; create them" in str(raised.value)


def test_nothing_is_created_that_exists() -> None:
    plan = plan_internal_topics(counting(), cluster(lines=4, counts=4))
    assert [topic.name for topic in plan.create] == ["by-word"]


def test_internal_topics_are_configured_as_kafka_streams_does() -> None:
    plan = plan_internal_topics(counting(), cluster(lines=1), replication_factor=3)
    by_name = {topic.name: topic for topic in plan.create}
    assert by_name["by-word"].config == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "segment.bytes": str(50 * MIB),
        "message.timestamp.type": "CreateTime",
    }
    assert by_name["counts"].config == {
        "cleanup.policy": "compact",
        "message.timestamp.type": "CreateTime",
    }
    assert {topic.replication_factor for topic in plan.create} == {3}


def test_a_stores_own_config_lies_over_the_settings_and_these_over_the_defaults() -> None:
    windowed = {"cleanup.policy": "compact,delete", "retention.ms": "86400000"}
    plan = plan_internal_topics(
        counting(config={**windowed, "min.insync.replicas": "2"}),
        cluster(lines=1),
        topic_configs={"min.insync.replicas": "1", "segment.bytes": "1048576"},
    )
    by_name = {topic.name: topic.config for topic in plan.create}
    assert by_name["by-word"]["segment.bytes"] == "1048576"
    assert by_name["by-word"]["min.insync.replicas"] == "1"
    assert by_name["counts"]["min.insync.replicas"] == "2"
    assert by_name["counts"]["cleanup.policy"] == "compact,delete"


def test_a_source_that_grew_past_its_changelog_stops_before_the_first_record() -> None:
    subs = [SubTopologyTopics(0, ("orders",), changelogs=(ChangelogTopic("totals"),))]
    with pytest.raises(MisconfiguredTopicError) as raised:
        plan_internal_topics(subs, cluster(orders=8, totals=4))
    text = str(raised.value)
    assert "changelog totals has 4 partitions but source orders has 8: the source grew" in text
    assert ".repartition(partitions=4)" in text
    assert "reset the application" in text


def test_a_source_that_grew_before_repartition_topics_is_named() -> None:
    """The topics between have their old counts, and no count of theirs is invented."""
    counts = ChangelogTopic("counts")
    subs = [
        SubTopologyTopics(0, ("orders",), repartition_sinks=("by-user",)),
        SubTopologyTopics(
            1, ("users",), (RepartitionTopic("by-user"),), ("by-city",), (), copartitioned=()
        ),
        SubTopologyTopics(2, (), (RepartitionTopic("by-city"),), changelogs=(counts,)),
    ]
    with pytest.raises(MisconfiguredTopicError) as raised:
        plan_internal_topics(subs, cluster(orders=6, users=4, by_user=4, by_city=4, counts=4))
    text = str(raised.value)
    assert "repartition topic by-user has 4 partitions and needs 6 (as many as orders)" in text
    assert "repartition topic by-city has 4 partitions and needs 6 (as many as orders)" in text
    assert "changelog counts has 4 partitions but source orders has 6: the source grew" in text


def test_a_changelog_with_more_partitions_than_its_source_is_refused_too() -> None:
    subs = [SubTopologyTopics(0, ("orders",), changelogs=(ChangelogTopic("totals"),))]
    with pytest.raises(MisconfiguredTopicError, match="totals has 9 partitions but source orders"):
        plan_internal_topics(subs, cluster(orders=8, totals=9))


def merging() -> list[SubTopologyTopics]:
    """Orders and customers, sent on by another key."""
    return [
        SubTopologyTopics(0, ("orders", "customers"), (), ("by-city",), copartitioned=()),
        SubTopologyTopics(1, (), (RepartitionTopic("by-city"),), (), (ChangelogTopic("counts"),)),
    ]


def test_the_count_of_a_repartition_topic_is_the_same_whatever_exists_already() -> None:
    """An existing one of 3 gave 3 where a fresh start gives 4."""
    fresh = plan_internal_topics(merging(), cluster(orders=4, customers=3))
    assert planned(fresh) == {"by-city": 4, "counts": 4}
    fitting = plan_internal_topics(merging(), cluster(orders=4, customers=3, by_city=4))
    assert planned(fitting) == planned(fresh)
    with pytest.raises(MisconfiguredTopicError) as raised:
        plan_internal_topics(merging(), cluster(orders=4, customers=3, by_city=3))
    text = str(raised.value)
    assert "by-city has 3 partitions and needs 4 (as many as orders)" in text
    assert "to keep it, put .repartition(partitions=3) with the same name= before" in text
    assert "another name=" in text


def test_a_source_in_front_of_a_repartition_topic_grows_only_where_its_count_is_asked_for() -> None:
    with pytest.raises(MisconfiguredTopicError, match=r"by-word has 4 partitions and needs 8"):
        plan_internal_topics(counting(), cluster(lines=8, by_word=4, counts=4))
    plan = plan_internal_topics(counting(asked=4), cluster(lines=8, by_word=4, counts=4))
    assert planned(plan) == {"by-word": 4, "counts": 4}
    assert not plan.create


def test_repartition_topics_that_meet_agree_whatever_one_of_them_has() -> None:
    subs = [
        SubTopologyTopics(0, ("a",), repartition_sinks=("left", "right")),
        SubTopologyTopics(1, (), (RepartitionTopic("left"), RepartitionTopic("right"))),
    ]
    assert planned(plan_internal_topics(subs, cluster(a=8))) == {"left": 8, "right": 8}
    with pytest.raises(MisconfiguredTopicError, match="left has 4 partitions and needs 8"):
        plan_internal_topics(subs, cluster(a=8, left=4))


def test_a_repartition_topic_with_another_count_than_asked_for_is_refused() -> None:
    with pytest.raises(MisconfiguredTopicError) as raised:
        plan_internal_topics(counting(asked=6), cluster(lines=2, by_word=4, counts=6))
    assert "by-word has 4 partitions and needs 6 (asked for with partitions=)" in str(raised.value)
    assert "another name=" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "config", "text"),
    [
        ("counts", {"cleanup_policy": "delete"}, "needs compact; run headrace topics set"),
        (
            "counts",
            {"cleanup_policy": "compact,delete"},
            "topics set counts cleanup.policy=compact;",
        ),
        ("by-word", {"cleanup_policy": "compact", "retention_ms": "-1"}, "needs delete"),
        ("by-word", {"cleanup_policy": "delete", "retention_ms": "604800000"}, "needs -1, oth"),
    ],
)
def test_an_internal_topic_with_another_policy_is_refused_with_the_command_that_mends_it(
    name: str, config: dict[str, str], text: str
) -> None:
    existing = {**cluster(lines=4), name: facts(name, 4, **config)}
    with pytest.raises(MisconfiguredTopicError) as raised:
        plan_internal_topics(counting(), existing)
    assert text in str(raised.value)


def test_a_windowed_changelog_may_keep_more_than_it_must_but_not_less() -> None:
    subs = counting(config={"cleanup.policy": "compact,delete", "retention.ms": "1000"})
    for retention, legal in (("-1", True), ("1000", True), ("2000", True), ("999", False)):
        log = facts("counts", 4, cleanup_policy="delete,compact", retention_ms=retention)
        existing = {**cluster(lines=4), "counts": log}
        if legal:
            plan_internal_topics(subs, existing)
        else:
            with pytest.raises(MisconfiguredTopicError, match=r"retention\.ms 999 and needs 1000"):
                plan_internal_topics(subs, existing)


def test_configs_that_may_not_be_read_are_not_held_against_a_topic() -> None:
    plan = plan_internal_topics(counting(), cluster(lines=4, counts=4, by_word=4))
    assert not plan.create


def test_all_that_is_wrong_with_internal_topics_is_said_at_once() -> None:
    wrong = facts("by-word", 4, cleanup_policy="compact")
    existing = {**cluster(lines=4, counts=7), "by-word": wrong}
    with pytest.raises(MisconfiguredTopicError) as raised:
        plan_internal_topics(counting(), existing)
    assert "by-word has cleanup.policy" in str(raised.value)
    assert "counts has 7 partitions" in str(raised.value)


def test_names_that_kafka_would_refuse_are_found_before_anything_is_created() -> None:
    long = "x" * 250
    subs = [SubTopologyTopics(0, ("a",), changelogs=(ChangelogTopic(long), ChangelogTopic("a b")))]
    with pytest.raises(ConfigError) as raised:
        plan_internal_topics(subs, cluster(a=1))
    assert len(raised.value.problems) == 2


def test_a_repartition_topic_that_nobody_writes_is_a_fault_of_the_topology() -> None:
    with pytest.raises(ValueError, match="r is written by no sub-topology"):
        plan_internal_topics([SubTopologyTopics(0, (), (RepartitionTopic("r"),))], {})


def test_facts_read_the_configs_that_the_runtime_needs() -> None:
    topic = facts("t", 1, cleanup_policy="delete, compact", max_message_bytes="1048588")
    assert topic.cleanup_policy == {"compact", "delete"}
    assert topic.max_message_bytes == 1_048_588
    assert topic.delete_retention_ms is None


@st.composite
def topologies(draw: st.DrawFn) -> tuple[list[SubTopologyTopics], dict[str, TopicDescription]]:
    """Sub-topologies whose repartition topics go anywhere, back included."""
    size = draw(st.integers(1, 5))
    counts = draw(st.lists(st.integers(1, 9), min_size=size, max_size=size))
    existing = {f"s{i}": facts(f"s{i}", count) for i, count in enumerate(counts)}
    asked = st.none() | st.integers(1, 9)
    edges = draw(st.lists(st.tuples(*[st.integers(0, size - 1)] * 2, asked), max_size=8))
    return [
        SubTopologyTopics(
            i,
            (f"s{i}",) if draw(st.booleans()) or not any(to == i for _, to, _ in edges) else (),
            tuple(RepartitionTopic(f"r{n}", a) for n, (_, to, a) in enumerate(edges) if to == i),
            tuple(f"r{n}" for n, (origin, _, _) in enumerate(edges) if origin == i),
            (ChangelogTopic(f"c{i}"),),
            draw(st.sampled_from([None, ()])),
        )
        for i in range(size)
    ], existing


@given(topologies())
def test_any_plan_keeps_the_rules_and_once_carried_out_changes_nothing(
    given_: tuple[list[SubTopologyTopics], dict[str, TopicDescription]],
) -> None:
    subs, existing = given_
    try:
        plan = plan_internal_topics(subs, existing)
    except (MisconfiguredTopicError, ValueError):
        return
    count = {**{name: f.partitions for name, f in existing.items()}, **planned(plan)}
    for sub in subs:
        assert count[f"c{sub.id}"] == max(count[name] for name in sub.all_sources)
        for group in sub.groups:
            assert len({count[name] for name in group}) == 1
        for topic in sub.repartition_sources:
            assert topic.partitions in (None, count[topic.name])
    after = {**existing, **{topic.name: as_facts(topic) for topic in plan.create}}
    assert set(topic_names(subs)) <= after.keys()
    again = plan_internal_topics(subs, after)
    assert not again.create
    assert planned(again) == planned(plan)


@given(topologies(), st.data())
def test_any_plan_refuses_a_repartition_topic_that_has_another_count(
    given_: tuple[list[SubTopologyTopics], dict[str, TopicDescription]], data: st.DataObject
) -> None:
    """It must not be adopted: the count would depend on what exists."""
    subs, sources = given_
    try:
        fresh = planned(plan_internal_topics(subs, sources))
    except (MisconfiguredTopicError, ValueError):
        return
    names = [topic.name for sub in subs for topic in sub.repartition_sources]
    for name in names:
        count = data.draw(st.integers(1, 9))
        existing = {**sources, name: facts(name, count)}
        if count == fresh[name]:
            assert planned(plan_internal_topics(subs, existing)) == fresh
        else:
            with pytest.raises(MisconfiguredTopicError, match=f"{name} has {count} partitions"):
                plan_internal_topics(subs, existing)
