"""Reader of topics for inspection, without a group: from any offset to the end, or continuously."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from headrace.state.log import get_logger
from headrace.streams.errors import MissingTopicError
from headrace.streams.kafka.clients import BrokerState, new_consumer
from headrace.streams.kafka.consumer import without_errors
from headrace.streams.kafka.headers import read_headers
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.kafka.reactions import GONE

_BATCH = 1000
_WAIT_S = 0.2
_SILENT_S = 5.0
"""Seconds without an expected record after which the client is replaced."""
_LOOK_S = 5.0


def record_tp(message: confluent_kafka.Message) -> TopicPartition:
    """Return the partition of a record."""
    return TopicPartition(str(message.topic()), message.partition() or 0)


class TopicReader:
    """Consumer without a group that reads topics from any offset, for inspection.

    Args:
        config: librdkafka's settings, from `StreamsConfig.restore_config`.
        uncommitted: whether to include records of open and aborted transactions.
    """

    def __init__(self, config: Mapping[str, Any], *, uncommitted: bool = False) -> None:
        level = "read_uncommitted" if uncommitted else "read_committed"
        self._config = {**config, "isolation.level": level, "enable.partition.eof": True}
        self._client = new_consumer(self._config, BrokerState())

    def read(
        self, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int] | None
    ) -> Iterator[confluent_kafka.Message]:
        """Yield records in offset order per partition; `ends` is exclusive, None is endless.

        Raises:
            MissingTopicError: a topic was deleted before all of it was read.
        """
        left = {p: b for p, b in begins.items() if ends is None or b < ends[p]}
        self._assign(left)
        heard_s = time.monotonic()
        while ends is None or left:
            first = self._client.poll(_WAIT_S)
            if first is None:
                if ends is not None and time.monotonic() - heard_s >= _SILENT_S:
                    self._begin_anew(left)
                    heard_s = time.monotonic()
                continue
            heard_s = time.monotonic()
            messages = [first, *self._client.consume(_BATCH - 1, 0)]
            read_headers(messages)
            for message in messages:
                tp = record_tp(message)
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    if ends is not None:
                        left.pop(tp, None)
                elif without_errors([message], self._config) and tp in left:
                    offset = message.offset() or 0
                    left[tp] = offset + 1
                    if ends is not None and offset >= ends[tp] - 1:
                        del left[tp]
                    if ends is None or offset < ends[tp]:
                        yield message

    def _assign(self, begins: Mapping[TopicPartition, int]) -> None:
        self._client.assign(
            [confluent_kafka.TopicPartition(t, p, offset) for (t, p), offset in begins.items()]
        )

    def _begin_anew(self, left: Mapping[TopicPartition, int]) -> None:
        """Continue with another client, because a client gets no error for a deleted topic."""
        self._require_there({tp.topic for tp in left})
        waited_for = {str(tp): offset for tp, offset in left.items()}
        get_logger().warning("topic_not_read", waited_for=waited_for, after_s=_SILENT_S)
        self._client.close()
        self._client = new_consumer(self._config, BrokerState())
        self._assign(left)

    def _require_there(self, topics: Iterable[str]) -> None:
        for topic in topics:
            try:
                metadata = self._client.list_topics(topic, timeout=_LOOK_S).topics[topic]
            except KafkaException:
                continue  # no broker answers
            if metadata.error is not None and metadata.error.code() in GONE:
                raise MissingTopicError(
                    f"topic {topic} was deleted while it was read", topics=[topic]
                )

    def close(self) -> None:
        self._client.close()
