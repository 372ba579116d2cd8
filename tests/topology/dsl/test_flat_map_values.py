"""flat_map_values: any number of values under one key."""

from __future__ import annotations

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
