"""KTable.join, left_join and outer_join by primary key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.topology import Materialized, StreamsBuilder, Topology, TopologyError, serdes
from tests.support.examples import examples
from tests.support.operators import pairs
from tests.support.tables import (
    ACTIONS,
    EXACTLY_ONCE,
    ROWS,
    SETTINGS,
    Action,
    Rows,
    Table,
    driver_of,
    is_thinned,
    last_rows,
    outputs,
    run,
    two_tables,
)

NO_CACHE: dict[str, object] = {"statestore.cache.max.bytes": 0}
KINDS = ("join", "left_join", "outer_join")
STORES = (None, "rows", Materialized("rows", cached=False))


def both(a: Any, b: Any) -> str:
    return f"{a}{b}"


def joined(
    kind: str, store: str | Materialized | None = None, cached: bool | tuple[bool, bool] = True
) -> Topology:
    return two_tables(
        lambda left, right: getattr(left, kind)(right, both, store=store), cached=cached
    )


def send(driver: Any, *records: tuple[str, Any]) -> None:
    """Each is the first letter of a topic and a value, all of one key."""
    for topic, value in records:
        driver.input({"l": "left", "r": "right"}[topic]).send("k", value)


def result(kind: str, a: Any, b: Any) -> Any:
    """What a join makes of two rows."""
    if (a is None and kind != "outer_join") or (b is None and kind == "join"):
        return None
    return None if a is None and b is None else both(a, b)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("join", ["12", "32", None]),
        ("left_join", ["1None", "12", "32", None]),
        ("outer_join", ["1None", "12", "32", "None2", None]),
    ],
)
def test_either_row_s_change_makes_a_new_result(
    kind: str, store: str | Materialized | None, expected: list[Any]
) -> None:
    driver = driver_of(joined(kind, store), NO_CACHE)
    send(driver, ("l", 1), ("r", 2), ("l", 3), ("l", None), ("r", None))
    assert outputs(driver) == {"k": expected}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_deleted_that_was_not_there(kind: str, store: str | Materialized | None) -> None:
    """Trap 19: a tombstone only where something was forwarded before."""
    driver = driver_of(joined(kind, store), NO_CACHE)
    send(driver, ("r", 1), ("r", None), ("l", None), ("r", None))
    assert outputs(driver) == ({"k": ["None1", None]} if kind == "outer_join" else {})


@pytest.mark.parametrize("store", STORES)
def test_a_left_join_goes_on_with_none_where_the_other_row_is_gone(
    store: str | Materialized | None,
) -> None:
    """Trap 19."""
    driver = driver_of(joined("left_join", store), NO_CACHE)
    send(driver, ("l", 1), ("r", 2), ("r", None), ("l", None), ("l", None))
    assert outputs(driver) == {"k": ["1None", "12", "1None", None]}


@pytest.mark.parametrize("store", STORES)
def test_the_timestamp_is_the_later_one_of_the_two_rows(store: str | Materialized | None) -> None:
    """Trap 6."""
    driver = driver_of(joined("outer_join", store), NO_CACHE)
    for topic, value, timestamp in (
        ("left", 1, 5),
        ("right", 2, 3),
        ("right", 3, 9),
        ("left", 4, 7),
        ("left", None, 6),
    ):
        driver.input(topic).send("k", value, timestamp=timestamp)
    assert [r.timestamp for r in driver.output("out").read_all()] == [5, 5, 9, 9, 9]


NOTHING: dict[str, Callable[[Table], Table]] = {
    "filter": lambda t: t.filter(lambda k, v: v > 0),
    "mapping": lambda t: t.map_values(lambda v: v if v > 0 else None),
    "join": lambda t: t.filter(lambda k, v: v > 0).join(t, lambda v, _: v),
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("cache", SETTINGS)
@pytest.mark.parametrize("nothing", NOTHING.values(), ids=NOTHING)
def test_a_row_that_is_filtered_out_has_no_timestamp(
    nothing: Callable[[Table], Table], cache: dict[str, object], store: str | Materialized | None
) -> None:
    """The row above it is there, and is later (Kafka Streams: the times that are asserted here)."""
    topology = two_tables(lambda left, right: nothing(left).outer_join(right, both, store=store))
    driver = driver_of(topology, cache)
    for topic, value, timestamp in (
        ("left", 1, 5),
        ("left", -2, 90),
        ("right", 3, 20),
        ("right", 4, 30),
        ("left", 5, 7),
    ):
        driver.input(topic).send("k", value, timestamp=timestamp)
    found = [(r.value, r.timestamp) for r in driver.output("out").read_all()]
    assert found == [("1None", 5), (None, 90), ("None3", 20), ("None4", 30), ("54", 30)]


def test_the_last_row_to_arrive_is_joined_whatever_its_timestamp() -> None:
    """Trap 7."""
    driver = driver_of(joined("join"), NO_CACHE)
    driver.input("left").send("k", 1, timestamp=9)
    driver.input("left").send("k", 2, timestamp=5)
    driver.input("right").send("k", 3, timestamp=1)
    assert pairs(driver) == [("k", "23")]


def test_a_result_of_none_is_no_row() -> None:
    topology = two_tables(
        lambda left, right: left.join(right, lambda a, b: a + b or None, store="rows")
    )
    driver = driver_of(topology, NO_CACHE)
    send(driver, ("l", 1), ("r", -1), ("r", 2), ("l", -2))
    assert outputs(driver) == {"k": [3, None]}
    assert dict(driver.store("rows")) == {}


def test_a_stored_result_that_is_the_same_goes_no_further_and_keeps_its_timestamp() -> None:
    """Trap 8."""
    topology = two_tables(
        lambda left, right: left.join(right, lambda a, b: [a // 2, b], store="rows")
    )
    driver = driver_of(topology, NO_CACHE)
    for value, timestamp in ((2, 1), (3, 7)):
        driver.input("left").send("k", value, timestamp=timestamp)
        driver.input("right").send("k", 0, timestamp=0)
    assert pairs(driver) == [("k", [1, 0])]
    assert list(driver.store("rows").rows()) == [("k", [1, 0], 1)]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", SETTINGS)
def test_a_table_can_be_joined_with_itself(
    kind: str, store: str | Materialized | None, cache: dict[str, object]
) -> None:
    """Its deletions too, which Kafka Streams forgets, as both sides are gone when it looks."""
    topology = two_tables(lambda left, _: getattr(left, kind)(left, both, store=store))
    driver = driver_of(topology, cache)
    send(driver, ("l", 1), ("l", 2), ("l", None))
    assert outputs(driver) == {"k": ["11", "22", None]}


class Doubled:
    def transform(self, key: str, value: int | None) -> int | None:
        return None if value is None else value * 2


COMPUTED: dict[str, Callable[[Table], Table]] = {
    "filter": lambda t: t.filter(lambda k, v: v > 0).map_values(lambda v: v * 2),
    "stored mapping": lambda t: t.map_values(lambda v: v * 2, store="doubled"),
    "transformer": lambda t: t.transform_values(Doubled),
    "stored transformer": lambda t: t.transform_values(Doubled, store="doubled"),
    "through a stream": lambda t: t.to_stream().map_values(lambda v: v and v * 2).to_table(),
}


@pytest.mark.parametrize("is_first", [True, False], ids=["computed first", "computed second"])
@pytest.mark.parametrize("computed", COMPUTED.values(), ids=COMPUTED)
@pytest.mark.parametrize("cache", SETTINGS)
def test_a_table_can_be_joined_with_what_is_computed_from_it(
    cache: dict[str, object], computed: Callable[[Table], Table], is_first: bool
) -> None:
    """A change comes from both sides and is one result; Kafka Streams forwards it twice.

    A deletion, which Kafka Streams forgets, is one, too.
    """

    def build(left: Table, _: Table) -> Table:
        one, other = left, computed(left)
        return other.join(one, both) if is_first else one.join(other, both)

    driver = driver_of(two_tables(build), cache)
    send(driver, ("l", 1), ("l", 2), ("l", 3), ("l", None))
    expected = ["21", "42", "63"] if is_first else ["12", "24", "36"]
    assert outputs(driver) == {"k": [*expected, None]}


def test_a_cache_sends_one_result_of_each_key_a_commit() -> None:
    """Trap 29."""
    driver = driver_of(joined("outer_join"), {}, commit="manual")
    send(driver, ("l", 1), ("r", 2), ("l", 3))
    driver.commit()
    send(driver, ("r", None), ("l", None))
    driver.commit()
    send(driver, ("r", 7), ("r", None))
    driver.commit()
    assert outputs(driver) == {"k": ["32", None]}


def test_a_row_that_came_and_went_within_one_commit_takes_back_no_result() -> None:
    topology = two_tables(lambda left, right: left.join(right, both), cached=False)
    driver = driver_of(topology, {}, commit="manual")
    send(driver, ("r", 2))
    driver.commit()
    send(driver, ("l", 1), ("l", None))
    driver.commit()
    assert outputs(driver) == {}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("cached", [(False, True), (True, False)])
@pytest.mark.parametrize(("kind", "left"), [("join", []), ("left_join", ["1None"])])
def test_no_result_stays_of_a_row_that_came_and_went_while_the_other_was_told_at_once(
    kind: str, left: list[str], cached: tuple[bool, bool], store: str | Materialized | None
) -> None:
    """Where one table alone is cached, nobody is told of such a row, and it may have been read."""
    driver = driver_of(joined(kind, store, cached), {}, commit="manual")
    send(driver, ("r", 2), ("l", 1), ("r", None))
    driver.commit()
    told = outputs(driver).get("k", [])
    assert [value for value in told[-1:] if value is not None] == left


@pytest.mark.parametrize("store", STORES)
def test_a_stream_finds_a_result_at_once_where_both_tables_tell_each_change(
    store: str | Materialized | None,
) -> None:
    builder = StreamsBuilder()
    left, right = (
        builder.table(topic, key=serdes.string, store=Materialized(f"{topic}-rows", cached=False))
        for topic in ("left", "right")
    )
    rows = left.map_values(str).join(right, both, store=store)
    stream: Any = builder.stream("in", key=serdes.string)
    stream.join(rows, lambda v, row: [v, row]).to("out")
    driver = driver_of(builder.build(), {}, commit="manual")
    send(driver, ("l", 1), ("r", 2))
    driver.input("in").send("k", "seen")
    driver.commit()
    assert outputs(driver) == {"k": [["seen", "12"]]}


def test_a_stream_finds_the_rows_of_a_join_that_is_not_stored() -> None:
    builder = StreamsBuilder()
    left, right = (builder.table(t, key=serdes.string) for t in ("left", "right"))
    both_rows = left.left_join(right, both).map_values(str.upper)
    stream: Any = builder.stream("in", key=serdes.string)
    stream.join(both_rows, lambda v, row: [v, row]).to("out")
    driver = driver_of(builder.build(), {})
    send(driver, ("l", "a"), ("r", "b"))
    driver.input("in").send("k", 1)
    send(driver, ("r", None))
    driver.input("in").send("k", 2)
    send(driver, ("l", None))
    driver.input("in").send("k", 3)
    assert pairs(driver) == [("k", [1, "AB"]), ("k", [2, "ANONE"])]


def test_aggregates_can_be_joined() -> None:
    builder = StreamsBuilder()
    left, right = (builder.stream(t, key=serdes.string) for t in ("left", "right"))
    counts = left.group_by_key().count(store="l")
    sums = right.group_by_key().reduce(lambda a, b: a + b, store="r")
    counts.join(sums, lambda n, total: [n, total]).to_stream().to("out")
    driver = driver_of(builder.build(), NO_CACHE)
    send(driver, ("l", 9), ("r", 5), ("l", 9), ("r", 6))
    assert outputs(driver) == {"k": [[1, 5], [2, 5], [2, 11]]}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("cache", SETTINGS)
def test_rows_that_a_joiner_fails_on_have_no_result_where_a_handler_goes_on(
    cache: dict[str, object], store: str | Materialized | None
) -> None:
    def joiner(a: int, b: int) -> str:
        return f"{10 // a}-{b}"

    def build(left: Table, right: Table) -> Table:
        results = left.join(right, joiner, store=store)
        return results.group_by(lambda k, v: (v, k), key=serdes.string).count(store="counts")

    skipping = {**cache, "processing.exception.handler": "continue"}
    driver = driver_of(two_tables(build), skipping, commit="manual")
    counts = []
    for topic, value in (("l", 5), ("r", 1), ("l", 0), ("l", 2), ("r", 3), ("l", None)):
        send(driver, (topic, value))
        driver.commit()
        counts.append({k: n for k, n in driver.store("counts").items() if n})
    assert counts == [{}, {"2-1": 1}, {}, {"5-1": 1}, {"5-3": 1}, {}]
    assert sum(driver.dropped.values()) == 1


def test_an_out_of_order_change_of_a_versioned_table_is_not_joined() -> None:
    """Trap 7."""
    builder = StreamsBuilder()
    kept = Materialized("versions", history=timedelta(hours=1))
    left = builder.table("left", key=serdes.string, store=kept)
    right = builder.table("right", key=serdes.string)
    left.join(right, both).to_stream().to("out")
    grouped = left.group_by(lambda k, v: (str(v), v), key=serdes.string)
    grouped.count(store="counts")
    driver = driver_of(builder.build(), NO_CACHE)
    driver.input("right").send("k", 0, timestamp=0)
    for value, timestamp in ((1, 10), (2, 5), (3, 20)):
        driver.input("left").send("k", value, timestamp=timestamp)
    assert pairs(driver) == [("k", "10"), ("k", "30")]
    assert dict(driver.store("counts")) == {"1": 0, "3": 1}


def test_tables_of_two_builders_cannot_be_joined() -> None:
    left, right = StreamsBuilder().table("left"), StreamsBuilder().table("right")
    with pytest.raises(TopologyError, match="two builders"):
        left.join(right, both)


def slow(kind: str, records: list[tuple[str, str, Any]]) -> dict[str, list[Any]]:
    """What a join that looks at both tables after each record writes, by key."""
    tables: dict[str, Rows] = {"left": {}, "right": {}}
    found: dict[str, list[Any]] = {}
    for topic, key, value in records:
        before = [rows.get(key) for rows in tables.values()]
        tables[topic][key] = value
        after = [rows.get(key) for rows in tables.values()]
        old, new = (result(kind, *rows) for rows in (before, after))
        if before != after and old != new:
            found.setdefault(key, []).append(new)
    return found


@settings(max_examples=examples(100), deadline=None)
@given(
    records=st.lists(ROWS, max_size=20),
    commits=st.sets(st.integers(0, 20)),
    kind=st.sampled_from(KINDS),
    store=st.sampled_from(STORES),
    chosen=st.sampled_from(SETTINGS),
    cached=st.tuples(st.booleans(), st.booleans()),
)
def test_results_are_those_of_a_join_that_looks_at_all_rows(
    records: list[tuple[str, str, Any]],
    commits: set[int],
    kind: str,
    store: str | Materialized | None,
    chosen: dict[str, object],
    cached: tuple[bool, bool],
) -> None:
    """Without caches the same ones; with them some of them, and the last."""
    driver = driver_of(joined(kind, store, cached), chosen, commit="manual")
    for place, (topic, key, value) in enumerate(records):
        driver.input(topic).send(key, value)
        if place in commits:
            driver.commit()
    driver.commit()
    expected, found = slow(kind, records), outputs(driver)
    if chosen is EXACTLY_ONCE:
        for key, values in found.items():
            assert is_thinned(values, expected[key])
        for key in expected.keys() - found.keys():
            assert expected[key][-1] is None
    else:
        assert found == expected


def regrouped(build: Callable[[Table, Table], Table], *, cached: bool) -> Topology:
    """Counts the results by their value, which needs each old value to be the one before."""

    def counted(left: Table, right: Table) -> Table:
        table = build(left, right)
        grouped = table.group_by(lambda k, v: (str(v), k), key=serdes.string, name="by-value")
        return grouped.count(store="counts", value=serdes.json)

    return two_tables(counted, cached=cached)


def of_kind(kind: str, store: str | Materialized | None) -> Callable[[Table, Table], Table]:
    return lambda left, right: getattr(left, kind)(right, both, store=store)


def chained(left: Table, right: Table) -> Table:
    """A join with a join, and with what is computed from its own side."""
    inner = left.join(right, both)
    even = right.filter(lambda k, v: v % 2 == 0)
    return inner.outer_join(even.left_join(left.map_values(str), both), both)


def chained_result(a: Any, b: Any) -> Any:
    even = b if b is not None and b % 2 == 0 else None
    return result("outer_join", result("join", a, b), result("left_join", even, a))


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(
    actions=ACTIONS,
    kind=st.sampled_from((*KINDS, "chained")),
    store=st.sampled_from(STORES),
    partitions=st.sampled_from([1, 3]),
    chosen=st.sampled_from(SETTINGS),
    cached=st.booleans(),
)
def test_a_join_tells_what_it_forwarded_last(
    actions: list[Action],
    kind: str,
    store: str | Materialized | None,
    partitions: int,
    chosen: dict[str, object],
    cached: bool,
) -> None:
    """Whatever is aborted or crashed, and whether it has a store or not."""
    build = chained if kind == "chained" else of_kind(kind, store)
    driver = driver_of(
        regrouped(build, cached=cached), chosen, partitions=partitions, commit="manual"
    )
    run(driver, actions)
    left, right = last_rows(actions)
    expected: Counter[str] = Counter()
    for key in left.keys() | right.keys():
        rows = left.get(key), right.get(key)
        value = chained_result(*rows) if kind == "chained" else result(kind, *rows)
        if value is not None:
            expected[str(value)] += 1
    found = dict(driver.store("counts", committed=True))
    assert {k: n for k, n in found.items() if n} == expected
    assert {key: values[-1] for key, values in outputs(driver).items()} == found


@settings(max_examples=examples(60), deadline=None)
@given(
    actions=ACTIONS,
    kind=st.sampled_from(KINDS),
    partitions=st.sampled_from([1, 3]),
    chosen=st.sampled_from(SETTINGS),
)
def test_stored_results_are_those_of_the_rows_in_the_end(
    actions: list[Action], kind: str, partitions: int, chosen: dict[str, object]
) -> None:
    driver = driver_of(joined(kind, "rows"), chosen, partitions=partitions, commit="manual")
    run(driver, actions)
    left, right = last_rows(actions)
    results = {k: result(kind, left.get(k), right.get(k)) for k in left.keys() | right.keys()}
    expected = {k: v for k, v in results.items() if v is not None}
    for committed in (False, True):
        assert dict(driver.store("rows", committed=committed)) == expected
    last = {key: values[-1] for key, values in outputs(driver).items()}
    assert {k: v for k, v in last.items() if v is not None} == expected
