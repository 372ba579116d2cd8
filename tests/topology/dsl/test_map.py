"""map: another key and another value."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, serdes
from tests.support.operators import HEADERS, driver_of, one, results


def test_a_record_becomes_what_the_mapper_returns() -> None:
    found = results(lambda s: s.map(lambda k, v: (k + "!", v * 2)), [("a", 1), ("b", 2)])
    assert found == [("a!", 2), ("b!", 4)]


def test_keys_and_values_may_become_null_and_may_have_been_null() -> None:
    found = results(lambda s: s.map(lambda k, v: (v, k)), [("a", None), (None, "b")])
    assert found == [(None, "a"), ("b", None)]


def test_the_order_of_records_stays() -> None:
    records = [("k", n) for n in range(20)]
    assert results(lambda s: s.map(lambda k, v: (k, -v)), records) == [("k", -n) for n in range(20)]


def test_timestamp_and_headers_stay() -> None:
    record = one(lambda s: s.map(lambda k, v: ("b", 2)), "a", 1, timestamp=7, headers=HEADERS)
    assert (record.timestamp, record.headers) == (7, HEADERS)


def test_the_new_key_decides_the_partition() -> None:
    driver = driver_of(lambda s: s.map(lambda k, v: (v, k)), partitions=8)
    driver.input("in").send_many([("a", "x"), ("b", "x"), ("c", "x")])
    assert len({record.partition for record in driver.output("out").read_all()}) == 1


def test_what_is_no_pair_is_an_error_of_the_map() -> None:
    driver = driver_of(lambda s: s.map(lambda k, v: v, name="pairs"))
    with pytest.raises(RecordError, match="node pairs"):
        driver.input("in").send("a", 1)


class Named(NamedTuple):
    key: str
    value: int


@pytest.mark.parametrize("pair", [("b", 2), ["b", 2], Named("b", 2)])
def test_tuples_and_lists_of_two_are_pairs(pair: Any) -> None:
    assert results(lambda s: s.map(lambda k, v: pair), [("a", 1)]) == [("b", 2)]
    assert results(lambda s: s.flat_map(lambda k, v: [pair]), [("a", 1)]) == [("b", 2)]


NO_PAIRS = [
    ("ab", "a str"),
    ({"a": 1, "b": 2}, "a dict"),
    ({"b", "a"}, "a set"),
    (b"ab", "a bytes"),
    (None, "None"),
    (5, "an int"),
    ((1, 2, 3), "a tuple of another length than two"),
    ([1], "a list of 1"),
]


@pytest.mark.parametrize(("returned", "said"), NO_PAIRS)
@pytest.mark.parametrize("several", [False, True])
def test_what_only_comes_apart_into_two_is_no_pair(returned: Any, said: str, several: bool) -> None:
    driver = driver_of(
        lambda s: (
            s.flat_map(lambda k, v: [returned], name="pairs")
            if several
            else s.map(lambda k, v: returned, name="pairs")
        ),
    )
    with pytest.raises(RecordError) as raised:
        driver.input("in").send("a", 1)
    assert f"the function returned {said} instead of a key and a value" in str(raised.value)
    assert raised.value.node == "pairs"


def test_a_record_whose_pair_is_none_can_be_passed_over() -> None:
    records = [("a", "xy"), ("b", ["c", 5])]
    for step in (lambda k, v: v, lambda k, v: [v]):
        driver = driver_of(
            lambda s, step=step: s.map(step) if step("k", 1) == 1 else s.flat_map(step),
            settings={"processing.exception.handler": "continue"},
        )
        driver.input("in").send_many(records)
        assert [(r.key, r.value) for r in driver.output("out").read_all()] == [("c", 5)]


def test_a_table_is_grouped_by_pairs_alone() -> None:
    builder = StreamsBuilder()
    grouped = builder.table("in", key=serdes.string).group_by(
        lambda k, v: "ab", key=serdes.string, value=serdes.string
    )
    grouped.count().to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(RecordError, match="the function returned a str instead of a"):
        driver.input("in").send("a", 1)
