"""What a start looks at before it creates topics: what was read, and what only looks lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.admin.start_check import CommittedRecords, StartCheck
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import MisconfiguredTopicError, TopologyChangedError
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.identity import ChangelogLostError, without_ids
from headrace.streams.plan.plan import plan_application
from headrace.streams.plan.progress import RESET_MARK, OffsetMetadata
from headrace.streams.plan.topic_plan import plan_internal_topics, topic_names
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.memory_clients import MemoryAdmin, MemoryConsumer
from headrace.streams.testing.memory_worker import EventLog, ManualClock
from headrace.topology import StreamsBuilder, Suppressed, TimeWindows, Topology, serdes
from tests.support.topologies import EXACTLY_ONCE, key_count

CHANGELOG = "test-counts-changelog"
IN = TopicPartition("in", 0)


class Cluster(MemoryAdmin):
    """What the check asks, answered in memory."""

    other_groups: tuple[str, ...] = ()
    created_meanwhile: tuple[str, ...] = ()
    """Topics that another worker creates once it is planned what to create."""

    def groups(self) -> frozenset[str]:
        return frozenset(["test", *self.other_groups])

    def committed_at(
        self, group: str, tps: Iterable[TopicPartition], *, decided: bool = True
    ) -> dict[TopicPartition, CommittedOffset]:
        del decided
        for name in self.created_meanwhile:
            self._cluster.create(name)
        wanted = set(tps)
        return {p: c for p, c in self._cluster.offsets[group].items() if p in wanted}


def stopped(topology: Topology | None = None, **settings: Any) -> TopologyTestDriver:
    """An application that has counted; its offsets say nothing of changelogs, as of old."""
    driver = TopologyTestDriver(topology or key_count(), {**EXACTLY_ONCE, **settings})
    driver.input("in").send_many([("a", "x"), ("b", "x")])
    driver.restart()
    committed = driver.cluster.offsets["test"][IN]
    progress = OffsetMetadata.decode(committed.metadata)
    text = OffsetMetadata(progress.partition_time, without_ids(progress.values)).encode()
    driver.cluster.offsets["test"][IN] = CommittedOffset(committed.offset, text)
    return driver


def check(
    driver: TopologyTestDriver,
    deployed: Topology | None = None,
    *,
    admin: Cluster | None = None,
    optimization: str | None = None,
) -> None:
    """Look at the topics as a start does."""
    admin = admin or Cluster(driver.cluster)
    described = None
    if deployed is not None:
        config = StreamsConfig.parse(
            {
                "bootstrap.servers": "b:1",
                "application.id": "test",
                "topology.optimization": optimization,
                **EXACTLY_ONCE,
            }
        )
        described = Deployment.of(plan_application(deployed, config), config)
    topics = [plan.topics for plan in driver._plans]
    plan = plan_internal_topics(topics, MemoryAdmin(driver.cluster).describe(topic_names(topics)))
    start_check_of(driver, admin, described)(admin, plan)


def start_check_of(
    driver: TopologyTestDriver, admin: Cluster, described: Deployment | None
) -> StartCheck:
    records = CommittedRecords(
        lambda: MemoryConsumer(driver.cluster, group=None, committed=True),
        clock=ManualClock(0),
        timeout_s=5,
    )
    return StartCheck(driver._config, driver._plans, admin, records, described, EventLog())


def put_beside(driver: TopologyTestDriver, text: str) -> None:
    driver.cluster.offsets["test"][IN] = CommittedOffset(2, text)


def test_a_changelog_of_what_was_read_is_not_created_anew() -> None:
    driver = stopped()
    driver.cluster.delete(CHANGELOG)
    with pytest.raises(ChangelogLostError, match=CHANGELOG):
        check(driver)


@pytest.mark.parametrize("text", ["", f"{RESET_MARK} 2"], ids=["set by hand", "a reset"])
def test_offsets_that_only_say_where_to_begin_lose_nothing(text: str) -> None:
    driver = stopped()
    driver.cluster.delete(CHANGELOG)
    put_beside(driver, text)
    check(driver)


def test_what_another_worker_creates_meanwhile_is_not_lost() -> None:
    driver = stopped()
    driver.cluster.delete(CHANGELOG)
    admin = Cluster(driver.cluster)
    admin.created_meanwhile = (CHANGELOG,)
    check(driver, admin=admin)


def test_a_store_that_had_its_source_for_a_changelog_has_lost_none() -> None:
    """Such a one gets a changelog when the optimisation is switched off."""
    builder = StreamsBuilder()
    builder.table("in", key=serdes.string, value=serdes.string, store="counts")
    table = builder.build()
    driver = stopped(table)
    driver.cluster.delete(CHANGELOG)
    with pytest.raises(ChangelogLostError):
        check(driver, table)
    check(driver, table, optimization="reuse.ktable.source.topics")


JAVA_KEY = b"b\x00\x00\x01\xa2-?\xb6\xc0"
JAVA_ROW = (
    b"\x00\x00\x01\xa2-?\xf9(\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x07jfs4-in"
    b"\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff"
    b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x01\xa2-@\xa1 "
)
"""A row that Kafka Streams 4.3.1 wrote to the changelog of a suppression."""


def suppressed(rows: Iterable[tuple[bytes, bytes | None]], *, text: str) -> None:
    """Begin after rows in the changelog of a suppression, with offsets that have this metadata."""
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=serdes.string, value=serdes.string).group_by_key()
    windows = TimeWindows(size=timedelta(minutes=1))
    counts = grouped.windowed_by(windows).count(store="counts")
    counts.suppress(Suppressed.until_window_closes(), name="final").to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE)
    driver.input("in").send("a", "x", timestamp=1000)
    for key, value in rows:
        driver.cluster.append("test-final-store-changelog", value, key, 0, 0, None)
    put_beside(driver, text)
    admin = Cluster(driver.cluster)
    topics = [plan.topics for plan in driver._plans]
    descriptions = admin.describe(topic_names(topics))
    start_check_of(driver, admin, None).begin(
        admin, plan_internal_topics(topics, descriptions), descriptions
    )


OF_JAVA = OffsetMetadata(5).encode()


def test_delayed_results_of_kafka_streams_are_refused_before_the_first_record() -> None:
    with pytest.raises(MisconfiguredTopicError, match=r"of final-store have 2 rows of Kafka Str"):
        suppressed([(JAVA_KEY, JAVA_ROW), (b"other", JAVA_ROW)], text=OF_JAVA)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([(JAVA_KEY, JAVA_ROW), (JAVA_KEY, None)], OF_JAVA),
        ([], OF_JAVA),
        ([(JAVA_KEY, JAVA_ROW)], ""),
    ],
    ids=["emitted", "our own rows", "offsets of a reset"],
)
def test_a_buffer_without_rows_of_kafka_streams_is_continued(
    rows: list[tuple[bytes, bytes | None]], text: str
) -> None:
    suppressed(rows, text=text)


def test_topics_that_nobody_claims_may_be_a_store_of_another_name() -> None:
    driver = stopped()
    driver.cluster.delete(CHANGELOG)
    driver.cluster.create("test-totals-changelog")
    with pytest.raises(TopologyChangedError, match="test-totals-changelog") as raised:
        check(driver)
    driver._config = replace(driver._config, topology_change_accept=raised.value.code)
    check(driver)


@pytest.mark.parametrize(
    ("groups", "error"),
    [
        (["test-eu"], ChangelogLostError),
        (["test-eu", "test-asia"], ChangelogLostError),
        (["test-asia"], TopologyChangedError),
    ],
)
def test_topics_of_an_application_with_a_longer_id_are_its_own(
    groups: list[str], error: type[Exception]
) -> None:
    driver = stopped()
    driver.cluster.delete(CHANGELOG)
    driver.cluster.create("test-eu-counts-changelog")
    admin = Cluster(driver.cluster)
    admin.other_groups = tuple(groups)
    with pytest.raises(error):
        check(driver, admin=admin)
