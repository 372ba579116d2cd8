"""Kafka clients of a handover; the client libraries are imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.spark_bridge.cleanup import and_then
from headrace.streams.kafka.protocols import GroupMetadata

if TYPE_CHECKING:
    from headrace.streams.kafka.transactional_producer import TransactionalProducer

_ROWS_PER_S = 20_000
"""Minimum rows per second of a transaction, including Spark; the usual rate is ten times higher."""
_BYTES_PER_S = 10_000_000
"""Minimum bytes per second of a transaction."""

CALL_TIMEOUT_MS = 60_000
"""Time limit for retries of a call after temporary errors, and for a transaction of few rows."""


def expected_ms(rows: int, size: int = 0) -> int:
    """Return how long a transaction with these rows and bytes may take.

    >>> expected_ms(1_000_000), expected_ms(1_000_000, 10_000_000_000)
    (110000, 1060000)
    """
    return CALL_TIMEOUT_MS + 1000 * max(rows // _ROWS_PER_S, size // _BYTES_PER_S)


def make_producer(settings: Mapping[str, Any]) -> TransactionalProducer:
    """Create a producer whose `pressure` waits until the brokers have all records."""
    from headrace.streams.kafka.transactional_producer import TransactionalProducer

    return TransactionalProducer(settings, timeout_s=CALL_TIMEOUT_MS / 1000, max_in_flight=0)


def group_metadata(settings: Mapping[str, Any], group: str) -> GroupMetadata:
    """Return the metadata with which a client outside of a group commits the group's offsets."""
    from headrace.streams.kafka.connectivity import BrokerState, new_consumer

    consumer = new_consumer({**settings, "group.id": group}, BrokerState())
    with and_then(consumer.close, quietly=True):
        metadata: GroupMetadata = consumer.consumer_group_metadata()
        return metadata
