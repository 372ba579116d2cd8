"""Murmur2 over columns: Kafka's own vectors, and the scalar form on any bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark_bridge.records.murmur import murmur2_of, partitions_of_keys
from headrace.state.codec import murmur2, partition_for_key

# From org.apache.kafka.common.utils.UtilsTest.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), VECTORS.items())
def test_kafkas_own_vectors_come_out(key: bytes, expected: int) -> None:
    (found,) = murmur2_of(pa.array([key], pa.binary())).tolist()
    assert found == expected & 0xFFFFFFFF


@given(st.lists(st.binary(max_size=40)), st.integers(1, 64), st.integers(0, 5))
def test_a_column_is_hashed_as_its_keys_are_one_by_one(
    keys: list[bytes], partitions: int, cut: int
) -> None:
    """Also where the column is a slice of a longer one."""
    column = pa.array(keys, pa.binary()).slice(cut)
    assert murmur2_of(column).tolist() == [murmur2(key) & 0xFFFFFFFF for key in keys[cut:]]
    expected = [partition_for_key(key, partitions) for key in keys[cut:]]
    assert partitions_of_keys(column, partitions).tolist() == expected


def test_a_null_does_not_disturb_the_keys_around_it() -> None:
    hashes = murmur2_of(pa.array([b"abc", None, b"21"], pa.binary())).tolist()
    assert hashes[0] == VECTORS[b"abc"]
    assert hashes[2] == VECTORS[b"21"] & 0xFFFFFFFF
