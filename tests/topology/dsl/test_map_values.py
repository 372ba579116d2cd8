"""map_values: another value under the same key."""

from __future__ import annotations

from tests.support.operators import HEADERS, driver_of, one, results


def test_a_value_becomes_what_the_mapper_returns() -> None:
    found = results(lambda s: s.map_values(lambda v: v + 1), [("a", 1), (None, 2)])
    assert found == [("a", 2), (None, 3)]


def test_the_mapper_takes_the_key_where_it_is_asked_to() -> None:
    found = results(lambda s: s.map_values(lambda k, v: f"{k}{v}", with_key=True), [("a", 1)])
    assert found == [("a", "a1")]


def test_values_may_become_null_and_may_have_been_null() -> None:
    found = results(lambda s: s.map_values(lambda v: None if v else 0), [("a", 1), ("b", None)])
    assert found == [("a", None), ("b", 0)]


def test_mappers_in_a_row_are_called_in_their_order() -> None:
    step = lambda s: s.map_values(lambda v: v + 1).map_values(lambda v: v * 10)  # noqa: E731
    assert results(step, [("a", 1)]) == [("a", 20)]


def test_timestamp_and_headers_stay() -> None:
    record = one(lambda s: s.map_values(str), "a", 1, timestamp=7, headers=HEADERS)
    assert (record.timestamp, record.headers, record.value) == (7, HEADERS, "1")


def test_the_key_stays_so_nothing_is_partitioned_anew() -> None:
    driver = driver_of(lambda s: s.map_values(str).group_by_key().count(store="counts"))
    assert [t for t in driver.cluster.topics if "repartition" in t] == []
