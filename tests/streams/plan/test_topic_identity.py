"""A topic that is deleted and made anew is another topic, whatever its name."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.identity import TopicReplacedError, committed_id, id_values
from headrace.streams.plan.progress import OffsetMetadata
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support.topologies import EXACTLY_ONCE, key_count

GUARANTEES: list[dict[str, Any]] = [{}, EXACTLY_ONCE]
IN = TopicPartition("in", 0)


def upper() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    stream.map_values(str.upper).to("out")
    return builder.build()


def feed(driver: TopologyTestDriver, count: int) -> None:
    """Write without running, as another program would."""
    for number in range(count):
        driver.cluster.append("in", b"v", b"k%d" % (number % 7), 0, 0, None)


def replace_topic(driver: TopologyTestDriver, count: int) -> tuple[str, str]:
    before = driver.cluster.topics["in"].id
    driver.cluster.delete("in")
    driver.cluster.create("in")
    feed(driver, count)
    return before, driver.cluster.topics["in"].id


@pytest.mark.parametrize("settings", GUARANTEES, ids=["at_least_once", "exactly_once"])
@pytest.mark.parametrize("topology", [key_count(), upper()], ids=["state", "no state"])
def test_a_running_worker_commits_nothing_of_a_topic_that_was_made_anew(
    settings: dict[str, Any], topology: Topology
) -> None:
    """It read on at offset 300 of the new one, and 300 records of 1,000 were lost."""
    driver = TopologyTestDriver(topology, settings, commit="manual")
    feed(driver, 300)
    driver.commit()
    assert driver.committed_offsets("in") == {0: 300}
    before, now = replace_topic(driver, 1_000)
    with pytest.raises(TopicReplacedError) as raised:
        driver.commit()
    for part in ("topic in was", before, now, "headrace reset", "headrace offsets set"):
        assert part in str(raised.value)
    assert driver.committed_offsets("in") == {}


@pytest.mark.parametrize("settings", GUARANTEES, ids=["at_least_once", "exactly_once"])
def test_what_is_in_hand_of_the_old_topic_is_not_committed_for_the_new_one(
    settings: dict[str, Any],
) -> None:
    driver = TopologyTestDriver(key_count(), settings, commit="manual")
    feed(driver, 300)
    driver.run()
    replace_topic(driver, 0)
    with pytest.raises(TopicReplacedError):
        driver.commit()
    assert driver.committed_offsets("in") == {}


@pytest.mark.parametrize("settings", GUARANTEES, ids=["at_least_once", "exactly_once"])
def test_a_take_over_refuses_offsets_of_the_topic_that_was_there_before(
    settings: dict[str, Any],
) -> None:
    """As it is after a worker of an older release, which committed on."""
    driver = TopologyTestDriver(upper(), settings)
    feed(driver, 300)
    driver.run()
    driver.restart()
    kept = driver.cluster.offsets["test"][IN]
    before, now = replace_topic(driver, 1_000)
    driver.cluster.commit_offsets("test", {IN: kept})
    with pytest.raises(TopicReplacedError, match=f"{before}, and now its id is {now}"):
        driver.run()
    assert driver.cluster.offsets["test"][IN] == kept


@pytest.mark.parametrize("settings", GUARANTEES, ids=["at_least_once", "exactly_once"])
def test_offsets_without_an_id_are_taken_as_they_are(settings: dict[str, Any]) -> None:
    """Those of older releases, of Java, of kafka-consumer-groups, which is the way out."""
    driver = TopologyTestDriver(key_count(), settings)
    feed(driver, 300)
    driver.run()
    driver.restart()
    kept = driver.cluster.offsets["test"][IN]
    values = OffsetMetadata.decode(kept.metadata).values
    assert committed_id("in", values) == driver.cluster.topics["in"].id
    replace_topic(driver, 1_000)
    driver.cluster.commit_offsets("test", {IN: CommittedOffset(0)})
    driver.run()
    assert sum(driver.store("counts").values()) == 1_300
    found = OffsetMetadata.decode(driver.cluster.offsets["test"][IN].metadata).values
    assert committed_id("in", found) == driver.cluster.topics["in"].id


def test_a_restart_without_a_change_goes_on() -> None:
    driver = TopologyTestDriver(key_count())
    feed(driver, 300)
    driver.run()
    driver.restart()
    feed(driver, 300)
    driver.run()
    assert sum(driver.store("counts").values()) == 600


def test_ids_that_another_writer_gave_to_all_inputs_of_a_task_are_told_apart() -> None:
    """Kafka Streams commits the largest number of each name beside every input."""
    one, other = "mIZ3c7IdTReMqgcwdmKasA", "TaV9E4cwSRaMmdzz6DDvkg"
    merged = {**id_values("orders", one), **id_values("customers", other)}
    assert committed_id("orders", merged) == one
    assert committed_id("customers", merged) == other


def test_half_an_id_is_none() -> None:
    one = id_values("orders", "mIZ3c7IdTReMqgcwdmKasA")
    for name in one:
        half = {other: number for other, number in one.items() if other != name}
        assert committed_id("orders", half) is None


def test_nothing_is_committed_while_an_output_is_not_there() -> None:
    """Its records would wait in the client for it to come back."""
    driver = TopologyTestDriver(upper(), EXACTLY_ONCE, commit="manual")
    feed(driver, 5)
    driver.run()
    inputs = driver._worker.present()._parts.input_identity
    inputs._outputs = ["out", "gone"]
    driver.commit(rounds=1)
    assert driver.output("out").is_empty
    inputs._outputs = ["out"]
    driver.commit()
    assert len(driver.output("out").read_all()) == 5


def test_a_broker_that_does_not_answer_holds_no_commit_up() -> None:
    driver = TopologyTestDriver(key_count(), EXACTLY_ONCE, commit="manual")
    feed(driver, 5)
    driver.run()
    asked = []

    def ask(topics: Any) -> Any:
        asked.append(topics)
        return lambda _: None

    driver._worker.present()._parts.input_identity._ask = ask
    for _ in range(3):
        driver.commit()
        feed(driver, 5)
    driver.commit()
    assert driver.committed_offsets("in") == {0: 20}
    assert [event["event"] for event in driver.events].count("topics_unknown") == 1
    assert len(asked) == 1, "it is not asked again for a while"
