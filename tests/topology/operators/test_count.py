"""count: how many records each key has."""

from __future__ import annotations

from typing import Any

from headrace.topology import Materialized, serdes
from tests.support.operators import HEADERS, NO_CACHE, driver_of, pairs, results


def count(stream: Any, **options: Any) -> Any:
    return stream.group_by_key().count(**{"store": "counts", **options})


def test_each_record_makes_its_key_s_count_one_more() -> None:
    found = results(count, [("a", 1), ("b", 1), ("a", 1)], settings=NO_CACHE)
    assert found == [("a", 1), ("b", 1), ("a", 2)]


def test_null_values_are_not_counted() -> None:
    driver = driver_of(lambda s: count(s, name="count"))
    driver.input("in").send_many([("a", None), ("a", 1), ("b", None)])
    assert dict(driver.store("counts")) == {"a": 1}
    assert driver.dropped == {("count", "null value"): 2}


def test_values_that_are_false_are_counted() -> None:
    assert results(count, [("a", 0), ("a", ""), ("a", [])], settings=NO_CACHE)[-1] == ("a", 3)


def test_the_value_is_not_decoded_behind_a_repartition_topic() -> None:
    """Nobody reads it: what this application wrote itself need not be looked into."""
    decoded: list[bytes] = []

    def decode(data: bytes) -> str:
        decoded.append(data)
        return data.decode()

    spy = serdes.serde_from(serialize=str.encode, deserialize=decode, name="spy")
    driver = driver_of(
        lambda s: s.group_by(lambda k, v: k, key=serdes.string, value=spy).count(store="counts")
    )
    driver.input("in").send("a", "x")
    assert dict(driver.store("counts")) == {"a": 1}
    assert decoded == []


def test_the_timestamp_is_the_largest_of_the_row() -> None:
    driver = driver_of(count, settings=NO_CACHE)
    for time in (5, 9, 7):
        driver.input("in").send("a", 1, timestamp=time)
    assert [r.timestamp for r in driver.output("out").read_all()] == [5, 9, 9]
    assert list(driver.store("counts").rows()) == [("a", 3, 9)]
    assert [r.timestamp for r in driver.output("test-counts-changelog").read_all()] == [5, 9, 9]


def test_headers_are_those_of_the_record_that_was_counted_last() -> None:
    driver = driver_of(count, settings=NO_CACHE)
    driver.input("in").send("a", 1, headers=HEADERS)
    driver.input("in").send("a", 1)
    assert [r.headers for r in driver.output("out").read_all()] == [HEADERS, ()]


def test_counts_are_java_s_longs() -> None:
    driver = driver_of(count)
    driver.input("in").send("a", 1)
    raw = driver.output("test-counts-changelog", value=serdes.bytes).read()
    assert raw.value == b"\0\0\0\0\0\0\0\x01"


def test_a_store_without_a_name_gets_kafka_streams_one() -> None:
    driver = driver_of(lambda s: s.group_by_key().count())
    driver.input("in").send("a", 1)
    assert dict(driver.store("KSTREAM-AGGREGATE-STATE-STORE-0000000001")) == {"a": 1}


def test_a_cache_sends_on_the_last_count_of_a_commit_alone() -> None:
    driver = driver_of(count, commit="manual")
    driver.input("in").send_many([("a", 1), ("b", 1), ("a", 1)])
    driver.commit()
    assert pairs(driver) == [("a", 2), ("b", 1)]


def test_a_store_that_is_not_cached_sends_on_each_count() -> None:
    kept = Materialized("counts", cached=False)
    driver = driver_of(lambda s: count(s, store=kept), commit="manual")
    driver.input("in").send_many([("a", 1), ("a", 1)])
    driver.commit()
    assert pairs(driver) == [("a", 1), ("a", 2)]


def test_a_full_cache_is_flushed_before_the_commit() -> None:
    settings = {"statestore.cache.max.bytes": 1}
    driver = driver_of(count, settings=settings, commit="manual")
    for _ in range(2):
        driver.input("in").send_many([("a", 1), ("a", 1)])
    driver.commit()
    assert pairs(driver) == [("a", 2), ("a", 4)]


def test_counts_can_be_counted() -> None:
    def step(stream: Any) -> Any:
        by_count = count(stream).to_stream().group_by(lambda k, v: v, key=serdes.long)
        return by_count.count(store="again")

    driver = driver_of(step, settings=NO_CACHE)
    driver.input("in").send_many([("a", 1), ("a", 1), ("b", 1)])
    assert dict(driver.store("again")) == {1: 2, 2: 1}


def test_the_changelog_has_one_record_for_each_key_and_commit() -> None:
    driver = driver_of(count, settings=NO_CACHE, commit="manual")
    driver.input("in").send_many([("a", 1), ("b", 1), ("a", 1), ("a", 1)])
    driver.commit()
    assert pairs(driver, "test-counts-changelog") == [("a", 3), ("b", 1)]
