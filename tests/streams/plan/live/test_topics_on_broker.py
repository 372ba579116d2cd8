from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import (
    ConfigError,
    FatalClientError,
    MisconfiguredTopicError,
    MissingTopicError,
)
from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.kafka.protocols import NewTopic, TopicDescription, TopicPartition
from headrace.streams.plan.topic_plan import (
    ChangelogTopic,
    RepartitionTopic,
    SubTopologyTopics,
    plan_internal_topics,
)
from headrace.streams.plan.topics import ensure_topics, prepare_topics, recheck_topics
from tests.support.patience import PATIENCE_S
from tests.support.topics import Topics

TIMEOUT_S = 30.0
WINDOWED = {"cleanup.policy": "compact,delete", "retention.ms": "90000000"}


@pytest.fixture
def admin(broker: str) -> LiveAdmin:
    return LiveAdmin(config(broker).admin_config(), timeout_s=TIMEOUT_S)


def config(bootstrap: str) -> StreamsConfig:
    return StreamsConfig.parse({"application.id": "topics", "bootstrap.servers": bootstrap})


def prepare(
    admin: LiveAdmin,
    subs: list[SubTopologyTopics],
    topic_configs: Mapping[str, str] | None = None,
) -> dict[str, TopicDescription]:
    return prepare_topics(
        admin, subs, replication_factor=-1, topic_configs=topic_configs or {}, timeout_s=TIMEOUT_S
    )


def counting(source: str, app: str, *, asked: int | None = None) -> list[SubTopologyTopics]:
    repartition = RepartitionTopic(f"{app}-by-word-repartition", asked)
    changelogs = (
        ChangelogTopic(f"{app}-counts-changelog"),
        ChangelogTopic(f"{app}-windows-changelog", WINDOWED),
    )
    return [
        SubTopologyTopics(0, (source,), repartition_sinks=(repartition.name,)),
        SubTopologyTopics(1, (), (repartition,), (), changelogs),
    ]


def summing(source: str, app: str) -> list[SubTopologyTopics]:
    return [SubTopologyTopics(0, (source,), changelogs=(ChangelogTopic(f"{app}-changelog"),))]


def until(condition: Callable[[], bool]) -> None:
    """The broker that answers hears of a change a moment after the controller has made it."""
    give_up_at = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def grow(topics: Topics, topic: str, partitions: int) -> None:
    client = AdminClient({"bootstrap.servers": topics.bootstrap})
    client.create_partitions([NewPartitions(topic, partitions)])[topic].result(PATIENCE_S)
    until(lambda: topics.partitions(topic) == partitions)


def delete(topics: Topics, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": topics.bootstrap})
    client.delete_topics([topic])[topic].result(PATIENCE_S)
    until(lambda: topics.partitions(topic) == 0)


def test_a_first_start_creates_what_a_second_one_finds(admin: LiveAdmin, topics: Topics) -> None:
    source, app = topics.create("lines", partitions=3), topics.name("app")
    subs = counting(source, app)
    first = prepare(admin, subs)
    assert {found.partitions for found in first.values()} == {3}
    assert len({found.topic_id for found in first.values()}) == 4
    repartition = first[f"{app}-by-word-repartition"]
    assert (repartition.cleanup_policy, repartition.retention_ms) == ({"delete"}, -1)
    assert first[f"{app}-counts-changelog"].cleanup_policy == {"compact"}
    windows = first[f"{app}-windows-changelog"]
    assert (windows.cleanup_policy, windows.retention_ms) == ({"compact", "delete"}, 90_000_000)
    assert windows.delete_retention_ms == 86_400_000
    assert windows.max_message_bytes is not None
    assert prepare(admin, subs) == first


def test_settings_reach_the_internal_topics(admin: LiveAdmin, topics: Topics) -> None:
    source, app = topics.create("lines"), topics.name("app")
    facts = prepare(admin, counting(source, app), {"max.message.bytes": "2000000"})
    limits = {found.max_message_bytes for name, found in facts.items() if name != source}
    assert limits == {2_000_000}


def test_workers_that_start_at_once_agree(broker: str, topics: Topics) -> None:
    subs = counting(topics.create("lines", partitions=2), topics.name("app"))
    admins = [LiveAdmin(config(broker).admin_config(), timeout_s=TIMEOUT_S) for _ in range(4)]
    with ThreadPoolExecutor(len(admins)) as pool:
        seen = list(pool.map(lambda admin: prepare(admin, subs), admins))
    assert all(facts == seen[0] for facts in seen)


def test_a_topic_that_someone_else_made_otherwise_in_the_meantime_is_noticed(
    admin: LiveAdmin, topics: Topics
) -> None:
    source, app = topics.create("lines", partitions=2), topics.name("app")
    subs = summing(source, app)
    plan = plan_internal_topics(subs, admin.describe([source]))
    topics.create_named(f"{app}-changelog", partitions=1, config={"cleanup.policy": "compact"})
    with pytest.raises(MisconfiguredTopicError, match="has 1 partitions but source"):
        ensure_topics(admin, plan, timeout_s=TIMEOUT_S)


def test_a_missing_source_is_answered_with_the_nearest_name_and_not_created(
    admin: LiveAdmin, topics: Topics
) -> None:
    source = topics.create("lines")
    with pytest.raises(MissingTopicError) as raised:
        prepare(admin, summing(source + "x", topics.name("app")))
    assert f"{source}x (did you mean {source}?)" in str(raised.value)
    assert topics.partitions(source + "x") == 0


def test_a_source_that_grew_past_its_changelog_is_noticed_while_running(
    admin: LiveAdmin, topics: Topics
) -> None:
    source, app = topics.create("orders", partitions=2), topics.name("app")
    subs = summing(source, app)
    before = prepare(admin, subs)
    assert recheck_topics(admin, subs, before) == before
    grow(topics, source, 3)
    with pytest.raises(MisconfiguredTopicError, match="the source grew"):
        recheck_topics(admin, subs, before)
    with pytest.raises(MisconfiguredTopicError, match="the source grew"):
        prepare(admin, subs)


def test_a_source_without_state_may_grow_while_running(admin: LiveAdmin, topics: Topics) -> None:
    """What is behind it must not have its count from it: the next start would want another one."""
    source, app = topics.create("lines", partitions=2), topics.name("app")
    subs = counting(source, app)
    before = prepare(admin, subs)
    grow(topics, source, 5)
    with pytest.raises(MisconfiguredTopicError, match="has 2 partitions and needs 5"):
        recheck_topics(admin, subs, before)
    kept = counting(source, app, asked=2)
    for after in (recheck_topics(admin, kept, before), prepare(admin, kept)):
        assert after[source].partitions == 5
        assert after[f"{app}-by-word-repartition"].partitions == 2


def test_topics_that_vanish_while_running_are_noticed(admin: LiveAdmin, topics: Topics) -> None:
    source, app = topics.create("orders"), topics.name("app")
    subs = summing(source, app)
    before = prepare(admin, subs)
    delete(topics, f"{app}-changelog")
    with pytest.raises(MisconfiguredTopicError, match=f"{app}-changelog were deleted while"):
        recheck_topics(admin, subs, before)
    prepare(admin, subs)
    with pytest.raises(MisconfiguredTopicError, match="were deleted and re-created while"):
        recheck_topics(admin, subs, before)
    delete(topics, source)
    with pytest.raises(MissingTopicError):
        recheck_topics(admin, subs, before)


def test_the_end_of_a_topic_is_the_high_watermark_and_its_start_moves(
    admin: LiveAdmin, topics: Topics
) -> None:
    """The end counts what an open transaction holds back from readers of committed records."""
    topic = topics.create("changelog", partitions=2)
    place, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    settings = config(topics.bootstrap).producer_config(topics.name("transaction"))
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(10):
        producer.produce(topic, b"v", b"k", 0)
    producer.flush(30)
    assert admin.end_offsets([place, empty]) == {place: 10, empty: 0}
    producer.commit_transaction(30)
    until(lambda: admin.end_offsets([place]) == {place: 11})  # the marker follows the answer
    admin.delete_records({place: 7})
    assert admin.start_offsets([place, empty]) == {place: 7, empty: 0}
    assert admin.end_offsets([]) == {}
    admin.delete_records({})


def test_offsets_of_a_topic_that_is_gone_are_a_missing_topic(
    admin: LiveAdmin, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.streams.kafka.admin._GONE_AFTER_S", 0.5)
    name = topics.name()
    with pytest.raises(MissingTopicError) as raised:
        admin.end_offsets([TopicPartition(name, 0)])
    assert raised.value.topics == (name,)


def test_a_config_is_altered_alone_and_put_back(admin: LiveAdmin, topics: Topics) -> None:
    topic = topics.create(config={"cleanup.policy": "compact,delete"})
    standard = admin.describe([topic])[topic].delete_retention_ms
    admin.alter_config(topic, {"delete.retention.ms": "5000"})
    until(lambda: admin.describe([topic])[topic].delete_retention_ms == 5000)
    assert admin.describe([topic])[topic].cleanup_policy == {"compact", "delete"}
    admin.alter_config(topic, {"delete.retention.ms": None})
    until(lambda: admin.describe([topic])[topic].delete_retention_ms == standard)


def with_factor(topic: str) -> NewTopic:
    return NewTopic(topic, 1, 99, {}, "", changelog=True)


def with_config(topic: str) -> NewTopic:
    return NewTopic(topic, 1, -1, {"no.such.config": "1"}, "", changelog=True)


@pytest.mark.parametrize(
    ("make", "advice"),
    [(with_factor, r"set replication\.factor"), (with_config, r"correct the settings topic\.\*")],
)
def test_a_topic_that_the_brokers_refuse_is_a_wrong_setting(
    admin: LiveAdmin, topics: Topics, make: Callable[[str], NewTopic], advice: str
) -> None:
    with pytest.raises(ConfigError, match=advice):
        admin.create([make(topics.name())])


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_given_up_in_time() -> None:
    settings = {**config("localhost:1").admin_config(), "log_level": 0}
    admin = LiveAdmin(settings, timeout_s=1.0)
    with pytest.raises(FatalClientError, match=r"bootstrap\.servers"):
        admin.describe(["orders"])
    assert admin.names() == frozenset()
