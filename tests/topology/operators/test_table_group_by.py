"""KTable.group_by: what a row gives to its group is taken away again when it changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, Topology, TopologyError, serdes
from headrace.topology.serdes.changed import ChangedSerde, ValueChange
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


def by_city(table: Table) -> Any:
    """Rows are [city, people]."""
    return table.group_by(lambda k, v: (v[0], v[1]), key=serdes.string, name="by-city")


def cities(
    fold: Any, settings: dict[str, object] | None = None, **options: Any
) -> TopologyTestDriver:
    builder = StreamsBuilder()
    fold(by_city(builder.table("in", key=serdes.string))).to_stream().to("out")
    chosen = {"default.key.serde": "string", **(NO_CACHE if settings is None else settings)}
    return TopologyTestDriver(builder.build(), chosen, **options)


def total(grouped: Any) -> Table:
    table: Table = grouped.reduce(lambda a, b: a + b, lambda a, b: a - b, store="rows")
    return table


def count(grouped: Any) -> Table:
    table: Table = grouped.count(store="rows")
    return table


def test_a_row_that_changes_leaves_its_group_and_joins_another() -> None:
    """Trap 9."""
    driver = cities(count)
    driver.input("in").send_many([("a", ["Rome", 1]), ("b", ["Rome", 1]), ("a", ["Oslo", 1])])
    assert pairs(driver) == [("Rome", 1), ("Rome", 2), ("Rome", 1), ("Oslo", 1)]


def test_a_group_that_lost_all_its_rows_counts_none() -> None:
    driver = cities(count)
    driver.input("in").send_many([("a", ["Rome", 1]), ("a", None)])
    assert pairs(driver) == [("Rome", 1), ("Rome", 0)]


def test_one_record_carries_both_values_where_a_row_stays_and_two_where_it_moves() -> None:
    """Trap 9: what is lost comes first."""
    driver = cities(total)
    driver.input("in").send_many([("a", ["Rome", 1]), ("a", ["Rome", 5]), ("a", ["Oslo", 7])])
    changes = driver.output(
        "test-by-city-repartition", key=serdes.string, value=ChangedSerde(serdes.json)
    )
    assert [(r.key, r.value) for r in changes.read_all()] == [
        ("Rome", ValueChange(1, None)),
        ("Rome", ValueChange(5, 1)),
        ("Rome", ValueChange(None, 5)),
        ("Oslo", ValueChange(7, None)),
    ]
    assert dict(driver.store("rows")) == {"Rome": 0, "Oslo": 7}


def test_the_bytes_on_the_topic_are_those_of_kafka_streams() -> None:
    driver = cities(total)
    driver.input("in").send_many([("a", ["Rome", 1]), ("a", ["Rome", 25]), ("a", None)])
    raw = driver.output("test-by-city-repartition", key=serdes.bytes, value=serdes.bytes)
    assert [(r.key, r.value) for r in raw.read_all()] == [
        (b"Rome", b"1\x01"),
        (b"Rome", b"\x04251\x02"),
        (b"Rome", b"25\x00"),
    ]


def test_what_is_lost_is_taken_away_before_what_is_gained_is_added() -> None:
    seen: list[Any] = []

    def noted(sign: str) -> Any:
        def step(key: str, value: int, aggregate: list[Any]) -> list[Any]:
            seen.append((sign, value))
            return [*aggregate, sign, value]

        return step

    driver = cities(lambda g: g.aggregate(list, noted("+"), noted("-"), store="rows"))
    driver.input("in").send_many([("a", ["Rome", 1]), ("a", ["Rome", 2])])
    assert seen == [("+", 1), ("-", 1), ("+", 2)]
    assert dict(driver.store("rows")) == {"Rome": ["+", 1, "-", 1, "+", 2]}


@pytest.mark.parametrize("row", [[None, 1], ["Rome", None]])
def test_a_row_without_a_group_or_a_value_is_in_none(row: Any) -> None:
    """Trap 9."""
    driver = cities(count)
    driver.input("in").send_many([("a", row), ("a", ["Oslo", 1]), ("a", row), ("a", None)])
    assert pairs(driver) == [("Oslo", 1), ("Oslo", 0)]


def test_a_change_that_leaves_the_result_as_it_was_goes_no_further() -> None:
    """Trap 8."""
    driver = cities(count)
    driver.input("in").send("a", ["Rome", 1], timestamp=1)
    driver.input("in").send("a", ["Rome", 2], timestamp=9)
    assert pairs(driver) == [("Rome", 1)]
    assert list(driver.store("rows").rows()) == [("Rome", 1, 1)]


def test_the_timestamp_is_the_largest_of_the_group() -> None:
    """Trap 6."""
    driver = cities(count)
    for key, timestamp in (("a", 5), ("b", 3), ("c", 8)):
        driver.input("in").send(key, ["Rome", 1], timestamp=timestamp)
    assert [r.timestamp for r in driver.output("out").read_all()] == [5, 5, 8]


def test_none_deletes_a_group() -> None:
    driver = cities(
        lambda g: g.reduce(lambda a, b: a + b, lambda a, b: a - b or None, store="rows")
    )
    driver.input("in").send_many([("a", ["Rome", 2]), ("a", None), ("a", ["Rome", 3])])
    assert pairs(driver) == [("Rome", 2), ("Rome", None), ("Rome", 3)]


def test_an_aggregate_may_be_changed_in_place() -> None:
    def added(key: str, value: int, members: list[int]) -> list[int]:
        members.append(value)
        return members

    def removed(key: str, value: int, members: list[int]) -> list[int]:
        members.remove(value)
        return members

    driver = cities(lambda g: g.aggregate(list, added, removed, store="rows"))
    driver.input("in").send_many([("a", ["Rome", 1]), ("b", ["Rome", 2]), ("a", ["Rome", 3])])
    assert pairs(driver) == [("Rome", [1]), ("Rome", [1, 2]), ("Rome", [2, 3])]


def test_equal_group_keys_of_other_types_are_other_groups() -> None:
    builder = StreamsBuilder()
    rows = builder.table("in", key=serdes.string)
    grouped = rows.group_by(lambda k, v: (v, "x"), key=serdes.json)
    grouped.count(store="rows")
    driver = TopologyTestDriver(builder.build(), NO_CACHE)
    driver.input("in").send_many([("a", [1]), ("a", [1.0]), ("a", [True])])
    counts = [(repr(key), n) for key, n in driver.store("rows").items()]
    assert sorted(counts) == [("[1.0]", 0), ("[1]", 0), ("[True]", 1)]


def test_two_folds_of_one_named_group_read_one_topic() -> None:
    builder = StreamsBuilder()
    grouped = by_city(builder.table("in", key=serdes.string))
    count(grouped)
    grouped.reduce(lambda a, b: a + b, lambda a, b: a - b, store="sums")
    driver = TopologyTestDriver(builder.build(), {"default.key.serde": "string"})
    driver.input("in").send_many([("a", ["Rome", 2]), ("b", ["Rome", 3])])
    assert dict(driver.store("rows")) == {"Rome": 2}
    assert dict(driver.store("sums")) == {"Rome": 5}
    assert sum("repartition" in topic for topic in driver.cluster.topics) == 1


def test_a_table_that_is_not_stored_is_stored_to_be_grouped() -> None:
    """Its old values are needed."""
    builder = StreamsBuilder()
    topology_of = by_city(builder.table("in", key=serdes.string).filter(lambda k, v: v[1] > 0))
    count(topology_of)
    assert [store.name for store in builder.build().stores] == [
        "in-STATE-STORE-0000000000",
        "rows",
    ]


def test_a_fold_of_a_fold_takes_away_what_the_first_one_had_forwarded() -> None:
    def folds(left: Table, right: Table) -> Table:
        sizes = left.group_by(lambda k, v: (v, k), key=serdes.json, name="by-value").count(
            store="sizes", value=serdes.json
        )
        return sizes.group_by(lambda k, v: (v, k), key=serdes.json, name="by-size").count(
            store="rows", value=serdes.json
        )

    driver = driver_of(two_tables(folds), EXACTLY_ONCE, commit="manual")
    for key, value in [("a", 1), ("b", 1), ("c", 2), ("a", 2)]:
        driver.input("left").send(key, value)
        driver.commit()
    assert dict(driver.store("rows")) == {1: 1, 2: 1}


@pytest.mark.parametrize("cache", SETTINGS)
def test_rows_that_a_mapper_fails_on_are_in_no_group_where_a_handler_goes_on(
    cache: dict[str, object],
) -> None:
    """What was counted before such a row is taken away, and what comes after it is counted."""
    skipping = {**cache, "processing.exception.handler": "continue"}
    driver = cities(count, skipping, commit="manual")
    for row in (["Rome", 1], 0, 0, ["Rome", 2], 0, ["Oslo", 3], None):
        driver.input("in").send("a", row)
        driver.commit()
    assert dict(driver.store("rows")) == {"Rome": 0, "Oslo": 0}
    assert driver.dropped[("by-city", "the node failed")] == 2


def test_a_name_that_is_taken_is_refused() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", key=serdes.string)
    by_city(table)
    with pytest.raises(TopologyError, match="by-city"):
        by_city(table)


def counted() -> Topology:
    """Counts, sums and sorted members of each group, groups of groups and of a derived table."""

    def build(left: Table, right: Table) -> None:
        by_value = left.group_by(lambda k, v: (str(v), k), key=serdes.string, name="by-value")
        sizes = by_value.count(store="counts", value=serdes.json)
        sizes.to_stream().to("counts")
        by_size = sizes.group_by(lambda k, n: (str(n), k), key=serdes.string, name="by-size")
        by_size.count(store="sizes", value=serdes.json).to_stream().to("sizes")
        by_value.aggregate(
            list,
            lambda _, k, members: sorted([*members, k]),
            lambda _, k, members: [m for m in members if m != k],
            store="members",
        ).to_stream().to("members")
        small = right.filter(lambda k, v: v < 3).map_values(lambda v: v // 2)
        halves = small.group_by(lambda k, v: (str(v), v), key=serdes.string, name="by-half")
        halves.reduce(lambda a, b: a + b, lambda a, b: a - b, store="sums").to_stream().to("sums")

    return two_tables(build)  # type: ignore[arg-type]


@pytest.mark.slow
@settings(max_examples=examples(120), deadline=None)
@given(
    actions=ACTIONS,
    partitions=st.sampled_from([1, 3]),
    chosen=st.sampled_from(SETTINGS),
)
def test_groups_are_those_of_a_recount_of_the_rows(
    actions: list[Action], partitions: int, chosen: dict[str, object]
) -> None:
    """Whatever is aborted or crashed: an old value that is lost would show for ever."""
    driver = driver_of(counted(), chosen, partitions=partitions, commit="manual")
    run(driver, actions)
    left, right = last_rows(actions)
    counts = Counter(str(value) for value in left.values())
    members = {group: sorted(k for k, v in left.items() if str(v) == group) for group in counts}
    sums: Counter[str] = Counter()
    for value in right.values():
        if value < 3:
            sums[str(value // 2)] += value // 2
    groups = dict(driver.store("counts"))  # those that lost all their rows count too
    sizes = Counter(str(size) for size in groups.values())
    expected = {"counts": counts, "members": members, "sums": sums, "sizes": sizes}
    for name, rows in expected.items():
        for committed in (False, True):
            found = dict(driver.store(name, committed=committed))
            assert {k: v for k, v in found.items() if v} == {k: v for k, v in rows.items() if v}
        last = {key: values[-1] for key, values in outputs(driver, name).items()}
        assert last == found
