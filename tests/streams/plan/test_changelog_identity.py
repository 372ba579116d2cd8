"""A changelog that somebody deletes and makes anew is another one, whatever rows a host has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from headrace.streams.admin.start_check import CommittedRecords, StartCheck
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.identity import (
    ChangelogLostError,
    changelog_numbers,
    id_values,
    numbers_that_fit,
    with_changelogs,
    without_ids,
)
from headrace.streams.plan.progress import CHANGELOG_MARK, MAX_BYTES, OffsetMetadata
from headrace.streams.plan.topic_plan import plan_internal_topics, topic_names
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.memory_clients import MemoryAdmin, MemoryConsumer
from headrace.streams.testing.memory_worker import ManualClock
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.streams.admin.test_local_changelogs import Lost, tool_of
from tests.support.topologies import EXACTLY_ONCE, key_count

GUARANTEES = pytest.mark.parametrize(
    "settings", [{}, EXACTLY_ONCE], ids=["at_least_once", "exactly_once"]
)
CHANGELOG = "test-counts-changelog"
IN = TopicPartition("in", 0)


def feed(driver: TopologyTestDriver, count: int) -> None:
    for number in range(count):
        driver.cluster.append("in", b"v", b"k%d" % (number % 7), 0, 0, None)


def make_anew(driver: TopologyTestDriver, changelog: str) -> None:
    """As an operator or a script does it."""
    before = driver.cluster.topics[changelog]
    driver.cluster.delete(changelog)
    driver.cluster.create(changelog, len(before.logs), before.config)


def stopped(settings: dict[str, Any], **more: Any) -> TopologyTestDriver:
    driver = TopologyTestDriver(key_count(), settings, **more)
    feed(driver, 300)
    driver.run()
    driver.restart()
    return driver


@GUARANTEES
@pytest.mark.parametrize("rows", ["gone", "old"])
def test_a_changelog_that_was_made_anew_is_refused_where_the_last_rows_are_not_here(
    settings: dict[str, Any], rows: str
) -> None:
    """It began empty without a word, and the counts at 1."""
    driver = stopped(settings)
    if rows == "gone":
        driver._worker.disk.lose()
    else:
        of_another_worker(driver)
    make_anew(driver, CHANGELOG)
    kept = driver.cluster.offsets["test"][IN]
    feed(driver, 10)
    for _ in range(2):
        with pytest.raises(ChangelogLostError) as raised:
            driver.run()
        for part in (CHANGELOG, "store counts", "task 0_0", "restore-from-local", "headrace reset"):
            assert part in str(raised.value)
        driver.restart()
    assert driver.cluster.offsets["test"][IN] == kept
    assert not driver.cluster.topics[CHANGELOG].logs[0].entries


def of_another_worker(driver: TopologyTestDriver) -> None:
    """Number the commit as one that went on elsewhere: the rows here are of an older one."""
    committed = driver.cluster.offsets["test"][IN]
    progress = OffsetMetadata.decode(committed.metadata)
    values = {**progress.values, "headrace.commit.id": 7 << 32}
    text = OffsetMetadata(progress.partition_time, values).encode()
    driver.cluster.offsets["test"][IN] = CommittedOffset(committed.offset, text)


@GUARANTEES
def test_a_changelog_that_is_made_anew_under_a_worker_is_met_at_the_next_take_over(
    settings: dict[str, Any],
) -> None:
    driver = TopologyTestDriver(key_count(), settings, commit="manual")
    feed(driver, 300)
    driver.commit()
    make_anew(driver, CHANGELOG)
    feed(driver, 10)
    driver.commit()
    driver.restart()
    driver._worker.disk.lose()
    with pytest.raises(ChangelogLostError, match="store counts"):
        driver.run()


def test_offsets_without_numbers_of_changelogs_are_taken_as_they_are() -> None:
    """Those of older releases and of Kafka Streams; the next commit adds the numbers."""
    driver = stopped(EXACTLY_ONCE)
    committed = driver.cluster.offsets["test"][IN]
    progress = OffsetMetadata.decode(committed.metadata)
    topic_id = driver.cluster.topics[CHANGELOG].id
    numbers = changelog_numbers({CHANGELOG: topic_id})
    assert numbers.items() <= progress.values.items()
    text = OffsetMetadata(progress.partition_time, without_ids(progress.values)).encode()
    driver.cluster.offsets["test"][IN] = CommittedOffset(committed.offset, text)
    feed(driver, 10)
    driver.run()
    assert sum(driver.store("counts").values()) == 310
    driver.restart()
    found = OffsetMetadata.decode(driver.cluster.offsets["test"][IN].metadata)
    assert numbers.items() <= found.values.items()


def test_the_rows_that_the_offsets_are_of_are_not_dropped_where_no_number_tells() -> None:
    """The worker that has them has committed the offsets, so they may be all rows that are left."""
    driver = stopped(EXACTLY_ONCE)
    committed = driver.cluster.offsets["test"][IN]
    progress = OffsetMetadata.decode(committed.metadata)
    text = OffsetMetadata(progress.partition_time, without_ids(progress.values)).encode()
    driver.cluster.offsets["test"][IN] = CommittedOffset(committed.offset, text)
    make_anew(driver, CHANGELOG)
    with pytest.raises(ChangelogLostError, match=r"store counts.*task 0_0"):
        driver.run()
    assert sum(driver.store("counts").values()) == 300
    of_another_worker(driver)
    driver.run()
    assert dict(driver.store("counts")) == {}


def test_numbers_of_other_changelogs_go_and_those_of_inputs_stay() -> None:
    topic_id = "mIZ3c7IdTReMqgcwdmKasA"
    before = {**id_values("in", topic_id), **changelog_numbers({"gone": topic_id}), "theirs": 1}
    found = OffsetMetadata.decode(
        with_changelogs(OffsetMetadata(5, before).encode(), {CHANGELOG: topic_id})
    )
    own = changelog_numbers({CHANGELOG: topic_id})
    assert found == OffsetMetadata(5, {**id_values("in", topic_id), "theirs": 1, **own})


@pytest.mark.slow
def test_writing_from_local_rows_and_taking_over_without_them_goes_on(tmp_path: Path) -> None:
    """What is written beside the offsets then is the number of the new changelog."""
    lost = Lost(tmp_path, EXACTLY_ONCE)
    for changelog in lost.changelogs:
        make_anew(lost.driver, changelog)
    lost.write()
    lost.driver._worker.disk.lose()
    lost.driver.run()
    assert lost.driver.restored > 0
    lost.driver.restart()
    assert lost.rows() == lost.before


def test_a_host_without_rows_says_that_it_has_none(tmp_path: Path) -> None:
    driver = stopped(EXACTLY_ONCE, state_dir=tmp_path / "state")
    driver._worker.disk.lose()
    make_anew(driver, CHANGELOG)
    driver._worker.disk.process_ended()
    plan = tool_of(driver, tmp_path / "state").plan()
    assert [(str(t.id), t.stores, t.refusal) for t in plan.tasks] == [
        ("0_0", ("counts",), "no rows here")
    ]


def test_old_rows_of_a_host_do_not_make_a_changelog_lack_rows(tmp_path: Path) -> None:
    """As after a reset on another host: the offsets are of the changelog that is there."""
    driver = stopped(EXACTLY_ONCE, state_dir=tmp_path / "state")
    make_anew(driver, CHANGELOG)
    driver._worker.disk.process_ended()
    tool = tool_of(driver, tmp_path / "state")
    assert [str(task.id) for task in tool.plan().tasks] == ["0_0"]
    committed = driver.cluster.offsets["test"][IN]
    text = with_changelogs(committed.metadata, {CHANGELOG: driver.cluster.topics[CHANGELOG].id})
    driver.cluster.offsets["test"][IN] = CommittedOffset(committed.offset, text)
    assert tool.plan().tasks == ()


class Offsets(MemoryAdmin):
    """What the check of a start asks about the group, answered in memory."""

    def committed_at(
        self, group: str, places: Iterable[TopicPartition], *, decided: bool = True
    ) -> dict[TopicPartition, CommittedOffset]:
        del decided
        wanted = set(places)
        return {p: c for p, c in self._cluster.offsets[group].items() if p in wanted}


def start_check(driver: TopologyTestDriver, accept: str | None = None) -> None:
    """Look at the topics as a start does where it is not known what is deployed."""
    admin = Offsets(driver.cluster)
    config = replace(driver._config, topology_change_accept=accept)
    topics = [plan.topics for plan in driver._plans]
    facts = admin.describe(topic_names(topics))
    plan = plan_internal_topics(topics, facts)
    records = CommittedRecords(
        lambda: MemoryConsumer(driver.cluster, group=None, committed=True),
        clock=ManualClock(0),
        timeout_s=5,
    )
    check = StartCheck(config, driver._plans, admin, records, None, structlog.get_logger())
    check.begin(admin, plan, facts)
    check.require_same(admin, facts)


def test_a_store_that_is_known_to_have_had_rows_is_not_offered_to_begin_empty() -> None:
    """Where nothing is known of it, it may be a new one."""
    driver = stopped(EXACTLY_ONCE)
    driver.cluster.delete(CHANGELOG)
    with pytest.raises(ChangelogLostError) as raised:
        start_check(driver)
    assert raised.value.code is None
    committed = driver.cluster.offsets["test"][IN]
    progress = OffsetMetadata.decode(committed.metadata)
    text = OffsetMetadata(progress.partition_time, without_ids(progress.values)).encode()
    driver.cluster.offsets["test"][IN] = CommittedOffset(committed.offset, text)
    with pytest.raises(ChangelogLostError) as raised:
        start_check(driver)
    assert raised.value.code is not None
    start_check(driver, raised.value.code)


def test_a_check_beforehand_says_that_a_changelog_was_made_anew() -> None:
    driver = stopped(EXACTLY_ONCE)
    start_check(driver)
    make_anew(driver, CHANGELOG)
    with pytest.raises(ChangelogLostError, match=r"\(store counts\), replaced by new"):
        start_check(driver)


def many_stores(count: int) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=serdes.string, value=serdes.string).group_by_key()
    for number in range(count):
        grouped.count(store=f"counts-{number}")
    return builder.build()


def test_numbers_leave_room_for_the_mark_that_may_stand_in_front_of_them() -> None:
    """Of a changelog that is being written anew from local rows."""
    numbers = changelog_numbers({f"app-{number}-changelog": str(number) for number in range(200)})
    text = OffsetMetadata(0, numbers_that_fit({}, numbers)).encode()
    assert MAX_BYTES - 50 < len(CHANGELOG_MARK + text) <= MAX_BYTES


def test_numbers_that_find_no_room_are_left_out_and_that_is_said() -> None:
    driver = TopologyTestDriver(many_stores(90), EXACTLY_ONCE)
    feed(driver, 10)
    driver.run()
    committed = driver.cluster.offsets["test"][IN]
    numbers = OffsetMetadata.decode(committed.metadata).values
    assert len(committed.metadata) <= MAX_BYTES
    changelogs = [f"test-counts-{number}-changelog" for number in range(90)]
    with_number = [
        c
        for c in changelogs
        if changelog_numbers({c: driver.cluster.topics[c].id}).keys() <= numbers.keys()
    ]
    assert 50 < len(with_number) < 90
    (told,) = [e for e in driver.events if e["event"] == "changelog_ids_omitted"]
    assert len(told["changelogs"]) == 90 - len(with_number)
    driver.restart()
    driver._worker.disk.lose()
    make_anew(driver, with_number[0])
    with pytest.raises(ChangelogLostError, match=with_number[0]):
        driver.run()
