"""group_by and group_by_key: what is folded together."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.topology import serdes
from tests.support.operators import driver_of

RECORDS = [(str(n), n % 3) for n in range(12)]


def count(grouped: Any) -> Any:
    return grouped.count(store="counts")


def internal(topics: Any) -> list[str]:
    return sorted(topic for topic in topics if topic.endswith("-repartition"))


@pytest.mark.parametrize("partitions", [1, 4])
def test_group_by_folds_by_what_the_selector_returns(partitions: int) -> None:
    driver = driver_of(
        lambda s: count(s.group_by(lambda k, v: v, key=serdes.long)), partitions=partitions
    )
    driver.input("in").send_many(RECORDS)
    assert dict(driver.store("counts")) == {0: 4, 1: 4, 2: 4}


@pytest.mark.parametrize("partitions", [1, 4])
def test_group_by_key_folds_by_the_key_and_needs_no_topic(partitions: int) -> None:
    driver = driver_of(lambda s: count(s.group_by_key()), partitions=partitions)
    driver.input("in").send_many([("a", 1), ("b", 1), ("a", 1)])
    assert dict(driver.store("counts")) == {"a": 2, "b": 1}
    assert internal(driver.cluster.topics) == []


def test_group_by_key_goes_through_a_topic_where_the_key_has_changed() -> None:
    driver = driver_of(
        lambda s: count(s.map(lambda k, v: (f"m{v}", v)).group_by_key()), partitions=4
    )
    driver.input("in").send_many(RECORDS)
    assert dict(driver.store("counts")) == {"m0": 4, "m1": 4, "m2": 4}
    assert internal(driver.cluster.topics) == ["test-counts-repartition"]


def test_the_topic_is_named_after_the_group_or_else_after_the_store() -> None:
    named = driver_of(lambda s: count(s.group_by(lambda k, v: k, name="by-k")))
    assert internal(named.cluster.topics) == ["test-by-k-repartition"]
    unnamed = driver_of(lambda s: count(s.group_by(lambda k, v: k)))
    assert internal(unnamed.cluster.topics) == ["test-counts-repartition"]


def test_one_named_group_can_be_folded_twice_through_one_topic() -> None:
    def step(stream: Any) -> None:
        grouped = stream.group_by(lambda k, v: "all", key=serdes.string, name="all")
        grouped.count(store="counts")
        grouped.reduce(lambda a, b: a + b, store="sums")

    driver = driver_of(step)
    driver.input("in").send_many(RECORDS)
    assert dict(driver.store("counts")) == {"all": 12}
    assert dict(driver.store("sums")) == {"all": 12}
    assert internal(driver.cluster.topics) == ["test-all-repartition"]
    assert len(driver.output("test-all-repartition").read_all()) == 12


def test_a_selector_may_return_the_same_key_in_another_serde() -> None:
    driver = driver_of(lambda s: count(s.group_by(lambda k, v: k, key=serdes.json)))
    driver.input("in").send("a", 1)
    raw = driver.output("test-counts-changelog", key=serdes.bytes).read()
    assert raw.key == b'"a"'


def test_keys_that_are_equal_in_python_and_not_in_bytes_are_two_rows() -> None:
    """1 and 1.0 and true are one dictionary key, and three in JSON."""
    driver = driver_of(lambda s: count(s.group_by(lambda k, v: v, key=serdes.json)), partitions=3)
    driver.input("in").send_many([("a", 1), ("a", 1.0), ("a", True), ("a", 1)])
    assert sorted(map(repr, driver.store("counts").items())) == ["(1, 2)", "(1.0, 1)", "(True, 1)"]


def test_lists_and_documents_can_be_keys() -> None:
    driver = driver_of(lambda s: count(s.group_by(lambda k, v: v, key=serdes.json)))
    driver.input("in").send_many([("a", [1, 2]), ("b", {"x": 1, "y": 2}), ("c", [1, 2])])
    driver.input("in").send_bytes(b"d", b'{"y": 2, "x": 1}')
    assert list(driver.store("counts").items()) == [([1, 2], 2), ({"x": 1, "y": 2}, 2)]


def test_a_null_key_of_the_selector_is_dropped_where_the_policy_says_so() -> None:
    driver = driver_of(
        lambda s: count(s.group_by(lambda k, v: k if v else None)),
        settings={"null.key.policy": "drop"},
    )
    driver.input("in").send_many([("a", 1), ("a", 0)])
    assert dict(driver.store("counts")) == {"a": 1}
