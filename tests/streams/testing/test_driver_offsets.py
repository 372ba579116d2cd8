"""Offsets of inputs at rest: they must not expire at the broker."""

from __future__ import annotations

from datetime import timedelta

from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.testing.driver import TopologyTestDriver
from tests.support.topologies import key_count


def offsets_of(driver: TopologyTestDriver) -> dict[TopicPartition, CommittedOffset]:
    """What the application's group has committed."""
    (offsets,) = driver.cluster.offsets.values()
    return dict(offsets)


def test_the_offsets_of_all_tasks_are_committed_again_before_they_expire() -> None:
    """Also those of tasks that have nothing to do: brokers forget what nobody commits."""
    with TopologyTestDriver(key_count(), partitions=2) as driver:
        driver.input("in").send("a", "x", partition=0)
        before = offsets_of(driver)
        assert {place.partition for place in before} == {0, 1}
        driver.advance(timedelta(hours=13))
        after = offsets_of(driver)
        assert after.keys() == before.keys()
        assert all(after[place].offset == before[place].offset for place in before)
        assert all(after[place].metadata != before[place].metadata for place in before)
