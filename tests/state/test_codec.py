from __future__ import annotations

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.codec import (
    decode_timestamped,
    encode_timestamped,
    murmur2,
    partition_for_key,
    prefix_end,
)

timestamps = st.integers(-1, 2**63 - 1)


@given(timestamp_ms=timestamps, value=st.binary())
def test_a_timestamped_value_comes_back(timestamp_ms: int, value: bytes) -> None:
    assert decode_timestamped(encode_timestamped(timestamp_ms, value)) == (timestamp_ms, value)


def test_the_layout_is_kafka_streams_own() -> None:
    """ValueAndTimestampSerializer: the timestamp as a signed big-endian long, then the value."""
    assert encode_timestamped(0x0102030405060708, b"v") == b"\x01\x02\x03\x04\x05\x06\x07\x08v"
    assert encode_timestamped(-1, b"") == b"\xff" * 8


def test_what_is_no_timestamped_value_is_neither_made_nor_read() -> None:
    with pytest.raises(AssertionError):
        encode_timestamped(-2, b"")
    with pytest.raises(AssertionError):
        decode_timestamped(b"short")
    with pytest.raises(AssertionError):
        decode_timestamped(b"\xff" * 7 + b"\xfe")


# The vectors of Kafka's UtilsTest.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected


def java_murmur2(data: bytes) -> int:
    """Kafka's Utils.murmur2, statement by statement."""
    mask = 0xFFFFFFFF
    m, r = 0x5BD1E995, 24
    length = len(data)
    h = 0x9747B28C ^ length
    for i in range(length // 4):
        i4 = i * 4
        k = data[i4] + (data[i4 + 1] << 8) + (data[i4 + 2] << 16) + (data[i4 + 3] << 24)
        k = k * m & mask
        k ^= k >> r
        k = k * m & mask
        h = h * m & mask
        h ^= k
    index = length & ~3
    if length % 4 == 3:
        h ^= data[index + 2] << 16
    if length % 4 >= 2:
        h ^= data[index + 1] << 8
    if length % 4 >= 1:
        h ^= data[index]
        h = h * m & mask
    h ^= h >> 13
    h = h * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


@given(st.binary(max_size=40))
def test_murmur2_follows_javas_statements(data: bytes) -> None:
    assert murmur2(data) == java_murmur2(data)


@given(key=st.binary(max_size=20), partitions=st.integers(1, 1_000))
def test_a_partition_is_the_positive_hash_modulo_their_number(key: bytes, partitions: int) -> None:
    assert partition_for_key(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions
    assert partition_for_key(key, partitions) == confluent_kafka.murmur2(key, partitions)


@given(prefix=st.binary(max_size=3), key=st.binary(max_size=5))
def test_the_end_of_a_prefix_parts_its_keys_from_the_later_ones(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)
    within = key >= prefix and (end is None or key < end)
    assert within == key.startswith(prefix)
