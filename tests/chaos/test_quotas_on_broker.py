"""Quotas of a real broker: they slow a client down, until they are removed."""

from __future__ import annotations

import confluent_kafka

from tests.chaos.quotas import set_quotas
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.topics import Topics


def test_a_client_is_throttled_until_its_quota_is_removed(topics: Topics) -> None:
    topic, client_id = topics.create(), topics.name("client")
    throttled_s: list[float] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": topics.bootstrap,
            "client.id": client_id,
            "throttle_cb": lambda event: throttled_s.append(event.throttle_time),
        }
    )

    def write() -> None:
        for _ in range(10):
            producer.produce(topic, bytes(2_000))
        assert producer.flush(PATIENCE_S) == 0

    def is_throttled() -> bool:
        throttled_s.clear()
        write()
        write()
        return any(throttled_s)

    assert not is_throttled()
    set_quotas(topics.bootstrap, {"producer_byte_rate": 5_000.0}, client_id=client_id)
    wait_until(is_throttled, what="throttled")
    set_quotas(topics.bootstrap, {"producer_byte_rate": None}, client_id=client_id)
    wait_until(lambda: not is_throttled(), what="no longer throttled")
