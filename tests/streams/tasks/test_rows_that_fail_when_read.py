"""Rows that a function fails on, where a record that is not theirs reads or releases them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.config.handlers import Failure
from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    BufferConfig,
    KTable,
    Materialized,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    serdes,
)
from headrace.topology.windows import JoinWindows

MS = timedelta(milliseconds=1)
DEAD = "dead-letters"
CONTINUE = {
    "processing.exception.handler": "continue",
    "errors.dead.letter.queue.topic.name": DEAD,
    "default.key.serde": "string",
}
CACHES = pytest.mark.parametrize("caches", [{}, {"statestore.cache.max.bytes": 0}])


def share(value: int) -> int:
    """Fail for 0."""
    return 12 // value


def shares(builder: StreamsBuilder, *, kind: str = "map") -> KTable[Any, Any]:
    """A table without a store that is computed from another."""
    rows = builder.table("numbers", store="numbers")
    if kind == "map":
        return rows.map_values(share, name="share")
    if kind == "filter":
        return rows.filter(lambda _, value: share(value) < 100, name="share")
    ones = builder.table("ones", store="ones")
    return rows.join(ones, lambda value, one: share(value) * one)


def values(driver: TopologyTestDriver, topic: str = "out") -> list[Any]:
    return [record.value for record in driver.output(topic).read_all()]


def skipped(driver: TopologyTestDriver) -> list[tuple[Any, ...]]:
    events = [e for e in driver.events if e["event"] == "record_skipped"]
    return [(event["topic"], event["offset"]) for event in events]


@CACHES
@pytest.mark.parametrize("kind", ["map", "filter", "join"])
def test_a_join_by_key_finds_no_row_where_its_function_fails(
    kind: str, caches: dict[str, Any]
) -> None:
    builder = StreamsBuilder()
    others = builder.table("others", store="others")
    pairs = others.left_join(shares(builder, kind=kind), lambda other, row: [other, row])
    pairs.to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE | caches, commit="manual")
    if kind == "join":
        driver.input("ones").send("a", 1)
    driver.input("numbers").send("a", 0)
    driver.input("others").send("a", "x")
    driver.commit()
    driver.crash()
    driver.input("others").send("a", "y")
    driver.commit()
    assert values(driver)[-1] == ["y", None]
    assert {topic for topic, _ in skipped(driver)} <= {"numbers", "ones", None}


@CACHES
def test_a_stream_finds_no_row_where_its_function_fails(caches: dict[str, Any]) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.left_join(shares(builder), lambda value, row: [value, row]).to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE | caches, commit="manual")
    driver.input("numbers").send("a", 0)
    driver.input("in").send("a", 1)
    driver.commit()
    assert values(driver) == [[1, None]]
    assert len(skipped(driver)) == 1


def test_a_stream_finds_no_version_where_its_function_fails() -> None:
    builder = StreamsBuilder()
    kept = Materialized("numbers", history=timedelta(hours=1))
    table = builder.table("numbers", store=kept).map_values(share)
    builder.stream("in").left_join(table, lambda value, row: [value, row]).to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE)
    driver.input("numbers").send("a", 0, timestamp=10)
    driver.input("numbers").send("a", 4, timestamp=20)
    for time in (15, 25):
        driver.input("in").send("a", time, timestamp=time)
    assert values(driver) == [[15, None], [25, 3]]


@CACHES
def test_a_table_joined_with_itself_has_no_row_where_its_function_fails(
    caches: dict[str, Any],
) -> None:
    builder = StreamsBuilder()
    rows = builder.table("numbers", store="numbers")
    mapped = rows.map_values(share, name="share")
    rows.left_join(mapped, lambda value, row: [value, row]).to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE | caches)
    driver.input("numbers").send_many([("a", 3), ("a", 0), ("a", 4)])
    assert values(driver) == [[3, 4], [0, None], [4, 3]]


@CACHES
@pytest.mark.parametrize("first", ["left", "right"])
def test_a_foreign_key_join_finds_no_row_where_its_function_fails(
    first: str, caches: dict[str, Any]
) -> None:
    builder = StreamsBuilder()
    orders = builder.table("orders", store="orders")
    joined = orders.left_join(
        shares(builder), lambda order, row: [order, row], foreign_key=str, name="fk", store="joined"
    )
    joined.to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE | caches)
    driver.input("numbers").send("7", 3)
    if first == "left":
        driver.input("orders").send("a", 7)
        driver.input("numbers").send("7", 0)
    else:
        driver.input("numbers").send("7", 0)
        driver.input("orders").send("a", 7)
    assert values(driver)[-1] == [7, None]


def test_a_right_row_that_cannot_be_written_counts_as_deleted_for_those_that_named_it() -> None:
    """The mapped rows have no store, so the join is the first to write them."""
    builder = StreamsBuilder()
    orders = builder.table("orders", store="orders")
    others = builder.table("others", store="others")
    sets = others.map_values(lambda value: {value} if value == 13 else value)
    joined = orders.left_join(
        sets, lambda order, row: [order, row], foreign_key=str, name="fk", store="joined"
    )
    joined.to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE)
    driver.input("orders").send("a", 7)
    driver.input("others").send("7", 1)
    driver.input("others").send("7", 13)
    driver.input("orders").send("b", 7)
    found = {r.key: r.value for r in driver.output("out", key=serdes.string).read_all()}
    assert found == {"a": [7, None], "b": [7, None]}


def unmatched() -> Topology:
    builder = StreamsBuilder()
    left, right = builder.stream("left"), builder.stream("right")
    windows = JoinWindows(time_difference=10 * MS)
    joined = left.outer_join(right, lambda one, other: [share(one), other], windows, name="join")
    joined.to("out")
    return builder.build()


def test_an_unmatched_result_that_fails_does_not_cost_the_record_that_released_it() -> None:
    driver = TopologyTestDriver(unmatched(), CONTINUE)
    driver.input("left").send("a", 0, timestamp=0)
    driver.input("left").send("b", 4, timestamp=0)
    driver.input("left").send("c", 2, timestamp=40)
    driver.input("right").send("c", 9, timestamp=40)
    assert values(driver) == [[3, None], [6, 9]]
    assert skipped(driver) == [(None, None)]
    (letter,) = driver.output(DEAD).read_all()
    assert (letter.key, letter.value, letter.timestamp) == (None, None, 0)


def test_a_handler_is_told_the_record_that_waited() -> None:
    asked: list[Failure] = []

    def handler(failure: Failure) -> str:
        asked.append(failure)
        return "continue"

    driver = TopologyTestDriver(unmatched(), CONTINUE | {"processing.exception.handler": handler})
    driver.input("left").send("a", 0, timestamp=0)
    driver.input("left").send("c", 2, timestamp=40)
    (failure,) = asked
    assert isinstance(failure.error, ZeroDivisionError)
    assert (failure.topic, failure.node, failure.timestamp) == (None, "join-outer-this-join", None)
    assert failure.record is not None
    assert (failure.record.key, failure.record.timestamp) == ("a", 0)


@pytest.mark.parametrize("handler", ["fail", lambda failure: "fail"])
def test_a_failure_on_a_record_that_waited_does_not_blame_the_present_one(handler: Any) -> None:
    settings = {"default.key.serde": "string", "processing.exception.handler": handler}
    driver = TopologyTestDriver(unmatched(), settings)
    driver.input("left").send("a", 0, timestamp=17)
    with pytest.raises(RecordError, match=r"on an earlier record \(timestamp 17\)") as caught:
        driver.input("left").send("c", 2, timestamp=40)
    assert "do not skip" in str(caught.value)
    assert "function tests/streams/tasks/" in str(caught.value)


def test_a_failure_on_a_row_that_is_read_does_not_blame_its_reader() -> None:
    """The table's cache has not passed the row on, so its own record has not failed yet."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.left_join(shares(builder), lambda value, row: [value, row]).to("out")
    driver = TopologyTestDriver(builder.build(), commit="manual")
    driver.input("numbers").send("a", 0, timestamp=17)
    with pytest.raises(RecordError, match=r"on an earlier record \(timestamp 17\)") as caught:
        driver.input("in").send("a", 1, timestamp=18)
    assert "do not skip" in str(caught.value)
    assert "share" in str(caught.value)


def test_a_record_that_waits_for_late_rows_fails_by_itself() -> None:
    builder = StreamsBuilder()
    kept = Materialized("rows", history=timedelta(hours=1))
    table = builder.table("rows", store=kept)
    stream = builder.stream("in")
    joined = stream.left_join(
        table, lambda value, row: [share(value), row], grace=10 * MS, name="join"
    )
    joined.to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE)
    for number, time in ((0, 0), (3, 1), (4, 40), (6, 80)):
        driver.input("in").send("k", number, timestamp=time)
    assert values(driver) == [[4, None], [3, None]]
    assert skipped(driver) == [(None, None)]


def test_a_change_that_a_suppression_cannot_write_leaves_no_place_in_its_order() -> None:
    """Its buffer counted a row that was not there, and looked for it when it was full."""
    builder = StreamsBuilder()
    rows = builder.table("in", store="rows")
    sets = rows.map_values(lambda value: {value} if value == 13 else value)
    limit = Suppressed.until_time_limit(10 * MS, buffer=BufferConfig(max_records=1))
    sets.suppress(limit, name="calm").to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), CONTINUE, partitions=1)
    sent = [("a", 1), ("b", 13), ("c", 2), ("d", 3), ("a", 13), ("e", 4), ("z", 9)]
    for number, (key, value) in enumerate(sent):
        driver.input("in").send(key, value, timestamp=number * 2)
    assert values(driver) == [1, 2, 3, 4]
    assert driver.dropped == {("calm", "the node failed"): 2}


@CACHES
def test_a_session_that_cannot_be_written_leaves_those_that_it_would_have_merged(
    caches: dict[str, Any],
) -> None:
    builder = StreamsBuilder()
    windows = SessionWindows(inactivity_gap=5 * MS, grace=100 * MS)
    sessions = builder.stream("in").group_by_key().windowed_by(windows)
    options = {"value": serdes.integer, "store": "rows"}
    sessions.aggregate(int, add, lambda _, one, other: one + other, **options)
    driver = TopologyTestDriver(builder.build(), CONTINUE | caches, commit="manual", partitions=1)
    for value, time in ((1, 0), (2, 8), (2**40, 4), (4, 9)):
        driver.input("in").send("k", value, timestamp=time)
    driver.commit()
    found = {(*key.window,): total for key, total in driver.store("rows").items()}
    assert found == {(0, 0): 1, (8, 9): 6}


def add(_: Any, value: int, total: int) -> int:
    return total + value


class Same:
    def transform(self, _: Any, value: Any) -> Any:
        return value


def put(record: Any, context: Any) -> None:
    context.store("rows").put(record.key, record.value)


def put_in_window(record: Any, context: Any) -> None:
    context.store("rows").put(record.key, record.value, record.timestamp)


SMALL: dict[str, Any] = {"store": "rows", "value": serdes.integer}
HOUR = timedelta(hours=1)
OF_USERS = {
    "plain": Stores.key_value("rows", key=serdes.string, value=serdes.integer),
    "window": Stores.window(
        "rows", size=MS, retention=HOUR, key=serdes.string, value=serdes.integer
    ),
}
WRITERS: dict[str, Callable[[Any, Any], Any]] = {
    "table": lambda one, _: one.to_table(**SMALL),
    "versions": lambda one, _: one.to_table(
        store=Materialized("rows", history=HOUR), value=serdes.integer
    ),
    "aggregate": lambda one, _: one.group_by_key().aggregate(int, add, **SMALL),
    "cogroup": lambda one, _: one.group_by_key().cogroup(add).aggregate(int, **SMALL),
    "windows": lambda one, _: (
        one.group_by_key().windowed_by(TimeWindows(size=2 * MS)).aggregate(int, add, **SMALL)
    ),
    "sliding": lambda one, _: (
        one.group_by_key()
        .windowed_by(SlidingWindows(time_difference=2 * MS))
        .aggregate(int, add, **SMALL)
    ),
    "sessions": lambda one, _: (
        one.group_by_key()
        .windowed_by(SessionWindows(inactivity_gap=MS))
        .aggregate(int, add, lambda _, one, other: one + other, **SMALL)
    ),
    "mapping": lambda one, _: one.to_table(store="other").map_values(int, **SMALL),
    "transformer": lambda one, _: one.to_table(store="other").transform_values(Same, **SMALL),
    "join of tables": lambda one, two: one.to_table(store="other").left_join(
        two.to_table(store="two"), lambda value, _: value, **SMALL
    ),
    "join of streams": lambda one, two: one.left_join(
        two, lambda value, _: value, JoinWindows(time_difference=MS), value=serdes.integer
    ),
    "processor": lambda one, _: one.process_values(put, stores=[OF_USERS["plain"]]),
    "windowed processor": lambda one, _: one.process_values(
        put_in_window, stores=[OF_USERS["window"]]
    ),
}


@CACHES
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_number_that_a_store_cannot_write_is_skipped_where_it_is_made(
    write: Callable[[Any, Any], Any], caches: dict[str, Any]
) -> None:
    """Numbers are held as they are, so the commit was the first to refuse it."""
    builder = StreamsBuilder()
    write(builder.stream("in"), builder.stream("two"))
    driver = TopologyTestDriver(builder.build(), CONTINUE | caches, commit="manual", partitions=1)
    for number, value in enumerate((1, 2**40, 3)):
        driver.input("in").send(f"k{number}", value, timestamp=number)
    driver.commit()
    assert set(driver.dropped.values()) == {1}
