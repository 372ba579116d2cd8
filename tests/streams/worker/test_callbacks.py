"""What the group's callbacks do: they run within a poll, so they must not ask and wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest

from headrace.streams.kafka.clocks import Job
from headrace.streams.kafka.protocols import TopicDescription, TopicPartition
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.local_cluster import PartitionLog
from headrace.streams.worker.membership import JOINING_POLL_S
from headrace.streams.worker.worker import Worker
from headrace.topology import StreamsBuilder, serdes
from tests.support.workers import WorkerBench

Facts = Mapping[str, TopicDescription]


def passing_on() -> TopologyTestDriver:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string, value=serdes.string).to("out")
    return TopologyTestDriver(builder.build(), {"application.id": "app"})


def grow(driver: TopologyTestDriver) -> None:
    """Give the input another partition, with a record, and share out again."""
    driver.cluster.topics["in"].logs.append(PartitionLog())
    driver.cluster.append("in", b"v", b"k", 1, 0, None)
    assert driver._worker.consumer is not None
    driver._worker.consumer.rejoin()


def settle(driver: TopologyTestDriver) -> None:
    """A turn that only takes an answer changes nothing that the driver sees."""
    for _ in range(4):
        driver.run()


def test_partitions_that_nobody_has_heard_of_are_asked_for_behind_the_callback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = passing_on()
    driver.run()
    worker = driver._worker.present()
    within: list[bool] = []
    asked: list[bool] = []
    look: Callable[[Facts], Facts] = worker._topic_watch.check
    assigned = Worker.on_assigned

    def on_assigned(self: Worker, partitions: Sequence[TopicPartition]) -> None:
        within.append(True)
        assigned(self, partitions)
        within.pop()

    def check(before: Facts) -> Facts:
        asked.append(bool(within))
        return look(before)

    monkeypatch.setattr(Worker, "on_assigned", on_assigned)
    monkeypatch.setattr(worker._topic_watch, "check", check)
    grow(driver)
    settle(driver)
    assert asked
    assert not any(asked)
    assert [str(task) for task in worker.tasks.owned] == ["0_0", "0_1"]
    assert driver.processed == 1


def test_they_are_asked_for_until_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may hear of them later than the group's leader."""
    driver = passing_on()
    driver.run()
    watch = driver._worker.present()._topic_watch
    look: Callable[[Facts], Facts] = watch.check
    jobs: list[Job] = []
    late = [3]

    def check(before: Facts) -> Facts:
        if late[0]:
            late[0] -= 1
            return before
        return look(before)

    def take(job: Job) -> bool:
        jobs.append(job)
        job()
        return True

    monkeypatch.setattr(watch, "check", check)
    monkeypatch.setattr(watch, "background", take)
    grow(driver)
    settle(driver)
    assert driver.processed == 0
    for _ in range(4):
        driver._clock.pass_ms(1000)
        settle(driver)
    assert driver.processed == 1
    driver._clock.pass_ms(1000)
    settle(driver)
    looks = len(jobs)
    driver._clock.pass_ms(10_000)
    settle(driver)
    assert len(jobs) == looks, "it goes on asking"


class Told:
    """A log that keeps the partitions of each event."""

    def __init__(self) -> None:
        self.partitions: dict[str, list[str]] = {}

    def info(self, event: str, **fields: object) -> None:
        if "partitions" in fields:
            self.partitions[event] = cast("list[str]", fields["partitions"])

    debug = warning = error = info


def test_what_is_said_of_partitions_has_those_that_tables_are_read_from() -> None:
    """The group gives out one topic of each sub-topology; its tasks read others beside it."""
    builder = StreamsBuilder()
    prices = builder.table("prices", key=serdes.string, value=serdes.string)
    orders = builder.stream("orders", key=serdes.string, value=serdes.string)
    orders.join(prices, lambda order, price: f"{order} {price}").to("out")
    driver = TopologyTestDriver(builder.build(), {"application.id": "app"}, partitions=2)
    worker = driver._worker.present()
    worker._log = worker._recovery._log = told = Told()
    driver.run()
    (lead, other) = sorted(worker.tasks.subscribed_partitions)
    worker.on_revoked([lead])
    worker.on_lost([other])
    said = told.partitions
    assert said["partitions_assigned"] == ["orders-0", "orders-1", "prices-0", "prices-1"]
    assert said["partitions_revoked"] == ["orders-0", "prices-0"]
    assert said["partitions_lost"] == ["orders-1", "prices-1"]


def test_a_worker_that_joins_polls_in_short_turns_until_it_has_partitions() -> None:
    """The poll that gives them out goes on to its end, and nothing is done meanwhile."""
    bench = WorkerBench().start()
    assert bench.owned()
    assert bench.worker._wait_s() == bench.config.poll_ms / 1000
    bench.worker._membership.join(["in"], bench.worker)
    assert bench.worker._wait_s() == JOINING_POLL_S
