"""Records as bytes, by requests of our own: with header names that no Python client reads."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence

from tests.support.raw_requests import ask, error_at

RawHeaders = Sequence[tuple[bytes, bytes | None]]
_PRODUCE, _FETCH = (0, 7), (1, 4)
_BATCH_HEAD = struct.Struct(">qiibIhiqqqhii")
_POLYNOMIAL = 0x82F63B78


def write_raw(
    bootstrap: str,
    topic: str,
    headers: RawHeaders,
    *,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    partition: int = 0,
) -> int:
    """Write one record, and return its offset."""
    batch = _batch(key, value, headers)
    name = topic.encode()
    body = struct.pack(">hhiih", -1, -1, 30_000, 1, len(name)) + name
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    at = 4 + 2 + len(name) + 4 + 4  # behind topics, name, partitions, partition
    answer = ask(bootstrap, _PRODUCE, body, error_at(at))
    _error, offset = struct.unpack_from(">hq", answer, at)
    return int(offset)


def read_raw(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes | None, RawHeaders]]:
    """Return key, value and headers of the records of partition 0, which must not be compressed."""
    found: list[tuple[bytes | None, bytes | None, RawHeaders]] = []
    offset, name = 0, topic.encode()
    while True:
        body = struct.pack(">iiiibih", -1, 500, 1, 50_000_000, 1, 1, len(name)) + name
        body += struct.pack(">iiqi", 1, 0, offset, 50_000_000)
        at = 4 + 4 + 2 + len(name) + 4 + 4  # behind throttle, topics, name, partitions, partition
        answer = ask(bootstrap, _FETCH, body, error_at(at))
        _error, end, _, aborted = struct.unpack_from(">hqqi", answer, at)
        at += 22 + 16 * max(aborted, 0)
        (size,) = struct.unpack_from(">i", answer, at)
        data = answer[at + 4 : at + 4 + size]
        while data:
            base, length, _, _, _, attributes, last, *_, count = _BATCH_HEAD.unpack_from(data)
            assert not attributes & 7, "the batch is compressed"
            if not attributes & 0x20:  # of control records
                found += _records(_Reader(data, _BATCH_HEAD.size), count)
            offset, data = base + last + 1, data[12 + length :]
        if offset >= end:
            return found


def _records(
    reader: _Reader, count: int
) -> Iterator[tuple[bytes | None, bytes | None, RawHeaders]]:
    for _ in range(count):
        reader.number()
        reader.at += 1  # attributes
        reader.number(), reader.number()
        key, value = reader.sized(), reader.sized()
        headers = [(reader.sized() or b"", reader.sized()) for _ in range(reader.number())]
        yield key, value, headers


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data, self.at = data, at

    def number(self) -> int:
        found = shift = 0
        while True:
            byte = self._data[self.at]
            self.at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return (found >> 1) ^ -(found & 1)

    def sized(self) -> bytes | None:
        size = self.number()
        if size < 0:
            return None
        self.at += size
        return self._data[self.at - size : self.at]


def _batch(key: bytes | None, value: bytes | None, headers: RawHeaders) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    parts = [b"\0", _varint(0), _varint(0), _sized(key), _sized(value), _varint(len(headers))]
    for name, content in headers:
        parts += [_sized(name), _sized(content)]
    body = b"".join(parts)
    record = _varint(len(body)) + body
    summed = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1) + record
    rest = struct.pack(">ibI", -1, 2, _crc32c(summed)) + summed
    return struct.pack(">qi", 0, len(rest)) + rest


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def _crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF
