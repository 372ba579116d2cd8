"""Joins of a stream with a table: each record with the row of its key at that moment."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.streams.errors import MisconfiguredTopicError, StreamsError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    KStream,
    KTable,
    Materialized,
    StreamsBuilder,
    Topology,
    TopologyError,
    serdes,
)
from tests.support.examples import examples

TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
MS = timedelta(milliseconds=1)
EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2", "null.key.policy": "drop"}


def pair(value: str, row: str | None) -> str:
    return f"{value}+{row}"


def joined(method: str = "join", **options: Any) -> Topology:
    builder = StreamsBuilder()
    stream, table = builder.stream("stream", **TEXTS), builder.table("table", **TEXTS)
    getattr(stream, method)(table, pair, **options).to("out", value=serdes.string)
    return builder.build()


def results(driver: TopologyTestDriver) -> list[tuple[Any, Any, int]]:
    return [(r.key, r.value, r.timestamp) for r in driver.output("out").read_all()]


def test_a_record_is_joined_with_the_row_of_the_moment_and_keeps_its_time_and_headers() -> None:
    """Trap 6: the stream's time, however much later the row is."""
    driver = TopologyTestDriver(joined())
    driver.input("table").send("k", "row", timestamp=500)
    driver.input("stream").send("k", "v", timestamp=100, headers=[("h", b"1")])
    (result,) = driver.output("out").read_all()
    assert (result.key, result.value, result.timestamp) == ("k", "v+row", 100)
    assert list(result.headers or ()) == [("h", b"1")]


def test_a_change_of_the_table_makes_no_result_and_shows_in_the_next_one() -> None:
    driver = TopologyTestDriver(joined())
    stream, table = driver.input("stream"), driver.input("table")
    for row in ("one", "two", None):
        table.send("k", row)
        stream.send("k", "v")
    assert [value for _, value, _ in results(driver)] == ["v+one", "v+two"]


def test_a_left_join_has_a_result_for_each_record() -> None:
    driver = TopologyTestDriver(joined("left_join"))
    stream, table = driver.input("stream"), driver.input("table")
    stream.send("k", "v")
    table.send("k", "row")
    stream.send("k", "v")
    table.send("k", None)
    stream.send("k", "v")
    assert [value for _, value, _ in results(driver)] == ["v+None", "v+row", "v+None"]


@pytest.mark.parametrize("method", ["join", "left_join"])
def test_records_without_a_value_are_dropped(method: str) -> None:
    """Trap 5."""
    driver = TopologyTestDriver(joined(method, name="lookup"))
    driver.input("table").send("k", "row")
    driver.input("stream").send("k", None)
    assert results(driver) == []
    assert driver.dropped == {("lookup", "null value"): 1}


def test_records_without_a_key_get_a_null_row_in_a_left_join_and_are_for_the_policy_else() -> None:
    """Trap 5: KIP-962."""
    left = TopologyTestDriver(joined("left_join"))
    left.input("stream").send(None, "v", timestamp=7)
    assert results(left) == [(None, "v+None", 7)]
    dropping = TopologyTestDriver(joined(name="lookup"), {"null.key.policy": "drop"})
    dropping.input("stream").send(None, "v")
    assert dropping.dropped == {("lookup", "null key"): 1}
    with pytest.raises(StreamsError, match="the key is null, and 'lookup' requires a key"):
        TopologyTestDriver(joined(name="lookup")).input("stream").send(None, "v")


def test_records_without_a_key_come_through_the_repartition_topic_of_a_left_join() -> None:
    """Trap 5: KIP-962 leaves the filter of null keys out there."""
    builder = StreamsBuilder()
    stream: KStream[Any, Any] = builder.stream("stream", **TEXTS).select_key(lambda *_: None)
    table = builder.table("table", **TEXTS)
    stream.left_join(table, pair, key=serdes.string).to("out", value=serdes.string)
    driver = TopologyTestDriver(builder.build())
    driver.input("stream").send("k", "v", timestamp=1)
    assert results(driver) == [(None, "v+None", 1)]


def test_steps_between_a_repartition_topic_and_a_left_join_let_null_keys_pass_too() -> None:
    builder = StreamsBuilder()
    stream: KStream[Any, Any] = builder.stream("stream", **TEXTS).select_key(lambda *_: None)
    spread: KStream[Any, Any] = stream.repartition(name="spread", key=serdes.string)
    branch = spread.filter(lambda *_: True).split(name="b-").default_branch(name="all")["b-all"]
    table = builder.table("table", **TEXTS)
    branch.left_join(table, pair, key=serdes.string).to("out", value=serdes.string)
    driver = TopologyTestDriver(builder.build())
    driver.input("stream").send("k", "v", timestamp=1)
    assert results(driver) == [(None, "v+None", 1)]


def test_the_joiner_can_take_the_key() -> None:
    builder = StreamsBuilder()
    stream, table = builder.stream("stream", **TEXTS), builder.table("table", **TEXTS)
    stream.join(table, "{} {} {}".format, with_key=True).to("out", value=serdes.string)
    driver = TopologyTestDriver(builder.build())
    driver.input("table").send("k", "row")
    driver.input("stream").send("k", "v")
    assert [value for _, value, _ in results(driver)] == ["k v row"]


def test_a_table_that_is_computed_is_read_through_what_computes_it() -> None:
    builder = StreamsBuilder()
    stream, rows = builder.stream("stream", **TEXTS), builder.table("table", **TEXTS)
    shouted = rows.filter(lambda _, row: row != "no").map_values(str.upper)
    stream.left_join(shouted, pair).to("out", value=serdes.string)
    driver = TopologyTestDriver(builder.build())
    for row in ("yes", "no"):
        driver.input("table").send("k", row)
        driver.input("stream").send("k", "v")
    assert [value for _, value, _ in results(driver)] == ["v+YES", "v+None"]


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_an_aggregate_is_read_as_it_is_also_before_its_cache_lets_go_of_it(cache: int) -> None:
    """Trap 29: a cache holds back what flows on, not what is looked up."""
    builder = StreamsBuilder()
    stream = builder.stream("stream", **TEXTS)
    counts: KTable[str, int] = builder.stream("counted", **TEXTS).group_by_key().count()
    stream.join(counts, lambda value, count: f"{value}{count}").to("out", value=serdes.string)
    settings = {**EXACTLY_ONCE, "statestore.cache.max.bytes": cache}
    driver = TopologyTestDriver(builder.build(), settings, commit="manual")
    for _ in range(3):
        driver.input("counted").send("k", "x")
        driver.input("stream").send("k", "v")
    driver.commit()
    assert [value for _, value, _ in results(driver)] == ["v1", "v2", "v3"]


def test_a_stream_can_be_joined_with_its_own_table() -> None:
    """The table comes first in the order of the steps, so a record finds the row that it made."""
    builder = StreamsBuilder()
    stream = builder.stream("stream", **TEXTS)
    table = stream.to_table(store="rows")
    stream.left_join(table, pair).to("out", value=serdes.string)
    driver = TopologyTestDriver(builder.build())
    for value in ("a", "b"):
        driver.input("stream").send("k", value)
    assert [value for _, value, _ in results(driver)] == ["a+a", "b+b"]


def test_a_stream_whose_key_changed_is_partitioned_like_the_table() -> None:
    """Trap 22."""
    builder = StreamsBuilder()
    stream = builder.stream("stream", **TEXTS).select_key(lambda _, value: value[0])
    table = builder.table("table", **TEXTS)
    stream.join(table, pair, key=serdes.string, name="lookup").to("out", value=serdes.string)
    driver = TopologyTestDriver(builder.build(), partitions={"stream": 2, "table": 5})
    assert len(driver.cluster.topics["test-lookup-repartition"].logs) == 5
    for number, key in enumerate("abcdefgh"):
        driver.input("table").send(key, "row")
        driver.input("stream").send(None, f"{key}{number}")
    assert sorted(results(driver)) == sorted(
        (key, f"{key}{number}+row", 0) for number, key in enumerate("abcdefgh")
    )


def test_topics_of_unequal_partition_counts_are_refused_by_name() -> None:
    """Trap 22."""
    with pytest.raises(MisconfiguredTopicError) as error:
        TopologyTestDriver(joined(), partitions={"stream": 3, "table": 2})
    assert "stream" in str(error.value)
    assert "table" in str(error.value)


def test_values_that_can_be_changed_in_place_stay_as_they_were() -> None:
    def spoil(value: Any, row: Any) -> int:
        row["spoilt"] = value
        return len(row)

    builder = StreamsBuilder()
    table: KTable[str, Any] = builder.table("table", key=serdes.string, value=serdes.json)
    builder.stream("stream", **TEXTS).join(table, spoil).to("out", value=serdes.long)
    driver = TopologyTestDriver(builder.build(), commit="manual")
    driver.input("table").send("k", {"a": 1})
    for _ in range(2):
        driver.input("stream").send("k", "v")
    driver.commit()
    assert [value for _, value, _ in results(driver)] == [2, 2]


RECORDS = st.tuples(st.sampled_from(["stream", "table"]), st.sampled_from("abc"), st.booleans())
ACTIONS = st.sampled_from(["commit", "abort", "crash", "lose", "restart"])


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("method", ["join", "left_join"])
@given(
    cache=st.sampled_from([0, 1 << 20]),
    steps=st.lists(st.one_of(RECORDS, RECORDS, ACTIONS), max_size=25),
)
@settings(max_examples=examples(40), deadline=None)
def test_aborts_and_crashes_between_any_two_records_change_nothing(
    partitions: int, method: str, cache: int, steps: list[Any]
) -> None:
    # One topic for both, so that the order of all records is that of their offsets.
    builder = StreamsBuilder()
    both: KStream[str, Any] = builder.stream("in", key=serdes.string, value=serdes.json)
    table = both.filter(lambda _, v: v[0] == "table").map_values(lambda v: v[1])
    stream = both.filter(lambda _, v: v[0] == "stream").map_values(lambda v: v[1])
    rows_of = table.to_table(store="rows", key=serdes.string, value=serdes.string)
    getattr(stream, method)(rows_of, pair).to("out", value=serdes.string)
    driver = TopologyTestDriver(
        builder.build(),
        {**EXACTLY_ONCE, "statestore.cache.max.bytes": cache},
        partitions=partitions,
        commit="manual",
    )
    rows: dict[str, str] = {}
    expected: list[tuple[str, str]] = []
    for number, step in enumerate(steps):
        if isinstance(step, str):
            act(driver, step)
            continue
        topic, key, is_there = step
        value = f"v{number}" if is_there else None
        if topic == "table":
            rows[key] = value or ""
            rows = {k: v for k, v in rows.items() if v}
        elif value is not None and (method == "left_join" or key in rows):
            expected.append((key, pair(value, rows.get(key))))
        partition = ord(key) % partitions
        driver.input("in").send(key, [topic, value], timestamp=number, partition=partition)
    driver.commit()
    made = driver.output("out").read_all()
    for key in "abc":
        assert [r.value for r in made if r.key == key] == [v for k, v in expected if k == key]
    assert dict(driver.store("rows")) == rows
    driver.close()


def act(driver: TopologyTestDriver, action: str) -> None:
    if action == "commit":
        driver.commit()
    elif action == "abort":
        driver.abort()
    elif action == "restart":
        driver.restart()
    else:
        driver.crash(keep=action == "crash")


def test_local_state_in_rocksdb_gives_the_same_results(tmp_path: Path) -> None:
    driver = TopologyTestDriver(joined("left_join"), EXACTLY_ONCE, state_dir=tmp_path)
    for number in range(30):
        driver.input("table").send(f"k{number % 7}", f"row{number}" if number % 4 else None)
        if number % 5 == 0:
            driver.crash()
        driver.input("stream").send(f"k{number % 5}", f"v{number}")
    rows: dict[str, str | None] = {}
    expected = []
    for number in range(30):
        rows[f"k{number % 7}"] = f"row{number}" if number % 4 else None
        expected.append(pair(f"v{number}", rows.get(f"k{number % 5}")))
    assert [value for _, value, _ in results(driver)] == expected
    driver.close()


# -- with a grace period -------------------------------------------------------------------------


def postponed(method: str = "join", *, grace: int = 10, history: int = 100) -> Topology:
    builder = StreamsBuilder()
    kept = Materialized("rows", history=history * MS)
    table = builder.table("table", **TEXTS, store=kept)
    stream = builder.stream("stream", **TEXTS)
    joins = getattr(stream, method)(table, pair, grace=grace * MS, name="late")
    joins.to("out", value=serdes.string)
    return builder.build()


def test_a_record_waits_for_the_grace_period_and_finds_the_row_of_its_time() -> None:
    """Trap 17."""
    driver = TopologyTestDriver(postponed(), EXACTLY_ONCE)
    stream, table = driver.input("stream"), driver.input("table")
    table.send("k", "first", timestamp=10)
    stream.send("k", "v", timestamp=50)
    table.send("k", "after", timestamp=60)
    table.send("k", "late row", timestamp=45)
    assert results(driver) == []
    stream.send("x", "any", timestamp=59)
    assert results(driver) == []
    stream.send("x", "any", timestamp=60)
    assert results(driver) == [("k", "v+late row", 50)]


def test_a_record_later_than_the_grace_period_is_joined_at_once() -> None:
    """Trap 17."""
    driver = TopologyTestDriver(postponed("left_join"), EXACTLY_ONCE)
    stream, table = driver.input("stream"), driver.input("table")
    table.send("k", "row", timestamp=40)
    stream.send("x", "any", timestamp=60)
    stream.send("k", "late", timestamp=49)
    stream.send("k", "earlier than the row", timestamp=39)
    assert results(driver) == [("k", "late+row", 49), ("k", "earlier than the row+None", 39)]
    stream.send("k", "in time", timestamp=50)
    assert results(driver)[2:] == [("k", "in time+row", 50)]


def test_without_a_grace_period_too_a_table_with_a_past_is_asked_for_the_time_of_the_record() -> (
    None
):
    builder = StreamsBuilder()
    table = builder.table("table", **TEXTS, store=Materialized("rows", history=100 * MS))
    builder.stream("stream", **TEXTS).join(table, pair).to("out", value=serdes.string)
    driver = TopologyTestDriver(builder.build())
    for time in (10, 20):
        driver.input("table").send("k", f"row{time}", timestamp=time)
    driver.input("stream").send("k", "v", timestamp=15)
    assert results(driver) == [("k", "v+row10", 15)]


@given(
    grace=st.integers(0, 8),
    steps=st.lists(
        st.one_of(st.tuples(st.sampled_from("ab"), st.integers(0, 40)), ACTIONS), max_size=25
    ),
)
@settings(max_examples=examples(60), deadline=None)
def test_what_waits_for_the_grace_period_outlives_aborts_and_crashes(
    grace: int, steps: list[Any]
) -> None:
    driver = TopologyTestDriver(postponed(grace=grace), EXACTLY_ONCE, commit="manual")
    rows = [0, 10, 20, 30]
    for time in rows:
        for key in "ab":
            driver.input("table").send(key, f"r{time}", timestamp=time)
    driver.commit()
    now, waiting, expected = -1, [], []
    for number, step in enumerate(steps):
        if isinstance(step, str):
            act(driver, step)
            continue
        key, time = step
        driver.input("stream").send(key, f"v{number}", timestamp=time)
        now = max(now, time)
        row = max(r for r in rows if r <= time)
        result = (time, key, number, pair(f"v{number}", f"r{row}"))
        if time < now - grace:
            expected.append(result)
            continue
        waiting.append(result)
        ended = sorted(w for w in waiting if w[0] <= now - grace)
        expected += ended
        waiting = [w for w in waiting if w not in ended]
    driver.commit()
    assert results(driver) == [(key, value, time) for time, key, _, value in expected]
    held = driver.store("late-Buffer")
    assert sorted((where.timestamp_ms, where.key) for where in held) == sorted(
        w[:2] for w in waiting
    )
    driver.close()


def test_headers_wait_with_their_record() -> None:
    driver = TopologyTestDriver(postponed(), EXACTLY_ONCE)
    driver.input("table").send("k", "row", timestamp=1)
    driver.input("stream").send("k", "v", timestamp=5, headers=[("h", b"1"), ("n", None)])
    driver.crash(keep=False)
    driver.input("stream").send("k", "v", timestamp=15)
    (result,) = driver.output("out").read_all()
    assert list(result.headers or ()) == [("h", b"1"), ("n", None)]


def test_a_grace_period_takes_a_table_that_keeps_as_much_of_its_past() -> None:
    builder = StreamsBuilder()
    stream, table = builder.stream("stream", **TEXTS), builder.table("table", **TEXTS)
    with pytest.raises(TopologyError, match=r"is versioned.*history"):
        stream.join(table, pair, grace=10 * MS)
    with pytest.raises(
        TopologyError, match=r"is 101 ms, longer than the history of 'rows', 100 ms"
    ):
        postponed(grace=101)
    with pytest.raises(TopologyError, match="grace= is for joins with a versioned table"):
        stream.join(stream, pair, grace=10 * MS)  # type: ignore[call-overload]
