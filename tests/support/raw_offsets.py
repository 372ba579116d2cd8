"""Offset requests as bytes on a socket: what other clients send, and exactly what brokers keep.

The versions are the oldest that Kafka 4 takes, without tagged fields. The broker is to be the only
one, and so the coordinator of every group.
"""

from __future__ import annotations

import socket
import struct

from headrace.streams.kafka.protocols import TopicPartition
from tests.support.patience import PATIENCE_S

_COMMIT, _FETCH, _DELETE = (8, 2), (9, 1), (47, 0)


def commit(bootstrap: str, group: str, place: TopicPartition, offset: int, metadata: bytes) -> None:
    """Commit an offset from outside of the group; the metadata is kept without a terminator."""
    partition = struct.pack(">iq", place.partition, offset) + _string(metadata)
    head = _string(group.encode()) + struct.pack(">i", -1) + _string(b"") + struct.pack(">q", -1)
    answer = _ask(bootstrap, _COMMIT, head + _topics(place, partition))
    assert answer[-2:] == b"\0\0", answer


def fetch(bootstrap: str, group: str, place: TopicPartition) -> tuple[int, bytes]:
    """An offset of a group and its metadata, to the last byte; -1 for none."""
    wanted = _string(group.encode()) + _topics(place, struct.pack(">i", place.partition))
    answer = _ask(bootstrap, _FETCH, wanted)
    found = answer[4 + 2 + len(place.topic.encode()) + 4 + 4 :]
    (offset, length) = struct.unpack_from(">qh", found)
    return offset, found[10 : 10 + max(0, length)]


def delete(bootstrap: str, group: str, place: TopicPartition) -> None:
    """Delete an offset of a group without members, as `--delete-offsets` does."""
    wanted = _string(group.encode()) + _topics(place, struct.pack(">i", place.partition))
    answer = _ask(bootstrap, _DELETE, wanted)
    assert answer[:2] == b"\0\0" == answer[-2:], answer


def _topics(place: TopicPartition, partition: bytes) -> bytes:
    one = struct.pack(">i", 1)
    return one + _string(place.topic.encode()) + one + partition


def _string(data: bytes) -> bytes:
    return struct.pack(">h", len(data)) + data


def _ask(bootstrap: str, api: tuple[int, int], body: bytes) -> bytes:
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    request = struct.pack(">hhi", *api, 1) + _string(b"raw") + body
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answers:
            (length,) = struct.unpack(">i", answers.read(4))
            return answers.read(length)[4:]
