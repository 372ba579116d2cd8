"""Makes the Kafka clients of a hand-over; nothing of Kafka is imported before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from streams.clients import GroupMetadata

if TYPE_CHECKING:
    from streams.producer import TransactionalProducer

__all__ = ["group_metadata", "make_producer", "transaction_timeout_ms"]

_ROWS_PER_S = 20_000
"""What a transaction is sure to write in a second, Spark's part included; ten times as much is
usual."""
_MARGIN_MS = 60_000


def transaction_timeout_ms(rows: int) -> int:
    """How long a transaction of so many rows may take.

    >>> transaction_timeout_ms(1_000_000)
    110000
    """
    return _MARGIN_MS + rows * 1000 // _ROWS_PER_S


def make_producer(settings: Mapping[str, Any], timeout_s: float) -> TransactionalProducer:
    """Make a producer whose `pressure` waits until everything is on the brokers.

    Args:
        settings: librdkafka's.
        timeout_s: how long a call repeats itself after temporary errors, in seconds.
    """
    from streams.producer import TransactionalProducer

    return TransactionalProducer(settings, timeout_s=timeout_s, max_in_flight=0)


def group_metadata(settings: Mapping[str, Any], group: str) -> GroupMetadata:
    """What offsets of a group are committed under by somebody who is no member.

    Args:
        settings: librdkafka's, of any client.
        group: its name.
    """
    import confluent_kafka

    consumer = confluent_kafka.Consumer({**settings, "group.id": group})
    try:
        metadata: GroupMetadata = consumer.consumer_group_metadata()
        return metadata
    finally:
        consumer.close()
