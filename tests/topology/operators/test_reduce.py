"""reduce: two values of a key become one."""

from __future__ import annotations

from typing import Any

from headrace.topology import serdes
from tests.support.operators import NO_CACHE, driver_of, results


def total(stream: Any) -> Any:
    return stream.group_by_key().reduce(lambda old, new: old + new, store="sums")


def test_the_first_value_is_taken_as_it_is_and_the_others_are_combined() -> None:
    found = results(total, [("a", 1), ("b", 10), ("a", 2), ("a", 3)], settings=NO_CACHE)
    assert found == [("a", 1), ("b", 10), ("a", 3), ("a", 6)]


def test_the_old_value_comes_first() -> None:
    found = results(
        lambda s: s.group_by_key().reduce(lambda old, new: old + new, store="texts"),
        [("a", "x"), ("a", "y"), ("a", "z")],
        settings=NO_CACHE,
    )
    assert found[-1] == ("a", "xyz")


def test_null_values_are_left_out() -> None:
    driver = driver_of(total)
    driver.input("in").send_many([("a", 1), ("a", None), ("a", 2)])
    assert dict(driver.store("sums")) == {"a": 3}


def test_a_result_of_none_deletes_the_row_and_the_next_value_is_a_first_one() -> None:
    def reducer(old: int, new: int) -> int | None:
        return None if new < 0 else old + new

    driver = driver_of(lambda s: s.group_by_key().reduce(reducer, store="sums"), settings=NO_CACHE)
    driver.input("in").send_many([("a", 1), ("a", 2), ("a", -1), ("a", 5), ("b", -7)])
    written = [(r.key, r.value) for r in driver.output("out").read_all()]
    assert written == [("a", 1), ("a", 3), ("a", None), ("a", 5), ("b", -7)]
    assert driver.output("test-sums-changelog").as_dict() == {"a": 5, "b": -7}
    assert dict(driver.store("sums")) == {"a": 5, "b": -7}


def test_a_value_that_is_false_is_a_value() -> None:
    found = results(total, [("a", 0), ("a", 0)], settings=NO_CACHE)
    assert found == [("a", 0), ("a", 0)]


def test_the_timestamp_is_the_larger_one() -> None:
    driver = driver_of(total, settings=NO_CACHE)
    for value, time in ((1, 9), (2, 5)):
        driver.input("in").send("a", value, timestamp=time)
    assert [r.timestamp for r in driver.output("out").read_all()] == [9, 9]


def test_the_store_takes_the_serdes_that_it_is_given() -> None:
    driver = driver_of(
        lambda s: s.group_by_key().reduce(
            lambda old, new: old + new, store="sums", value=serdes.double
        )
    )
    driver.input("in").send_many([("a", 1.5), ("a", 2.0)])
    raw = driver.output("test-sums-changelog", value=serdes.bytes).read_all()[-1]
    assert raw.value == serdes.double.serialize(3.5)


def test_a_value_is_combined_across_commits() -> None:
    driver = driver_of(total, commit="manual")
    for value in (1, 2, 3):
        driver.input("in").send("a", value)
        driver.commit()
    assert [r.value for r in driver.output("out").read_all()] == [1, 3, 6]
