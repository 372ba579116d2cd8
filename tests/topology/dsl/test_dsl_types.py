"""What a type checker knows of keys and values, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import pytest

from headrace.topology import serdes
from headrace.topology.dsl.branched import BranchedKStream
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.dsl.grouped import KGroupedStream
from headrace.topology.dsl.kstream import KStream
from headrace.topology.dsl.ktable import KTable
from headrace.topology.serdes import Serde
from tests.support.type_checker import type_check


def length(value: str) -> int:
    return len(value)


def pair(key: str, value: int) -> tuple[int, str]:
    return value, key


def total(key: str, value: int, sum_so_far: float) -> float:
    return sum_so_far + value


def test_serdes_have_the_type_of_their_values() -> None:
    assert_type(serdes.string, Serde[str])
    assert_type(serdes.bytes, Serde[bytes])
    assert_type(serdes.integer, Serde[int])
    assert_type(serdes.long, Serde[int])
    assert_type(serdes.double, Serde[float])
    assert_type(serdes.json, Serde[Any])
    assert_type(
        serdes.serde_from(name="x", serialize=str.encode, deserialize=bytes.decode), Serde[str]
    )


def test_a_source_has_the_types_of_its_serdes() -> None:
    b = StreamsBuilder()
    assert_type(b.stream("a", key=serdes.string, value=serdes.long), KStream[str, int])
    assert_type(b.stream("a", value=serdes.long), KStream[Any, int])
    assert_type(b.stream("a", key=serdes.long), KStream[int, Any])
    assert_type(b.stream("a"), KStream[Any, Any])
    assert_type(b.table("a", key=serdes.string, value=serdes.long), KTable[str, int])
    assert_type(b.table("a", value=serdes.long), KTable[Any, int])


def test_steps_follow_the_types_of_their_functions() -> None:
    words = StreamsBuilder().stream("a", key=serdes.string, value=serdes.string)
    lengths = words.map_values(length)
    assert_type(words.flat_map_values(str.split), KStream[str, str])
    assert_type(lengths, KStream[str, int])
    assert_type(lengths.map(pair), KStream[int, str])
    assert_type(lengths.flat_map(lambda k, v: [(v, k)]), KStream[int, str])
    assert_type(lengths.select_key(lambda _, v: v), KStream[int, int])
    assert_type(lengths.map_values(pair, with_key=True), KStream[str, tuple[int, str]])
    assert_type(lengths.filter(lambda _, v: v > 1).peek(print), KStream[str, int])
    assert_type(lengths.merge(lengths), KStream[str, int])
    assert_type(lengths.repartition(), KStream[str, int])
    split = lengths.split()
    assert_type(split, BranchedKStream[str, int])
    assert_type(split.branch(lambda k, v: k < "m").default_branch(), dict[str, KStream[str, int]])


def test_folds_have_the_types_of_what_they_fold() -> None:
    words = StreamsBuilder().stream("a", key=serdes.string, value=serdes.string)
    grouped = words.map_values(length).group_by_key()
    assert_type(grouped, KGroupedStream[str, int])
    assert_type(words.group_by(lambda _, v: len(v)), KGroupedStream[int, str])
    assert_type(grouped.count(), KTable[str, int])
    assert_type(grouped.reduce(max), KTable[str, int])
    assert_type(grouped.aggregate(float, total), KTable[str, float])
    table = words.to_table()
    assert_type(table, KTable[str, str])
    assert_type(table.map_values(length), KTable[str, int])
    assert_type(table.filter(lambda k, v: k < v).to_stream(), KStream[str, str])
    assert_type(table.to_stream(lambda _, v: len(v)), KStream[int, str])


@pytest.mark.slow
def test_mypy_agrees() -> None:
    """`assert_type` says nothing at run time; a type checker must read the files that have it."""
    tests = Path(__file__).parents[1]
    more = (
        "serdes/test_json_of.py",
        "serdes/test_list_of.py",
        "serdes/test_windows_serde.py",
        "serdes/test_avro.py",
        "serdes/test_registered_avro.py",
        "dsl/test_processor_types.py",
        "dsl/test_table_types.py",
        "dsl/test_window_types.py",
    )
    files = [__file__, *(str(tests / name) for name in more)]
    report, errors, status = type_check("--strict", "--no-error-summary", *files)
    assert (report, errors, status) == ("", "", 0)
