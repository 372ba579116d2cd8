"""select_key: another key for the same value."""

from __future__ import annotations

from tests.support.operators import HEADERS, driver_of, one, results


def test_the_key_becomes_what_the_mapper_returns() -> None:
    found = results(lambda s: s.select_key(lambda k, v: f"{k}{v}"), [("a", 1), (None, 2)])
    assert found == [("a1", 1), ("None2", 2)]


def test_the_key_may_become_null() -> None:
    assert results(lambda s: s.select_key(lambda k, v: None), [("a", 1)]) == [(None, 1)]


def test_timestamp_and_headers_stay() -> None:
    record = one(lambda s: s.select_key(lambda k, v: "b"), "a", 1, timestamp=7, headers=HEADERS)
    assert (record.key, record.timestamp, record.headers) == ("b", 7, HEADERS)


def test_what_needs_equal_keys_together_repartitions_behind_it() -> None:
    driver = driver_of(
        lambda s: s.select_key(lambda k, v: v).group_by_key().count(store="counts"), partitions=4
    )
    driver.input("in").send_many([(str(n), "x") for n in range(20)])
    assert dict(driver.store("counts")) == {"x": 20}
    assert "test-counts-repartition" in driver.cluster.topics


def test_the_last_of_several_counts() -> None:
    step = lambda s: s.select_key(lambda k, v: "b").select_key(lambda k, v: k + "c")  # noqa: E731
    assert results(step, [("a", 1)]) == [("bc", 1)]
