"""flat_map_values: any number of values under one key."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.streams.config.handlers import Answer, Failure
from headrace.streams.errors import RecordError
from headrace.topology.errors import NoResultsError
from tests.support.operators import HEADERS, driver_of, results


def test_a_value_becomes_all_that_the_mapper_returns_in_its_order() -> None:
    found = results(lambda s: s.flat_map_values(str.split), [("a", "x y"), ("b", ""), (None, "z")])
    assert found == [("a", "x"), ("a", "y"), (None, "z")]


def test_the_mapper_takes_the_key_where_it_is_asked_to() -> None:
    found = results(lambda s: s.flat_map_values(lambda k, v: [k, v], with_key=True), [("a", "x")])
    assert found == [("a", "a"), ("a", "x")]


def test_a_null_value_reaches_the_mapper() -> None:
    found = results(lambda s: s.flat_map_values(lambda v: [v, v]), [("a", None)])
    assert found == [("a", None), ("a", None)]


def test_each_result_has_the_timestamp_and_the_headers_of_its_record() -> None:
    driver = driver_of(lambda s: s.flat_map_values(list))
    driver.input("in").send("a", "xy", timestamp=7, headers=HEADERS)
    found = driver.output("out").read_all()
    assert [(r.value, r.timestamp, r.headers) for r in found] == [
        ("x", 7, HEADERS),
        ("y", 7, HEADERS),
    ]


def test_the_key_stays_so_nothing_is_partitioned_anew() -> None:
    driver = driver_of(lambda s: s.flat_map_values(list).group_by_key().count(store="counts"))
    assert [t for t in driver.cluster.topics if "repartition" in t] == []


def test_a_mapper_that_returns_no_results_is_told_what_to_return() -> None:
    said = "the function returned {} instead of an iterable of results; return a list"
    where = r".*offset 0 .*node step, function tests/topology/dsl/test_flat_map_values.py:\d+"
    flats: list[tuple[Any, str]] = [
        (lambda s: s.flat_map_values(lambda v: None, name="step"), "None"),
        (lambda s: s.flat_map_values(lambda v: v, name="step"), "an object of type int"),
        (lambda s: s.flat_map_values(lambda k, v: v, name="step", with_key=True), ".* type int"),
        (lambda s: s.flat_map(lambda k, v: None, name="step"), "None"),
        (lambda s: s.flat_map(lambda k, v: v, name="step"), "an object of type int"),
    ]
    for flat, returned in flats:
        driver = driver_of(flat)
        with pytest.raises(RecordError, match=said.format(returned) + where) as raised:
            driver.input("in").send("a", 1)
        assert isinstance(raised.value.__cause__, NoResultsError)


def test_a_handler_is_told_of_a_mapper_that_returns_no_results() -> None:
    failures: list[Failure] = []

    def handler(failure: Failure) -> Answer:
        failures.append(failure)
        return "continue"

    settings = {"processing.exception.handler": handler}
    for flat in (lambda s: s.flat_map_values(len), lambda s: s.flat_map(lambda k, v: 5)):
        results(flat, [("a", "x")], settings=settings)
    assert [type(failure.error) for failure in failures] == [NoResultsError] * 2


def test_what_fails_within_a_mapper_is_no_fault_of_what_it_returns() -> None:
    mappers: list[Any] = [list, lambda v: [x + 1 for x in v], lambda v: list(v), lambda v: iter(v)]
    for mapper in mappers:
        driver = driver_of(lambda s, mapper=mapper: s.flat_map_values(mapper))
        with pytest.raises(RecordError, match="a user function raised TypeError"):
            driver.input("in").send("a", 1)
