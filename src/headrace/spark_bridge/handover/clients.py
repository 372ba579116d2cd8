"""Makes the Kafka clients of a hand-over; nothing of Kafka is imported before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.spark_bridge.cleanup import and_then
from headrace.streams.kafka.protocols import GroupMetadata

if TYPE_CHECKING:
    from headrace.streams.kafka.transactional_producer import TransactionalProducer

_ROWS_PER_S = 20_000
"""What a transaction is sure to write in a second, Spark's part included; ten times as much is
usual."""
_BYTES_PER_S = 10_000_000
"""Likewise, of large rows."""

CALL_TIMEOUT_MS = 60_000
"""How long a call repeats itself after temporary errors, and a transaction of few rows may take."""


def expected_ms(rows: int, size: int = 0) -> int:
    """How long a transaction of so many rows may take, of so many bytes.

    >>> expected_ms(1_000_000), expected_ms(1_000_000, 10_000_000_000)
    (110000, 1060000)
    """
    return CALL_TIMEOUT_MS + 1000 * max(rows // _ROWS_PER_S, size // _BYTES_PER_S)


def make_producer(settings: Mapping[str, Any]) -> TransactionalProducer:
    """Make a producer whose `pressure` waits until everything is on the brokers."""
    from headrace.streams.kafka.transactional_producer import TransactionalProducer

    return TransactionalProducer(settings, timeout_s=CALL_TIMEOUT_MS / 1000, max_in_flight=0)


def group_metadata(settings: Mapping[str, Any], group: str) -> GroupMetadata:
    """What offsets of a group are committed under by somebody who is no member."""
    from headrace.streams.kafka.connectivity import BrokerState, new_consumer

    consumer = new_consumer({**settings, "group.id": group}, BrokerState())
    with and_then(consumer.close, quietly=True):
        metadata: GroupMetadata = consumer.consumer_group_metadata()
        return metadata
