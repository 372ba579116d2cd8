"""peek, for_each and print: doing something with each record."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operators import HEADERS, driver_of, one, pairs, results


def test_peek_sees_each_record_and_lets_it_pass() -> None:
    seen: list[Any] = []
    records = [("a", 1), (None, None), ("b", 2)]
    assert results(lambda s: s.peek(lambda k, v: seen.append((k, v))), records) == records
    assert seen == records


def test_peek_keeps_timestamp_and_headers() -> None:
    record = one(lambda s: s.peek(lambda k, v: None), "a", 1, timestamp=7, headers=HEADERS)
    assert (record.timestamp, record.headers) == (7, HEADERS)


def test_what_peek_returns_does_not_matter() -> None:
    assert results(lambda s: s.peek(lambda k, v: ("x", 9)), [("a", 1)]) == [("a", 1)]


def test_for_each_sees_each_record_and_ends_the_stream() -> None:
    seen: list[Any] = []
    driver = driver_of(lambda s: s.for_each(lambda k, v: seen.append((k, v))))
    driver.input("in").send_many([("a", 1), ("b", 2)])
    assert seen == [("a", 1), ("b", 2)]
    assert driver.processed == 2


def test_siblings_see_a_record_in_the_order_in_which_they_were_written() -> None:
    seen: list[str] = []

    def step(stream: Any) -> None:
        stream.for_each(lambda k, v: seen.append("first"))
        stream.peek(lambda k, v: seen.append("second")).to("out")
        stream.for_each(lambda k, v: seen.append("third"))

    driver = driver_of(step)
    driver.input("in").send_many([("a", 1), ("a", 2)])
    assert seen == ["first", "second", "third"] * 2
    assert pairs(driver) == [("a", 1), ("a", 2)]


def test_print_writes_each_record_behind_its_label(capsys: pytest.CaptureFixture[str]) -> None:
    driver = driver_of(lambda s: s.print(label="in"))
    driver.input("in").send_many([("a", {"n": 1}), (None, None)])
    assert capsys.readouterr().out == "[in]: a, {'n': 1}\n[in]: None, None\n"


def test_print_takes_the_name_of_the_node_before(capsys: pytest.CaptureFixture[str]) -> None:
    driver = driver_of(lambda s: s.filter(lambda k, v: True, name="kept").print())
    driver.input("in").send("a", 1)
    assert capsys.readouterr().out == "[kept]: a, 1\n"


def test_a_label_may_hold_what_source_code_would_take_for_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    driver = driver_of(lambda s: s.print(label="{'\"\\n}"))
    driver.input("in").send("{k}", "%s")
    assert capsys.readouterr().out == "[{'\"\\n}]: {k}, %s\n"
