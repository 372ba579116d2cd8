"""Sessions: windows of a key that grow, and merge, while records come."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, assert_type

import pytest

from headrace.state.buffer import Coding
from headrace.state.memory import MemoryTaskState
from headrace.state.spec import StoreSpec
from headrace.state.timed import TimedBuffer
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    KTable,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    TopologyError,
    Window,
    Windowed,
    serdes,
)
from headrace.topology.context.context import OperatorContext, no_stores
from headrace.topology.context.number import Number
from headrace.topology.context.task_context import TaskContext
from headrace.topology.dsl.session_windowed import SessionWindowedKStream
from headrace.topology.graph.fold import Aggregating
from headrace.topology.operators.windows.sessions import SessionFold
from headrace.topology.serdes.windows_serde import SessionWindowedSerde
from tests.support.operators import HEADERS, NO_CACHE, driver_of, pairs

MS = timedelta(milliseconds=1)
GAP = 5
Changes = list[tuple[str, int, int, Any]]
"""Key, start and end of the session, and its value."""


def append(_key: str, value: Any, values: list[Any]) -> list[Any]:
    values.append(value)  # in place, as a program may do it
    return values


def merge(_key: str, one: list[Any], other: list[Any]) -> list[Any]:
    one.extend(other)
    return one


def fold(sessions: Any, **options: Any) -> Any:
    return sessions.aggregate(list, append, merge, store="sessions", **options)


def sessions_of(
    step: Callable[[Any], Any] = fold, *, grace: int = 0, gap: int = GAP, **options: Any
) -> Callable[[Any], Any]:
    windows = SessionWindows(inactivity_gap=gap * MS, grace=grace * MS)
    return lambda stream: step(stream.group_by_key().windowed_by(windows, **options))


def driver_with(
    *records: tuple[str, Any, int],
    step: Callable[[Any], Any] | None = None,
    chosen: dict[str, object] | None = None,
    **options: Any,
) -> TopologyTestDriver:
    driver = driver_of(step or sessions_of(), settings=chosen or NO_CACHE, **options)
    for key, value, time in records:
        driver.input("in").send(key, value, timestamp=time)
    return driver


def changes(driver: TopologyTestDriver) -> Changes:
    found: list[Any] = driver.output("out").read_all()
    return [(r.key.key, *r.key.window, r.value) for r in found]


def rows(driver: TopologyTestDriver, store: str = "sessions", **options: Any) -> Changes:
    return [(k.key, *k.window, v) for k, v in driver.store(store, **options).items()]


def test_records_within_the_gap_are_one_session() -> None:
    records = ("a", 1, 0), ("a", 2, 4), ("a", 3, 10), ("b", 4, 4)
    driver = driver_with(*records, step=sessions_of(grace=20))
    assert rows(driver) == [("a", 0, 4, [1, 2]), ("a", 10, 10, [3]), ("b", 4, 4, [4])]


def test_the_gap_belongs_to_the_session() -> None:
    assert rows(driver_with(("a", 1, 0), ("a", 2, 5))) == [("a", 0, 5, [1, 2])]


def test_each_merged_session_is_deleted_before_the_new_one_goes_on() -> None:
    """Trap 10."""
    step = sessions_of(grace=20)
    driver = driver_with(("a", 1, 0), ("a", 2, 8), ("a", 3, 4), step=step)
    assert changes(driver) == [
        ("a", 0, 0, [1]),
        ("a", 8, 8, [2]),
        ("a", 0, 0, None),
        ("a", 8, 8, None),
        ("a", 0, 8, [1, 2, 3]),
    ]


def test_a_record_within_a_session_deletes_nothing() -> None:
    """Trap 10. Kafka Streams deletes and writes the same row where the record lies inside."""
    driver = driver_with(("a", 1, 5), ("a", 2, 5), ("a", 3, 9), ("a", 4, 7))
    assert changes(driver) == [
        ("a", 5, 5, [1]),
        ("a", 5, 5, [1, 2]),
        ("a", 5, 5, None),
        ("a", 5, 9, [1, 2, 3]),
        ("a", 5, 9, [1, 2, 3, 4]),
    ]


def test_the_timestamp_of_a_session_is_its_end() -> None:
    """Trap 6: for sessions it is the end, whatever the record's time is."""
    step = sessions_of(grace=20)
    driver = driver_with(("a", 1, 9), ("a", 2, 5), step=step)
    assert [r.timestamp for r in driver.output("out").read_all()] == [9, 9, 9]
    assert [row[2] for row in driver.store("sessions").rows()] == [9]


def test_headers_are_those_of_the_record() -> None:
    driver = driver_of(sessions_of(), settings=NO_CACHE)
    driver.input("in").send("a", 1, headers=HEADERS, timestamp=0)
    driver.input("in").send("a", 1, timestamp=1)
    assert [r.headers for r in driver.output("out").read_all()] == [HEADERS, (), ()]


def test_a_null_key_follows_the_policy() -> None:
    driver = driver_of(lambda s: fold_named(s), settings={**NO_CACHE, "null.key.policy": "drop"})
    driver.input("in").send(None, 1, timestamp=100)
    driver.input("in").send("a", 1, timestamp=0)
    assert rows(driver) == [("a", 0, 0, [1])]
    assert driver.dropped == {("fold", "null key"): 1}


def fold_named(stream: Any, **options: Any) -> Any:
    return sessions_of(lambda s: fold(s, name="fold"), **options)(stream)


def test_a_null_value_is_folded() -> None:
    """Trap 5: windows keep null values, sessions too (run with Kafka Streams 4.3.1)."""
    assert rows(driver_with(("a", None, 0), ("a", 1, 1))) == [("a", 0, 1, [None, 1])]
    driver = driver_with(
        ("a", None, 0), ("a", 1, 1), step=sessions_of(lambda s: s.count(store="sessions"))
    )
    assert rows(driver) == [("a", 0, 1, 2)]


def test_a_record_is_late_once_stream_time_has_passed_gap_and_grace() -> None:
    """Trap 11: end + gap + grace < stream time."""
    records = ("a", 1, 0), ("b", 2, 8), ("a", 3, 0), ("b", 4, 9), ("a", 5, 0)
    driver = driver_with(*records, step=lambda s: fold_named(s, grace=3))
    assert rows(driver)[0] == ("b", 8, 9, [2, 4])
    assert [c for c in changes(driver) if c[0] == "a"] == [("a", 0, 0, [1]), ("a", 0, 0, [1, 3])]
    assert driver.dropped == {("fold", "late"): 1}


def test_an_old_record_that_reaches_an_open_session_is_not_late() -> None:
    driver = driver_with(("a", 1, 20), ("b", 2, 25), ("a", 3, 17), ("c", 4, 17))
    assert rows(driver) == [("a", 17, 20, [1, 3]), ("b", 25, 25, [2])]


def test_late_records_can_be_taken_as_a_stream() -> None:
    step = sessions_of(lambda s: fold(s), late=lambda late: late.to("late"))
    driver = driver_with(("a", 1, 0), ("b", 2, 90), ("a", 3, 1), step=step)
    assert pairs(driver, "late") == [("a", 3)]


def test_a_closed_session_takes_no_record_however_long_it_is_kept() -> None:
    step = sessions_of(lambda s: s.aggregate(list, append, merge, store=kept))
    kept = Materialized("sessions", retention=1000 * MS)
    driver = driver_with(("a", 1, 3), ("a", 2, 13), ("a", 3, 8), step=step)
    assert rows(driver) == [("a", 3, 3, [1]), ("a", 8, 13, [2, 3])]


def test_sessions_of_a_key_that_begins_as_another_stay_apart() -> None:
    """Trap 24: rows of longer keys lie between those of a shorter one."""
    keys = ("a", "a\0", "a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "aa")
    records = [(key, key, time) for time in (0, 3, 300, 302) for key in keys]
    driver = driver_with(*records, step=sessions_of(grace=1000))
    assert sorted(rows(driver)) == sorted(
        (key, start, end, [key, key]) for key in keys for start, end in ((0, 3), (300, 302))
    )


def test_rows_and_their_changelog_have_kafka_s_bytes() -> None:
    """Trap 24: key, end, start; the value is plain."""
    driver = driver_with(
        ("a", 1, 2), ("a", 1, 4), step=sessions_of(lambda s: s.count(store="sessions"))
    )
    log = driver.output("test-sessions-changelog", key=serdes.bytes, value=serdes.bytes)
    key = b"a" + (4).to_bytes(8, "big") + (2).to_bytes(8, "big")
    (last,) = (r for r in log.read_all() if r.key == key)
    assert (last.value, last.timestamp) == ((2).to_bytes(8, "big"), 4)
    out = driver.output("out", key=serdes.bytes, value=serdes.bytes).read_all()
    assert out[-1].key == key


def test_the_changelog_is_deleted_after_gap_grace_and_a_day() -> None:
    """Trap 21."""
    driver = driver_with(step=sessions_of(grace=3))
    configs = driver.cluster.topics["test-sessions-changelog"].config
    assert configs["cleanup.policy"] == "compact,delete"
    assert configs["retention.ms"] == str(24 * 60 * 60 * 1000 + GAP + 3)


def test_a_retention_that_is_shorter_than_gap_and_grace_is_refused() -> None:
    kept = Materialized("sessions", retention=6 * MS)
    with pytest.raises(TopologyError, match="retention"):
        driver_with(step=sessions_of(lambda s: s.count(store=kept), grace=2))


def test_sessions_expire_by_their_end() -> None:
    driver = driver_with(("a", 1, 0), ("a", 2, 5), ("b", 3, 9))
    assert rows(driver)[0] == ("a", 0, 5, [1, 2])
    driver.input("in").send("b", 4, timestamp=11)
    assert rows(driver) == rows(driver, committed=True) == [("b", 9, 11, [3, 4])]
    log: dict[Any, Any] = driver.output("test-sessions-changelog").as_dict()
    assert [k.key for k in log] == ["a", "b"]  # expired rows are never deleted there


def test_reduce_merges_with_the_reducer_the_older_session_first() -> None:
    step = sessions_of(lambda s: s.reduce(lambda old, new: old + new, store="sessions"), grace=9)
    driver = driver_with(("a", "x", 0), ("a", "y", 8), ("a", "z", 4), step=step)
    assert rows(driver) == [("a", 0, 8, "xyz")]


def test_a_result_of_none_deletes_the_session() -> None:
    """Nothing comes of nothing: a session that was never there is not deleted."""

    def reducer(old: int, new: int) -> int | None:
        return None if new < 0 else old + new

    step = sessions_of(lambda s: s.reduce(reducer, store="sessions"))
    records = ("a", 1, 0), ("a", -1, 0), ("a", None, 2), ("a", 5, 3), ("a", -1, 4), ("a", 6, 5)
    driver = driver_with(*records, step=step)
    assert changes(driver) == [
        ("a", 0, 0, 1),
        ("a", 0, 0, None),
        ("a", 3, 3, 5),
        ("a", 3, 3, None),
        ("a", 5, 5, 6),
    ]


def test_a_cache_sends_on_the_last_change_of_each_session() -> None:
    """Trap 29: what came and went between two commits was never there."""
    driver = driver_with(("a", 1, 0), chosen={**BIG_CACHE}, commit="manual")
    driver.commit()
    for value, time in ((2, 3), (3, 6), (4, 90)):
        driver.input("in").send("a", value, timestamp=time)
    driver.commit()
    assert changes(driver) == [
        ("a", 0, 0, [1]),
        ("a", 0, 0, None),
        ("a", 0, 6, [1, 2, 3]),
        ("a", 90, 90, [4]),
    ]


BIG_CACHE: dict[str, object] = {"statestore.cache.max.bytes": 10 << 20}


def test_old_values_are_those_that_were_forwarded() -> None:
    """A filter below tells what it has let pass before."""

    def step(stream: Any) -> Any:
        return sessions_of()(stream).filter(lambda key, values: len(values) % 2)

    driver = driver_with(("a", 1, 0), ("a", 2, 0), ("a", 3, 0), ("a", 4, 3), step=step)
    assert changes(driver) == [
        ("a", 0, 0, [1]),
        ("a", 0, 0, None),
        ("a", 0, 0, [1, 2, 3]),
        ("a", 0, 0, None),
    ]


# -- on close ---------------------------------------------------------------------------------


def test_on_close_a_session_is_sent_on_once_when_it_can_grow_no_more() -> None:
    """Trap 11, as run with Kafka Streams 4.3.1."""
    step = sessions_of(lambda s: s.count(store="sessions"), emit="on_window_close")
    records = ("k", 1, 0), ("k", 1, 5), ("z", 1, 10)
    driver = driver_with(*records, step=step)
    assert changes(driver) == []
    driver.input("in").send("z", 1, timestamp=11)
    driver.input("in").send("z", 1, timestamp=100)
    assert changes(driver) == [("k", 0, 5, 2), ("z", 10, 11, 2)]


@pytest.mark.parametrize("chosen", [NO_CACHE, BIG_CACHE], ids=["without cache", "with cache"])
def test_on_close_no_session_is_lost_when_stream_time_jumps(chosen: dict[str, object]) -> None:
    """Trap 13."""
    step = sessions_of(emit="on_window_close")
    records = ("a", 1, 0), ("b", 2, 3), ("c", 3, 1_000_000_000), ("c", 4, 9_000_000_000)
    driver = driver_with(*records, step=step, chosen=chosen)
    assert changes(driver) == [
        ("a", 0, 0, [1]),
        ("b", 3, 3, [2]),
        ("c", 1_000_000_000, 1_000_000_000, [3]),
    ]


def test_on_close_a_restart_sends_nothing_again() -> None:
    """Trap 36: with a retention that keeps what was sent on."""
    kept = Materialized("sessions", retention=10_000 * MS)
    step = sessions_of(
        lambda s: s.aggregate(list, append, merge, store=kept), emit="on_window_close"
    )
    driver = driver_with(("a", 1, 0), ("b", 2, 50), step=step)
    driver.crash(keep=False)
    driver.input("in").send("b", 3, timestamp=51)
    driver.restart()
    driver.input("in").send("b", 4, timestamp=100)
    assert changes(driver) == [("a", 0, 0, [1]), ("b", 50, 51, [2, 3])]


def test_on_close_a_shorter_grace_after_an_upgrade_loses_nothing() -> None:
    """What is closed under the new grace, and was not emitted under the old one, is emitted."""
    serde, spec = SessionWindowedSerde(serdes.string), StoreSpec("sessions", layout="session")
    state = MemoryTaskState([spec])
    store = state.store("sessions")
    rows = TimedBuffer("sessions", store, Coding(encode=bytes, decode=len), layout=spec.rows)
    rows.put(serde.serialize(Windowed("a", Window(0, 10))), 1, 10)
    numbers = {"time": Number(100), "emitted": Number(-1), "emitted_rows": Number(-1)}
    sent: list[Any] = []
    context = OperatorContext(
        node="fold",
        forward=lambda *change: sent.append(change[:2]),
        children={"below": lambda *change: sent.append(change[:2])},
        buffers={"sessions": rows},
        serdes=lambda store: (serde, serdes.json),
        view=no_stores,
        number=lambda name, **_: numbers[name],
        shared={},
        dropped=sent.append,
        caching=True,
        task=TaskContext(),
    )
    windows = SessionWindows(inactivity_gap=5 * MS)
    fold = SessionFold(
        "sessions", Aggregating(list, append, merger=merge), windows, 5, "on_window_close"
    )
    fold.make(context).process("b", 1, None, 101, None)
    assert sent == [(Windowed("a", Window(0, 10)), 1)]


def test_on_close_sessions_go_by_their_end_then_by_their_key() -> None:
    step = sessions_of(emit="on_window_close", grace=20)
    records = ("c", 1, 9), ("b", 2, 3), ("a", 3, 9), ("a", 4, 2), ("z", 5, 90)
    driver = driver_with(*records, step=step)
    assert [c[:3] for c in changes(driver)] == [
        ("a", 2, 2),
        ("b", 3, 3),
        ("a", 9, 9),
        ("c", 9, 9),
    ]


def test_a_session_that_came_and_went_between_two_commits_leaves_nothing_in_the_changelog() -> None:
    """Nothing is deleted that was never there; what was committed is."""
    driver = driver_with(("a", 1, 0), chosen=BIG_CACHE, commit="manual")
    driver.commit()
    for time in (2, 4, 6, 8):
        driver.input("in").send("a", 1, timestamp=time)
    driver.commit()
    written: list[Any] = driver.output("test-sessions-changelog").read_all()
    assert [(*r.key.window, r.value is None) for r in written] == [
        (0, 0, False),
        (0, 0, True),
        (0, 8, False),
    ]


def test_a_session_that_was_committed_is_deleted_also_where_it_has_changed_since() -> None:
    driver = driver_with(("a", 1, 0), chosen=BIG_CACHE, commit="manual")
    driver.commit()
    for time in (0, 3):
        driver.input("in").send("a", 1, timestamp=time)
    driver.commit()
    assert rows(driver, committed=True) == [("a", 0, 3, [1, 1, 1])]
    driver.crash(keep=False)
    driver.input("in").send("a", 1, timestamp=4)
    assert rows(driver) == [("a", 0, 4, [1, 1, 1, 1])]


def test_the_types_follow_those_of_the_functions() -> None:
    """A type checker reads it."""
    stream = StreamsBuilder().stream("in", key=serdes.string, value=serdes.long)
    visits = stream.group_by_key().windowed_by(SessionWindows(inactivity_gap=MS))
    assert_type(visits, SessionWindowedKStream[str, int])
    assert_type(visits.count(), KTable[Windowed[str], int])
    assert_type(visits.reduce(max), KTable[Windowed[str], int])

    def total(_: str, value: int, so_far: float) -> float:
        return so_far + value

    def both(_: str, one: float, other: float) -> float:
        return one + other

    assert_type(visits.aggregate(float, total, both), KTable[Windowed[str], float])


def test_a_record_as_old_as_the_last_open_session_may_be_is_not_late() -> None:
    found = changes(driver_with(("b", 1, 10), ("a", 2, 5), ("c", 3, 4)))
    assert found == [("b", 10, 10, [1]), ("a", 5, 5, [2])]


def test_a_session_that_is_about_to_close_is_found_after_a_restart() -> None:
    driver = driver_with(("a", 1, 0), ("b", 2, 7), step=sessions_of(grace=2))
    driver.restart()
    driver.input("in").send("a", 3, timestamp=5)
    assert ("a", 0, 5, [1, 3]) in changes(driver)


def test_a_row_that_comes_and_goes_again_after_a_commit_is_deleted_on_disk_too() -> None:
    def latest(_key: str, value: Any, _: Any) -> Any:
        return value

    def step(sessions: Any) -> Any:
        return sessions.aggregate(int, latest, lambda _, one, other: other, store="sessions")

    driver = driver_with(("a", 1, 0), step=sessions_of(step), chosen=BIG_CACHE, commit="manual")
    driver.commit()
    for value in (None, 2, None):
        driver.input("in").send("a", value, timestamp=0)
    driver.commit()
    assert rows(driver, committed=True) == []
    driver.crash(keep=False)
    driver.run()
    assert rows(driver) == []


def test_on_close_a_longer_grace_opens_no_session_again_that_was_emitted() -> None:
    """Trap 36."""

    def driver(grace: int) -> TopologyTestDriver:
        kept = Materialized("sessions", retention=100 * MS)
        step = sessions_of(
            lambda s: s.aggregate(list, append, merge, store=kept),
            grace=grace,
            emit="on_window_close",
        )
        return driver_with(step=step)

    first = driver(0)
    for time in (0, 10):
        first.input("in").send("a", time, timestamp=time)
    assert changes(first) == [("a", 0, 0, [0])]
    first.close()
    second = driver(50)
    second._worker.cluster = first.cluster
    for time in (2, 11):
        second.input("in").send("a", time, timestamp=time)
    assert rows(second) == [("a", 0, 0, [0]), ("a", 10, 11, [10, 11])]
