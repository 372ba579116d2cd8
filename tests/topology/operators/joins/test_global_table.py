"""global_table, and joins of streams with global tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

import pytest

from headrace.simulation import simulate
from headrace.streams.errors import FatalClientError, RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.local_cluster import Transaction
from headrace.topology import (
    GlobalKTable,
    KStream,
    Materialized,
    ProcessorContext,
    ReadOnlyStore,
    Record,
    StreamsBuilder,
    TopologyError,
    serdes,
)
from tests.support.operators import HEADERS, NO_CACHE, pairs

EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2"}
Key = Callable[[Any, Any], Any]


def by_value(key: Any, value: Any) -> Any:
    return value


def both(value: Any, row: Any) -> list[Any]:
    return [value, row]


def join_driver(
    how: str = "join",
    *,
    key_mapper: Key = by_value,
    joiner: Callable[..., Any] = both,
    with_key: bool = False,
    store: str | Materialized = "rows",
    settings: Mapping[str, object] | None = None,
    **options: Any,
) -> TopologyTestDriver:
    builder = StreamsBuilder()
    table = builder.global_table("table", key=serdes.string, store=store)
    stream: KStream[Any, Any] = builder.stream("in", key=serdes.string)
    method = getattr(stream, how)
    method(table, joiner, key_mapper=key_mapper, with_key=with_key).to("out")
    return TopologyTestDriver(builder.build(), settings, **options)


@pytest.mark.parametrize("partitions", [1, {"table": 3, "in": 2, "out": 2}])
def test_a_record_finds_any_row_whatever_partition_both_are_in(partitions: Any) -> None:
    driver = join_driver(partitions=partitions)
    driver.input("table").send_many([(key, key.upper()) for key in "abcdef"])
    driver.input("in").send_many([("k", key) for key in "abcdef"])
    assert pairs(driver) == [("k", [key, key.upper()]) for key in "abcdef"]


def test_the_result_has_key_timestamp_and_headers_of_the_streams_record() -> None:
    driver = join_driver()
    driver.input("table").send("x", 1, timestamp=1000)
    driver.input("in").send("k", "x", timestamp=5, headers=HEADERS)
    (record,) = driver.output("out").read_all()
    assert (record.key, record.value, record.timestamp) == ("k", ["x", 1], 5)
    assert list(record.headers) == HEADERS


def test_rows_follow_their_topic_between_two_records() -> None:
    driver = join_driver("left_join")
    table, stream = driver.input("table"), driver.input("in")
    for value in (1, 2, None, 3):
        table.send("x", value)
        stream.send("k", "x")
    assert pairs(driver) == [("k", ["x", row]) for row in (1, 2, None, 3)]


def test_what_was_written_before_the_start_is_there_for_the_first_record() -> None:
    driver = join_driver(partitions={"table": 3})
    for number in range(30):
        key = serdes.string.serialize(str(number))
        driver.cluster.append("table", b"%d" % number, key, -1, 0, None)
    driver.input("in").send("k", "29")
    assert pairs(driver) == [("k", ["29", 29])]


def test_an_inner_join_drops_null_values_and_null_mapped_keys_and_what_matches_nothing() -> None:
    """Trap 5: the mapper is asked first, and sees null values."""
    seen = []

    def mapper(key: Any, value: Any) -> Any:
        seen.append((key, value))
        return None if value == "none" else "x"

    driver = join_driver(key_mapper=mapper)
    driver.input("table").send("x", 1)
    records = [("k", "v"), ("k", "none"), ("k", None), (None, "v"), (None, None)]
    driver.input("in").send_many(records)
    assert seen == records
    assert pairs(driver) == [("k", ["v", 1]), (None, ["v", 1])]
    dropped = {reason: count for (_, reason), count in driver.dropped.items()}
    assert dropped == {"null value": 2, "null key of the global table": 1}


def test_an_inner_join_without_a_match_has_no_result_and_counts_nothing_as_dropped() -> None:
    driver = join_driver()
    driver.input("in").send("k", "nobody")
    assert pairs(driver) == []
    assert driver.dropped == {}


def test_a_left_join_makes_results_without_a_row_but_none_without_a_value() -> None:
    """Trap 5: a null key, a null mapped key and no match are joined with None."""
    driver = join_driver("left_join", key_mapper=lambda _, v: None if v == "none" else v)
    driver.input("table").send("x", 1)
    driver.input("in").send_many([("k", "x"), ("k", "y"), ("k", "none"), (None, "y"), ("k", None)])
    assert pairs(driver) == [
        ("k", ["x", 1]),
        ("k", ["y", None]),
        ("k", ["none", None]),
        (None, ["y", None]),
    ]


def test_a_joiner_may_take_the_key_of_the_record() -> None:
    driver = join_driver(joiner=lambda key, value, row: [key, value, row], with_key=True)
    driver.input("table").send("x", 1)
    driver.input("in").send("k", "x")
    assert pairs(driver) == [("k", ["k", "x", 1])]


def test_a_joiner_that_returns_none_makes_a_null_value() -> None:
    driver = join_driver(joiner=lambda value, row: None)
    driver.input("table").send("x", 1)
    driver.input("in").send("k", "x")
    assert pairs(driver) == [("k", None)]


def test_children_see_each_result_in_declaration_order_before_the_next_record() -> None:
    """Trap 28: depth first."""
    seen: list[Any] = []
    builder = StreamsBuilder()
    table = builder.global_table("table", key=serdes.string)
    joined = builder.stream("in", key=serdes.string).join(table, both, key_mapper=by_value)
    joined.for_each(lambda k, v: seen.append(("first", v[0])))
    joined.for_each(lambda k, v: seen.append(("second", v[0])))
    driver = TopologyTestDriver(builder.build(), commit="manual")
    driver.input("table").send_many([("a", 1), ("b", 2)])
    driver.input("in").send_many([("k", "a"), ("k", "b")])
    assert seen == [("first", "a"), ("second", "a"), ("first", "b"), ("second", "b")]


def test_a_key_that_has_changed_is_partitioned_anew_behind_the_join_and_not_for_it() -> None:
    builder = StreamsBuilder()
    table = builder.global_table("table", store="rows")
    rekeyed = builder.stream("in").select_key(by_value)
    joined = rekeyed.join(table, both, key_mapper=by_value)
    joined.group_by_key(name="again").count(store="counts")
    topology = builder.build()
    assert [sub.id for sub in topology.sub_topologies] == [1, 2]
    assert [sink.topic for sub in topology.sub_topologies for sink in sub.sinks] == [
        "again-repartition"
    ]


def test_the_store_of_a_global_table_can_be_looked_at() -> None:
    driver = join_driver(partitions={"table": 2})
    driver.input("table").send_many([("b", [2]), ("a", 1), ("b", [3])])
    assert dict(driver.store("rows")) == {"a": 1, "b": [3]}
    driver.input("table").send("a", None)
    assert next(iter(driver.store("rows").rows()))[:2] == ("b", [3])
    assert len(driver.store("rows")) == 1


def test_a_value_of_which_the_joiner_changes_its_copy_stays_as_it_was_in_the_store() -> None:
    driver = join_driver(joiner=lambda value, row: row.append(value) or row)
    driver.input("table").send("x", [])
    driver.input("in").send_many([("k", "x"), ("k", "x")])
    assert pairs(driver) == [("k", ["x"]), ("k", ["x"])]
    assert dict(driver.store("rows")) == {"x": []}


def test_equal_keys_are_found_however_their_bytes_were_spaced() -> None:
    builder = StreamsBuilder()
    table = builder.global_table("table", key=serdes.json)
    stream = builder.stream("in", value=serdes.json)
    stream.join(table, both, key_mapper=by_value).to("out", value=serdes.json)
    driver = TopologyTestDriver(builder.build())
    driver.cluster.append("table", b"1", b'{ "b": 1,  "a": [2] }', 0, 0, None)
    driver.input("in").send(None, {"a": [2], "b": 1})
    assert pairs(driver) == [(None, [{"a": [2], "b": 1}, 1])]


def test_a_processor_reads_a_global_table_without_being_connected_and_cannot_write_it() -> None:
    seen: list[Any] = []

    def look(record: Record[Any, Any], context: ProcessorContext[Any, Any]) -> None:
        rows: ReadOnlyStore[str, int] = context.store("rows")
        seen.append((rows.get(record.value), rows.get_with_timestamp(record.value)))
        seen.append([list(rows.all()), list(rows.range("b", "c"))])
        assert not hasattr(rows, "put")

    builder = StreamsBuilder()
    builder.global_table("table", key=serdes.string, store="rows")
    builder.stream("in").process(look)
    topology = builder.build()
    assert [sub.stores for sub in topology.sub_topologies] == [()]
    driver = TopologyTestDriver(topology)
    for key in "abcd":
        driver.input("table").send(key, ord(key), timestamp=5)
    driver.input("in").send(None, "b")
    driver.input("in").send(None, "z")
    rows = [("a", 97), ("b", 98), ("c", 99), ("d", 100)]
    assert seen == [(98, (98, 5)), [rows, rows[1:3]], (None, None), [rows, rows[1:3]]]


def test_a_processor_that_is_connected_with_the_store_of_a_global_table_is_refused() -> None:
    builder = StreamsBuilder()
    builder.global_table("table", store="rows")
    builder.stream("in").process(lambda record, context: None, stores=["rows"])
    with pytest.raises(TopologyError, match="belongs to the global table"):
        builder.build()


# -- commits, aborts and restarts -----------------------------------------------------------------


@pytest.mark.parametrize("settings", [NO_CACHE, EXACTLY_ONCE])
@pytest.mark.parametrize("on_disk", [False, True])
def test_rows_are_there_again_after_a_crash(
    settings: Mapping[str, object], on_disk: bool, tmp_path: Path
) -> None:
    driver = join_driver(
        settings=settings, partitions={"table": 3}, state_dir=tmp_path if on_disk else None
    )
    driver.input("table").send_many([(str(n), n) for n in range(20)])
    driver.crash()
    driver.input("in").send("k", "7")
    driver.crash(keep=False)
    driver.input("in").send("k", "8")
    driver.restart()
    driver.input("in").send("k", "9")
    assert pairs(driver) == [("k", [str(n), n]) for n in (7, 8, 9)]
    driver.close()


def test_a_restart_goes_on_from_where_the_local_rows_are(tmp_path: Path) -> None:
    driver = join_driver(state_dir=tmp_path)
    driver.input("table").send_many([("a", 1), ("b", 2)])
    driver.crash()
    driver.cluster.append("table", b"3", b"c", 0, 0, None)
    driver.input("in").send_many([("k", key) for key in "abc"])
    assert [value for _, value in pairs(driver)] == [["a", 1], ["b", 2], ["c", 3]]
    loaded = [e["records"] for e in driver.events if e["event"] == "global_table_loaded"]
    assert loaded == [2, 1]
    driver.close()


def test_rows_of_a_topic_that_was_made_anew_are_dropped(tmp_path: Path) -> None:
    driver = join_driver("left_join", state_dir=tmp_path)
    driver.input("table").send("a", 1)
    driver.restart()
    del driver.cluster.topics["table"]
    driver.cluster.create("table")
    driver.input("in").send("k", "a")
    assert pairs(driver) == [("k", ["a", None])]
    assert "global_table_dropped" in [event["event"] for event in driver.events]
    driver.close()


@pytest.mark.parametrize("grown", [2, 5])
def test_rows_of_records_that_the_cluster_has_lost_are_dropped(tmp_path: Path, grown: int) -> None:
    """The topic went back to an older end, and has grown past the old one with other records."""
    driver = join_driver("left_join", state_dir=tmp_path)
    driver.input("table").send_many([("a", 1), ("b", 2), ("c", 3)])
    driver.crash()
    log = driver.cluster.log(driver.cluster.partitions("table")[0])
    del log.entries[1:], log._writers[1:]
    for number in range(grown):
        driver.cluster.append("table", b"4", b"%d" % number, 0, 0, None)
    driver.input("in").send_many([("k", key) for key in "abc0"])
    assert [value for _, value in pairs(driver)] == [["a", 1], ["b", None], ["c", None], ["0", 4]]
    assert "global_table_dropped" in [event["event"] for event in driver.events]
    driver.close()


def test_rows_are_dropped_whose_last_record_is_not_in_the_topic(tmp_path: Path) -> None:
    driver = join_driver("left_join", state_dir=tmp_path)
    driver.input("table").send_many([("a", 1), ("b", 2)])
    driver.crash()
    driver.cluster.log(driver.cluster.partitions("table")[0]).entries[1] = None
    driver.input("in").send_many([("k", "a"), ("k", "b")])
    assert [value for _, value in pairs(driver)] == [["a", 1], ["b", None]]
    driver.close()


def test_rows_are_read_anew_where_records_were_deleted_before_they_were_read() -> None:
    driver = join_driver("left_join")
    driver.input("table").send("a", 1)
    driver.restart()
    for key in (b"b", b"c"):
        driver.cluster.append("table", b"2", key, 0, 0, None)
    place = driver.cluster.partitions("table")[0]
    driver.cluster.delete_before(place, 2)
    driver.input("in").send_many([("k", key) for key in "abc"])
    assert [row for _, (_, row) in pairs(driver)] == [None, None, 2]


def test_an_abort_takes_back_no_row_and_finds_the_newest_ones() -> None:
    """Trap 26: global tables are outside of the transaction."""
    driver = join_driver(settings=EXACTLY_ONCE, commit="manual")
    driver.input("table").send("x", 1)
    driver.input("in").send("k", "x")
    driver.input("table").send("x", 2)
    driver.abort()
    driver.commit()
    assert pairs(driver) == [("k", ["x", 2])]


def test_no_offset_of_a_global_topic_is_committed_and_it_has_no_changelog() -> None:
    """Trap 26: nothing of a global table is part of a commit."""
    driver = join_driver(settings=EXACTLY_ONCE)
    driver.input("table").send("x", 1)
    driver.input("in").send("k", "x")
    assert driver.committed_offsets("table") == {}
    assert driver.committed_offsets("in") != {}
    assert sorted(driver.cluster.topics) == ["in", "out", "table"]
    assert driver.processed == 1


def test_an_uncommitted_record_of_another_writer_is_no_row_yet() -> None:
    driver = join_driver("left_join")
    driver.input("in").send("k", "x")
    transaction = Transaction()
    driver.cluster.append("table", b"1", b"x", 0, 0, None, transaction)
    driver.input("in").send("k", "x")
    driver.cluster.end(transaction, committed=True)
    driver.input("in").send("k", "x")
    assert [row for _, (_, row) in pairs(driver)] == [None, None, 1]


def test_an_application_can_read_what_it_writes_as_a_global_table() -> None:
    builder = StreamsBuilder()
    table = builder.global_table("last", key=serdes.string)
    stream: KStream[Any, Any] = builder.stream("in", key=serdes.string)
    stream.left_join(table, both, key_mapper=lambda key, _: key).to("out")
    stream.to("last")
    driver = TopologyTestDriver(builder.build(), EXACTLY_ONCE)
    driver.input("in").send_many([("a", 1), ("a", 2)])
    driver.crash(at="changelogs_written")
    driver.input("in").send("a", 3)
    assert driver.output("out").as_dict() == {"a": [3, 2]}


def test_a_load_that_gets_nothing_more_ends_with_an_error_that_says_where_it_is() -> None:
    driver = join_driver(settings={"task.timeout.ms": 1_000})
    transaction = Transaction()
    driver.cluster.append("table", b"1", b"x", 0, 0, None, transaction)
    with pytest.raises(FatalClientError, match="table-0 is at 0 of 1"):
        driver.input("in").send("k", "x")
    driver.cluster.end(transaction, committed=True)
    driver.run()
    assert pairs(driver) == [("k", ["x", 1])]


def test_a_table_that_was_long_without_news_is_not_taken_for_an_old_one(tmp_path: Path) -> None:
    """Its position says when it was last known to have everything, not when it last changed."""
    day = timedelta(days=1)
    driver = join_driver("left_join", state_dir=tmp_path)
    driver.input("table").send_many([("a", 1), ("b", 1)])
    for _ in range(3):
        driver.advance(day)
    driver.crash()
    for key in (b"c", b"d"):
        driver.cluster.append("table", b"2", key, 0, 0, None)
    driver.input("in").send_many([("k", "a"), ("k", "c")])
    assert pairs(driver) == [("k", ["a", 1]), ("k", ["c", 2])]
    loaded = [e["records"] for e in driver.events if e["event"] == "global_table_loaded"]
    assert loaded == [2, 2]
    driver.close()


def test_rows_that_may_have_missed_deletions_are_read_anew(tmp_path: Path) -> None:
    driver = join_driver("left_join", state_dir=tmp_path)
    driver.input("table").send_many([("a", 1), ("b", 1)])
    driver.crash()
    driver._clock.pass_ms(25 * 60 * 60 * 1000)
    driver.cluster.append("table", None, b"a", 0, 0, None)
    driver.cluster.append("table", b"2", b"c", 0, 0, None)
    driver.input("in").send_many([("k", "a"), ("k", "b")])
    assert pairs(driver) == [("k", ["a", None]), ("k", ["b", 1])]
    assert "global_table_dropped" in [event["event"] for event in driver.events]
    driver.close()


# -- records that are no rows ---------------------------------------------------------------------


def bad(driver: TopologyTestDriver, key: bytes | None = b"k", value: bytes = b"{") -> None:
    driver.cluster.append("table", b"1", b"a", 0, 0, None)
    driver.cluster.append("table", value, key, 0, 77, None)
    driver.cluster.append("table", b"2", b"b", 0, 0, None)


@pytest.mark.parametrize("running", [False, True])
def test_a_record_that_cannot_be_decoded_stops_the_application_and_names_its_place(
    running: bool,
) -> None:
    driver = join_driver()
    if running:
        driver.run()
    bad(driver)
    with pytest.raises(RecordError) as caught:
        driver.input("in").send("k", "b")
    error = caught.value
    assert (error.topic, error.partition, error.offset) == ("table", 0, 1)
    assert (error.timestamp, error.store) == (77, "rows")
    assert "{" not in str(error)
    assert pairs(driver) == []


def test_a_handler_may_let_it_go() -> None:
    asked = []

    def handler(failure: Any) -> str:
        asked.append((failure.topic, failure.offset, failure.stage, failure.key))
        return "continue"

    driver = join_driver(settings={"deserialization.exception.handler": handler})
    bad(driver)
    driver.input("in").send_many([("k", "a"), ("k", "b")])
    assert pairs(driver) == [("k", ["a", 1]), ("k", ["b", 2])]
    assert asked == [("table", 1, "deserialization", b"k")]
    assert list(driver.dropped.values()) == [1]


def test_dead_letters_of_a_global_table_are_left_out_and_that_is_logged() -> None:
    driver = join_driver(
        settings={
            "deserialization.exception.handler": "continue",
            "errors.dead.letter.queue.topic.name": "dead",
        }
    )
    bad(driver)
    driver.input("in").send("k", "b")
    assert driver.output("dead").read_all() == []
    (event,) = [e for e in driver.events if e["event"] == "record_skipped"]
    assert (event["topic"], event["offset"], event["dead_letters_left_out"]) == ("table", 1, 1)


@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_a_record_without_a_key_is_left_to_null_key_policy(policy: str) -> None:
    driver = join_driver(settings={"null.key.policy": policy})
    bad(driver, key=None, value=b"1")
    if policy == "fail":
        with pytest.raises(RecordError, match="offset 1"):
            driver.input("in").send("k", "b")
        return
    driver.input("in").send("k", "b")
    assert pairs(driver) == [("k", ["b", 2])]
    assert list(driver.dropped) == [("KTABLE-SOURCE-0000000001", "null key")]


# -- what is refused ------------------------------------------------------------------------------


def test_a_topic_is_read_as_a_global_table_once_and_by_nobody_else() -> None:
    builder = StreamsBuilder()
    builder.global_table("t")
    builder.stream("t")
    with pytest.raises(TopologyError, match="'t' is read as a global table and by"):
        builder.build()
    builder = StreamsBuilder()
    builder.global_table("t")
    builder.global_table("t")
    with pytest.raises(TopologyError, match="twice"):
        builder.build()


def test_a_join_needs_a_key_mapper_and_takes_no_windows_or_serdes() -> None:
    builder = StreamsBuilder()
    table: GlobalKTable[Any, Any] = builder.global_table("t")
    stream: Any = builder.stream("in")
    with pytest.raises(TopologyError, match="key_mapper"):
        stream.join(table, both)
    with pytest.raises(TopologyError, match="does not accept key="):
        stream.join(table, both, key_mapper=by_value, key=serdes.string)
    with pytest.raises(TopologyError, match="outer"):
        stream.outer_join(table, both, None)
    with pytest.raises(TopologyError, match="key_mapper= is for joins with a global table"):
        stream.join(builder.table("u"), both, key_mapper=by_value)
    with pytest.raises(TopologyError, match="another builder"):
        StreamsBuilder().stream("in").join(table, both, key_mapper=by_value)


def test_a_topology_of_global_tables_alone_has_nothing_to_do() -> None:
    builder = StreamsBuilder()
    builder.global_table("t")
    with pytest.raises(TopologyError, match="reads no topic"):
        TopologyTestDriver(builder.build())


def test_a_simulation_has_all_rows_of_global_tables_from_the_beginning() -> None:
    builder = StreamsBuilder()
    table = builder.global_table("t", key=serdes.string, value=serdes.string)
    numbers = builder.stream("in", key=serdes.string, value=serdes.string)
    numbers.join(table, lambda value, row: f"{value}+{row}", key_mapper=lambda key, _: key).to(
        "out"
    )
    inputs = {"in": [("a", "1"), ("b", "2"), ("a", "3")], "t": [("a", "A"), ("b", "B")]}
    for seed in range(5):
        result = simulate(builder.build(), inputs=inputs, seed=seed).check()
        assert sorted(value for _, value in result.outputs("out")) == ["1+A", "2+B", "3+A"]


# -- types ----------------------------------------------------------------------------------------


def code_of(key: str, value: int) -> bytes | None:
    return None if value < 0 else key.encode()


def priced(value: int, row: float) -> float:
    return value * row


def perhaps_priced(key: str, value: int, row: float | None) -> str:
    return f"{key}: {value} * {row}"


def test_a_type_checker_knows_the_table_and_the_result() -> None:
    b = StreamsBuilder()
    table = b.global_table("t", key=serdes.bytes, value=serdes.double)
    assert_type(table, GlobalKTable[bytes, float])
    assert_type(b.global_table("u"), GlobalKTable[Any, Any])
    stream = b.stream("in", key=serdes.string, value=serdes.long)
    assert_type(stream.join(table, priced, key_mapper=code_of), KStream[str, float])
    left = stream.left_join(table, perhaps_priced, key_mapper=code_of, with_key=True)
    assert_type(left, KStream[str, str])
