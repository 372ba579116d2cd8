"""A store's values, and bytes that are sent again, where functions change values in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes
from headrace.topology.serdes import serde_from

Build = Callable[[StreamsBuilder], Any]


def spoil(value: list[Any]) -> list[Any]:
    """Change a value in place, as a function may do with what is its own."""
    value.append("spoiled")
    return value


def spoil_for_partition(_: str, __: Any, value: list[Any], ___: int) -> int:
    spoil(value)
    return 0


def beside(builder: StreamsBuilder) -> None:
    """Another branch of the stream changes the value that is stored."""
    stream = builder.stream("in", key=serdes.string)
    stream.to_table(store="rows", key=serdes.string)
    stream.map_values(spoil).to("out")


def beside_a_fold(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.string)
    stream.group_by_key().reduce(lambda _, value: value, store="rows")
    stream.map_values(spoil).to("out")


def below(builder: StreamsBuilder) -> None:
    table = builder.table("in", key=serdes.string, store="rows")
    table.to_stream().map_values(spoil).to("out")


def below_a_fold(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.string)
    table = stream.group_by_key().reduce(lambda _, value: value, store="rows")
    table.to_stream().map_values(spoil).to("out")


def at_the_end(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", key=serdes.string)
    table = stream.group_by_key().reduce(lambda _, value: value, store="rows")
    table.to_stream().to("out", partitioner=spoil_for_partition)


@pytest.mark.parametrize("build", [beside, beside_a_fold, below, below_a_fold, at_the_end])
@pytest.mark.parametrize("cache", [0, 10 << 20])
def test_a_stored_value_stays_as_it_was_whoever_changes_it(build: Build, cache: int) -> None:
    builder = StreamsBuilder()
    build(builder)
    settings = {"default.key.serde": "string", "statestore.cache.max.bytes": cache}
    with TopologyTestDriver(builder.build(), settings, commit="manual") as driver:
        driver.input("in").send("k", [1])
        driver.commit()
        assert dict(driver.store("rows", committed=True)) == {"k": [1]}


def test_a_value_that_was_changed_in_place_is_not_sent_as_the_bytes_that_were_read() -> None:
    """Whatever its serde promises of the bytes."""
    numbers = serde_from(serialize=bytes, deserialize=list, name="numbers", canonical=True)
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=numbers)
    stream.peek(lambda _, value: value.append(2)).to("out", value=numbers)
    with TopologyTestDriver(builder.build(), {"default.key.serde": "string"}) as driver:
        driver.input("in").send("k", [1])
        assert [record.value for record in driver.output("out").read_all()] == [[1, 2]]


def test_a_value_that_was_read_is_sent_as_its_serde_writes_it() -> None:
    """Where the serde reads several bytes as the same value."""
    texts = serde_from(
        serialize=str.encode,
        deserialize=lambda data: data.decode().lower(),
        name="texts",
        immutable=True,
    )
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=texts)
    stream.filter(lambda _, value: value == "a").to("out", value=texts)
    with TopologyTestDriver(builder.build(), {"default.key.serde": "string"}) as driver:
        driver.input("in", value=serdes.bytes).send("k", b"A")
        (record,) = driver.output("out", value=serdes.bytes).read_all()
        assert record.value == b"a"
