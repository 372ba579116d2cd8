"""map: another key and another value."""

from __future__ import annotations

import pytest

from streams.errors import RecordError
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
