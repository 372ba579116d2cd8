"""`TopologyTestDriver.store`: a mapping that reads no more than it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, Topology, serdes

KEYS = [f"key-{number:03}" for number in range(200)]


class CountingSerde(serdes.Serde[int]):
    """Integers as text; counts what it decodes."""

    name = "counting"
    canonical = True
    immutable = True

    def __init__(self) -> None:
        self.decoded = 0

    def serialize(self, value: int, /) -> bytes:
        return str(value).encode()

    def deserialize(self, data: bytes, /) -> int:
        self.decoded += 1
        return int(data)


def sums(value: CountingSerde) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=value)
    stream.group_by_key().reduce(lambda a, b: a + b, store="sums")
    return builder.build()


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("caches", [{}, {"statestore.cache.max.bytes": 0}])
def test_one_key_is_read_without_the_others(caches: dict[str, Any], committed: bool) -> None:
    value = CountingSerde()
    driver = TopologyTestDriver(sums(value), caches, partitions=2)
    driver.input("in").send_many([(key, number) for number, key in enumerate(KEYS)])
    view = driver.store("sums", committed=committed)
    value.decoded = 0
    assert view["key-007"] == 7
    assert value.decoded <= 1
    assert "key-9" not in view
    assert dict(view) == {key: number for number, key in enumerate(KEYS)}
    assert value.decoded <= 3 * len(KEYS)
