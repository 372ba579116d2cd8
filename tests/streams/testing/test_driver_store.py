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


@pytest.mark.parametrize("committed", [True, False])
def test_it_is_asked_in_the_words_of_a_running_application(committed: bool) -> None:
    driver = TopologyTestDriver(sums(CountingSerde()), partitions=2)
    driver.input("in").send_many([(key, number) for number, key in enumerate(KEYS)])
    view = driver.store("sums", committed=committed)
    assert (view.get("key-003"), view.get("none")) == (3, None)
    assert view.get_many(["key-004", "none", "key-001"]) == [4, None, 1]
    found = [(key, value) for key, value, _ in view.range("key-001", "key-002")]
    assert found == [("key-001", 1), ("key-002", 2)]
    assert [key for key, _, _ in view.range("key-198", None)] == KEYS[198:]
    assert [key for key, _, _ in view.range(None, "key-001")] == KEYS[:2]
    assert [key for key, _, _ in view.prefix_scan("key-19")] == KEYS[190:]
