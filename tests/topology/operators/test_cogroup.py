"""cogroup: several streams that are folded into one table."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, assert_type

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.streams.errors import MisconfiguredTopicError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    BufferConfig,
    CogroupedKStream,
    KTable,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
    Windowed,
    serdes,
)
from tests.support.examples import examples
from tests.support.operators import NO_CACHE, Pair
from tests.support.timed import Action, actions, by_partition, perform

MS = timedelta(milliseconds=1)
CACHE: dict[str, object] = {"statestore.cache.max.bytes": 10 << 20}
TOPICS = ("left", "right")


def from_left(_key: Any, value: Any, values: list[Any]) -> list[Any]:
    return [*values, value]


def from_right(_key: Any, value: Any, values: list[Any]) -> list[Any]:
    values.append(None if value is None else -value)  # in place, as a program may do it
    return values


def merge(_key: Any, one: list[Any], other: list[Any]) -> list[Any]:
    return one + other


def cogrouped(builder: StreamsBuilder) -> Any:
    left, right = (builder.stream(t, key=serdes.string).group_by_key() for t in TOPICS)
    return left.cogroup(from_left).cogroup(right, from_right)


def driver_for(
    table: KTable[Any, Any],
    builder: StreamsBuilder,
    chosen: dict[str, object] | None = None,
    **options: Any,
) -> TopologyTestDriver:
    table.to_stream().to("out")
    return TopologyTestDriver(builder.build(), chosen or NO_CACHE, **options)


def plain_driver(chosen: dict[str, object] | None = None, **options: Any) -> TopologyTestDriver:
    builder = StreamsBuilder()
    table = cogrouped(builder).aggregate(list, store="all", name="fold")
    return driver_for(table, builder, chosen, **options)


def windowed_driver(windows: Any, **options: Any) -> TopologyTestDriver:
    builder = StreamsBuilder()
    windowed = cogrouped(builder).windowed_by(windows)
    merger = (merge,) if isinstance(windows, SessionWindows) else ()
    return driver_for(windowed.aggregate(list, *merger, store="all"), builder, **options)


def feed(driver: TopologyTestDriver, *records: tuple[str, Any, Any, int]) -> None:
    for topic, key, value, time in records:
        driver.input(topic).send(key, value, timestamp=time)


def pairs(driver: TopologyTestDriver) -> list[Pair]:
    return [(r.key, r.value) for r in driver.output("out").read_all()]


def test_each_stream_has_its_own_aggregator_and_all_have_one_store() -> None:
    driver = plain_driver()
    feed(driver, ("left", "a", 1, 0), ("right", "a", 2, 1), ("left", "b", 3, 2))
    assert dict(driver.store("all")) == {"a": [1, -2], "b": [3]}
    assert pairs(driver) == [("a", [1]), ("a", [1, -2]), ("b", [3])]


def test_null_values_are_left_out() -> None:
    """Trap 5."""
    driver = plain_driver()
    feed(driver, ("left", "a", None, 0), ("right", "a", None, 0), ("right", "a", 1, 0))
    assert dict(driver.store("all")) == {"a": [-1]}
    assert driver.dropped == {
        ("fold-cogroup-agg-0", "null value"): 1,
        ("fold-cogroup-agg-1", "null value"): 1,
    }


def test_null_keys_follow_the_policy() -> None:
    driver = plain_driver({**NO_CACHE, "null.key.policy": "drop"})
    feed(driver, ("right", None, 1, 0), ("left", "a", 1, 0))
    assert driver.dropped == {("fold-cogroup-agg-1", "null key"): 1}


def test_the_timestamp_is_the_largest_of_the_row() -> None:
    """Trap 6."""
    driver = plain_driver()
    feed(driver, ("left", "a", 1, 9), ("right", "a", 2, 5))
    assert [r.timestamp for r in driver.output("out").read_all()] == [9, 9]


def test_a_result_of_none_deletes_the_row() -> None:
    builder = StreamsBuilder()
    left, right = (builder.stream(t, key=serdes.string).group_by_key() for t in TOPICS)
    both = left.cogroup(lambda key, value, total: total + value)
    table = both.cogroup(right, lambda key, value, total: None).aggregate(lambda: 0, store="all")
    driver = driver_for(table, builder)
    feed(driver, ("right", "a", 1, 0), ("left", "a", 1, 0), ("right", "a", 1, 0))
    assert pairs(driver) == [("a", 1), ("a", None)]  # nothing comes of nothing


def test_old_values_follow_the_order_of_both_streams_with_a_cache() -> None:
    """Trap 29: several steps write the same row between two commits."""
    builder = StreamsBuilder()
    table = cogrouped(builder).aggregate(list, store="all")
    driver = driver_for(table.filter(lambda key, values: len(values) % 2), builder, CACHE,
                        commit="manual")  # fmt: skip
    feed(driver, ("left", "a", 1, 0))
    driver.commit()
    feed(driver, ("right", "a", 2, 1), ("left", "a", 3, 2), ("right", "a", 4, 3))
    driver.commit()
    feed(driver, ("right", "a", 5, 1), ("left", "a", 6, 2))
    driver.commit()
    feed(driver, ("left", "a", 7, 2))
    driver.commit()
    assert pairs(driver) == [("a", [1]), ("a", None), ("a", [1, -2, 3, -4, -5, 6, 7])]


def test_a_stream_that_is_added_again_has_its_last_aggregator() -> None:
    builder = StreamsBuilder()
    left = builder.stream("left", key=serdes.string).group_by_key()
    table = left.cogroup(from_left).cogroup(left, from_right).aggregate(list, store="all")
    driver = driver_for(table, builder)
    feed(driver, ("left", "a", 1, 0))
    assert dict(driver.store("all")) == {"a": [-1]}


def test_a_cogroup_stays_as_it_is_when_another_stream_is_added() -> None:
    builder = StreamsBuilder()
    left, right = (builder.stream(t, key=serdes.string).group_by_key() for t in TOPICS)
    alone = left.cogroup(from_left)
    alone.cogroup(right, from_right)
    driver = driver_for(alone.aggregate(list, store="all"), builder)
    feed(driver, ("left", "a", 1, 0))
    assert dict(driver.store("all")) == {"a": [1]}


def test_streams_of_another_builder_are_refused() -> None:
    other = StreamsBuilder().stream("left").group_by_key()
    with pytest.raises(TopologyError, match="another builder"):
        cogrouped(StreamsBuilder()).cogroup(other, from_left)


def test_unequal_partition_counts_are_refused() -> None:
    """Trap 22."""
    with pytest.raises(MisconfiguredTopicError):
        plain_driver(partitions={"left": 2, "right": 3})


def test_streams_with_new_keys_are_partitioned_anew() -> None:
    builder = StreamsBuilder()
    left = builder.stream("left", key=serdes.string).group_by(
        lambda key, value: value % 2, key=serdes.long
    )
    right = builder.stream("right", key=serdes.long).group_by_key()
    table = left.cogroup(from_left).cogroup(right, from_right).aggregate(list, store="all")
    driver = driver_for(table, builder, partitions=3)
    feed(driver, ("left", "a", 1, 0), ("left", "b", 2, 0), ("left", "c", 3, 0))
    driver.input("right").send(1, 9)
    assert sorted(dict(driver.store("all"))[1]) == [-9, 1, 3]
    assert dict(driver.store("all"))[0] == [2]


def test_time_windows_hand_on_null_values_and_sliding_ones_do_not() -> None:
    """Trap 5."""
    records = ("left", "a", None, 3), ("right", "a", 1, 3)
    driver = windowed_driver(TimeWindows(size=10 * MS))
    feed(driver, *records)
    assert list(driver.store("all").values()) == [[None, -1]]
    driver = windowed_driver(SlidingWindows(time_difference=10 * MS))
    feed(driver, *records)
    assert list(driver.store("all").values()) == [[-1]]


def test_the_streams_of_windows_share_one_stream_time() -> None:
    """Trap 1: in Kafka Streams each has its own, over a store that expires by all of them."""
    driver = windowed_driver(TimeWindows(size=10 * MS))
    feed(driver, ("left", "a", 1, 3), ("left", "a", 2, 50), ("right", "a", 3, 4))
    assert [(r.key.window.start_ms, r.value) for r in outputs(driver)] == [(0, [1]), (50, [2])]
    assert sum(driver.dropped.values()) == 1


def outputs(driver: TopologyTestDriver) -> list[Any]:
    return driver.output("out").read_all()


def test_sessions_of_several_streams_merge() -> None:
    """Trap 10."""
    driver = windowed_driver(SessionWindows(inactivity_gap=5 * MS, grace=9 * MS))
    feed(driver, ("left", "a", 1, 0), ("right", "a", 2, 8), ("left", "a", 3, 4))
    found = [(*r.key.window, r.value) for r in outputs(driver)]
    assert found == [(0, 0, [1]), (8, 8, [-2]), (0, 0, None), (8, 8, None), (0, 8, [1, -2, 3])]


def test_final_results_of_several_streams_go_on_once() -> None:
    builder = StreamsBuilder()
    windowed = cogrouped(builder).windowed_by(TimeWindows(size=10 * MS))
    strict = BufferConfig(max_records=9, when_full="shut_down")
    closed = Suppressed.until_window_closes(buffer=strict)
    table = windowed.aggregate(list, store="all").suppress(closed)
    driver = driver_for(table, builder)
    feed(driver, ("left", "a", 1, 0), ("right", "a", 2, 8), ("left", "b", 3, 30))
    assert [(r.key.key, r.value) for r in outputs(driver)] == [("a", [1, -2])]


WINDOWS = st.sampled_from(
    [
        None,
        TimeWindows(size=10 * MS, grace=5 * MS),
        TimeWindows(size=12 * MS, advance=5 * MS, grace=2 * MS),
        UnlimitedWindows(),
        SlidingWindows(time_difference=6 * MS, grace=9 * MS),
        SessionWindows(inactivity_gap=5 * MS, grace=4 * MS),
    ]
)


@pytest.mark.slow
@settings(max_examples=examples(250), deadline=None)
@given(
    steps=actions(st.integers(1, 9), topics=TOPICS),
    partitions=st.sampled_from([1, 3]),
    windows=WINDOWS,
    cache=st.booleans(),
)
def test_a_cogroup_folds_as_one_stream_of_both_does(
    steps: list[Action], partitions: int, windows: Any, cache: bool
) -> None:
    """Without windows also with aborts and crashes, which may change which stream goes first."""
    chosen = {"processing.guarantee": "exactly_once_v2", **(CACHE if cache else NO_CACHE)}
    make = plain_driver if windows is None else partial(windowed_driver, windows)
    driver = make(chosen=chosen, partitions=partitions, commit="manual")
    one = single_driver(windows, chosen=chosen, partitions=partitions, commit="manual")
    if windows is not None:
        steps = [s if s[0] == "send" else ("commit",) for s in steps]
    perform(driver, steps, partitions)
    perform(one, [as_one_stream(s) for s in steps if s[0] in ("send", "commit")], partitions)
    found, expected = dict(driver.store("all")), dict(one.store("all"))
    if windows is None:
        assert {k: sorted(v) for k, v in found.items()} == {
            k: sorted(v) for k, v in expected.items()
        }
        return
    assert found == expected
    if not cache:
        assert pairs(driver) == pairs(one)


def as_one_stream(step: Action) -> Action:
    """The same step where both streams are one, with the sign of each already at its values."""
    if step[0] != "send":
        return step
    _, topic, key, value, time = step
    return "send", "in", key, value if topic == "left" else -value, time


def single_driver(windows: Any, **options: Any) -> TopologyTestDriver:
    """The same fold over one stream."""
    builder = StreamsBuilder()
    group: Any = builder.stream("in", key=serdes.string).group_by_key()
    if windows is not None:
        group = group.windowed_by(windows)
    merger = (merge,) if isinstance(windows, SessionWindows) else ()
    return driver_for(group.aggregate(list, from_left, *merger, store="all"), builder, **options)


@settings(max_examples=examples(150), deadline=None)
@given(
    steps=actions(st.integers(1, 9), topics=TOPICS),
    partitions=st.sampled_from([1, 3]),
    cache=st.booleans(),
)
def test_no_record_is_lost_or_folded_twice(
    steps: list[Action], partitions: int, cache: bool
) -> None:
    """Over sessions that never close, so that the order of the streams does not matter."""
    chosen = {"processing.guarantee": "exactly_once_v2", **(CACHE if cache else NO_CACHE)}
    windows = SessionWindows(inactivity_gap=5 * MS, grace=10_000 * MS)
    driver = windowed_driver(windows, chosen=chosen, partitions=partitions, commit="manual")
    perform(driver, steps, partitions)
    stored = [(k.key, *k.window, sorted(v)) for k, v in driver.store("all").items()]
    last: dict[Any, Any] = driver.output("out").as_dict()
    assert sorted(stored) == sorted((k.key, *k.window, sorted(v)) for k, v in last.items())
    expected = []
    for _, records in by_partition(steps, partitions):
        for key in {r[1] for r in records}:
            mine = sorted((at, v if t == "left" else -v) for t, k, v, at in records if k == key)
            session: list[tuple[int, int]] = []
            for at, value in mine:
                if session and at - session[-1][0] > 5:
                    expected.append(closed(key, session))
                    session = []
                session.append((at, value))
            expected.append(closed(key, session))
    assert sorted(stored) == sorted(expected)


def closed(key: str, session: list[tuple[int, int]]) -> tuple[str, int, int, list[int]]:
    return key, session[0][0], session[-1][0], sorted(value for _, value in session)


def test_the_types_follow_those_of_the_functions() -> None:
    """A type checker reads it."""
    builder = StreamsBuilder()
    numbers = builder.stream("a", key=serdes.string, value=serdes.long).group_by_key()
    words = builder.stream("b", key=serdes.string, value=serdes.string).group_by_key()

    def add(_: str, number: int, total: float) -> float:
        return total + number

    def add_length(_: str, word: str, total: float) -> float:
        return total + len(word)

    def both(_: str, one: float, other: float) -> float:
        return one + other

    group = numbers.cogroup(add).cogroup(words, add_length)
    assert_type(group, CogroupedKStream[str, float])
    assert_type(group.aggregate(float), KTable[str, float])
    timed = group.windowed_by(TimeWindows(size=MS)).aggregate(float)
    assert_type(timed, KTable[Windowed[str], float])
    assert_type(timed.suppress(Suppressed.until_window_closes()), KTable[Windowed[str], float])
    sessions = group.windowed_by(SessionWindows(inactivity_gap=MS))
    assert_type(sessions.aggregate(float, both), KTable[Windowed[str], float])
