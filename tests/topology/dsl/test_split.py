"""split: each record goes to the first branch whose predicate holds."""

from __future__ import annotations

from typing import Any

from tests.support.operators import HEADERS, driver_of, pairs

RECORDS = [("a", 1), ("b", 20), ("c", 300), ("d", -1)]


def by_size(stream: Any, *, default: bool) -> None:
    split = (
        stream.split(name="size-")
        .branch(lambda k, v: v > 100, name="large")
        .branch(lambda k, v: v > 10, name="middle")
        .branch(lambda k, v: v > 0, name="small")
    )
    branches = split.default_branch(name="rest") if default else split.no_default_branch()
    for name, branch in branches.items():
        branch.to(name)


def test_a_record_goes_to_the_first_branch_that_takes_it_and_to_no_other() -> None:
    driver = driver_of(lambda s: by_size(s, default=True))
    driver.input("in").send_many(RECORDS)
    assert pairs(driver, "size-large") == [("c", 300)]
    assert pairs(driver, "size-middle") == [("b", 20)]
    assert pairs(driver, "size-small") == [("a", 1)]


def test_the_default_branch_takes_the_rest() -> None:
    driver = driver_of(lambda s: by_size(s, default=True))
    driver.input("in").send_many(RECORDS)
    assert pairs(driver, "size-rest") == [("d", -1)]


def test_without_a_default_branch_the_rest_is_dropped() -> None:
    driver = driver_of(lambda s: by_size(s, default=False))
    driver.input("in").send_many(RECORDS)
    written = [t for t in driver.cluster.topics if t.startswith("size-")]
    assert sum(len(pairs(driver, topic)) for topic in written) == 3


def test_later_predicates_are_not_asked() -> None:
    asked: list[str] = []

    def step(stream: Any) -> None:
        split = stream.split()
        for name in ("first", "second", "third"):
            split.branch(lambda k, v, name=name: asked.append(name) or v == name)
        for branch in split.default_branch().values():
            branch.to("out")

    driver = driver_of(step)
    driver.input("in").send("a", "second")
    assert asked == ["first", "second"]


def test_only_a_default_branch_takes_everything() -> None:
    driver = driver_of(lambda s: s.split(name="x-").default_branch(name="all")["x-all"])
    driver.input("in").send("a", 1)
    assert pairs(driver) == [("a", 1)]


def test_a_split_with_no_branch_drops_everything() -> None:
    driver = driver_of(lambda s: s.split().no_default_branch().get("none"))
    driver.input("in").send("a", 1)
    assert driver.processed == 1


def test_a_branch_that_nothing_follows_takes_its_records_all_the_same() -> None:
    def step(stream: Any) -> None:
        branches = (
            stream.split(name="x-").branch(lambda k, v: v > 1, name="a").default_branch(name="b")
        )
        branches["x-b"].to("out")

    driver = driver_of(step)
    driver.input("in").send_many([("a", 1), ("b", 2)])
    assert pairs(driver) == [("a", 1)]


def test_branches_can_be_split_and_merged_again() -> None:
    def step(stream: Any) -> Any:
        even, odd = stream.split().branch(lambda k, v: v % 2 == 0).default_branch().values()
        tens, others = even.split().branch(lambda k, v: v % 10 == 0).default_branch().values()
        return tens.map_values(str).merge(odd).merge(others.map_values(lambda v: [v]))

    driver = driver_of(step)
    driver.input("in").send_many([("k", n) for n in (10, 3, 4)])
    assert [v for _, v in pairs(driver)] == ["10", 3, [4]]


def test_timestamp_and_headers_stay() -> None:
    driver = driver_of(lambda s: s.split(name="x-").default_branch(name="all")["x-all"])
    driver.input("in").send("a", 1, timestamp=7, headers=HEADERS)
    record = driver.output("out").read()
    assert (record.timestamp, record.headers) == (7, HEADERS)
