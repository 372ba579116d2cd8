"""A new broker makes its internal topics for whoever asks first: here, and not within a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka

from tests.support.processes import wait_until

_ASKED_S = 10


def await_coordinators(bootstrap: str) -> None:
    """Wait until the broker answers for groups and for transactions."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "asks-first", "log_level": 2}
    )
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "asks-first", "log_level": 2}
    )
    place = [confluent_kafka.TopicPartition("no-topic", 0)]
    try:
        wait_until(lambda: _answers(producer.init_transactions, _ASKED_S), what="transactions")
        wait_until(lambda: _answers(consumer.committed, place, _ASKED_S), what="groups")
    finally:
        consumer.close()


def _answers(ask: Callable[..., Any], *arguments: Any) -> bool:
    try:
        ask(*arguments)
    except confluent_kafka.KafkaException:
        return False
    return True
