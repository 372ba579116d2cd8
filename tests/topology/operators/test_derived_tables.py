"""A table that is filtered or mapped says downstream which rows are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import Materialized, serdes
from headrace.topology.compile.codegen import CompileOptions
from headrace.topology.compile.compiler import compile_sub_topology
from headrace.topology.context.environment import TaskEnvironment
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.dsl.ktable import KTable
from tests.support.operators import pairs

Record = tuple[bytes | None, bytes | None]


class Message:
    """One record of the topic ``in``."""

    def __init__(self, key: bytes | None, value: bytes | None) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 1, 5

    def headers(self) -> None:
        return None


def run(table: KTable[Any, Any], builder: StreamsBuilder, records: list[Record]) -> list[Record]:
    """The records that the table's changes make of those that it reads."""
    table.to_stream().to("out", value=serdes.string)
    (sub,) = builder.build().sub_topologies
    options = CompileOptions("app", serdes.string, serdes.string)
    out: list[Record] = []
    environment = TaskEnvironment(
        send=lambda topic, value, key, partition, timestamp, headers: out.append((key, value)),
        buffers={},
        dropped=lambda node, reason: None,
    )
    program = compile_sub_topology(sub, options).bind(environment)
    program.process["in"]([Message(key, value) for key, value in records])
    return out


def table(builder: StreamsBuilder) -> KTable[str, str]:
    return builder.table("in", key=serdes.string, value=serdes.string)


def test_a_row_that_no_longer_passes_a_filter_is_deleted_downstream() -> None:
    b = StreamsBuilder()
    kept = table(b).filter(lambda _, value: value != "no")
    assert run(kept, b, [(b"k", b"yes"), (b"k", b"no")]) == [(b"k", b"yes"), (b"k", None)]


def test_filter_not_keeps_the_others() -> None:
    b = StreamsBuilder()
    kept = table(b).filter_not(lambda _, value: value == "no")
    assert run(kept, b, [(b"k", b"yes"), (b"k", b"no")]) == [(b"k", b"yes"), (b"k", None)]


def test_a_predicate_never_sees_a_deleted_row() -> None:
    b = StreamsBuilder()
    kept = table(b).filter(lambda _, value: len(value) > 0).filter_not(lambda _, v: len(v) > 9)
    assert run(kept, b, [(b"k", None)]) == [(b"k", None)]


def test_a_mapper_never_sees_a_deleted_row() -> None:
    b = StreamsBuilder()
    mapped = table(b).map_values(str.upper)
    assert run(mapped, b, [(b"k", b"a"), (b"k", None)]) == [(b"k", b"A"), (b"k", None)]


def test_a_mapper_may_take_the_key() -> None:
    b = StreamsBuilder()
    mapped = table(b).map_values(lambda key, value: key + value, with_key=True)
    assert run(mapped, b, [(b"k", b"a"), (b"k", None)]) == [(b"k", b"ka"), (b"k", None)]


def test_a_mapper_that_returns_none_deletes_the_row() -> None:
    b = StreamsBuilder()
    mapped = table(b).map_values(lambda value: None)
    assert run(mapped, b, [(b"k", b"a")]) == [(b"k", None)]


def mapped_anew(table: KTable[str, int]) -> KTable[str, int]:
    return table.map_values(lambda value: value, store="mapped", value=serdes.long)


@pytest.mark.parametrize(("cached", "derive"), [(True, lambda table: table), (False, mapped_anew)])
def test_a_cache_tells_the_value_of_the_last_commit_as_the_old_one(
    cached: bool, derive: Callable[[Any], Any]
) -> None:
    builder = StreamsBuilder()
    kept = Materialized("rows", cached=cached)
    table = derive(builder.table("in", key=serdes.string, value=serdes.long, store=kept))
    sums = table.group_by(lambda key, value: ("all", value), key=serdes.string)
    total = sums.reduce(lambda one, two: one + two, lambda one, two: one - two, store="sums")
    total.to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), commit="manual")
    for values in ((1,), (2, 3)):
        for value in values:
            driver.input("in").send("k", value)
        driver.commit()
    assert dict(driver.store("sums")) == {"all": 3}


def test_a_cache_tells_nothing_of_a_row_that_came_and_went_since_the_last_commit() -> None:
    """Where somebody below asks what was there before."""
    builder = StreamsBuilder()
    table = builder.table("in", key=serdes.string, value=serdes.long, store="rows")
    table.group_by(lambda key, value: (key, value), key=serdes.string).count(store="counts")
    table.to_stream().to("out", key=serdes.string, value=serdes.long)
    driver = TopologyTestDriver(builder.build(), commit="manual")
    for value in (1, None):
        driver.input("in").send("k", value)
    driver.commit()
    assert pairs(driver) == []
