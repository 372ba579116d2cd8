"""Folds over sliding windows (KIP-450)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import ProcessorContext, Record, ValueAndTimestamp
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import Materialized, SlidingWindows, StreamsBuilder, TopologyError, serdes
from tests.support.examples import examples
from tests.support.timed import Action, actions, perform
from tests.support.topologies import EXACTLY_ONCE
from tests.support.windows import Got, driver_of, got, joined, ms, results, send

TEN = SlidingWindows(time_difference=ms(10), grace=ms(100))
STRICT = SlidingWindows(time_difference=ms(10))
NODE = "KSTREAM-AGGREGATE-0000000001"


def last(found: list[Got]) -> list[tuple[int, int, str]]:
    """The last value of each window, by its start."""
    return sorted({g.start: (g.start, g.end, g.value) for g in found}.values())


def test_a_record_ends_a_window_with_those_up_to_the_time_difference_before_it() -> None:
    found = results(joined(TEN), ("a", "x", 20), ("a", "y", 30), ("a", "z", 41))
    assert (10, 20, "x") in last(found)
    assert (20, 30, "xy") in last(found)
    assert (31, 41, "z") in last(found)


def test_right_behind_a_record_begins_a_window_where_another_record_lies_in_it() -> None:
    found = results(joined(TEN), ("a", "x", 20), ("a", "y", 31))
    assert last(found) == [(10, 20, "x"), (21, 31, "y")]
    found = results(joined(TEN), ("a", "x", 20), ("a", "y", 25))
    assert last(found) == [(10, 20, "x"), (15, 25, "xy"), (21, 31, "y")]


@pytest.mark.parametrize("order", ["xyz", "xzy", "yxz", "yzx", "zxy", "zyx"])
def test_the_windows_are_the_same_in_whatever_order_records_come(order: str) -> None:
    times = {"x": 20, "y": 25, "z": 33}
    found = results(joined(TEN), *(("a", value, times[value]) for value in order))
    assert [(start, end, "".join(sorted(value))) for start, end, value in last(found)] == [
        (10, 20, "x"),
        (15, 25, "xy"),
        (21, 31, "y"),
        (23, 33, "yz"),
        (26, 36, "z"),
    ]


def test_a_window_has_its_values_in_the_order_in_which_they_came() -> None:
    found = results(joined(TEN), ("a", "y", 25), ("a", "x", 20), ("a", "z", 29))
    assert (19, 29, "yxz") in last(found)


def test_the_windows_of_all_records_before_the_time_difference_are_one() -> None:
    found = results(joined(TEN), ("a", "x", 3), ("a", "y", 7))
    assert last(found) == [(0, 10, "xy"), (4, 14, "y")]
    found = results(joined(TEN), ("a", "y", 7), ("a", "x", 3), ("a", "z", 10))
    assert last(found) == [(0, 10, "yxz"), (4, 14, "yz"), (8, 18, "z")]


def test_records_of_one_time_share_all_windows() -> None:
    found = results(joined(TEN), ("a", "x", 20), ("a", "y", 20))
    assert last(found) == [(10, 20, "xy")]


def test_a_time_difference_of_nothing_joins_records_of_one_time() -> None:
    moment = SlidingWindows(time_difference=ms(0), grace=ms(9))
    found = results(joined(moment), ("a", "x", 5), ("a", "y", 6), ("a", "z", 5))
    assert last(found) == [(5, 5, "xz"), (6, 6, "y")]


def test_each_window_comes_out_once_a_record() -> None:
    found = results(joined(TEN), ("a", "x", 20), ("a", "y", 31))
    assert [(g.start, g.value) for g in found] == [(10, "x"), (21, "y")]


def test_the_timestamp_of_a_window_is_the_largest_of_its_records() -> None:
    """Trap 6."""
    found = results(joined(TEN), ("a", "y", 25), ("a", "x", 20))
    assert {(g.start, g.time) for g in found} == {(15, 25), (10, 20), (21, 25)}


def test_a_null_value_is_left_out_of_sliding_windows_and_moves_no_time() -> None:
    """Trap 5."""
    with driver_of(joined(STRICT)) as driver:
        send(driver, [("a", None, 1000), ("a", "x", 20)])
        assert [g.value for g in got(driver)] == ["x"]
        assert driver.dropped == {(NODE, "null value"): 1}


def test_a_window_takes_records_until_stream_time_has_passed_its_end_by_more_than_the_grace() -> (
    None
):
    """Trap 11: the end belongs to the window."""
    found = results(joined(STRICT), ("a", "x", 20), ("b", "y", 20), ("a", "z", 20))
    assert found[-1] == Got("a", 10, 20, "xz", 20)
    with driver_of(joined(STRICT)) as driver:
        send(driver, [("a", "x", 20), ("b", "y", 21), ("a", "z", 20)])
        assert [g.key for g in got(driver)] == ["a", "b"]
        assert driver.dropped == {(NODE, "late"): 1}


def test_a_record_that_no_window_takes_is_late_and_does_nothing() -> None:
    """Trap 11: Kafka Streams would make the window right behind it."""
    step = joined(STRICT, late=lambda stream: stream.to("late"))
    with driver_of(step) as driver:
        send(driver, [("a", "x", 20), ("a", "z", 26), ("b", "y", 40), ("a", "w", 25)])
        before = len(got(driver))
        send(driver, [("a", "v", 29)])
        assert len(got(driver)) == before
        assert [r.value for r in driver.output("late").read_all()] == ["w", "v"]


def test_a_record_that_is_late_for_its_own_window_still_counts_in_those_that_are_open() -> None:
    """Trap 11."""
    with driver_of(joined(STRICT)) as driver:
        send(driver, [("a", "x", 20), ("a", "y", 28), ("a", "z", 25)])
        # [15, 25] is closed; [18, 28] and [21, 31] are not
        assert (18, 28, "xyz") in last(got(driver))
        assert (21, 31, "yz") in last(got(driver))
        assert 15 not in {g.start for g in got(driver)}
        assert driver.dropped == {(NODE, "late for some of its windows"): 1}


def test_keys_have_windows_of_their_own_also_where_one_begins_with_the_other() -> None:
    found = results(joined(TEN), ("a", "x", 20), ("a\0", "y", 21), ("aa", "y", 22), ("a", "z", 23))
    assert {g.value for g in found if g.key != "a"} == {"y"}
    assert last([g for g in found if g.key == "a"]) == [
        (10, 20, "x"),
        (13, 23, "xz"),
        (21, 31, "z"),
    ]


def test_values_that_functions_change_in_place_are_not_shared_by_windows() -> None:
    def add(_: str, value: str, total: list[str]) -> list[str]:
        total.append(value)
        return total

    def step(group: Any) -> Any:
        return group.windowed_by(TEN).aggregate(list, add, value=serdes.json)

    with driver_of(step) as driver:
        send(driver, [("a", "y", 25), ("a", "x", 20), ("a", "z", 29)])
        rows = {g.start: g.value for g in got(driver)}
        assert rows == {
            10: ["x"],
            15: ["y", "x"],
            19: ["y", "x", "z"],
            21: ["y", "z"],
            26: ["z"],
        }


def test_rows_are_kept_for_twice_the_time_difference_and_the_grace_period() -> None:
    """Trap 21: so that what a late record needs is there."""
    short = Materialized("s", retention=ms(119))
    with pytest.raises(TopologyError, match="for 120 ms"):
        driver_of(lambda group: group.windowed_by(TEN).count(store=short))
    with driver_of(joined(TEN)) as driver:
        send(driver, [("a", "x", 20)])
        config = driver.cluster.topics["test-s-changelog"].config
        assert config["retention.ms"] == str(120 + 86_400_000)


def test_a_right_window_is_not_made_of_records_of_one_time() -> None:
    found = results(joined(TEN), ("a", "x", 8), ("a", "y", 12), ("a", "z", 12))
    assert last(found) == [(0, 10, "x"), (2, 12, "xyz"), (9, 19, "yz")]


def test_a_right_window_that_is_there_takes_nothing_of_a_record_before_it() -> None:
    records = (("a", "w", 8), ("a", "x", 12), ("a", "y", 15), ("a", "z", 12))
    found = results(joined(TEN), *records)
    assert last(found) == [
        (0, 10, "w"),
        (2, 12, "wxz"),
        (5, 15, "wxyz"),
        (9, 19, "xyz"),
        (13, 23, "y"),
    ]


def test_keys_have_windows_of_their_own_where_rows_of_one_lie_between_those_of_another() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=serdes.bytes, value=serdes.string).group_by_key()
    joined(TEN)(grouped).to_stream().to("out")
    longer = b"k" + (15).to_bytes(8, "big") + b"more"
    with TopologyTestDriver(builder.build(), {"default.value.serde": "string"}) as driver:
        for key, value, time in ((b"k", "x", 20), (longer, "y", 22), (b"k", "z", 25)):
            driver.input("in").send(key, value, timestamp=time)
        values = [
            (r.key.key, r.key.window.start_ms, r.value) for r in driver.output("out").read_all()
        ]
    assert values == [(b"k", 10, "x"), (longer, 12, "y"), (b"k", 21, "z"), (b"k", 15, "xz")]


def appended(_: str, value: str, total: list[str]) -> list[str]:
    total.append(value)
    return total


def listed(group: Any) -> Any:
    """A step whose values can be changed in place; every third value takes the row away."""
    return group.windowed_by(TEN).aggregate(
        list,
        lambda key, value, total: None if value == "gone" else appended(key, value, total),
        store="s",
        value=serdes.json,
    )


def last_rows(driver: TopologyTestDriver) -> dict[tuple[str, int], tuple[Any, int]]:
    rows = {(g.key, g.start): (g.value, g.time) for g in got(driver)}
    return {key: row for key, row in rows.items() if row[0] is not None}


@pytest.mark.parametrize("step", [joined(TEN), listed], ids=["objects", "bytes"])
@pytest.mark.parametrize("cache", [0, 1 << 20])
@given(
    in_memory=st.sampled_from([0, 700, 64 << 20]),
    steps=actions(st.sampled_from(["x", "y", "z", "gone"])),
)
@settings(max_examples=examples(60), deadline=None)
def test_commits_aborts_crashes_and_little_memory_change_nothing(
    step: Any, cache: int, in_memory: int, steps: list[Action]
) -> None:
    memory = {"statestore.cache.max.bytes": cache, "statestore.read.cache.max.bytes": in_memory}
    records = [action for action in steps if action[0] == "send"]
    with driver_of(step) as driver:
        perform(driver, records, 1)
        expected = last_rows(driver)
    with driver_of(step, settings={**EXACTLY_ONCE, **memory}, commit="manual") as driver:
        perform(driver, steps, 1)
        assert last_rows(driver) == expected


def test_what_a_processor_writes_into_the_store_of_sliding_windows_is_taken_up() -> None:
    def write(record: Record[str, str], context: ProcessorContext[str, str]) -> None:
        context.store("s").put(record.key, ValueAndTimestamp(record.value, 20), 10)

    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    joined(TEN)(stream.group_by_key()).to_stream().to("out")
    builder.stream("written", key=serdes.string, value=serdes.string).process(write, stores=["s"])
    with TopologyTestDriver(builder.build(), {"default.value.serde": "string"}) as driver:
        send(driver, [("a", "x", 20)])
        driver.input("written").send("a", "w", timestamp=20)
        send(driver, [("a", "y", 20)])
        assert last(got(driver)) == [(10, 20, "wy")]
