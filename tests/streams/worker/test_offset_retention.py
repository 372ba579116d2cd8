"""Offsets that do not move are committed again before the brokers forget them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.protocols import CommittedOffset, Offsets, TopicPartition
from headrace.streams.plan.deployed import TRY_AGAIN_S, DeployedTopology
from headrace.streams.plan.plan import plan_application
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.local_cluster import LocalAdmin
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams.worker.retention import recommit_interval_s
from tests.support.topologies import key_count

HOUR_S = 3600.0


class Brokers:
    def __init__(self, *minutes: str) -> None:
        self.minutes = minutes

    def broker_configs(self, name: str) -> Sequence[str]:
        assert name == "offsets.retention.minutes"
        return self.minutes


class Denied:
    def broker_configs(self, name: str) -> Sequence[str]:
        raise FatalClientError(f"cannot read {name}; grant this client DescribeConfigs")


@pytest.mark.parametrize(
    ("minutes", "every_s", "warned"),
    [
        (["10080"], 12 * HOUR_S, False),
        (["1440"], 6 * HOUR_S, False),
        (["10080", "60"], HOUR_S / 4, True),
        (["1"], 15.0, True),
    ],
)
def test_it_is_at_a_quarter_of_what_the_brokers_keep(
    minutes: list[str], every_s: float, warned: bool
) -> None:
    log = EventLog()
    assert recommit_interval_s(Brokers(*minutes), log) == every_s
    assert [event["event"] for event in log.events] == ["offsets_retention_short"] * warned


def test_without_the_right_to_look_it_is_often_and_said_once() -> None:
    log = EventLog()
    assert recommit_interval_s(Denied(), log) == 600
    (event,) = log.events
    assert (event["event"], event["level"]) == ("offsets_retention_unknown", "warning")
    assert "grant this client DescribeConfigs" in event["reason"]


def offsets_of(driver: TopologyTestDriver) -> dict[TopicPartition, CommittedOffset]:
    (offsets,) = driver.cluster.offsets.values()
    return dict(offsets)


def test_a_worker_commits_everything_again_at_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalAdmin, "broker_configs", lambda *_: ["60"])
    with TopologyTestDriver(key_count(), partitions=2) as driver:
        driver.input("in").send("a", "x", partition=0)
        before = offsets_of(driver)
        driver.advance(timedelta(minutes=14))
        assert offsets_of(driver) == before
        driver.advance(timedelta(minutes=1))
        after = offsets_of(driver)
        assert after.keys() == before.keys()
        assert all(after[place].metadata != before[place].metadata for place in before)


class Group:
    """The group of the description, without a cluster."""

    def __init__(self, *, denied: bool = False) -> None:
        self.denied = denied
        self.kept: dict[TopicPartition, CommittedOffset] = {}
        self.writes = 0

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        return self.kept

    def committed_at(
        self, group: str, places: Iterable[TopicPartition], *, decided: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        return {}

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        self.writes += 1
        if self.denied:
            raise FatalClientError("no")
        self.kept.update(offsets)


@pytest.mark.parametrize(
    ("denied", "every_s", "waits"),
    [
        (False, 900.0, [900.0, 900.0, 900.0]),
        (True, 900.0, [TRY_AGAIN_S] * 3),
        (True, 15.0, [15.0] * 3),
    ],
)
def test_what_is_deployed_is_written_again_at_that_time(
    denied: bool, every_s: float, waits: list[float]
) -> None:
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) == 3

    settings: dict[str, Any] = {"application.id": "app", "bootstrap.servers": "none:1"}
    config, group = StreamsConfig.parse(settings), Group(denied=denied)
    plans = plan_application(key_count(), config)
    deployed = DeployedTopology(config, plans, group, EventLog(), wait=wait)
    with deployed.kept_every(every_s):
        assert group.writes == 0  # what was refused would be taken for what is deployed
        deployed.running()  # leaving waits for the thread
    assert waited == waits
    assert group.writes == 3
