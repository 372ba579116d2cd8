"""Markers: records written at the very end, which show that no transaction hangs before them."""

from __future__ import annotations

import time
from collections.abc import Mapping

import confluent_kafka

from tests.chaos.history import Marker, Place
from tests.support import kafka

MARKER_KEY = b"\x00 chaos marker".ljust(40, b"\x00")
"""As long as a key with a window: what is restored after a check restores them too."""
_WRITE_S = 60

FullPlace = tuple[str, int]


def write_markers(
    bootstrap: str, places: Mapping[FullPlace, Place], *, patience_s: float
) -> dict[Place, Marker]:
    """Write a marker into each partition and read it back as a reader of committed records.

    Args:
        bootstrap: brokers to find the cluster by.
        places: the name in a history of each partition of the cluster.
        patience_s: how long a marker may take to be handed out.

    Returns:
        The markers; a partition that could not be written has none.
    """
    offsets = _write(bootstrap, places)
    unread = _unread(bootstrap, offsets, patience_s)
    return {
        places[place]: Marker(offset, read_back=place not in unread)
        for place, offset in offsets.items()
    }


def _write(bootstrap: str, places: Mapping[FullPlace, Place]) -> dict[FullPlace, int]:
    offsets: dict[FullPlace, int] = {}

    def note(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is None and topic is not None and partition is not None and offset is not None:
            offsets[topic, partition] = offset

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 2}
    )
    for topic, partition in places:
        producer.produce(topic, b"", MARKER_KEY, partition=partition, on_delivery=note)
    producer.flush(_WRITE_S)
    return offsets


def _unread(bootstrap: str, offsets: Mapping[FullPlace, int], patience_s: float) -> set[FullPlace]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-without-a-group",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "log_level": 2,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(t, p, o) for (t, p), o in offsets.items()])
    unread = set(offsets)
    deadline = time.monotonic() + patience_s
    try:
        while unread and time.monotonic() < deadline:
            for message in kafka.batch(consumer, 1000, 0.2):
                topic, partition = message.topic(), message.partition()
                assert topic is not None
                assert partition is not None
                if message.error() is None and message.offset() == offsets[topic, partition]:
                    unread.discard((topic, partition))
    finally:
        consumer.close()
    return unread
