"""Byte layouts and hashes shared with Kafka and Kafka Streams, and memory sizes; pure functions.

Hot path: called for each record; allocate only with a reason.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from sys import getsizeof

TIMESTAMP = struct.Struct(">q")
"""Timestamp before a value: milliseconds since 1970, 8 bytes, big-endian."""
KEPT = struct.Struct(">qI")
"""Suffix of the key in a row of a window store: its time and its sequence number."""
# Kafka's value for a record without a timestamp; the lowest legal timestamp.
_NO_TIMESTAMP_MS = -1

_MURMUR_SEED = 0x9747B28C
_MURMUR_M = 0x5BD1E995
_UINT32 = 0xFFFFFFFF
_KEYS_KNOWN = 16_384
"""Number of keys whose partition is cached: 3 MB if a key takes 32 bytes."""


def encode_timestamped(timestamp_ms: int, value: bytes) -> bytes:
    """Return Kafka Streams' layout of a value with its timestamp, which is -1 for none.

    >>> encode_timestamped(1, b"v")
    b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01v'
    """
    assert timestamp_ms >= _NO_TIMESTAMP_MS, timestamp_ms
    return TIMESTAMP.pack(timestamp_ms) + value


def decode_timestamped(row: bytes) -> tuple[int, bytes]:
    """Return the timestamp in milliseconds, and the value.

    >>> decode_timestamped(encode_timestamped(1, b"v"))
    (1, b'v')
    """
    assert len(row) >= TIMESTAMP.size, row
    (timestamp_ms,) = TIMESTAMP.unpack_from(row)
    assert timestamp_ms >= _NO_TIMESTAMP_MS, timestamp_ms
    return timestamp_ms, row[TIMESTAMP.size :]


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 hash of `data`, signed as in Java.

    >>> murmur2(b"foobar")
    -790332482
    """
    length = len(data)
    h = _MURMUR_SEED ^ length
    words, tail = divmod(length, 4)
    for k in struct.unpack_from(f"<{words}I", data):
        k = (k * _MURMUR_M) & _UINT32
        k ^= k >> 24
        h = ((h * _MURMUR_M) ^ (k * _MURMUR_M)) & _UINT32
    if tail:
        h ^= int.from_bytes(data[-tail:], "little")
        h = (h * _MURMUR_M) & _UINT32
    h ^= h >> 13
    h = (h * _MURMUR_M) & _UINT32
    h ^= h >> 15
    return h - 0x1_0000_0000 if h & 0x8000_0000 else h


# Windowed results repeat the same keys, and the hash takes microseconds.
@lru_cache(maxsize=_KEYS_KNOWN)
def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's default partitioner assigns to a serialized key.

    >>> partition_for_key(b"foobar", 6)
    0
    """
    assert partitions > 0, partitions
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def prefix_end(prefix: bytes) -> bytes | None:
    r"""Return the first key after all keys that start with `prefix`; None if no such key exists.

    Use it as `scan(prefix, prefix_end(prefix))`: an end of None means unbounded.

    >>> prefix_end(b"a")
    b'b'
    >>> prefix_end(b"a\xff")
    b'b'
    >>> prefix_end(b"\xff") is None
    True
    """
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,)) if head else None


def timestamped_rows(
    delta: Sequence[tuple[bytes, bytes | None, int]],
) -> list[tuple[bytes, bytes | None]]:
    pack = TIMESTAMP.pack
    return [
        (key, None if value is None else pack(timestamp) + value) for key, value, timestamp in delta
    ]


def memory_of(values: Iterable[object]) -> int:
    """Return the memory of values and of all contained objects; shared objects count once.

    >>> row = {"name": "x" * 1_000, "tags": [1.5, 2.5]}
    >>> 1_300 < memory_of([row]) < 1_700, memory_of([row, row]) == memory_of([row])
    (True, True)
    """
    total, seen, left = 0, set(), list(values)
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        total += getsizeof(value)
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            left += value
        elif is_dataclass(value):
            left += [getattr(value, field.name) for field in fields(value)]
    return total
