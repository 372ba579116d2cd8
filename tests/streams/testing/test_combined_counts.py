"""Counts that are made before a repartition topic are those that are made behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any

import pytest

from headrace.streams import TopologyTestDriver
from headrace.streams.errors import RecordError
from headrace.topology import StreamsBuilder, TimeWindows, Topology, serdes
from headrace.topology.serdes.partials import MARK

ON = "combine.before.repartition"
MOVED = "test-by-word-repartition"
EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2"}


def word_count(value: Any = serdes.string) -> Topology:
    """Words are counted behind a repartition topic."""
    builder = StreamsBuilder()
    lines = builder.stream("lines", value=value)
    words = lines.flat_map_values(lambda line: [None] if line is None else line.split())
    by_word = words.group_by(lambda _, word: word or "none", key=serdes.string, name="by-word")
    by_word.count(store="counts").to_stream().to("out")
    return builder.build()


def driver_of(optimization: str = ON, **settings: Any) -> TopologyTestDriver:
    """A driver of several partitions that commits when it is told to."""
    own = {**EXACTLY_ONCE, "topology.optimization": optimization, **settings}
    return TopologyTestDriver(word_count(), own, partitions=3, commit="manual")


def moved(driver: TopologyTestDriver) -> list[Any]:
    """What the repartition topic has."""
    log = driver.cluster
    return [m for place in log.partitions(MOVED) for m in log.log(place).entries if m is not None]


def append(driver: TopologyTestDriver, key: Any, value: Any, headers: Any, time: int = 0) -> None:
    """Let the repartition topic have a record."""
    driver.cluster.append(MOVED, value, key, -1, time, headers)


def counts(driver: TopologyTestDriver) -> dict[Any, tuple[int, int]]:
    """The committed rows."""
    rows = driver.store("counts", committed=True).rows()
    return {key: (value, timestamp) for key, value, timestamp in rows}


def send(driver: TopologyTestDriver, lines: Sequence[Any], start: int = 0) -> None:
    """Write lines, each with a time of its own; the times go back and forth."""
    for number, line in enumerate(lines, start):
        driver.input("lines").send(f"k{number}", line, timestamp=1000 + number * 7 % 50)


LINES = ["a b a", "b", "a c", "a", "d d d d", "b a", "c"]


def test_a_commit_writes_one_record_a_task_and_key() -> None:
    """Each of three tasks has the words of its lines."""
    with driver_of() as driver:
        send(driver, ["a b a b", "a a a"] * 3)
        assert moved(driver) == []
        driver.commit()
        assert len(moved(driver)) <= 3 * 2
        assert all(m.headers() == [(MARK, b"count")] for m in moved(driver))
        assert {key: value for key, (value, _) in counts(driver).items()} == {"a": 15, "b": 6}
        shown = [(record.key, record.value) for record in driver.output(MOVED).read_all()]
        assert sum(count for key, count in shown if key == "a") == 15


def test_rows_and_times_are_those_without_it() -> None:
    """The row's time is the latest of its records'."""
    found = []
    for optimization in ("none", ON):
        with driver_of(optimization) as driver:
            for start in range(0, len(LINES), 2):
                send(driver, LINES[start : start + 2], start)
                driver.commit()
            found.append((counts(driver), driver.output("out").as_dict()))
    assert found[0] == found[1]
    assert found[0][0]["d"][0] == 4


class Word(StrEnum):
    """Equal to a string, and no string."""

    A = "a"


@pytest.mark.parametrize(
    ("key", "values"),
    [
        (serdes.string, ["a", Word.A, "b"]),
        (serdes.json, ["1", 1, True, [1], {"b": 1, "a": 2}, {"a": 2, "b": 1}, "a", "a"]),
        (serdes.long, [1, 2, 1]),
    ],
    ids=["strings", "documents", "numbers"],
)
def test_keys_are_one_where_their_bytes_are(key: Any, values: list[Any]) -> None:
    """Whatever Python takes for equal, and whatever it cannot keep in a dictionary."""
    found = []
    for optimization in ("none", ON):
        builder = StreamsBuilder()
        numbers = builder.stream("numbers", value=serdes.long)
        by_value = numbers.group_by(lambda _, n: values[n], key=key, name="by-word")
        by_value.count(store="counts").to_stream().to("out")
        settings = {**EXACTLY_ONCE, "topology.optimization": optimization}
        with TopologyTestDriver(builder.build(), settings, commit="manual") as driver:
            for number in [*range(len(values)), *reversed(range(len(values)))]:
                driver.input("numbers").send("k", number, timestamp=number)
            driver.commit()
            rows = driver.store("counts", committed=True).rows()
            found.append([(repr(k), value, time) for k, value, time in rows])
    assert found[0] == found[1]


def test_a_key_that_cannot_be_written_stops_at_its_record() -> None:
    """Also one that is equal to a key that can."""

    class Own:
        def __hash__(self) -> int:
            return hash("a")

        def __eq__(self, other: object) -> bool:
            return other == "a"

    builder = StreamsBuilder()
    lines = builder.stream("lines", value=serdes.string)
    by_word = lines.group_by(
        lambda _, line: Own() if line == "own" else line, key=serdes.string, name="by-word"
    )
    by_word.count(store="counts").to_stream().to("out")
    with TopologyTestDriver(builder.build(), EXACTLY_ONCE, commit="manual") as driver:
        driver.input("lines").send("k", "a")
        with pytest.raises(RecordError, match="cannot encode a key of type Own"):
            driver.input("lines").send("k", "own")


def test_an_abort_leaves_nothing_of_them() -> None:
    with driver_of() as driver:
        send(driver, LINES)
        driver.abort()
        driver.crash(at="caches_flushed")
        driver.commit()
        expected = Counter(" ".join(LINES).split())
        assert {key: value for key, (value, _) in counts(driver).items()} == expected


@pytest.mark.parametrize("first", ["none", ON])
def test_it_is_switched_while_records_of_the_other_form_wait(first: str) -> None:
    """An upgrade either way: whoever reads the topic takes both forms."""
    then = ON if first == "none" else "none"
    with driver_of(first) as driver:
        send(driver, LINES)
        driver.commit()
        waiting, expected = moved(driver), counts(driver)
    with driver_of(then) as driver:
        for message in waiting:
            append(
                driver, message.key(), message.value(), message.headers(), message.timestamp()[1]
            )
        send(driver, LINES)
        driver.commit()
        assert {k: v for k, (v, _) in counts(driver).items()} == {
            key: 2 * value for key, (value, _) in expected.items()
        }


def test_a_header_from_elsewhere_makes_no_partial_count() -> None:
    """It is counted as one record, and the header goes no further; others go to the output."""
    headers = [(MARK, b"count"), ("trace", b"1")]
    for optimization in ("none", ON):
        with driver_of(optimization) as driver:
            driver.input("lines").send("k", "a", headers=headers)
            driver.commit()
            assert counts(driver)["a"][0] == 1
            (record,) = driver.output("out").read_all()
            assert list(record.headers) == [("trace", b"1")]


def test_nulls_are_left_out_and_counted_as_without_it() -> None:
    with driver_of() as driver:
        send(driver, ["a", None, "a"])
        driver.commit()
        assert {key: value for key, (value, _) in counts(driver).items()} == {"a": 2}


def test_the_cache_bounds_how_many_are_held() -> None:
    """What is more than it may hold is written before the commit, in its transaction."""
    with driver_of(**{"statestore.cache.max.bytes": 250 * 20}) as driver:
        send(driver, [" ".join(f"w{n}" for n in range(100))])
        assert len(moved(driver)) == 100
        driver.abort()
        driver.commit()
        assert sum(value for value, _ in counts(driver).values()) == 100


def test_a_damaged_partial_result_is_named_and_nothing_is_counted() -> None:
    with driver_of("none") as driver:
        append(driver, b"a", b"short", [(MARK, b"count")])
        with pytest.raises(RecordError, match="partial aggregate of 'count'"):
            driver.run()


def test_a_partial_result_of_another_call_is_refused() -> None:
    with driver_of() as driver:
        append(driver, b"a", bytes(8), [(MARK, b"reduce")])
        with pytest.raises(RecordError, match="partial aggregate of 'reduce'"):
            driver.run()


def test_at_least_once_nobody_waits_for_a_commit() -> None:
    """The commit comes every 30 s there, and what is in the topic is read without one."""
    with driver_of(**{"processing.guarantee": "at_least_once"}) as driver:
        send(driver, ["a a b"])
        assert dict(driver.store("counts").items()) == {"a": 2, "b": 1}
        assert len(moved(driver)) == 2


def counted_windows() -> Topology:
    """Updates of windows are counted, by keys that are windows."""
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=serdes.string, value=serdes.string)
    seconds = TimeWindows(size=timedelta(seconds=1))
    windows = clicks.group_by_key().windowed_by(seconds).count(store="per-second").to_stream()
    key = serdes.time_windowed(serdes.string, size=timedelta(seconds=1))
    by_window = windows.group_by(lambda window, _: window, key=key, name="by-word")
    by_window.count(store="counts").to_stream().to("out")
    return builder.build()


def test_windows_as_keys_go_to_the_partitions_of_their_inner_keys() -> None:
    found = []
    for optimization in ("none", ON):
        settings = {**EXACTLY_ONCE, "topology.optimization": optimization}
        with TopologyTestDriver(
            counted_windows(), settings, partitions=3, commit="manual"
        ) as driver:
            for number in range(40):
                driver.input("clicks").send(f"k{number % 7}", "x", timestamp=number * 300)
                if number % 9 == 0:
                    driver.commit()
            driver.commit()
            places = {m.key(): m.partition() for m in moved(driver)}
            found.append((places, sorted(counts(driver).items(), key=repr)))
    assert found[0] == found[1]
    assert len(set(found[0][0].values())) > 1
