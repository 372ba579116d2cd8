"""Offset requests as bytes on a socket: what other clients send, and exactly what brokers keep.

The versions are the oldest that Kafka 4 takes, without tagged fields. The broker is to be the only
one, and so the coordinator of every group.
"""

from __future__ import annotations

import struct

from headrace.streams.kafka.protocols import TopicPartition
from tests.support.raw_requests import ask, error_at

_COMMIT, _FETCH, _DELETE = (8, 2), (9, 1), (47, 0)


def commit(bootstrap: str, group: str, place: TopicPartition, offset: int, metadata: bytes) -> None:
    """Commit an offset from outside of the group; the metadata is kept without a terminator."""
    partition = struct.pack(">iq", place.partition, offset) + _string(metadata)
    head = _string(group.encode()) + struct.pack(">i", -1) + _string(b"") + struct.pack(">q", -1)
    ask(bootstrap, _COMMIT, head + _topics(place, partition), error_at(-2))


def fetch(bootstrap: str, group: str, place: TopicPartition) -> tuple[int, bytes]:
    """An offset of a group and its metadata, to the last byte; -1 for none."""
    wanted = _string(group.encode()) + _topics(place, struct.pack(">i", place.partition))
    answer = ask(bootstrap, _FETCH, wanted, error_at(-2))
    found = answer[4 + 2 + len(place.topic.encode()) + 4 + 4 :]
    (offset, length) = struct.unpack_from(">qh", found)
    return offset, found[10 : 10 + max(0, length)]


def delete(bootstrap: str, group: str, place: TopicPartition) -> None:
    """Delete an offset of a group without members, as `--delete-offsets` does."""
    wanted = _string(group.encode()) + _topics(place, struct.pack(">i", place.partition))
    ask(bootstrap, _DELETE, wanted, lambda answer: error_at(0)(answer) or error_at(-2)(answer))


def _topics(place: TopicPartition, partition: bytes) -> bytes:
    one = struct.pack(">i", 1)
    return one + _string(place.topic.encode()) + one + partition


def _string(data: bytes) -> bytes:
    return struct.pack(">h", len(data)) + data
