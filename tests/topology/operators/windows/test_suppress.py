"""suppress: a table's changes are held back until their time has come."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    BufferConfig,
    KTable,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
    serdes,
)
from headrace.topology.checks.unnamed import unnamed_steps
from headrace.topology.operators.windows.buffered import Buffered, BufferedSerde
from tests.support.examples import examples
from tests.support.operators import HEADERS, NO_CACHE, Pair, driver_of, pairs
from tests.support.timed import Action, actions, by_partition, partition_of, perform

MS = timedelta(milliseconds=1)
CLOSES = Suppressed.until_window_closes()
CACHE: dict[str, object] = {"statestore.cache.max.bytes": 10 << 20}
Row = tuple[Any, Any, int]
"""Key, value and timestamp."""


def limit(duration: int, **buffer: Any) -> Suppressed:
    return Suppressed.until_time_limit(duration * MS, buffer=BufferConfig(**buffer))


def table_driver(
    *records: Row, until: Suppressed, chosen: dict[str, object] | None = None, **options: Any
) -> TopologyTestDriver:
    builder = StreamsBuilder()
    table: KTable[Any, Any] = builder.table("in", key=serdes.string, value=serdes.string)
    table.suppress(until, name="calm").to_stream().to("out")
    driver = TopologyTestDriver(builder.build(), chosen or NO_CACHE, **options)
    feed(driver, *records)
    return driver


def feed(driver: TopologyTestDriver, *records: Row) -> None:
    for key, value, time in records:
        driver.input("in").send(key, value, timestamp=time)


def counted(windows: Any) -> Callable[[Any], Any]:
    return lambda s: s.group_by_key().windowed_by(windows).count(store="counts").suppress(CLOSES)


def final(windows: Any, *records: Row, **options: Any) -> list[Any]:
    driver = driver_of(counted(windows), **{"settings": NO_CACHE, **options})
    feed(driver, *records)
    return outputs(driver)


def outputs(driver: TopologyTestDriver) -> list[Any]:
    found: list[Any] = driver.output("out").read_all()
    return [(r.key.key, *r.key.window, r.value, r.timestamp) for r in found]


TEN = TimeWindows(size=10 * MS, grace=5 * MS)
SESSIONS = SessionWindows(inactivity_gap=5 * MS)

# -- until windows close ------------------------------------------------------------------------


def test_a_window_s_only_result_goes_on_when_it_closes() -> None:
    """Trap 11: at end + grace; the window's timestamp is that of its last record."""
    records = ("k", 1, 0), ("k", 1, 9), ("b", 1, 14)
    assert final(TEN, *records) == []
    more = ("z", 1, 15), ("k", 1, 9), ("z", 1, 26)
    assert final(TEN, *records, *more) == [
        ("k", 0, 10, 2, 9),
        ("b", 10, 20, 1, 14),
        ("z", 10, 20, 1, 15),
    ]


def test_default_serdes_are_enough() -> None:
    """Trap 12: in Kafka Streams 4.3.1 this ends with a ClassCastException."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.group_by_key().windowed_by(TEN).count().suppress(CLOSES).to_stream().to("out")
    chosen = {**NO_CACHE, "default.key.serde": "string", "default.value.serde": "json"}
    driver = TopologyTestDriver(builder.build(), chosen)
    feed(driver, ("k", 1, 0), ("k", 1, 50))
    assert outputs(driver) == [("k", 0, 10, 1, 0)]
    driver.crash(keep=False)
    feed(driver, ("k", 1, 90))
    assert outputs(driver) == [("k", 0, 10, 1, 0), ("k", 50, 60, 1, 50)]


def test_a_session_s_only_result_goes_on_when_it_can_grow_no_more() -> None:
    """Traps 10 and 11: the deletions of merged sessions end here.

    Kafka Streams sends a session on one millisecond before it closes, and again if it still grows.
    """
    records = ("k", 1, 0), ("k", 1, 5), ("b", 1, 7), ("z", 1, 10)
    assert final(SESSIONS, *records) == []
    assert final(SESSIONS, *records, ("k", 1, 10), ("z", 1, 100)) == [
        ("b", 7, 7, 1, 7),
        ("k", 0, 10, 3, 10),
        ("z", 10, 10, 1, 10),
    ]


def test_a_sliding_window_s_only_result_goes_on_when_it_closes() -> None:
    windows = SlidingWindows(time_difference=5 * MS)
    records = ("k", 1, 10), ("k", 1, 12), ("z", 1, 17), ("z", 1, 18)
    assert [f[:4] for f in final(windows, *records)] == [
        ("k", 5, 10, 1),
        ("k", 7, 12, 2),
        ("k", 11, 16, 1),
        ("z", 12, 17, 1),
    ]


def test_no_window_is_lost_when_stream_time_jumps() -> None:
    """Trap 13."""
    records = ("a", 1, 10), ("b", 1, 70), ("c", 1, 10**12), ("d", 1, 3 * 10**12)
    assert [f[0] for f in final(TEN, *records)] == ["a", "b", "c"]


def test_windows_go_by_their_end_then_by_their_key() -> None:
    records = ("c", 1, 12), ("b", 1, 1), ("a", 1, 13), ("a", 1, 2), ("z", 1, 500)
    assert [f[:2] for f in final(TEN, *records)] == [("a", 0), ("b", 0), ("a", 10), ("c", 10)]


def test_the_headers_are_those_of_the_last_change() -> None:
    driver = driver_of(counted(TEN), settings=NO_CACHE)
    driver.input("in").send("k", 1, timestamp=0)
    driver.input("in").send("k", 1, timestamp=1, headers=HEADERS)
    driver.input("in").send("z", 1, timestamp=99)
    (record,) = driver.output("out").read_all()
    assert record.headers == HEADERS


def test_a_table_above_may_be_filtered_and_mapped() -> None:
    def step(stream: Any) -> Any:
        counts = stream.group_by_key().windowed_by(TEN).count(store="counts")
        busy = counts.filter(lambda key, count: count != 2).map_values(lambda count: -count)
        return busy.suppress(CLOSES)

    driver = driver_of(step, settings=NO_CACHE)
    feed(driver, ("a", 1, 0), ("b", 1, 0), ("b", 1, 1), ("c", 1, 0), ("c", 1, 0), ("c", 1, 0))
    feed(driver, ("z", 1, 99), ("z", 1, 200))
    assert [f[:4] for f in outputs(driver)] == [
        ("a", 0, 10, -1),
        ("c", 0, 10, -3),
        ("z", 90, 100, -1),
    ]


def test_what_is_computed_from_final_results_sees_each_once() -> None:
    def step(stream: Any) -> Any:
        return counted(TEN)(stream).filter(lambda key, count: count > 1)

    driver = driver_of(step, settings=NO_CACHE)
    feed(driver, ("a", 1, 0), ("b", 1, 0), ("b", 1, 1), ("z", 1, 99))
    assert outputs(driver) == [("b", 0, 10, 2, 1)]


def test_a_table_without_windows_is_refused() -> None:
    with pytest.raises(TopologyError, match="has no windows"):
        table_driver(until=CLOSES)


def test_a_window_that_never_closes_is_refused() -> None:
    with pytest.raises(TopologyError, match="never closes"):
        final(UnlimitedWindows())


def test_a_buffer_that_emits_early_is_refused_for_final_results() -> None:
    with pytest.raises(TopologyError, match="when_full='shut_down'"):
        Suppressed.until_window_closes(buffer=BufferConfig(max_records=5))
    strict = BufferConfig(max_records=5, when_full="shut_down")
    assert Suppressed.until_window_closes(buffer=strict).buffer is strict


def test_a_cache_above_makes_no_result_final_too_early() -> None:
    """In the middle of a flush stream time is ahead of updates that are still to come."""
    driver = driver_of(counted(TEN), settings=CACHE, commit="manual")
    feed(driver, ("b", 1, 12), ("a", 1, 5))
    driver.commit()
    feed(driver, ("b", 1, 14), ("a", 1, 6), ("b", 1, 17))
    driver.commit()
    assert outputs(driver) == [("a", 0, 10, 2, 6)]


# -- until a time limit -------------------------------------------------------------------------


def test_the_last_change_goes_on_when_the_first_is_old_enough() -> None:
    """As run with Kafka Streams 4.3.1."""
    driver = table_driver(
        ("k", "a", 0), ("k", "b", 4), ("j", "x", 5), ("k", None, 6), ("k", "c", 7), until=limit(5)
    )
    assert pairs(driver) == [("k", "b")]
    feed(driver, ("l", "x", 10), ("l", "y", 11), ("m", "x", 12), ("n", "x", 13), ("k", "q", 3))
    assert pairs(driver)[1:] == [("j", "x"), ("k", "c"), ("k", "q")]
    feed(driver, ("p", "x", 17))
    assert pairs(driver)[4:] == [("l", "y"), ("m", "x")]


def test_the_timestamp_is_that_of_the_last_change() -> None:
    driver = table_driver(("k", "a", 0), ("k", "b", 4), ("j", "x", 5), until=limit(5))
    assert [r.timestamp for r in driver.output("out").read_all()] == [4]


def test_a_limit_of_zero_holds_nothing_back() -> None:
    driver = table_driver(("k", "a", 3), ("k", "b", 1), ("k", None, 2), until=limit(0))
    assert pairs(driver) == [("k", "a"), ("k", "b"), ("k", None)]


def test_a_deletion_goes_on_only_where_the_row_has_been_there() -> None:
    """Trap 8: Kafka Streams sends on the deletion of a row that nobody below has seen."""
    records = ("k", "a", 0), ("k", None, 1), ("j", "x", 0), ("z", "z", 9)
    driver = table_driver(*records, until=limit(5))
    assert pairs(driver) == [("j", "x")]
    feed(driver, ("j", None, 10), ("z", "y", 19))
    assert pairs(driver) == [("j", "x"), ("z", "y"), ("j", None)]


def test_a_row_that_came_back_waits_from_its_return_on() -> None:
    records = ("k", "a", 0), ("k", None, 1), ("k", "b", 5)
    driver = table_driver(*records, until=limit(10))
    feed(driver, ("z", "z", 10))
    assert pairs(driver) == []
    feed(driver, ("z", "y", 15))
    assert pairs(driver) == [("k", "b")]


def test_after_a_restart_rows_go_on_by_their_time_not_by_their_key() -> None:
    driver = table_driver(("a", "later", 20), ("b", "earlier", 15), until=limit(10))
    driver.crash(keep=False)
    assert pairs(driver) == []
    feed(driver, ("z", "z", 25))
    assert pairs(driver) == [("b", "earlier")]


def test_a_buffer_that_is_full_sends_on_the_oldest_rows() -> None:
    """As run with Kafka Streams 4.3.1, but for the deletion of a row that was never there."""
    until = limit(100, max_records=2)
    driver = table_driver(("k", "a", 0), ("j", "b", 4), ("l", "x", 2), until=until)
    assert pairs(driver) == [("k", "a")]
    feed(driver, ("m", None, 6), ("k", "c", 7))
    assert pairs(driver) == [("k", "a"), ("l", "x")]


def test_a_buffer_that_is_full_of_bytes_sends_on_the_oldest_rows() -> None:
    driver = table_driver(*((k, "x" * 50, 0) for k in "abc"), until=limit(9, max_bytes=200))
    assert pairs(driver) == [("a", "x" * 50)]
    feed(driver, ("b", "x", 0), ("c", "x", 0), ("d", "x", 0))
    assert pairs(driver) == [("a", "x" * 50)]


def test_a_buffer_that_is_full_stops_the_application_where_it_is_told_to() -> None:
    until = limit(100, max_records=2, when_full="shut_down")
    with pytest.raises(RecordError, match="'calm' buffers 3 rows in store 'calm-store'") as caught:
        table_driver(("k", "a", 0), ("j", "b", 4), ("l", "x", 2), until=until)
    assert "headrace skip" not in str(caught.value)


def test_bounds_that_are_not_possible_are_refused() -> None:
    with pytest.raises(TopologyError, match="max_bytes"):
        BufferConfig(max_bytes=-1)
    with pytest.raises(TopologyError, match="when_full"):
        BufferConfig(when_full="wait")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="limit"):
        limit(-1)


def test_the_buffer_is_in_a_logged_store() -> None:
    driver = table_driver(("k", "a", 0), ("j", "b", 9), until=limit(5))
    log = driver.output("test-calm-store-changelog", key=serdes.string, value=serdes.bytes)
    written = [(r.key, r.value is None) for r in log.read_all()]
    assert written == [("k", False), ("j", False), ("k", True)]
    driver.crash(keep=False)
    feed(driver, ("z", "z", 14))
    assert pairs(driver) == [("k", "a"), ("j", "b")]


def test_a_buffer_need_not_be_logged() -> None:
    driver = table_driver(("k", "a", 0), until=limit(5, logged=False))
    assert "test-calm-store-changelog" not in driver.cluster.topics


# -- against a slow model -----------------------------------------------------------------------


class Model:
    """What is held back, in a list; searched from end to end."""

    def __init__(self, wait: int) -> None:
        self.wait = wait
        self.time = -1
        self.table: dict[str, Any] = {}
        self.sent: dict[str, Any] = {}
        self.held: dict[str, tuple[int, Any]] = {}
        self.out: list[Pair] = []

    def process(self, key: str, value: Any, time: int) -> None:
        if value == self.table.get(key):
            return  # the table says nothing of it
        self.table[key] = value
        self.time = max(self.time, time)
        first = self.held[key][0] if key in self.held else time
        self.held[key] = first, value
        if value is None and self.sent.get(key) is None:
            del self.held[key]
        due = sorted((t, k) for k, (t, _) in self.held.items() if t <= self.time - self.wait)
        for _, found in due:
            last = self.held.pop(found)[1]
            self.sent[found] = last
            self.out.append((found, last))


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(
    steps=actions(st.sampled_from([None, "x", "y", "z"])),
    partitions=st.sampled_from([1, 3]),
    wait=st.integers(0, 40),
    cache=st.booleans(),
)
def test_what_is_held_back_is_that_of_a_slow_model(
    steps: list[Action], partitions: int, wait: int, cache: bool
) -> None:
    """Trap 36: neither lost nor sent twice, with aborts and crashes between any two records."""
    chosen = {"processing.guarantee": "exactly_once_v2", **(CACHE if cache else NO_CACHE)}
    driver = table_driver(until=limit(wait), chosen=chosen, partitions=partitions, commit="manual")
    perform(driver, steps, partitions)
    found = pairs(driver)
    table: dict[str, Any] = {}
    for partition, records in by_partition(steps, partitions):
        model = Model(wait)
        for _, key, value, time in records:
            model.process(key, value, time)
        mine = [(k, v) for k, v in found if partition_of(k, partitions) == partition]
        assert cache or mine == model.out
        table |= model.table
    check_deletions(found)
    # Once all is due, those below have the table.
    for number, time in enumerate((10**6, 2 * 10**6)):
        for place in range(partitions):
            driver.input("in").send("z", f"{number}", timestamp=time, partition=place)
        driver.commit()
    check_deletions(pairs(driver))
    last = driver.output("out").as_dict()
    assert {k: v for k, v in last.items() if k != "z"} == {
        k: v for k, v in table.items() if v is not None
    }


def check_deletions(found: list[Pair]) -> None:
    """Only what is there is deleted."""
    there: set[str] = set()
    for key, value in found:
        assert value is not None or key in there
        (there.discard if value is None else there.add)(key)


WINDOWS = st.sampled_from(
    [
        TEN,
        TimeWindows(size=12 * MS, advance=5 * MS, grace=2 * MS),
        SESSIONS,
        SessionWindows(inactivity_gap=3 * MS, grace=9 * MS),
        SlidingWindows(time_difference=6 * MS, grace=3 * MS),
    ]
)


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(
    steps=actions(st.just(1)),
    partitions=st.sampled_from([1, 3]),
    windows=WINDOWS,
    cache=st.booleans(),
)
def test_final_results_are_those_that_windows_close_with(
    steps: list[Action], partitions: int, windows: Any, cache: bool
) -> None:
    """Traps 11, 13 and 36: each window once, with the value that the fold itself emits last."""
    chosen = {"processing.guarantee": "exactly_once_v2", **(CACHE if cache else NO_CACHE)}

    def run(step: Callable[[Any], Any]) -> list[Any]:
        driver = driver_of(step, settings=chosen, partitions=partitions, commit="manual")
        perform(driver, steps, partitions)
        for time in (10**6, 2 * 10**6):
            for place in range(partitions):
                driver.input("in").send("z", 1, timestamp=time, partition=place)
            driver.commit()
        return sorted(f for f in outputs(driver) if f[0] != "z")

    def on_close(stream: Any) -> Any:
        windowed = stream.group_by_key().windowed_by(windows, emit="on_window_close")
        return windowed.count(store="counts")

    found = run(counted(windows))
    assert len({f[:3] for f in found}) == len(found)
    assert found == run(on_close)


def test_no_handler_lets_a_full_buffer_grow() -> None:
    until = limit(100, max_records=2, when_full="shut_down")
    chosen = {**NO_CACHE, "processing.exception.handler": "continue"}
    with pytest.raises(RecordError, match="buffers 3 rows"):
        table_driver(("k", "a", 0), ("j", "b", 4), ("l", "x", 2), until=until, chosen=chosen)


def test_a_suppression_without_a_name_is_told_how_to_get_one() -> None:
    builder = StreamsBuilder()
    builder.table("in", store="rows").suppress(limit(5))
    (unnamed,) = unnamed_steps(builder.build().sub_topologies)
    assert unnamed.advice == 'suppress(name="...")'


def test_names_of_headers_that_are_not_utf8_are_kept_in_the_buffer() -> None:
    rows = BufferedSerde(serdes.string)
    change = Buffered("b", "a", 5, 7, [("gr\udcf6\udcdfe", b"1"), ("größe", None), ("n", b"")])
    assert rows.deserialize(rows.serialize(change)) == change
