"""Offsets of some inputs are gone: a task with state does not read them from the beginning."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.plan import plan_application
from headrace.streams.plan.progress import COMMIT_ID, INPUTS, OffsetMetadata, inputs_number
from headrace.streams.supervisor.exit_codes import ExitCode, exit_code_of, is_crash
from headrace.streams.tasks.driver_disk import MemoryDisk
from headrace.streams.tasks.lost_offsets import (
    ReadBefore,
    StateWithoutOffsetsError,
    effects_of,
    lost_inputs,
    read_before,
)
from headrace.streams.tasks.restore import ChangelogDescription
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.memory_clients import MemoryConsumer
from headrace.topology import Materialized, StreamsBuilder, Topology, serdes

A, B, C = (TopicPartition(topic, 0) for topic in "abc")
SETTINGS = {"application.id": "app", "processing.guarantee": "exactly_once_v2"}
AT_LEAST_ONCE = SETTINGS | {"processing.guarantee": "at_least_once"}


def merged(*topics: str, store: str | Materialized = "n") -> Topology:
    builder = StreamsBuilder()
    first, *others = (
        builder.stream(topic, key=serdes.string, value=serdes.string) for topic in topics
    )
    for other in others:
        first = first.merge(other)
    first.group_by_key().count(store=store).to_stream().to("out")
    return builder.build()


def passed_on(*topics: str) -> Topology:
    builder = StreamsBuilder()
    builder.stream(list(topics), key=serdes.string, value=serdes.string).to("out")
    return builder.build()


def run(driver: TopologyTestDriver, *topics: str) -> None:
    for topic in topics:
        driver.input(topic).send("k", "v")


def outputs(driver: TopologyTestDriver) -> list[Any]:
    return [record.value for record in driver.output("out").read_all()]


def lose(driver: TopologyTestDriver, *places: TopicPartition) -> None:
    """What the brokers do with offsets that expire, and `--delete-offsets`."""
    for place in places:
        del driver.cluster.offsets["app"][place]
    driver.crash()


def events(driver: TopologyTestDriver, name: str) -> list[Any]:
    return [event for event in driver.events if event["event"] == name]


def next_version(
    driver: TopologyTestDriver, topology: Topology, deployed: Topology | None = None
) -> TopologyTestDriver:
    """Another version on the same cluster and disk; it knows what is deployed, if that is given."""
    driver.restart()
    after = TopologyTestDriver(topology, SETTINGS)
    for name in after.cluster.topics:
        driver.cluster.create(name)
    after._worker.cluster, after._worker.disk = driver.cluster, driver._worker.disk
    if deployed is not None:
        config = StreamsConfig.parse({"bootstrap.servers": "none:1", **SETTINGS})
        after._worker.deployed = Deployment.of(plan_application(deployed, config), config)
    return after


# -- one of several inputs -----------------------------------------------------------------------


def test_a_task_with_state_refuses_to_read_one_input_from_the_beginning() -> None:
    driver = TopologyTestDriver(merged("a", "b"), SETTINGS)
    run(driver, "a", "b", "b")
    lose(driver, B)
    with pytest.raises(StateWithoutOffsetsError) as raised:
        driver.run()
    message = str(raised.value)
    assert "task 0_0 has state in n" in message
    assert "its group app has no committed offsets for b-0:" in message
    assert "--topic b:0 --to N" in message
    assert "a-0" not in message
    assert outputs(driver) == [1, 2, 3]
    code = exit_code_of(raised.value)
    assert code is ExitCode.OFFSETS
    assert not is_crash(code)


def test_each_partition_is_named_in_the_way_out() -> None:
    driver = TopologyTestDriver(merged("a", "b", "c"), SETTINGS)
    run(driver, "a", "b", "c")
    lose(driver, B, C)
    with pytest.raises(StateWithoutOffsetsError, match=r"b-0, c-0: .*--topic b:0 --topic c:0"):
        driver.run()


def test_the_way_out_is_one() -> None:
    """What `kafka-consumer-groups --reset-offsets` commits has no metadata."""
    driver = TopologyTestDriver(merged("a", "b"), SETTINGS)
    run(driver, "a", "b")
    lose(driver, B)
    with pytest.raises(StateWithoutOffsetsError):
        driver.run()
    driver.cluster.commit_offsets("app", {B: CommittedOffset(1)})
    run(driver, "b")
    assert outputs(driver) == [1, 2, 3]


def test_it_refuses_before_it_restores() -> None:
    driver = TopologyTestDriver(merged("a", "b"), SETTINGS)
    run(driver, "a", "b")
    driver.crash(keep=False)
    del driver.cluster.offsets["app"][B]
    with pytest.raises(StateWithoutOffsetsError):
        driver.run()
    assert driver.restored == 0


def test_offsets_of_another_client_are_refused_for_the_rows() -> None:
    """They bear no progress, so the rows alone show that the task has counted."""
    driver = TopologyTestDriver(merged("a", "b"), SETTINGS)
    run(driver, "a", "b")
    driver.cluster.commit_offsets("app", {A: CommittedOffset(1)})
    lose(driver, B)
    with pytest.raises(StateWithoutOffsetsError):
        driver.run()


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_stores_without_a_changelog_are_state_too(kind: Any) -> None:
    driver = TopologyTestDriver(
        merged("a", "b", store=Materialized("n", kind=kind, logged=False)), SETTINGS
    )
    run(driver, "a", "b")
    lose(driver, B)
    with pytest.raises(StateWithoutOffsetsError):
        driver.run()


def test_a_repartition_topic_is_an_input_like_others() -> None:
    builder = StreamsBuilder()
    one = builder.stream("a", key=serdes.string, value=serdes.string)
    other = builder.stream("b", key=serdes.string, value=serdes.string)
    again = one.select_key(lambda k, v: v).repartition(name="by-v", key=serdes.string)
    again.merge(other).group_by_key().count(store="n").to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), SETTINGS, partitions=1)
    run(driver, "a", "b")
    lose(driver, TopicPartition("app-by-v-repartition", 0))
    with pytest.raises(StateWithoutOffsetsError, match="app-by-v-repartition-0"):
        driver.run()


def test_a_table_that_is_restored_from_its_source_is_state_too() -> None:
    builder = StreamsBuilder()
    orders = builder.stream("a", key=serdes.string, value=serdes.string)
    orders.join(
        builder.table("b", key=serdes.string, value=serdes.string, store="t"), lambda x, y: x + y
    ).to("out")
    driver = TopologyTestDriver(
        builder.build(), SETTINGS | {"topology.optimization": "reuse.ktable.source.topics"}
    )
    run(driver, "b", "a")
    lose(driver, A)
    with pytest.raises(StateWithoutOffsetsError, match="a-0"):
        driver.run()
    assert outputs(driver) == ["vv"]


def test_offsets_that_are_there_at_a_second_look_were_not_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another worker may have had the task, and what it committed purged, meanwhile."""
    driver = TopologyTestDriver(merged("a", "b"), SETTINGS)
    run(driver, "a", "b")
    driver.crash()
    right, looks = MemoryConsumer.committed, 0

    def committed(self: MemoryConsumer, places: Any, timeout_s: float) -> Any:
        nonlocal looks
        looks += 1
        found = right(self, places, timeout_s)
        return {**(found or {}), B: None} if looks == 1 else found

    monkeypatch.setattr(MemoryConsumer, "committed", committed)
    run(driver, "b")
    assert looks == 2
    assert outputs(driver) == [1, 2, 3]


# -- what is legitimate --------------------------------------------------------------------------


def test_a_first_start_that_was_killed_before_its_first_commit_begins_again() -> None:
    driver = TopologyTestDriver(merged("a", "b"), SETTINGS)
    driver.crash(at="changelogs_written")
    run(driver, "a", "b")
    assert driver.crashes == 1
    assert outputs(driver) == [1, 2]


def test_offsets_set_before_the_first_start_stay() -> None:
    driver = TopologyTestDriver(merged("a", "b"), SETTINGS)
    for topic in "ab":
        driver.cluster.append(topic, b"v", b"k", 0, 0, None)
    driver.cluster.commit_offsets("app", {A: CommittedOffset(1)})
    driver.run()
    assert outputs(driver) == [1]


def test_a_new_input_begins_at_its_beginning() -> None:
    """The offsets of the others say that they were committed without it."""
    driver = TopologyTestDriver(merged("a"), SETTINGS)
    run(driver, "a", "a")
    driver.cluster.create("b")
    driver.cluster.append("b", b"v", b"k", 0, 0, None)
    after = next_version(driver, merged("a", "b"))
    after.run()
    assert outputs(after)[-1] == 3


def test_a_new_input_keeps_stores_without_a_changelog() -> None:
    store = Materialized("n", kind="rocksdb", logged=False)
    driver = TopologyTestDriver(merged("a", store=store), SETTINGS)
    run(driver, "a", "a")
    after = next_version(driver, merged("a", "b", store=store))
    run(after, "b")
    assert outputs(after)[-1] == 3


def test_a_new_input_beside_a_lost_one_names_the_lost_one_alone() -> None:
    driver = TopologyTestDriver(merged("a", "b"), SETTINGS)
    run(driver, "a", "b")
    after = next_version(driver, merged("a", "b", "c"))
    del driver.cluster.offsets["app"][B]
    with pytest.raises(StateWithoutOffsetsError) as raised:
        after.run()
    assert "offsets for b-0:" in str(raised.value)


def strip(driver: TopologyTestDriver) -> None:
    """Offsets as versions before wrote them: they do not say with which inputs."""
    for place, offset in driver.cluster.offsets["app"].items():
        progress = OffsetMetadata.decode(offset.metadata)
        values = {name: value for name, value in progress.values.items() if name != INPUTS}
        text = OffsetMetadata(progress.partition_time, values).encode()
        driver.cluster.commit_offsets("app", {place: CommittedOffset(offset.offset, text)})


def test_behind_offsets_of_older_versions_it_is_known_from_what_is_deployed() -> None:
    driver = TopologyTestDriver(merged("a"), SETTINGS)
    run(driver, "a")
    after = next_version(driver, merged("a", "b"), deployed=merged("a"))
    strip(driver)
    run(after, "b")
    assert outputs(after)[-1] == 2


@pytest.mark.parametrize("deployed", [None, merged("a", "b")])
def test_where_nothing_is_known_or_it_was_read_it_is_refused(deployed: Topology | None) -> None:
    driver = TopologyTestDriver(merged("a"), SETTINGS)
    run(driver, "a")
    after = next_version(driver, merged("a", "b"), deployed=deployed)
    strip(driver)
    with pytest.raises(StateWithoutOffsetsError, match="--to beginning"):
        after.run()


def test_a_task_that_gets_its_first_store_has_no_state_yet() -> None:
    driver = TopologyTestDriver(passed_on("a"), SETTINGS)
    run(driver, "a")
    after = next_version(driver, merged("a", "b"), deployed=passed_on("a"))
    after._worker.disk = MemoryDisk()
    strip(driver)
    run(after, "b")
    assert after.store("n")["k"] == 1


def test_internal_topics_of_what_is_deployed_have_their_full_names() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("a", key=serdes.string, value=serdes.string)
    stream.group_by(lambda k, v: v, key=serdes.string, name="by-v").count(store="n")
    config = StreamsConfig.parse({"bootstrap.servers": "none:1", **SETTINGS})
    plans = plan_application(builder.build(), config)
    found = read_before(Deployment.of(plans, config), plans, "app")
    assert found[1] == ReadBefore(frozenset({"app-by-v-repartition"}), True)
    assert read_before(None, plans, "app") == {}


def test_numbers_that_fit_nothing_leave_it_to_what_is_deployed() -> None:
    """An input was taken out and another one put in."""
    text = OffsetMetadata(1, {INPUTS: inputs_number("ac"), COMMIT_ID: 1}).encode()
    committed = {A: CommittedOffset(1, text), B: None}
    assert lost_inputs(committed, ReadBefore()) == [B]
    assert lost_inputs(committed, ReadBefore(frozenset("ac"))) == []
    assert lost_inputs(committed, ReadBefore(frozenset("abc"))) == [B]


def test_numbers_that_disagree_leave_it_to_what_is_deployed() -> None:
    """One of the two was set back to what an older version had committed."""
    old, new = (
        OffsetMetadata(1, {INPUTS: inputs_number(topics)}).encode() for topics in ("ac", "abc")
    )
    committed = {A: CommittedOffset(1, old), B: None, C: CommittedOffset(1, new)}
    assert lost_inputs(committed, ReadBefore()) == [B]
    assert lost_inputs(committed, ReadBefore(frozenset("ac"))) == []


def test_what_follows_is_said_by_what_there_is_to_read() -> None:
    facts = {place: ChangelogDescription("id", 0, end, 0) for place, end in ((A, 4), (B, 4))}
    start = {A: CommittedOffset(3), B: CommittedOffset(4)}
    assert effects_of([A, B], start, facts) == {
        "a-0": "offsets 3 to 3 are processed, also if they were processed before",
        "b-0": "starts at its end, 4; records since its last commit are skipped",
    }


def test_a_task_without_state_reads_it_again_and_says_so() -> None:
    driver = TopologyTestDriver(passed_on("a", "b"), SETTINGS)
    run(driver, "a", "b")
    lose(driver, B)
    driver.run()
    (event,) = events(driver, "records_processed_again")
    assert event["level"] == "warning"
    assert list(event["partitions"]) == ["b-0"]


# -- tasks that write to topics of the application's own -------------------------------------------


def regrouped(*topics: str) -> Topology:
    """What the tasks that read the topics write is counted by other tasks."""
    builder = StreamsBuilder()
    first, *others = (
        builder.stream(topic, key=serdes.string, value=serdes.string) for topic in topics
    )
    for other in others:
        first = first.merge(other)
    words = first.group_by(lambda _, word: word, key=serdes.string, name="by-word")
    words.count(store="n").to_stream().to("out")
    return builder.build()


def test_what_is_counted_behind_a_repartition_topic_is_not_written_to_it_again() -> None:
    driver = TopologyTestDriver(regrouped("a", "b"), SETTINGS, partitions=1)
    run(driver, "a", "b", "b")
    lose(driver, B)
    with pytest.raises(StateWithoutOffsetsError) as raised:
        driver.run()
    message = str(raised.value)
    assert "task 0_0 writes to app-by-word-repartition, whose readers count the records" in message
    assert "has no committed offsets for b-0:" in message
    assert "--topic b:0 --to N" in message
    assert outputs(driver) == [1, 2, 3]


def test_without_state_anywhere_what_is_passed_on_is_counted_nowhere() -> None:
    builder = StreamsBuilder()
    both = builder.stream(["a", "b"], key=serdes.string, value=serdes.string)
    both.repartition(name="again").to("out")
    driver = TopologyTestDriver(builder.build(), SETTINGS, partitions=1)
    run(driver, "a", "b")
    lose(driver, B)
    driver.run()
    (event,) = events(driver, "records_processed_again")
    assert list(event["partitions"]) == ["b-0"]


def test_at_least_once_says_what_is_counted_twice_behind_a_repartition_topic() -> None:
    driver = TopologyTestDriver(regrouped("a", "b"), AT_LEAST_ONCE, partitions=1)
    run(driver, "a", "b", "b")
    lose(driver, B)
    driver.run()
    (event,) = events(driver, "records_counted_twice")
    assert event["level"] == "error"
    assert (event["task"], event["writes_to"]) == ("0_0", ["app-by-word-repartition"])
    assert list(event["partitions"]) == ["b-0"]
    assert outputs(driver)[-1] == 5


# -- every input is committed early ----------------------------------------------------------------


@pytest.mark.parametrize("settings", [SETTINGS, AT_LEAST_ONCE])
def test_inputs_without_a_record_are_committed_when_the_task_begins(
    settings: dict[str, str],
) -> None:
    driver = TopologyTestDriver(merged("a", "b"), settings)
    driver.run()
    assert driver.committed_offsets("a") == {0: 0}
    assert driver.committed_offsets("b") == {0: 0}


def test_everything_is_committed_again_with_each_start() -> None:
    """Otherwise an application that is often started again never does it."""
    driver = TopologyTestDriver(merged("a", "b"), SETTINGS)
    run(driver, "a")
    before = driver.cluster.offsets["app"][B]
    driver.restart()
    driver.run()
    assert driver.cluster.offsets["app"][B] != before


def test_an_idle_worker_commits_once_and_then_rests() -> None:
    driver = TopologyTestDriver(merged("a", "b"), SETTINGS)
    driver.run()
    commits = driver._worker.counts.commits
    driver.run()
    driver.run()
    assert driver._worker.counts.commits == commits


def test_a_commit_that_is_aborted_is_made_again() -> None:
    driver = TopologyTestDriver(merged("a", "b"), SETTINGS)
    driver.crash(at="offsets_sent")
    driver.run()
    assert driver.crashes == 1
    assert driver.committed_offsets("b") == {0: 0}


def test_a_task_that_begins_anew_before_its_first_commit_is_committed_then() -> None:
    driver = TopologyTestDriver(merged("a", "b"), SETTINGS, commit="manual")
    driver.run()
    driver.abort()
    driver.run()
    assert driver.committed_offsets("b") == {}
    driver.commit()
    assert driver.committed_offsets("b") == {0: 0}


def test_a_new_input_begins_where_it_begins_beside_old_ones() -> None:
    """Its first records are deleted already, and offset 0 is none of its own."""
    driver = TopologyTestDriver(merged("a"), SETTINGS)
    run(driver, "a")
    after = next_version(driver, merged("a", "b"))
    for _ in range(3):
        after.cluster.append("b", b"v", b"k", 0, 0, None)
    after.cluster.delete_before(B, 2)
    after.run()
    assert outputs(after) == [1, 2]
    assert after.committed_offsets("b") == {0: 3}
    assert events(after, "offset_lost") == []


# -- at least once ---------------------------------------------------------------------------------


def test_at_least_once_says_what_it_counts_twice() -> None:
    driver = TopologyTestDriver(merged("a", "b"), AT_LEAST_ONCE)
    run(driver, "a", "b", "b")
    lose(driver, A, B)
    driver.run()
    (event,) = events(driver, "records_counted_twice")
    assert event["level"] == "error"
    assert event["task"] == "0_0"
    assert event["stores"] == ["n"]
    assert event["partitions"] == {
        "a-0": "offsets 0 to 0 are processed, also if they were processed before",
        "b-0": "offsets 0 to 1 are processed, also if they were processed before",
    }
    assert "the group app has no committed offsets for a-0, b-0 any more" in event["reason"]
    assert outputs(driver)[-1] == 6


def test_at_least_once_says_it_of_one_of_several_inputs_too() -> None:
    driver = TopologyTestDriver(merged("a", "b"), AT_LEAST_ONCE)
    run(driver, "a", "b")
    lose(driver, B)
    driver.run()
    (event,) = events(driver, "records_counted_twice")
    assert list(event["partitions"]) == ["b-0"]
    assert outputs(driver) == [1, 2, 3]


def test_an_ordinary_start_says_nothing() -> None:
    driver = TopologyTestDriver(merged("a", "b"), AT_LEAST_ONCE)
    run(driver, "a", "b")
    driver.crash()
    run(driver, "a")
    assert events(driver, "records_counted_twice") == []
