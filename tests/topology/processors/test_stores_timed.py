"""Window and session stores of processors, against a list of rows (traps 16 and 24)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    Processor,
    Record,
    SessionStore,
    Stores,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
    ValueAndTimestamp,
    Window,
    Windowed,
    WindowStore,
    serdes,
)
from headrace.topology.processors.stores import StoreBuilder, in_memory
from headrace.topology.processors.versioned_store import IS_LATEST, NOT_PUT
from tests.support.examples import examples
from tests.support.store_ops import StoreOps

MS = timedelta(milliseconds=1)
RETENTION = 100
SIZE = 10


def windows(**options: Any) -> StoreBuilder[WindowStore[str, Any]]:
    return Stores.window(
        "s",
        key=serdes.string,
        value=serdes.json,
        size=SIZE * MS,
        retention=RETENTION * MS,
        **options,
    )


def sessions(**options: Any) -> StoreBuilder[SessionStore[str, Any]]:
    return Stores.session(
        "s", key=serdes.string, value=serdes.json, retention=RETENTION * MS, **options
    )


def windowed(key: str, start: int) -> Windowed[str]:
    return Windowed(key, Window(start, start + SIZE))


# -- windows against a model -------------------------------------------------------------------

KEYS = st.text(st.sampled_from("ab\xff"), max_size=2)
TIMES = st.integers(0, 260)
SPAN = st.tuples(TIMES, TIMES).map(sorted)
VALUES = st.none() | st.integers(0, 9)
EVENTS = st.sampled_from([("commit",), ("abort",), ("crash",)])


def flat(name: str, *parts: Any) -> Any:
    return st.tuples(st.just(name), *parts)


def spanned(name: str, *parts: Any) -> Any:
    return st.tuples(st.tuples(st.just(name), *parts), SPAN).map(lambda t: (*t[0], *t[1]))


WINDOW_OPERATIONS = st.one_of(
    flat("put", KEYS, VALUES, TIMES),
    flat("put", KEYS, VALUES, TIMES),
    flat("get", KEYS, TIMES),
    spanned("fetch", KEYS),
    spanned("backward_fetch", KEYS),
    spanned("fetch_all"),
    spanned("backward_fetch_all"),
    spanned("fetch_range", st.none() | KEYS, st.none() | KEYS),
    spanned("backward_fetch_range", st.none() | KEYS, st.none() | KEYS),
    flat("all"),
    flat("backward_all"),
    EVENTS,
)


class WindowModel:
    """All that was put, looked through each time."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, bytes], Any] = {}
        self.latest = -1

    def do(self, method: str, *arguments: Any) -> Any:
        backward = method.startswith("backward_")
        found = getattr(self, method.removeprefix("backward_"))(*arguments)
        return found[::-1] if backward else found

    def _live(self) -> list[tuple[int, bytes, Any]]:
        live = ((start, key, value) for (start, key), value in self.rows.items())
        return sorted(row for row in live if row[0] > self.latest - RETENTION)

    def put(self, key: str, value: Any, start: int) -> None:
        self.latest = max(self.latest, start)
        if start <= self.latest - RETENTION:
            return
        if value is None:
            self.rows.pop((start, key.encode()), None)
        else:
            self.rows[start, key.encode()] = value

    def get(self, key: str, start: int) -> Any:
        return next((value for _, value in self.fetch(key, start, start)), None)

    def fetch(self, key: str, start: int, end: int) -> list[Any]:
        return [(at, v) for at, k, v in self._live() if k == key.encode() and start <= at <= end]

    def fetch_all(self, start: int, end: int) -> list[Any]:
        return self.fetch_range(None, None, start, end)

    def fetch_range(self, low: str | None, high: str | None, start: int, end: int) -> list[Any]:
        return [
            (windowed(key.decode(), at), value)
            for at, key, value in self._live()
            if start <= at <= end
            and (low is None or key >= low.encode())
            and (high is None or key <= high.encode())
        ]

    def all(self) -> list[Any]:
        return self.fetch_all(0, 10_000)


@settings(deadline=None, max_examples=examples(80))
@given(st.lists(WINDOW_OPERATIONS, max_size=30), st.sampled_from(["each_record", "manual"]))
def test_a_window_store_answers_as_a_list_does_also_under_aborts_and_crashes(
    operations: list[Any], commit: str
) -> None:
    ops, model = StoreOps(windows(), commit=commit), WindowModel()
    done: list[Any] = []
    for operation in operations:
        done.append(operation)
        if operation[0] in ("commit", "abort", "crash"):
            getattr(ops.driver, operation[0])()
            continue
        assert ops.do(*operation) == model.do(*operation), done
    ops.driver.commit()
    ops.driver.crash(keep=False)
    assert ops.do("all") == model.all(), done


# -- windows, rule by rule ---------------------------------------------------------------------


def test_a_window_is_gone_when_the_latest_start_is_a_retention_ahead() -> None:
    """As in Kafka Streams 4.3.1, whose answers these are."""
    store = in_memory(windows())
    found = []
    for start in (0, 50, 99, 100, 101, 150, 45, 50, 51, 300):
        store.put("k", start, start)
        found.append([at for at, _ in store.fetch("k", 0, 1_000)])
    assert found == [
        [0],
        [0, 50],
        [0, 50, 99],
        [50, 99, 100],
        [50, 99, 100, 101],
        [99, 100, 101, 150],
        [99, 100, 101, 150],
        [99, 100, 101, 150],
        [51, 99, 100, 101, 150],
        [300],
    ]


def test_rows_of_all_keys_are_in_the_order_of_their_times_then_of_their_keys() -> None:
    """As in Kafka Streams' store in memory; its persistent one goes by segments."""
    store = in_memory(windows())
    for key in ("b", "a", "aa"):
        for start in (20, 0, 10):
            store.put(key, 1, start)
    names = [f"{key}@{window.start_ms}" for (key, window), _ in store.all()]
    assert names == ["a@0", "aa@0", "b@0", "a@10", "aa@10", "b@10", "a@20", "aa@20", "b@20"]
    names = [f"{key}@{window.start_ms}" for (key, window), _ in store.fetch_range("a", "aa", 0, 9)]
    assert names == ["a@0", "aa@0"]


def test_a_late_put_is_left_out_and_counted() -> None:
    ops = StoreOps(windows())
    ops.do("put", "a", 1, 200)
    ops.do("put", "a", 1, 100)
    assert ops.do("fetch", "a", 0, 300) == [(200, 1)]
    assert ops.driver.dropped == {("s", "later than the retention of the store"): 1}


def test_what_has_expired_stays_so_after_a_crash_and_costs_no_tombstone() -> None:
    ops = StoreOps(windows())
    ops.do("put", "a", 1, 0)
    ops.do("put", "a", 2, 150)
    ops.driver.crash(keep=False)
    assert ops.do("fetch", "a", 0, 300) == [(150, 2)]
    log = ops.driver.output("test-s-changelog").read_all()
    assert [record.value for record in log] == [1, 2]


def test_equal_keys_and_starts_are_kept_apart_on_demand_also_after_a_restart() -> None:
    """Trap 16; the sequence number goes on where it was."""
    ops = StoreOps(windows(retain_duplicates=True))
    ops.do("put", "a", "x", 5)
    ops.do("put", "a", "x", 5)
    ops.driver.restart()
    ops.do("put", "a", "y", 5)
    ops.do("put", "a", None, 5)
    assert ops.do("fetch", "a", 5, 5) == [(5, "x"), (5, "x"), (5, "y")]
    assert ops.do("get", "a", 5) == "x"


def test_the_rows_of_windows_are_kafka_streams_bytes() -> None:
    """Trap 24: key, start (8), sequence number (4); the value plain under the record's time."""
    ops = StoreOps(windows())
    ops.do("put", "a", 7, 5, timestamp=90)
    log = ops.driver.output("test-s-changelog", key=serdes.bytes, value=serdes.bytes)
    (record,) = log.read_all()
    assert record.key == b"a" + (5).to_bytes(8, "big") + bytes(4)
    assert (record.value, record.timestamp) == (b"7", 90)


def test_the_changelog_of_windows_deletes_by_time() -> None:
    ops = StoreOps(windows())
    ops.driver.run()
    config = ops.driver.cluster.topics["test-s-changelog"].config
    assert config["cleanup.policy"] == "compact,delete"
    assert config["retention.ms"] == str(RETENTION + 86_400_000)


def test_deleting_a_window_that_was_never_there_writes_no_tombstone() -> None:
    ops = StoreOps(windows())
    ops.do("put", "a", None, 5)
    assert ops.driver.output("test-s-changelog").read_all() == []


def test_a_timestamped_window_store_keeps_the_time_it_is_given() -> None:
    store = in_memory(
        Stores.timestamped_window(
            "s", key=serdes.string, value=serdes.long, size=SIZE * MS, retention=RETENTION * MS
        )
    )
    store.put("a", ValueAndTimestamp(1, 7), 0)
    assert store.get("a", 0) == ValueAndTimestamp(1, 7)
    assert list(store.all()) == [(windowed("a", 0), ValueAndTimestamp(1, 7))]


def test_a_processor_reads_the_windows_of_a_table() -> None:
    found: list[Any] = []

    class Look(Processor[str, str, Any, Any]):
        def process(self, record: Record[str, str]) -> None:
            found.append(list(self.context.store("counts").fetch(record.key, 0, 100)))

    builder = StreamsBuilder()
    lines = builder.stream("in", key=serdes.string, value=serdes.string)
    lines.group_by_key().windowed_by(TimeWindows(size=SIZE * MS, grace=99 * MS)).count(
        store="counts"
    )
    lines.process(Look, stores=["counts"])
    driver = TopologyTestDriver(builder.build())
    driver.input("in").send("a", "x", timestamp=3)
    driver.input("in").send("a", "x", timestamp=12)
    one, two = ValueAndTimestamp(1, 3), ValueAndTimestamp(1, 12)
    assert found == [[(0, one)], [(0, one), (10, two)]]


def test_the_same_windows_come_from_rocksdb(tmp_path: Any) -> None:
    ops, model = StoreOps(windows(), commit="manual", state_dir=tmp_path), WindowModel()
    for number in range(80):
        key, start = "ab"[number % 2] * (1 + number % 3), number * 7 % 11 + number * 3
        for operation in (("put", key, number, start), ("all",), ("fetch", key, 50, 150)):
            assert ops.do(*operation) == model.do(*operation)
        if number % 9 == 0:
            ops.driver.commit()
        if number % 20 == 0:
            ops.driver.crash()
    ops.driver.close()


@pytest.mark.parametrize(
    ("size", "retention", "message"),
    [
        (20 * MS, 10 * MS, "shorter than its windows"),
        (MS / 2, 10 * MS, "size must be whole milliseconds"),
        (0 * MS, 10 * MS, "size must be at least 1 ms"),
        (5, 10 * MS, "must be a timedelta"),
    ],
)
def test_impossible_durations_are_refused(size: Any, retention: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Stores.window("s", size=size, retention=retention)


def test_a_time_before_1970_is_refused() -> None:
    with pytest.raises(ValueError, match="before 1970"):
        in_memory(windows()).put("a", 1, -5)


# -- sessions against a model ------------------------------------------------------------------

SESSION = st.tuples(KEYS, st.integers(0, 250), st.integers(0, 20)).map(
    lambda t: Windowed(t[0], Window(t[1], t[1] + t[2]))
)
SESSION_OPERATIONS = st.one_of(
    flat("put", SESSION, VALUES),
    flat("put", SESSION, VALUES),
    flat("remove", SESSION),
    flat("fetch", KEYS),
    flat("backward_fetch", KEYS),
    flat("find_sessions", KEYS, TIMES, TIMES),
    flat("backward_find_sessions", KEYS, TIMES, TIMES),
    flat("find_sessions_of_range", st.none() | KEYS, st.none() | KEYS, TIMES, TIMES),
    flat("find_sessions_by_end", TIMES, TIMES),
    EVENTS,
)


class SessionModel:
    """All that was put, looked through each time."""

    def __init__(self) -> None:
        self.rows: dict[Windowed[str], Any] = {}
        self.latest = -1

    def do(self, method: str, *arguments: Any) -> Any:
        backward = method.startswith("backward_")
        found = getattr(self, method.removeprefix("backward_"))(*arguments)
        return found[::-1] if backward else found

    def put(self, session: Windowed[str], value: Any) -> None:
        if value is None:
            self.remove(session)
            return
        self.latest = max(self.latest, session.window.end_ms)
        if session.window.end_ms > self.latest - RETENTION:
            self.rows[session] = value

    def remove(self, session: Windowed[str]) -> None:
        self.rows.pop(session, None)

    def _live(self) -> list[Any]:
        rows = [r for r in self.rows.items() if r[0].window.end_ms > self.latest - RETENTION]
        return sorted(rows, key=_by_end)

    def fetch(self, key: str) -> list[Any]:
        return [row for row in self._live() if row[0].key == key]

    def find_sessions(self, key: str, end: int, start: int) -> list[Any]:
        return self._found(self.fetch(key), end, start)

    def find_sessions_of_range(
        self, low: str | None, high: str | None, end: int, start: int
    ) -> list[Any]:
        rows = [
            row
            for row in self._live()
            if (low is None or row[0].key.encode() >= low.encode())
            and (high is None or row[0].key.encode() <= high.encode())
        ]
        return self._found(rows, end, start)

    def find_sessions_by_end(self, earliest: int, latest: int) -> list[Any]:
        return [row for row in self._live() if earliest <= row[0].window.end_ms <= latest]

    def _found(self, rows: list[Any], end: int, start: int) -> list[Any]:
        return [r for r in rows if r[0].window.end_ms >= end and r[0].window.start_ms <= start]


def _by_end(row: Any) -> tuple[int, bytes]:
    session = row[0]
    row_key = serdes.session_windowed(serdes.string).serialize(session)
    return session.window.end_ms, row_key


@settings(deadline=None, max_examples=examples(80))
@given(st.lists(SESSION_OPERATIONS, max_size=30), st.sampled_from(["each_record", "manual"]))
def test_a_session_store_answers_as_a_list_does_also_under_aborts_and_crashes(
    operations: list[Any], commit: str
) -> None:
    ops, model = StoreOps(sessions(), commit=commit), SessionModel()
    done: list[Any] = []
    for operation in operations:
        done.append(operation)
        if operation[0] in ("commit", "abort", "crash"):
            getattr(ops.driver, operation[0])()
            continue
        assert ops.do(*operation) == model.do(*operation), done
    ops.driver.commit()
    ops.driver.crash(keep=False)
    whole = ("find_sessions_by_end", 0, 10_000)
    assert ops.do(*whole) == model.do(*whole), done


# -- sessions, rule by rule --------------------------------------------------------------------


def test_sessions_are_found_by_their_ends_and_starts() -> None:
    store = in_memory(sessions())
    for start, end in ((0, 5), (8, 20), (30, 30)):
        store.put(Windowed("a", Window(start, end)), f"{start}-{end}")
    store.put(Windowed("aa", Window(0, 9)), "other")

    def found(earliest_end: int, latest_start: int) -> list[str]:
        return [value for _, value in store.find_sessions("a", earliest_end, latest_start)]

    assert found(5, 8) == ["0-5", "8-20"]
    assert found(6, 29) == ["8-20"]
    assert found(21, 29) == []
    assert store.fetch_session("a", 8, 20) == "8-20"
    assert store.fetch_session("a", 8, 21) is None
    ends = [value for _, value in store.find_sessions_by_end(9, 20)]
    assert ends == ["other", "8-20"]


def test_the_rows_of_sessions_are_kafka_streams_bytes() -> None:
    """Trap 24: key, end (8), start (8)."""
    ops = StoreOps(sessions())
    ops.do("put", Windowed("a", Window(3, 9)), 7, timestamp=90)
    log = ops.driver.output("test-s-changelog", key=serdes.bytes, value=serdes.bytes)
    (record,) = log.read_all()
    assert record.key == b"a" + (9).to_bytes(8, "big") + (3).to_bytes(8, "big")
    assert (record.value, record.timestamp) == (b"7", 90)


def test_a_session_is_gone_when_the_latest_end_is_a_retention_ahead() -> None:
    """As in Kafka Streams 4.3.1, whose answers these are."""
    store = in_memory(sessions())
    found = []
    for start in (0, 50, 99, 100, 101, 150, 45, 50, 51, 300):
        store.put(Windowed("k", Window(start, start + 1)), start)
        found.append([window.end_ms for (_, window), _ in store.fetch("k")])
    assert found[3:] == [
        [51, 100, 101],
        [51, 100, 101, 102],
        [100, 101, 102, 151],
        [100, 101, 102, 151],
        [100, 101, 102, 151],
        [52, 100, 101, 102, 151],
        [301],
    ]


def test_the_time_of_a_versioned_store_goes_on_with_its_latest_version_over_a_restart() -> None:
    """An older version moves neither the history nor what a restart finds of it."""
    store = Stores.versioned("s", key=serdes.string, value=serdes.string, history=100 * MS)

    def put(record: Record[str, str], context: Any) -> None:
        done = context.store("s").put(record.key, record.value, record.timestamp)
        context.forward(record.with_value(done))

    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    stream.process_values(put, stores=[store]).to("out", value=serdes.long)
    with TopologyTestDriver(builder.build()) as driver:
        for value, time in (("new", 1000), ("older", 950)):
            driver.input("in").send("k", value, timestamp=time)
        driver.crash(keep=False)
        for value, time in (("too old", 899), ("just in time", 900)):
            driver.input("in").send("k", value, timestamp=time)
        found = [record.value for record in driver.output("out").read_all()]
    assert found == [IS_LATEST, 1000, NOT_PUT, 950]


def test_what_lies_before_the_history_of_a_versioned_store_stays_out_of_reach_over_a_restart() -> (
    None
):
    """The rows may be on disk still; what a read finds must not depend on a restart."""
    store = Stores.versioned("s", key=serdes.string, value=serdes.string, history=100 * MS)

    def put(record: Record[str, str], context: Any) -> None:
        context.store("s").put(record.key, record.value, record.timestamp)

    def ask(record: Record[str, str], context: Any) -> None:
        found = context.store("s").get(record.key, as_of=record.timestamp)
        context.forward(record.with_value(None if found is None else found.value))

    builder = StreamsBuilder()
    versions = builder.stream("in", key=serdes.string, value=serdes.string)
    versions.process_values(put, stores=[store])
    times = builder.stream("ask", key=serdes.string, value=serdes.string)
    times.process_values(ask, stores=["s"]).to("out", value=serdes.string)
    with TopologyTestDriver(builder.build()) as driver:
        for value, time in (("old", 0), ("new", 1000)):
            driver.input("in").send("k", value, timestamp=time)
        for restart in (False, True):
            if restart:
                driver.restart()
            for time in (850, 1000):
                driver.input("ask").send("k", "?", timestamp=time)
        found = [record.value for record in driver.output("out").read_all()]
    assert found == [None, "new", None, "new"]
