"""filter and filter_not: which records pass."""

from __future__ import annotations

from headrace.topology import StreamsBuilder
from tests.support.operators import HEADERS, Stream, driver_of, one, pairs, results


def test_filter_keeps_the_records_for_which_the_predicate_holds() -> None:
    found = results(lambda s: s.filter(lambda k, v: v > 1), [("a", 1), ("b", 2), ("c", 3)])
    assert found == [("b", 2), ("c", 3)]


def test_filter_not_keeps_the_others() -> None:
    found = results(lambda s: s.filter_not(lambda k, v: v > 1), [("a", 1), ("b", 2), ("c", 3)])
    assert found == [("a", 1)]


def test_the_predicate_sees_the_key() -> None:
    assert results(lambda s: s.filter(lambda k, v: k == "b"), [("a", 1), ("b", 1)]) == [("b", 1)]


def test_any_true_value_will_do() -> None:
    found = results(lambda s: s.filter(lambda k, v: v), [("a", []), ("b", [0]), ("c", 0)])
    assert found == [("b", [0])]


def test_null_keys_and_values_reach_the_predicate() -> None:
    seen: list[object] = []
    records = [(None, 1), ("a", None), (None, None)]
    assert results(lambda s: s.filter(lambda k, v: seen.append((k, v)) or True), records) == records
    assert seen == records


def test_filters_in_a_row_ask_only_for_what_the_first_has_kept() -> None:
    asked: list[int] = []

    def small(key: str, value: int) -> bool:
        asked.append(value)
        return value < 10

    found = results(
        lambda s: s.filter(lambda k, v: v > 1).filter(small), [("a", 1), ("a", 5), ("a", 50)]
    )
    assert found == [("a", 5)]
    assert asked == [5, 50]


def test_timestamp_and_headers_stay() -> None:
    record = one(lambda s: s.filter(lambda k, v: True), "a", 1, timestamp=7, headers=HEADERS)
    assert (record.timestamp, record.headers) == (7, HEADERS)


def test_one_filter_does_not_concern_its_siblings() -> None:
    def step(stream: Stream) -> None:
        stream.filter(lambda k, v: v > 1).to("large")
        stream.filter_not(lambda k, v: v > 1).to("small")

    driver = driver_of(step)
    driver.input("in").send_many([("a", 1), ("b", 2)])
    assert pairs(driver, "large") == [("b", 2)]
    assert pairs(driver, "small") == [("a", 1)]


def test_the_names_of_both_are_those_of_kafka_streams() -> None:
    builder = StreamsBuilder()
    builder.stream("in").filter(lambda k, v: True).filter_not(lambda k, v: True).to("out")
    text = builder.build().describe()
    assert "KSTREAM-FILTER-0000000001" in text
    assert "KSTREAM-FILTER-0000000002" in text
