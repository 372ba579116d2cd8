"""What brokers say of how long they keep offsets, and to whom."""

from __future__ import annotations

from headrace.streams.devbroker import DevBroker
from headrace.streams.kafka.acls import Right
from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams.worker.retention import recommit_interval_s
from tests.support.patience import PATIENCE_S


def test_it_is_asked_for_once_and_a_missing_right_is_named(secured: DevBroker) -> None:
    right = Right("DescribeConfigs", "cluster")
    secured.grant("keeper")
    log = EventLog()
    admin = LiveAdmin(secured.settings("keeper"), timeout_s=PATIENCE_S)
    assert recommit_interval_s(admin, log) == 600
    (event,) = log.events
    assert event["event"] == "offsets_retention_unknown"
    assert "User:keeper lacks the right DescribeConfigs on the cluster" in event["reason"]

    secured.grant("keeper", [right])
    log = EventLog()
    admin = LiveAdmin(secured.settings("keeper"), timeout_s=PATIENCE_S)
    assert recommit_interval_s(admin, log) == 12 * 3600
    assert log.events == []
