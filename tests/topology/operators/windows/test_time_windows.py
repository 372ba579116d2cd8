"""Folds over tumbling, hopping and unlimited windows."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.state.codec import partition_for_key
from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    Materialized,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
    Window,
    Windowed,
    serdes,
)
from tests.support.operators import HEADERS, NO_CACHE
from tests.support.windows import Got, driver_of, got, joined, ms, results, send

TEN = TimeWindows(size=ms(10))


# Which windows a record changes


def test_a_tumbling_window_holds_its_start_and_not_its_end() -> None:
    found = results(joined(TEN), ("a", "x", 10), ("a", "y", 19), ("a", "z", 20))
    assert found == [
        Got("a", 10, 20, "x", 10),
        Got("a", 10, 20, "xy", 19),
        Got("a", 20, 30, "z", 20),
    ]


def test_a_record_changes_every_hopping_window_that_it_lies_in_the_earliest_first() -> None:
    windows = TimeWindows(size=ms(12), advance=ms(5))
    found = results(joined(windows), ("a", "x", 21), ("a", "y", 2))
    assert [(g.start, g.end) for g in found[:3]] == [(10, 22), (15, 27), (20, 32)]
    assert [g.start for g in found[3:]] == []  # 0..12 closed at 12, and time is 21


def test_no_window_begins_before_1970() -> None:
    windows = TimeWindows(size=ms(12), advance=ms(5))
    assert [g.start for g in results(joined(windows), ("a", "x", 2))] == [0]


def test_an_unlimited_window_holds_everything_from_its_start_on() -> None:
    windows = UnlimitedWindows(start_ms=100)
    with driver_of(joined(windows)) as driver:
        send(driver, [("a", "x", 99), ("a", "y", 100), ("a", "z", 10**15), ("a", "w", 200)])
        end = 2**63 - 1
        assert got(driver)[-1] == Got("a", 100, end, "yzw", 10**15)
        assert driver.dropped == {("KSTREAM-AGGREGATE-0000000001", "before the first window"): 1}


def test_keys_have_windows_of_their_own_also_where_one_begins_with_the_other() -> None:
    found = results(joined(TEN), ("a", "x", 1), ("aa", "y", 1), ("a", "z", 2))
    assert [(g.key, g.value) for g in found] == [("a", "x"), ("aa", "y"), ("a", "xz")]


# Nulls, timestamps, headers


def test_a_null_value_is_folded_in_time_windows() -> None:
    """Trap 5."""
    found = results(joined(TEN), ("a", "x", 1), ("a", None, 2))
    assert [g.value for g in found] == ["x", "x0"]
    counts = results(lambda group: group.windowed_by(TEN).count(), ("a", None, 1))
    assert [g.value for g in counts] == [1]


def test_a_null_key_stops_the_application_or_is_dropped_as_the_settings_say() -> None:
    """Trap 5."""
    with driver_of(joined(TEN)) as driver, pytest.raises(RecordError, match="'s' have keys"):
        send(driver, [(None, "x", 1)])
    with driver_of(joined(TEN), settings={"null.key.policy": "drop"}) as driver:
        send(driver, [(None, "x", 100), ("a", "x", 1)])
        assert [g.value for g in got(driver)] == ["x"]  # it moves no time either
        assert driver.dropped == {("KSTREAM-AGGREGATE-0000000001", "null key"): 1}


def test_the_timestamp_of_a_row_is_the_largest_of_its_records() -> None:
    """Trap 6."""
    found = results(joined(TEN), ("a", "x", 5), ("a", "y", 3), ("a", "z", 7))
    assert [g.time for g in found] == [5, 5, 7]


def test_a_row_that_was_deleted_forgets_its_timestamp() -> None:
    def last(old: str, value: str | None) -> Any:
        return value

    step = lambda group: group.windowed_by(TEN).reduce(last, value=serdes.string)  # noqa: E731
    found = results(step, ("a", "x", 9), ("a", None, 3), ("a", None, 4), ("a", "y", 2))
    assert [(g.value, g.time) for g in found] == [("x", 9), (None, 9), ("y", 2)]


def test_a_row_that_never_was_is_not_deleted() -> None:
    step = lambda group: group.windowed_by(TEN).reduce(lambda old, _: old)  # noqa: E731
    assert results(step, ("a", None, 1)) == []


def test_a_result_has_the_headers_of_the_record_that_changed_it() -> None:
    """Trap 31."""
    with driver_of(joined(TEN)) as driver:
        driver.input("in").send("a", "x", timestamp=1, headers=HEADERS)
        assert driver.output("out").read().headers == HEADERS


# Late records


def test_a_window_is_closed_when_stream_time_has_passed_its_end_by_the_grace_period() -> None:
    """Trap 11."""
    windows = TimeWindows(size=ms(10), grace=ms(5))
    on_time = results(joined(windows), ("a", "x", 1), ("a", "y", 14), ("a", "z", 2))
    assert on_time[-1] == Got("a", 0, 10, "xz", 2)
    late = results(joined(windows), ("a", "x", 1), ("a", "y", 15), ("a", "z", 2))
    assert late[-1] == Got("a", 10, 20, "y", 15)


def test_stream_time_is_that_of_the_operator_whatever_the_key() -> None:
    """Trap 1."""
    with driver_of(joined(TEN)) as driver:
        send(driver, [("a", "x", 25), ("b", "y", 19)])
        assert [g.key for g in got(driver)] == ["a"]
        assert driver.dropped == {("KSTREAM-AGGREGATE-0000000001", "late"): 1}


def test_what_was_filtered_out_before_moves_no_stream_time() -> None:
    """Trap 1: it is the operator's, not the task's."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    kept = stream.filter(lambda _, value: value != "no").group_by_key()
    joined(TEN)(kept).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        send(driver, [("a", "no", 1000), ("a", "x", 1)])
        assert [g.value for g in got(driver)] == ["x"]


def test_stream_time_outlasts_a_restart_and_a_lost_disk() -> None:
    """Trap 1: it is committed beside the offsets."""
    with driver_of(joined(TEN)) as driver:
        send(driver, [("a", "x", 25)])
        driver.crash(keep=False)
        send(driver, [("a", "y", 19)])
        assert [g.value for g in got(driver)] == ["x"]


def late_to(topic: str) -> Any:
    return lambda stream: stream.to(topic)


def test_late_records_can_be_taken_as_a_stream() -> None:
    with driver_of(joined(TEN, late=late_to("late"))) as driver:
        send(driver, [("a", "x", 25), ("b", "y", 19), ("b", "z", 20)])
        (late,) = driver.output("late").read_all()
        assert (late.key, late.value, late.timestamp) == ("b", "y", 19)
        assert [g.value for g in got(driver)] == ["x", "z"]
        assert driver.dropped == {("KSTREAM-AGGREGATE-0000000001", "late"): 1}


def test_a_record_that_is_late_for_some_of_its_windows_changes_the_others() -> None:
    windows = TimeWindows(size=ms(10), advance=ms(5))
    with driver_of(joined(windows, late=late_to("late"))) as driver:
        send(driver, [("a", "x", 12), ("b", "y", 7)])
        assert [(g.key, g.start) for g in got(driver)] == [("a", 5), ("a", 10), ("b", 5)]
        assert driver.output("late").read_all() == []
        node = "KSTREAM-AGGREGATE-0000000001"
        assert driver.dropped == {(node, "late for some of its windows"): 1}


def test_a_stream_of_late_records_changes_no_name() -> None:
    def described(**options: Any) -> str:
        builder = StreamsBuilder()
        group = builder.stream("in").group_by_key()
        group.windowed_by(TEN, **options).count().to_stream().filter(max).to("out")
        return builder.build().describe()

    taken = described(late=lambda stream: stream.for_each(print, name="each"))
    assert "KSTREAM-AGGREGATE-0000000002-late" in taken
    assert "KSTREAM-FILTER-0000000004" in described()


def test_late_values_of_a_count_are_decoded_for_those_who_read_them() -> None:
    def step(group: Any) -> Any:
        stream: list[Any] = []
        table = group.windowed_by(TEN, late=stream.append).count()
        stream[0].map_values(str.upper).to("late")
        return table

    with driver_of(step) as driver:
        send(driver, [("a", "x", 25), ("a", "y", 1)])
        assert driver.output("late").read().value == "Y"


# Stores


def test_rows_are_readable_by_windowed_key_until_they_expire() -> None:
    with driver_of(joined(TimeWindows(size=ms(10), grace=ms(5)))) as driver:
        send(driver, [("a", "x", 1), ("a", "y", 14)])
        store = driver.store("s")
        assert store[Windowed("a", Window(0, 10))] == "x"
        send(driver, [("a", "z", 15)])
        assert list(store) == [Windowed("a", Window(10, 20))]


def test_a_longer_retention_keeps_closed_windows_readable_and_closed() -> None:
    def step(group: Any) -> Any:
        kept = Materialized("s", retention=ms(100))
        return group.windowed_by(TEN).count(store=kept)

    with driver_of(step) as driver:
        send(driver, [("a", "x", 1), ("a", "y", 99), ("a", "z", 2)])
        assert [key.window.start_ms for key in driver.store("s")] == [0, 90]
        assert driver.store("s")[Windowed("a", Window(0, 10))] == 1
        send(driver, [("a", "y", 100)])
        assert [key.window.start_ms for key in driver.store("s")] == [90, 100]


def test_expired_rows_leave_the_disk_and_no_tombstones() -> None:
    with driver_of(joined(TEN)) as driver:
        send(driver, [("a", "x", 1), ("a", "y", 50)])
        send(driver, [("a", "y", 51)])
        assert len(driver.store("s", committed=True)) == 1
        changes = driver.output("test-s-changelog", key=serdes.bytes).read_all()
        assert [r.value for r in changes] == ["x", "y", "yy"]


def test_the_changelog_has_kafka_streams_bytes_and_topic() -> None:
    """Traps 21 and 24: key, start and sequence; the plain value; the row's timestamp."""
    with driver_of(joined(TimeWindows(size=ms(10), grace=ms(5)))) as driver:
        send(driver, [("a", "x", 258), ("a", "y", 257)])
        changes = driver.output("test-s-changelog", key=serdes.bytes, value=serdes.bytes)
        key = b"a" + (250).to_bytes(8, "big") + bytes(4)
        assert [(r.key, r.value, r.timestamp) for r in changes.read_all()] == [
            (key, b"x", 258),
            (key, b"xy", 258),
        ]
        config = driver.cluster.topics["test-s-changelog"].config
        assert config["cleanup.policy"] == "compact,delete"
        assert config["retention.ms"] == str(15 + 86_400_000)


def test_rows_of_unlimited_windows_stay_in_a_compacted_changelog() -> None:
    """Trap 21."""
    with driver_of(joined(UnlimitedWindows())) as driver:
        send(driver, [("a", "x", 0), ("a", "y", 10**15)])
        assert list(driver.store("s").values()) == ["xy"]
        assert driver.cluster.topics["test-s-changelog"].config["cleanup.policy"] == "compact"


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_a_windowed_result_lands_where_its_key_is_and_has_the_start_behind_it(
    partitions: int,
) -> None:
    """Traps 23 and 24."""
    with driver_of(joined(TEN), partitions=partitions) as driver:
        send(driver, [(f"k{i}", "x", 10 * i) for i in range(20)])
        places = {r.key: r.partition for r in driver.output("out", key=serdes.bytes).read_all()}
        for key, partition in places.items():
            assert partition_for_key(key[:-8], partitions) == partition
            assert int.from_bytes(key[-8:], "big") == 10 * int(key[1:-8])


# Caching


def test_with_a_cache_each_row_goes_on_once_a_commit_with_its_last_value() -> None:
    """Trap 29."""
    with driver_of(joined(TEN), commit="manual") as driver:
        send(driver, [("a", "x", 1), ("b", "y", 12), ("a", "z", 13)])
        assert got(driver) == []
        driver.commit()
        assert [(g.key, g.start, g.value) for g in got(driver)] == [
            ("a", 0, "x"), ("b", 10, "y"), ("a", 10, "z"),
        ]  # fmt: skip


def test_a_row_that_expires_before_the_commit_goes_on_all_the_same() -> None:
    with driver_of(joined(TEN), commit="manual") as driver:
        send(driver, [("a", "x", 1), ("a", "y", 1000)])
        driver.commit()
        assert [g.value for g in got(driver)] == ["x", "y"]


def test_without_a_cache_every_change_goes_on() -> None:
    with driver_of(joined(TEN), commit="manual", settings=NO_CACHE) as driver:
        send(driver, [("a", "x", 1), ("a", "y", 2)])
        driver.commit()
        assert [g.value for g in got(driver)] == ["x", "xy"]


@pytest.mark.parametrize("settings", [{}, NO_CACHE])
def test_values_that_functions_change_in_place_are_told_from_what_went_on(
    settings: dict[str, Any],
) -> None:
    def add(_: str, value: str, total: list[str]) -> list[str]:
        total.append(value)
        return total

    def step(group: Any) -> Any:
        table = group.windowed_by(TEN).aggregate(list, add, value=serdes.json)
        return table.filter(lambda _, total: len(total) < 3).map_values(len)

    with driver_of(step, settings={"default.value.serde": "json", **settings}) as driver:
        send(driver, [("a", "x", 1), ("a", "y", 2), ("a", "z", 3), ("a", "w", 4)])
        values = [r.value for r in driver.output("out", value=serdes.json).read_all()]
        assert values == [1, 2, None]


# What is refused


def test_a_retention_shorter_than_records_may_come_is_refused() -> None:
    windows = TimeWindows(size=ms(10), grace=ms(5))
    short = Materialized("s", retention=ms(14))
    with pytest.raises(TopologyError, match=r"has a retention of 14 ms.* for 15 ms"):
        driver_of(lambda group: group.windowed_by(windows).count(store=short))
    with pytest.raises(TopologyError, match="for ever"):
        driver_of(lambda group: group.windowed_by(UnlimitedWindows()).count(store=short))


def test_a_retention_is_refused_where_there_are_no_windows() -> None:
    group = StreamsBuilder().stream("in").group_by_key()
    with pytest.raises(TopologyError, match="'s' has no windows"):
        group.count(store=Materialized("s", retention=ms(1)))


def test_what_is_no_window_or_no_way_to_emit_is_refused() -> None:
    group: Any = StreamsBuilder().stream("in").group_by_key()
    with pytest.raises(
        TopologyError, match=r"windows must be TimeWindows\(\.\.\.\), .* not an int"
    ):
        group.windowed_by(5)
    with pytest.raises(TopologyError, match="'on_window_update' or 'on_window_close'"):
        group.windowed_by(TEN, emit="final")
    with pytest.raises(TopologyError, match="never closed"):
        group.windowed_by(UnlimitedWindows(), emit="on_window_close")


def test_a_record_that_is_late_for_one_window_is_in_the_one_that_is_open_by_a_moment() -> None:
    windows = TimeWindows(size=ms(10), advance=ms(5))
    found = results(joined(windows), ("b", "x", 24), ("a", "y", 17))
    assert [g for g in found if g.key == "a"] == [Got("a", 15, 25, "y", 17)]


def test_a_window_that_is_held_back_goes_on_with_the_headers_of_its_last_record() -> None:
    with driver_of(joined(TimeWindows(size=ms(10))), commit="manual") as driver:
        for time, name in ((1, "first"), (2, "last")):
            driver.input("in").send("a", "x", timestamp=time, headers=[(name, b"")])
        driver.commit()
        (record,) = driver.output("out").read_all()
        assert (record.value, record.headers) == ("xx", [("last", b"")])
