"""KTable.filter, filter_not and map_values, with a store of their own and without."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.topology import Materialized, StreamsBuilder, Topology, serdes
from tests.support.examples import examples
from tests.support.operators import pairs
from tests.support.tables import (
    ACTIONS,
    EXACTLY_ONCE,
    SETTINGS,
    Action,
    Table,
    driver_of,
    last_rows,
    outputs,
    run,
    two_tables,
)

NO_CACHE: dict[str, object] = {"statestore.cache.max.bytes": 0}


def filtered(store: Any = "rows") -> Topology:
    return two_tables(lambda left, _: left.filter(lambda k, v: v > 1, store=store))


def halved(store: Any = "rows") -> Topology:
    return two_tables(lambda left, _: left.map_values(lambda v: v // 2, store=store))


def send(driver: Any, *values: Any) -> None:
    for value in values:
        driver.input("left").send("k", value)


def test_a_stored_filter_keeps_the_rows_that_pass() -> None:
    driver = driver_of(filtered(), NO_CACHE)
    send(driver, 2, 1)
    driver.input("left").send("other", 3)
    assert dict(driver.store("rows")) == {"other": 3}
    assert pairs(driver) == [("k", 2), ("k", None), ("other", 3)]


@pytest.mark.parametrize("store", ["rows", None])
def test_a_row_that_never_passed_is_not_deleted(store: str | None) -> None:
    """Trap 8: Kafka Streams deletes it, stored or not."""
    builder = StreamsBuilder()
    table = builder.table("left", key=serdes.string, store="all")
    table.filter(lambda k, v: v > 1, store=store).to_stream().to("out")
    driver = driver_of(builder.build(), NO_CACHE)
    send(driver, 1, 0, None, None)
    assert pairs(driver) == []


def test_a_stored_result_that_is_the_same_goes_no_further_and_keeps_its_timestamp() -> None:
    """Trap 8."""
    driver = driver_of(halved(), NO_CACHE)
    for value, timestamp in ((2, 1), (3, 5), (4, 6)):
        driver.input("left").send("k", value, timestamp=timestamp)
    assert pairs(driver) == [("k", 1), ("k", 2)]
    assert list(driver.store("rows").rows()) == [("k", 2, 6)]


def test_a_stored_step_needs_no_store_of_the_table_above() -> None:
    assert [store.name for store in filtered().stores] == ["rows"]


def test_options_without_a_name_make_no_store() -> None:
    """As in Kafka Streams."""
    assert [store.name for store in filtered(Materialized()).stores] == []


def test_a_mapper_and_a_predicate_never_see_a_deleted_row() -> None:
    driver = driver_of(halved(), NO_CACHE)
    send(driver, 4, None)
    assert pairs(driver) == [("k", 2), ("k", None)]


def test_none_deletes_the_row() -> None:
    topology = two_tables(lambda left, _: left.map_values(lambda v: v or None, store="rows"))
    driver = driver_of(topology, NO_CACHE)
    send(driver, 0, 1, 0)
    assert pairs(driver) == [("k", 1), ("k", None)]
    assert dict(driver.store("rows")) == {}


def test_the_serde_of_new_values_is_the_one_that_is_given() -> None:
    builder = StreamsBuilder()
    lines = builder.table("in", key=serdes.string, value=serdes.string)
    lines.map_values(len, store="lengths", value=serdes.long).to_stream().to("out")
    driver = driver_of(builder.build(), {})
    driver.input("in").send("k", "tea")
    raw = driver.output("test-lengths-changelog", value=serdes.bytes).read_all()
    assert [record.value for record in raw] == [bytes(7) + b"\x03"]


def test_a_cache_sends_the_last_change_of_a_commit_alone() -> None:
    """Trap 29."""
    driver = driver_of(halved(), {}, commit="manual")
    send(driver, 2, 4)
    driver.commit()
    send(driver, 6, 9)
    driver.commit()
    send(driver, 10, None)
    driver.commit()
    assert pairs(driver) == [("k", 2), ("k", 4), ("k", None)]


def test_it_is_restored_from_its_changelog() -> None:
    driver = driver_of(halved(), EXACTLY_ONCE)
    send(driver, 2, 4)
    driver.crash(keep=False)
    driver.run()
    assert dict(driver.store("rows", committed=True)) == {"k": 2}
    send(driver, 5)
    assert pairs(driver) == [("k", 1), ("k", 2)]


@settings(max_examples=examples(80), deadline=None)
@given(
    actions=ACTIONS,
    partitions=st.sampled_from([1, 3]),
    chosen=st.sampled_from(SETTINGS),
    stores=st.tuples(*[st.sampled_from([None, name]) for name in ("kept", "mapped")]),
)
def test_the_rows_are_those_of_the_table_above(
    actions: list[Action],
    partitions: int,
    chosen: dict[str, object],
    stores: tuple[str | None, str | None],
) -> None:
    def build(left: Table, right: Table) -> Table:
        kept = left.filter_not(lambda k, v: v == 1, store=stores[0])
        return kept.map_values(lambda k, v: [k, v // 2], with_key=True, store=stores[1])

    driver = driver_of(two_tables(build), chosen, partitions=partitions, commit="manual")
    run(driver, actions)
    left, _ = last_rows(actions)
    kept = {k: v for k, v in left.items() if v != 1}
    mapped = {k: [k, v // 2] for k, v in kept.items()}
    for name, expected in (("kept", kept), ("mapped", mapped)):
        if name in stores:
            assert dict(driver.store(name, committed=True)) == expected
    found = outputs(driver)
    assert {k: values[-1] for k, values in found.items() if values[-1] is not None} == mapped
    if stores[1] is not None and chosen is not EXACTLY_ONCE:
        for values in found.values():
            assert all(one != other for one, other in pairwise(values))
