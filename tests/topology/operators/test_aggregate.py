"""aggregate: values of a key are folded into something else."""

from __future__ import annotations

from typing import Any

from headrace.topology import serdes
from tests.support.operators import NO_CACHE, driver_of, results


def history(stream: Any, **options: Any) -> Any:
    return stream.group_by_key().aggregate(
        list, lambda k, v, seen: [*seen, v], **{"store": "histories", **options}
    )


def test_each_value_is_folded_into_what_the_initializer_made() -> None:
    found = results(history, [("a", 1), ("b", 2), ("a", 3)], settings=NO_CACHE)
    assert found == [("a", [1]), ("b", [2]), ("a", [1, 3])]


def test_the_initializer_is_called_once_for_each_key() -> None:
    made: list[int] = []

    def new() -> int:
        made.append(1)
        return 100

    driver = driver_of(lambda s: s.group_by_key().aggregate(new, lambda k, v, a: a + v, store="x"))
    driver.input("in").send_many([("a", 1), ("b", 1), ("a", 1)])
    assert dict(driver.store("x")) == {"a": 102, "b": 101}
    assert len(made) == 2


def test_the_aggregator_gets_key_value_and_aggregate() -> None:
    found = results(
        lambda s: s.group_by_key().aggregate(
            str, lambda k, v, a: f"{a}{k}{v}", store="x", value=serdes.string
        ),
        [("a", 1), ("a", 2)],
    )
    assert found[-1] == ("a", "a1a2")


def test_null_values_are_left_out() -> None:
    driver = driver_of(lambda s: history(s, name="fold"))
    driver.input("in").send_many([("a", None), ("a", 1)])
    assert dict(driver.store("histories")) == {"a": [1]}
    assert driver.dropped == {("fold", "null value"): 1}


def test_a_result_of_none_deletes_the_row_and_the_initializer_begins_anew() -> None:
    driver = driver_of(
        lambda s: s.group_by_key().aggregate(
            int, lambda k, v, a: None if v == 0 else a + v, store="x"
        ),
        settings=NO_CACHE,
    )
    driver.input("in").send_many([("a", 1), ("a", 2), ("a", 0), ("a", 4)])
    assert [r.value for r in driver.output("out").read_all()] == [1, 3, None, 4]
    assert [r.value for r in driver.output("test-x-changelog").read_all()] == [1, 3, None, 4]
    assert dict(driver.store("x")) == {"a": 4}


def test_a_row_that_was_deleted_is_gone_after_a_restore_too() -> None:
    driver = driver_of(
        lambda s: s.group_by_key().aggregate(int, lambda k, v, a: v or None, store="x")
    )
    driver.input("in").send_many([("a", 1), ("b", 1), ("a", 0)])
    driver.crash(keep=False)
    driver.run()
    assert driver.restored == 3
    assert dict(driver.store("x", committed=True)) == {"b": 1}


def test_a_row_that_never_was_is_not_deleted() -> None:
    """Trap 8: Kafka Streams passes on such deletions."""
    driver = driver_of(
        lambda s: s.group_by_key().aggregate(int, lambda k, v, a: None, store="x"),
        settings=NO_CACHE,
    )
    driver.input("in").send("a", 1)
    assert driver.output("out").read_all() == []
    assert dict(driver.store("x")) == {}


def test_the_timestamp_is_the_largest_of_the_row() -> None:
    driver = driver_of(history, settings=NO_CACHE)
    for time in (5, 3, 8):
        driver.input("in").send("a", time, timestamp=time)
    assert [r.timestamp for r in driver.output("out").read_all()] == [5, 5, 8]


def test_a_deleted_row_forgets_its_timestamp() -> None:
    """As in Kafka Streams, where a row that is not there has no timestamp to compare with."""
    driver = driver_of(
        lambda s: s.group_by_key().aggregate(int, lambda k, v, a: v or None, store="x"),
        settings=NO_CACHE,
    )
    for value, time in ((1, 9), (0, 9), (2, 3)):
        driver.input("in").send("a", value, timestamp=time)
    assert [r.timestamp for r in driver.output("out").read_all()] == [9, 9, 3]


def test_a_deleted_row_forgets_its_timestamp_within_one_commit_as_well() -> None:
    driver = driver_of(
        lambda s: s.group_by_key().aggregate(int, lambda k, v, a: v or None, store="x"),
        settings=NO_CACHE,
        commit="manual",
    )
    for value, time in ((1, 9), (0, 9), (2, 3)):
        driver.input("in").send("a", value, timestamp=time)
    driver.commit()
    assert [r.timestamp for r in driver.output("out").read_all()] == [9, 9, 3]


def test_a_value_that_is_bytes_is_a_value() -> None:
    driver = driver_of(
        lambda s: s.group_by_key().aggregate(
            lambda: b"", lambda k, v, a: a + v.encode(), store="x", value=serdes.bytes
        ),
        commit="manual",
    )
    driver.input("in").send_many([("a", "x"), ("a", "y")])
    assert dict(driver.store("x")) == {"a": b"xy"}
    driver.commit()
    assert dict(driver.store("x")) == {"a": b"xy"}
