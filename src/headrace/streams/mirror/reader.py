"""Reads what is mirrored: committed records of some partitions, and how far that is.

A record's offset alone does not say where to go on: markers and aborted records stand behind it. At
the end of a partition the client says the offset, which is behind all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, Message

from headrace.streams.kafka.broker_contact import Heard
from headrace.streams.kafka.consumer import Batches, by_partition
from headrace.streams.kafka.headers import read_headers
from headrace.streams.kafka.kafka_clients import new_consumer
from headrace.streams.seams.clients import GroupMetadata, TopicPartition

_QUEUE_KIB, _QUEUE_RECORDS = 16 * 1024, 20_000
"""What is fetched ahead: it is memory."""


class SourceReader:
    """See the module.

    Args:
        config: librdkafka's settings, from `StreamsConfig.restore_config`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = {
            "queued.max.messages.kbytes": _QUEUE_KIB,
            "queued.min.messages": _QUEUE_RECORDS,
            **config,
            "enable.partition.eof": True,
        }
        self._client = new_consumer(self._config, Heard())
        self.positions: dict[TopicPartition, int] = {}
        """The next offset of each: what is before it was handed out, or is no committed record."""

    def add(self, begins: Mapping[TopicPartition, int]) -> None:
        """Begin to read some partitions at these offsets."""
        self.positions.update(begins)
        self._client.incremental_assign(
            [confluent_kafka.TopicPartition(t, p, offset) for (t, p), offset in begins.items()]
        )

    def poll(self, records_max: int, timeout_s: float) -> Batches:
        """What is there, or the first record that comes in time, by partition.

        Raises:
            OffsetLostError: the next record of a partition is not there any more.
            StreamsError: the brokers do not let this client read.
        """
        messages = self._client.consume(records_max, 0)
        if not messages and timeout_s > 0:
            first = self._client.poll(timeout_s)
            if first is None:
                return {}
            messages = [first, *self._client.consume(records_max - 1, 0)]
        ends = {}
        if set(map(Message.error, messages)) != {None}:
            ends = {_place(m): m.offset() or 0 for m in messages if _is_end(m)}
            messages = [m for m in messages if not _is_end(m)]
        read_headers(messages)
        batches = by_partition(messages, self._config) if messages else {}
        for place, batch in batches.items():
            self.positions[place] = batch[-1].offset() + 1
        for place, end in ends.items():
            self.positions[place] = max(self.positions[place], end)
        return batches

    def lags(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """How many offsets the brokers are known to have behind the positions."""
        found = {}
        for place in places:
            ends = self._client.get_watermark_offsets(
                confluent_kafka.TopicPartition(*place), cached=True
            )
            if ends is not None and ends[1] >= 0:
                found[place] = max(0, int(ends[1]) - self.positions[place])
        return found

    def group_metadata(self) -> GroupMetadata:
        """What offsets are committed under: the group, which has no members."""
        metadata: GroupMetadata = self._client.consumer_group_metadata()
        return metadata

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def _place(message: Message) -> TopicPartition:
    return TopicPartition(str(message.topic()), message.partition() or 0)
