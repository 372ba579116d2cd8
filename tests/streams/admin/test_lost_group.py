"""All offsets of an application are gone: nobody begins, also not who is in front of state."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.admin.start_check import CommittedRecords, LostGroup
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.plan import plan_application
from headrace.streams.plan.progress import RESET_MARK
from headrace.streams.plan.topic_plan import plan_internal_topics, topic_names
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of
from headrace.streams.tasks.driver_disk import MemoryDisk
from headrace.streams.tasks.lost_offsets import Counted, LostOffsets, StateWithoutOffsetsError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.local_cluster import Transaction
from headrace.streams.testing.memory_clients import MemoryAdmin, MemoryConsumer
from headrace.streams.testing.memory_worker import EventLog, ManualClock
from headrace.topology import Materialized, StreamsBuilder, TimeWindows, Topology, serdes

EXACTLY_ONCE = {"application.id": "app", "processing.guarantee": "exactly_once_v2"}
AT_LEAST_ONCE = EXACTLY_ONCE | {"processing.guarantee": "at_least_once"}
BETWEEN = "app-by-word-repartition"
CHANGELOG = "app-n-changelog"


def counted(*topics: str, store: str | Materialized = "n") -> Topology:
    """Tasks without state in front of a repartition topic, and tasks that count behind it."""
    builder = StreamsBuilder()
    lines = builder.stream(list(topics or "a"), key=serdes.string, value=serdes.string)
    words = lines.group_by(lambda _, word: word, key=serdes.string, name="by-word")
    words.count(store=store).to_stream().to("out")
    return builder.build()


class Offsets:
    """What is asked about the group: what an open transaction commits is there once it is decided.

    Args:
        driver: whose cluster it is.
    """

    def __init__(self, driver: TopologyTestDriver) -> None:
        self.cluster = driver.cluster
        self.asked: list[tuple[int, bool]] = []

    def committed_at(
        self, group: str, places: Iterable[TopicPartition], *, decided: bool = True
    ) -> dict[TopicPartition, CommittedOffset]:
        wanted = list(places)
        self.asked.append((len(wanted), decided))
        if decided:
            self.decide()
        found = self.cluster.offsets.get(group, {})
        return {place: found[place] for place in wanted if place in found}

    def decide(self) -> None:
        """What happens before offsets are decided."""


def looked(
    driver: TopologyTestDriver,
    *,
    offsets: Offsets | None = None,
    deployed: Topology | None = None,
    log: EventLog | None = None,
) -> frozenset[TopicPartition]:
    """Look at the group as each start does."""
    admin, plans, config = MemoryAdmin(driver.cluster), driver._plans, driver._config
    topics = [plan.topics for plan in plans]
    facts = admin.describe(topic_names(topics))
    records = CommittedRecords(
        lambda: MemoryConsumer(driver.cluster, group=None, committed=True),
        clock=ManualClock(0),
        timeout_s=5,
    )
    before = None
    if deployed is not None:
        before = Deployment.of(plan_application(deployed, config), config)
    look = LostGroup(config, plans, offsets or Offsets(driver), records, before, log or EventLog())
    return look(admin, plan_internal_topics(topics, facts), facts)


def ran(
    topology: Topology, settings: dict[str, str] = EXACTLY_ONCE, *, partitions: int = 2
) -> TopologyTestDriver:
    """An application that has counted some words and was stopped."""
    driver = TopologyTestDriver(topology, settings, partitions=partitions)
    for plan in driver._plans:
        for topic in plan.topics.sources:
            for number in range(8):
                driver.input(topic).send(f"k{number}", f"v{number}")
    driver.restart()
    return driver


def group(driver: TopologyTestDriver) -> dict[TopicPartition, CommittedOffset]:
    return driver.cluster.offsets["app"]


def forget(driver: TopologyTestDriver, *topics: str) -> dict[TopicPartition, int]:
    """Delete offsets, of all topics if none is named; returns what they were."""
    offsets = group(driver)
    gone = {p: c.offset for p, c in offsets.items() if not topics or p.topic in topics}
    for place in gone:
        del offsets[place]
    return gone


def set_by_hand(driver: TopologyTestDriver, offsets: dict[TopicPartition, int]) -> None:
    driver.cluster.commit_offsets("app", {p: CommittedOffset(o) for p, o in offsets.items()})


def purge(driver: TopologyTestDriver, topic: str) -> None:
    for place in driver.cluster.partitions(topic):
        driver.cluster.delete_before(place, driver.cluster.log(place).end)


# -- the whole group is gone -----------------------------------------------------------------------


def test_a_group_that_is_gone_is_refused_with_all_that_lacks() -> None:
    driver = ran(counted())
    forget(driver)
    with pytest.raises(StateWithoutOffsetsError) as raised:
        looked(driver)
    message = str(raised.value)
    assert f"no committed offsets for a-0..1, {BETWEEN}-0..1:" in message
    assert f"writes to {BETWEEN}, whose readers count the records (tasks 0_0..1)" in message
    assert "has state in n (tasks 1_0..1)" in message
    assert f"--topic a --topic {BETWEEN} --to N" in message
    assert "headrace reset" in message
    assert exit_code_of(raised.value) is ExitCode.OFFSETS


def test_offsets_that_are_set_as_the_message_says_are_taken() -> None:
    driver = ran(counted())
    set_by_hand(driver, forget(driver))
    assert looked(driver) == frozenset()
    driver.input("a").send("k0", "v0")
    assert driver.output("out").read_all()[-1].value == 2


@pytest.mark.parametrize("purged", [False, True])
def test_offsets_of_the_repartition_topic_alone_are_not_enough(purged: bool) -> None:
    """The tasks in front would write it once more."""
    driver = ran(counted())
    gone = forget(driver)
    if purged:
        purge(driver, BETWEEN)
    set_by_hand(driver, {p: o for p, o in gone.items() if p.topic == BETWEEN})
    with pytest.raises(StateWithoutOffsetsError) as raised:
        looked(driver)
    assert "no committed offsets for a-0..1: " in str(raised.value)
    assert BETWEEN not in str(raised.value).partition("no committed offsets")[2]


def test_some_partitions_of_the_input_are_not_enough() -> None:
    driver = ran(counted())
    gone = forget(driver)
    del gone[TopicPartition("a", 1)]
    set_by_hand(driver, gone)
    with pytest.raises(StateWithoutOffsetsError, match=r"for a-1: .*--topic a:1 "):
        looked(driver)


def test_offsets_of_the_input_alone_are_not_enough() -> None:
    driver = ran(counted())
    gone = forget(driver)
    set_by_hand(driver, {p: o for p, o in gone.items() if p.topic == "a"})
    with pytest.raises(StateWithoutOffsetsError, match=f"offsets for {BETWEEN}-0..1: "):
        looked(driver)


@pytest.mark.parametrize("purged", [False, True])
def test_offsets_of_all_inputs_in_front_are_missed(purged: bool) -> None:
    """Whoever reads the repartition topic has read what they have written."""
    driver = ran(counted("a", "b"))
    forget(driver, "a", "b")
    if purged:
        purge(driver, BETWEEN)
    with pytest.raises(StateWithoutOffsetsError, match=r"offsets for a-0\.\.1, b-0\.\.1: "):
        looked(driver)


# -- kin -------------------------------------------------------------------------------------------


def joined_by_foreign_key() -> Topology:
    builder = StreamsBuilder()
    orders = builder.table("a", key=serdes.string, value=serdes.string, store="orders")
    users = builder.table("b", key=serdes.string, value=serdes.string, store="users")
    named = orders.join(users, lambda order, user: order + user, foreign_key=lambda order: order)
    named.to_stream().to("out")
    return builder.build()


def looked_up() -> Topology:
    builder = StreamsBuilder()
    names = builder.global_table("names", key=serdes.string, value=serdes.string)
    lines = builder.stream("a", key=serdes.string, value=serdes.string)
    found = lines.left_join(
        names, lambda line, name: f"{line}{name}", key_mapper=lambda key, _: key
    )
    found.group_by(lambda _, word: word, key=serdes.string, name="by-word").count(store="n")
    return builder.build()


def table_from_its_source() -> Topology:
    builder = StreamsBuilder()
    table = builder.table("a", key=serdes.string, value=serdes.string, store="t")
    table.group_by(lambda key, word: (word, word), key=serdes.string, name="by-word").count(
        store="n"
    )
    return builder.build()


def windowed() -> Topology:
    builder = StreamsBuilder()
    lines = builder.stream("a", key=serdes.string, value=serdes.string)
    words = lines.group_by(lambda _, word: word, key=serdes.string, name="by-word")
    words.windowed_by(TimeWindows(size=timedelta(minutes=1))).count(store="n")
    return builder.build()


def merged() -> Topology:
    builder = StreamsBuilder()
    one, other = (builder.stream(t, key=serdes.string, value=serdes.string) for t in "ab")
    both = one.merge(other)
    both.group_by(lambda _, word: word, key=serdes.string, name="by-word").count(store="n")
    return builder.build()


KIN: dict[str, tuple[Topology, dict[str, str]]] = {
    "foreign key": (joined_by_foreign_key(), {}),
    "global table": (looked_up(), {}),
    "windows": (windowed(), {}),
    "merge": (merged(), {}),
    "table from its source": (
        table_from_its_source(),
        {"topology.optimization": "reuse.ktable.source.topics"},
    ),
    "in memory": (counted(store=Materialized("n", kind="memory")), {}),
    "in memory without a changelog": (
        counted(store=Materialized("n", kind="memory", logged=False)),
        {},
    ),
    "without a changelog": (counted(store=Materialized("n", kind="rocksdb", logged=False)), {}),
}


@pytest.mark.parametrize("name", KIN)
def test_every_kind_of_state_behind_a_repartition_topic_is_refused(name: str) -> None:
    topology, settings = KIN[name]
    driver = ran(topology, EXACTLY_ONCE | settings)
    assert looked(driver) == frozenset()
    everything = set(forget(driver))
    with pytest.raises(StateWithoutOffsetsError) as raised:
        looked(driver)
    for topic in {place.topic for place in everything}:
        assert f"{topic}-0..1" in str(raised.value)


def test_where_nothing_is_counted_nothing_is_refused() -> None:
    builder = StreamsBuilder()
    lines = builder.stream("a", key=serdes.string, value=serdes.string)
    lines.repartition(name="by-word").to("out")
    driver = ran(builder.build())
    forget(driver)
    offsets = Offsets(driver)
    assert looked(driver, offsets=offsets) == frozenset()
    assert offsets.asked == []


def test_tasks_that_count_nothing_are_named_too_where_all_is_gone() -> None:
    builder = StreamsBuilder()
    lines = builder.stream("a", key=serdes.string, value=serdes.string)
    lines.group_by_key().count(store="n")
    builder.stream("b", key=serdes.string, value=serdes.string).to("out")
    driver = ran(builder.build())
    forget(driver)
    with pytest.raises(StateWithoutOffsetsError, match=r"for a-0\.\.1, b-0\.\.1: "):
        looked(driver)


# -- what is legitimate ----------------------------------------------------------------------------


def test_a_start_where_all_offsets_are_there_asks_once_and_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = ran(counted())
    monkeypatch.setattr(CommittedRecords, "among", None)
    offsets = Offsets(driver)
    assert looked(driver, offsets=offsets) == frozenset()
    assert offsets.asked == [(4, False)]


def test_a_first_start_is_none() -> None:
    assert looked(TopologyTestDriver(counted(), EXACTLY_ONCE)) == frozenset()


@pytest.mark.parametrize("at", ["changelogs_written", "offsets_sent"])
def test_a_first_start_that_was_killed_before_its_first_commit_begins_again(at: Any) -> None:
    """Aborted records are no records, although topics do not end at 0 any more."""
    driver = TopologyTestDriver(counted(), EXACTLY_ONCE, partitions=1, commit="manual")
    driver.input("a").send("k", "v")
    driver.crash(at=at)
    driver.commit(rounds=1)
    assert driver.crashes == 1
    assert driver.cluster.log(TopicPartition(BETWEEN, 0)).end > 0
    assert looked(driver) == frozenset()


def test_an_offset_behind_that_passed_aborted_records_shows_nothing() -> None:
    driver = TopologyTestDriver(counted(), EXACTLY_ONCE, partitions=1)
    aborted = Transaction()
    driver.cluster.append(BETWEEN, b"v", b"k", 0, 0, None, aborted)
    driver.cluster.end(aborted, committed=False)
    driver.run()
    assert driver.committed_offsets(BETWEEN) == {0: 2}
    forget(driver, "a")
    assert looked(driver) == frozenset()


def test_the_first_commit_of_another_worker_is_waited_for() -> None:
    """Its records are there, and its offsets come when the group has its marker."""
    driver = ran(counted())
    offsets = Offsets(driver)
    there = dict(group(driver))
    forget(driver)
    offsets.decide = lambda: driver.cluster.commit_offsets("app", there)  # type: ignore[method-assign]
    assert looked(driver, offsets=offsets) == frozenset()
    assert offsets.asked[-1][1]


def test_a_first_commit_in_front_clears_the_others_in_front() -> None:
    """One task in front has committed, and nothing shows that the other one has."""
    driver = ran(counted())
    offsets = Offsets(driver)
    first = TopicPartition("a", 0)
    there = {first: group(driver)[first]}
    forget(driver, "a")
    offsets.decide = lambda: driver.cluster.commit_offsets("app", there)  # type: ignore[method-assign]
    assert looked(driver, offsets=offsets) == frozenset()


def test_while_a_reset_is_on_its_way_the_tasks_say_so() -> None:
    driver = ran(counted())
    gone = forget(driver)
    marks = {p: CommittedOffset(0, RESET_MARK) for p in gone if p.topic == "a"}
    driver.cluster.commit_offsets("app", marks)
    assert looked(driver) == frozenset()


def test_what_a_reset_leaves_is_none() -> None:
    """Inputs have offsets without progress, internal topics are gone."""
    driver = ran(counted())
    gone = forget(driver)
    set_by_hand(driver, {p: 0 for p in gone if p.topic == "a"})
    for topic in (BETWEEN, CHANGELOG):
        driver.cluster.delete(topic)
    assert looked(driver) == frozenset()


def test_a_repartition_topic_that_is_gone_too_does_not_hide_it() -> None:
    """Only what can be set is named: the topic is made by the next start."""
    driver = ran(counted())
    forget(driver)
    driver.cluster.delete(BETWEEN)
    with pytest.raises(StateWithoutOffsetsError, match=r"offsets for a-0\.\.1: "):
        looked(driver)


def test_a_repartition_topic_that_is_gone_alone_is_left_to_its_tasks() -> None:
    driver = ran(counted())
    driver.cluster.delete(BETWEEN)
    assert looked(driver) == frozenset()


def in_place_of(driver: TopologyTestDriver, topology: Topology) -> TopologyTestDriver:
    """Another version on the same cluster."""
    after = TopologyTestDriver(topology, EXACTLY_ONCE, partitions=2)
    for name, topic in after.cluster.topics.items():
        driver.cluster.create(name, len(topic.logs))
    after._worker.cluster, after._worker.disk = driver.cluster, MemoryDisk()
    return after


def test_a_new_input_in_front_begins_at_its_beginning() -> None:
    """The topic that was read is called otherwise in this version."""
    after = in_place_of(ran(counted("a")), counted("b"))
    assert looked(after, deployed=counted("a")) == frozenset()
    with pytest.raises(StateWithoutOffsetsError, match=r"for b-0\.\.1: .*--to beginning"):
        looked(after, deployed=counted("b"))


def test_where_it_is_not_known_what_was_read_in_front_it_counts_as_read() -> None:
    after = in_place_of(ran(counted("a")), counted("b"))
    with pytest.raises(StateWithoutOffsetsError, match=r"for b-0\.\.1: .*--to beginning"):
        looked(after)


def test_a_step_that_is_put_in_front_of_a_store_is_none() -> None:
    """The store's tasks read a new topic, on state that the old one has made."""
    builder = StreamsBuilder()
    lines = builder.stream("a", key=serdes.string, value=serdes.string)
    lines.group_by_key().count(store="n")
    before = builder.build()
    after = in_place_of(ran(before), counted("a"))
    assert looked(after, deployed=before) == frozenset()


def test_a_new_part_of_a_topology_is_none() -> None:
    builder = StreamsBuilder()
    lines = builder.stream("a", key=serdes.string, value=serdes.string)
    lines.group_by(lambda _, word: word, key=serdes.string, name="by-word").count(store="n")
    other = builder.stream("b", key=serdes.string, value=serdes.string)
    other.group_by(lambda _, word: word, key=serdes.string, name="others").count(store="m")
    after = in_place_of(ran(counted("a")), builder.build())
    assert looked(after) == frozenset()


def test_offsets_that_were_set_before_the_first_start_stay() -> None:
    driver = TopologyTestDriver(counted(), EXACTLY_ONCE, partitions=2)
    set_by_hand(driver, {TopicPartition("a", 0): 1})
    assert looked(driver) == frozenset()


# -- at least once ---------------------------------------------------------------------------------


def test_at_least_once_says_it_once_with_all_that_lacks_and_goes_on() -> None:
    driver = ran(counted(), AT_LEAST_ONCE)
    gone, log = forget(driver), EventLog()
    assert looked(driver, log=log) == gone.keys()
    (event,) = log.events
    assert (event["event"], event["level"]) == ("records_counted_twice", "error")
    assert event["tasks"] == ["tasks 0_0..1", "tasks 1_0..1"]
    assert event["stores"] == ["n"]
    assert event["writes_to"] == [BETWEEN]
    assert event["partitions"].keys() == {str(place) for place in gone}
    assert re.search(r"offsets 0 to \d are processed", event["partitions"]["a-0"])
    assert f"no committed offsets for a-0..1, {BETWEEN}-0..1 any more" in event["reason"]
    options = f"--topic a --topic {BETWEEN}"
    assert f"before a start: headrace offsets set MODULE:APP {options} --to end" in event["reason"]
    assert "after a repartition topic up to twice again" in event["reason"]


def test_at_least_once_records_in_front_show_nothing() -> None:
    """They are written long before the first commit."""
    store = Materialized("n", kind="memory", logged=False)
    driver = TopologyTestDriver(counted(store=store), AT_LEAST_ONCE, partitions=1, commit="manual")
    driver.input("a").send("k", "v")
    assert driver.cluster.log(TopicPartition(BETWEEN, 0)).end > 0
    assert looked(driver) == frozenset()


def test_what_was_told_is_not_told_again_by_the_tasks() -> None:
    log, lost = EventLog(), [TopicPartition("a", 0), TopicPartition("b", 0)]
    told = LostOffsets("app", {}, exactly_once=False, log=log, reported=frozenset(lost))
    told.handle("0_0", Counted(["n"]), lost, {})
    assert log.events == []
    told.handle("0_1", Counted(["n"]), [*lost, TopicPartition("c", 0)], {})
    assert [event["event"] for event in log.events] == ["records_counted_twice"]
    options = "--topic a:0 --topic b:0 --topic c:0"
    (event,) = log.events
    assert f"before a start: headrace offsets set MODULE:APP {options} --to end" in event["reason"]
