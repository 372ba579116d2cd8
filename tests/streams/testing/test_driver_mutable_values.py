"""Aggregates that functions change in place: the result is what copies would have given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import KStream, KTable, StreamsBuilder, Topology, serdes
from tests.support.topologies import EXACTLY_ONCE, NO_CACHE

INPUT = [("a", 1), ("b", 2), ("a", 3), ("a", 4), ("b", 5)]
LISTS = {"a": [1, 3, 4], "b": [2, 5]}

SETTINGS = pytest.mark.parametrize("settings", [NO_CACHE, EXACTLY_ONCE], ids=["no-cache", "cache"])


def append(key: Any, value: Any, seen: list[Any]) -> list[Any]:
    seen.append(value)
    return seen


def lists(
    then: Callable[[KTable[Any, Any]], Any],
    before: Callable[[KStream[Any, Any]], Any] | None = None,
) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string)
    if before is not None:
        stream = before(stream)
    then(stream.group_by_key().aggregate(list, append, store="lists"))
    return builder.build()


@SETTINGS
@pytest.mark.parametrize("commit_every", [1, 2, 5])
def test_an_aggregate_that_is_changed_in_place_is_kept_as_it_is(
    settings: dict[str, object], commit_every: int
) -> None:
    driver = TopologyTestDriver(
        lists(lambda table: table.to_stream().to("out")), settings, commit="manual"
    )
    for number, (key, value) in enumerate(INPUT, start=1):
        driver.input("in").send(key, value)
        if number % commit_every == 0:
            driver.commit()
    driver.commit()
    assert dict(driver.store("lists")) == LISTS
    assert driver.output("out").as_dict() == LISTS
    assert driver.output("test-lists-changelog").as_dict() == LISTS


def test_each_update_that_comes_out_shows_the_aggregate_of_its_moment() -> None:
    driver = TopologyTestDriver(
        lists(lambda table: table.to_stream().to("out")), NO_CACHE, commit="manual"
    )
    driver.input("in").send_many(INPUT)
    driver.commit()
    written = [r.value for r in driver.output("out").read_all()]
    assert written == [[1], [2], [1, 3], [1, 3, 4], [2, 5]]


@SETTINGS
def test_a_function_downstream_that_spoils_what_it_gets_does_not_spoil_the_store(
    settings: dict[str, object],
) -> None:
    def spoil(key: Any, value: list[Any]) -> None:
        value.append("spoilt")

    driver = TopologyTestDriver(
        lists(lambda table: table.to_stream().peek(spoil)), settings, commit="manual"
    )
    for key, value in INPUT:
        driver.input("in").send(key, value)
        driver.commit()
    assert dict(driver.store("lists")) == LISTS


@SETTINGS
def test_a_function_downstream_that_keeps_what_it_gets_keeps_it_as_it_was(
    settings: dict[str, object],
) -> None:
    kept: list[Any] = []
    driver = TopologyTestDriver(
        lists(lambda table: table.to_stream().peek(lambda _, value: kept.append(value))),
        settings,
        commit="manual",
    )
    snapshots = []
    for key, value in INPUT:
        driver.input("in").send(key, value)
        driver.commit()
        snapshots.append(copy.deepcopy(kept))
    assert kept == [[1], [2], [1, 3], [1, 3, 4], [2, 5]]
    assert snapshots[-1] == kept


@SETTINGS
def test_a_function_upstream_that_keeps_the_value_cannot_change_the_row(
    settings: dict[str, object],
) -> None:
    kept: list[Any] = []

    def keep(_: Any, value: Any) -> None:
        kept.append(value)

    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string).map_values(lambda n: [n]).peek(keep)
    stream.group_by_key().reduce(lambda old, new: old + new, store="lists")
    driver = TopologyTestDriver(builder.build(), settings, commit="manual")
    for key, value in INPUT:
        driver.input("in").send(key, value)
        for held in kept:
            held.append("spoilt")
    driver.commit()
    assert dict(driver.store("lists")) == LISTS


@SETTINGS
def test_a_mapper_that_hands_out_one_object_again_and_again_does_not_tie_rows_together(
    settings: dict[str, object],
) -> None:
    shared: list[int] = []

    def same(value: int) -> list[int]:
        shared[:] = [value]
        return shared

    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string).map_values(same).to_table(store="last")
    driver = TopologyTestDriver(builder.build(), settings, commit="manual")
    driver.input("in").send_many(INPUT)
    driver.commit()
    assert dict(driver.store("last")) == {"a": [4], "b": [5]}


@SETTINGS
def test_two_stores_of_one_value_do_not_share_it(settings: dict[str, object]) -> None:
    def grow(old: list[Any], new: list[Any]) -> list[Any]:
        old.extend(new)
        return old

    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string)
    stream.group_by_key().reduce(grow, store="one")
    stream.group_by_key().reduce(grow, store="two")
    driver = TopologyTestDriver(builder.build(), settings, commit="manual")
    driver.input("in").send_many([("a", [1]), ("a", [2]), ("a", [3])])
    driver.commit()
    assert dict(driver.store("one")) == dict(driver.store("two")) == {"a": [1, 2, 3]}


@SETTINGS
def test_a_table_of_a_table_does_not_share_its_rows(settings: dict[str, object]) -> None:
    def spoilt(key: Any, value: list[Any], seen: list[Any]) -> list[Any]:
        value.append("spoilt")
        return value

    def again(table: KTable[Any, Any]) -> None:
        table.to_stream().group_by_key().aggregate(list, spoilt, store="second")

    driver = TopologyTestDriver(lists(again), settings, commit="manual")
    driver.input("in").send_many(INPUT)
    driver.commit()
    assert dict(driver.store("lists")) == LISTS
    assert dict(driver.store("second")) == {k: [*v, "spoilt"] for k, v in LISTS.items()}


@SETTINGS
def test_an_abort_takes_back_changes_in_place(settings: dict[str, object]) -> None:
    driver = TopologyTestDriver(
        lists(lambda table: table.to_stream().to("out")), settings, commit="manual"
    )
    driver.input("in").send_many(INPUT[:2])
    driver.commit()
    driver.input("in").send_many(INPUT[2:])
    driver.abort()
    assert dict(driver.store("lists")) == {"a": [1], "b": [2]}
    driver.commit()
    assert dict(driver.store("lists")) == LISTS
    assert driver.output("out").as_dict() == LISTS


@SETTINGS
def test_a_sink_writes_a_value_as_it_was_when_it_got_there(settings: dict[str, object]) -> None:
    """A later sibling that changes it comes too late."""

    def spoil(key: Any, value: list[Any]) -> None:
        value.append("spoilt")

    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string)
    stream.to("before")
    stream.peek(spoil).to("after")
    driver = TopologyTestDriver(builder.build(), settings)
    driver.input("in").send("a", [1])
    assert driver.output("before").read().value == [1]
    assert driver.output("after").read().value == [1, "spoilt"]


def test_a_row_that_is_deleted_by_its_aggregator_begins_anew() -> None:
    def until_three(key: Any, value: Any, seen: list[Any]) -> list[Any] | None:
        seen.append(value)
        return None if len(seen) == 3 else seen

    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string)
    table = stream.group_by_key().aggregate(list, until_three, store="lists")
    table.to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), NO_CACHE, commit="manual")
    driver.input("in").send_many([("a", n) for n in range(5)])
    driver.commit()
    written = [r.value for r in driver.output("out").read_all()]
    assert written == [[0], [0, 1], None, [3], [3, 4]]
    assert dict(driver.store("lists", committed=True)) == {"a": [3, 4]}
