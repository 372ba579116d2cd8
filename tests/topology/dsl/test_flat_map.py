"""flat_map: any number of records of one."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.operators import HEADERS, driver_of, results


def test_a_record_becomes_all_that_the_mapper_returns_in_its_order() -> None:
    found = results(lambda s: s.flat_map(lambda k, v: [(k, n) for n in range(v)]), [("a", 3)])
    assert found == [("a", 0), ("a", 1), ("a", 2)]


def test_a_record_may_become_none() -> None:
    found = results(lambda s: s.flat_map(lambda k, v: [(k, v)] * v), [("a", 0), ("b", 1)])
    assert found == [("b", 1)]


def test_a_generator_will_do() -> None:
    def both(key: str, value: str) -> Iterator[tuple[str, str]]:
        yield key, value
        yield value, key

    assert results(lambda s: s.flat_map(both), [("a", "b")]) == [("a", "b"), ("b", "a")]


def test_each_result_has_the_timestamp_and_the_headers_of_its_record() -> None:
    driver = driver_of(lambda s: s.flat_map(lambda k, v: [(k, v), (k, v)]))
    driver.input("in").send("a", 1, timestamp=7, headers=HEADERS)
    found = driver.output("out").read_all()
    assert [(r.timestamp, r.headers) for r in found] == [(7, HEADERS)] * 2


def test_each_result_goes_all_the_way_down_before_the_next_is_made() -> None:
    events: list[str] = []

    def two(key: str, value: int) -> Iterator[tuple[str, int]]:
        for n in range(2):
            events.append(f"made {n}")
            yield key, n

    results(lambda s: s.flat_map(two).peek(lambda k, v: events.append(f"seen {v}")), [("a", 0)])
    assert events == ["made 0", "seen 0", "made 1", "seen 1"]


def test_flat_maps_multiply() -> None:
    def twice(key: str, value: str) -> list[tuple[str, str]]:
        return [(key, value + "0"), (key, value + "1")]

    found = results(lambda s: s.flat_map(twice).flat_map(twice), [("a", "")])
    assert [v for _, v in found] == ["00", "01", "10", "11"]
