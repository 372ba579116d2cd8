"""Punctuators: when they are called, by stream time and by the wall clock (trap 27)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.errors import ProcessorFailedError, RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import Processor, ProcessorContext, Record, Stores, Topology, serdes
from headrace.topology.context.number import Number
from headrace.topology.context.punctuation import NEVER_MS, Schedule, Schedules
from tests.support.operators import pairs
from tests.support.topologies import EXACTLY_ONCE

STRINGS = {"default.key.serde": "string", "default.value.serde": "string"}
MS = timedelta(milliseconds=1)
CALLS = Stores.key_value("calls", key=serdes.long, value=serdes.long)

AnyContext = ProcessorContext[Any, Any]
AnyRecord = Record[Any, Any]


class Tick(Processor[Any, Any, str, str]):
    """Forwards the time of each call, and how many calls its store has seen at that time."""

    def __init__(self, kind: Any, interval: timedelta, **options: Any) -> None:
        self.kind, self.interval, self.options = kind, interval, options

    def init(self, context: ProcessorContext[str, str]) -> None:
        super().init(context)
        self.calls = context.store(CALLS)
        context.schedule(self.interval, self.tick, kind=self.kind, **self.options)

    def process(self, record: AnyRecord) -> None:
        pass

    def tick(self, now: int) -> None:
        count = (self.calls.get(now) or 0) + 1
        self.calls.put(now, count)
        self.context.forward(Record("tick", f"{now} {count}", now))


def ticking(kind: Any, interval: timedelta = 10 * MS, **options: Any) -> Topology:
    return of(lambda: Tick(kind, interval, **options))


def of(supplier: Any) -> Topology:
    return (
        Topology()
        .add_source("read", "in")
        .add_processor("tick", supplier, "read", stores=[CALLS])
        .add_sink("write", "out", "tick")
    )


def send(driver: TopologyTestDriver, *times: int) -> None:
    for time in times:
        driver.input("in").send("k", "v", timestamp=time)


def ticks(driver: TopologyTestDriver) -> list[int]:
    """The times of the calls, each of which must have happened once."""
    found = [value.split() for key, value in pairs(driver) if key == "tick"]
    assert all(count == "1" for _, count in found), found
    return [int(time) for time, _ in found]


# -- by stream time ------------------------------------------------------------------------------


def test_the_first_call_by_stream_time_is_at_the_first_record() -> None:
    """Trap 27: the start is anchored at 0."""
    driver = TopologyTestDriver(ticking("stream_time"), STRINGS)
    send(driver, 0)
    assert ticks(driver) == [0]


def test_missed_intervals_are_one_call_and_the_next_is_behind_now_on_the_grid() -> None:
    """Trap 27: after 47 the next is at 50."""
    driver = TopologyTestDriver(ticking("stream_time"), STRINGS)
    send(driver, 0, 9, 47, 49, 50, 59, 61)
    assert ticks(driver) == [0, 47, 50, 61]


def test_a_late_record_calls_nothing() -> None:
    driver = TopologyTestDriver(ticking("stream_time"), STRINGS)
    send(driver, 100, 5, 20, 101)
    assert ticks(driver) == [100]


def test_the_clock_alone_calls_nothing_by_stream_time() -> None:
    driver = TopologyTestDriver(ticking("stream_time"), STRINGS)
    send(driver, 0)
    driver.advance(timedelta(hours=1))
    assert ticks(driver) == [0]


@pytest.mark.parametrize("start", [5, datetime.fromtimestamp(0.005, UTC)])
def test_a_start_moves_the_grid(start: Any) -> None:
    driver = TopologyTestDriver(ticking("stream_time", start=start), STRINGS)
    send(driver, 0, 4, 5, 14, 15, 47, 54, 55)
    assert ticks(driver) == [5, 15, 47, 55]


def test_a_call_comes_behind_the_record_that_makes_it_due_and_before_the_next() -> None:
    """However many records come at once."""

    class Telling(Tick):
        def process(self, record: AnyRecord) -> None:
            self.context.forward(Record("record", str(record.timestamp), record.timestamp))

    driver = TopologyTestDriver(
        of(lambda: Telling("stream_time", 10 * MS)), STRINGS, commit="manual", now=8
    )
    driver.input("in").send_many([("k", "v")] * 3)
    driver.input("in").send("k", "v", timestamp=30)
    found = [(key, value.split()[0]) for key, value in pairs_uncommitted(driver)]
    assert found == [
        ("record", "8"),
        ("tick", "8"),
        ("record", "9"),
        ("record", "10"),
        ("tick", "10"),
        ("record", "30"),
        ("tick", "30"),
    ]


def pairs_uncommitted(driver: TopologyTestDriver) -> list[tuple[str, str]]:
    output = driver.output("out", isolation="read_uncommitted")
    return [(record.key, record.value) for record in output.read_all()]


def test_the_time_of_a_task_is_that_of_all_its_inputs() -> None:
    """Trap 1."""
    topology = (
        Topology()
        .add_source("a", "a")
        .add_source("b", "b")
        .add_processor("tick", lambda: Tick("stream_time", 10 * MS), "a", stores=[CALLS])
        .add_processor("other", lambda r, c: None, "b", stores=["calls"])
        .add_sink("write", "out", "tick")
    )
    driver = TopologyTestDriver(topology, STRINGS)
    driver.input("a").send("k", "v", timestamp=3)
    driver.input("b").send("k", "v", timestamp=33)
    assert ticks(driver) == [3, 33]


# -- by the wall clock ---------------------------------------------------------------------------


def test_the_first_call_by_the_wall_clock_is_after_one_interval() -> None:
    """Trap 27."""
    driver = TopologyTestDriver(ticking("wall_clock"), STRINGS, now=1_003)
    driver.run()
    driver.advance(9 * MS)
    assert ticks(driver) == []
    driver.advance(1 * MS)
    assert ticks(driver) == [1_013]


def test_missed_intervals_by_the_wall_clock_are_one_call_too() -> None:
    driver = TopologyTestDriver(ticking("wall_clock"), STRINGS, now=0)
    driver.run()
    for step in (47, 2, 1, 30):
        driver.advance(step * MS)
    assert ticks(driver) == [47, 50, 80]


@pytest.mark.parametrize(("start", "first"), [(1_500, 1_500), (7, 1_007), (1_000, 1_000)])
def test_a_start_moves_the_grid_of_the_wall_clock(start: int, first: int) -> None:
    driver = TopologyTestDriver(ticking("wall_clock", start=start), STRINGS, now=1_000)
    driver.run()
    for _ in range(600):
        driver.advance(1 * MS)
    assert ticks(driver)[:2] == [first, first + 10]


def test_what_the_clock_makes_is_committed_without_a_record() -> None:
    driver = TopologyTestDriver(
        ticking("wall_clock"), {**STRINGS, **EXACTLY_ONCE}, commit="manual", now=0
    )
    driver.run()
    driver.advance(10 * MS)
    assert ticks(driver) == []
    driver.commit()
    assert ticks(driver) == [10]
    assert dict(driver.store("calls", committed=True)) == {10: 1}


# -- several, and their ends ---------------------------------------------------------------------


class Several(Processor[Any, Any, str, str]):
    def init(self, context: ProcessorContext[str, str]) -> None:
        super().init(context)
        for name, interval in (("slow", 30), ("quick", 10), ("also", 30)):
            context.schedule(interval * MS, self.teller(name), kind="stream_time", start=interval)

    def teller(self, name: str) -> Any:
        return lambda now: self.context.forward(Record(name, str(now), now))

    def process(self, record: AnyRecord) -> None:
        pass


def test_those_that_are_due_run_by_their_times_then_as_they_were_made() -> None:
    driver = TopologyTestDriver(of(Several), STRINGS)
    send(driver, 35)
    assert [key for key, _ in pairs(driver)] == ["quick", "slow", "also"]
    send(driver, 65)
    assert [key for key, _ in pairs(driver)][3:] == ["quick", "slow", "also"]


def test_a_cancelled_one_is_not_called_again_not_even_from_within_another() -> None:
    seen: list[str] = []

    class Ending(Processor[Any, Any, Any, Any]):
        def init(self, context: AnyContext) -> None:
            self.first = context.schedule(10 * MS, self.call_first, kind="stream_time")
            self.second = context.schedule(10 * MS, self.call_second, kind="stream_time")

        def call_first(self, now: int) -> None:
            seen.append(f"first {now}")
            if now >= 20:
                self.first.cancel()
                self.second.cancel()

        def call_second(self, now: int) -> None:
            seen.append(f"second {now}")

        def process(self, record: AnyRecord) -> None:
            pass

    driver = TopologyTestDriver(of(Ending), STRINGS)
    send(driver, 0, 10, 20, 30)
    assert seen == ["first 0", "second 0", "first 10", "second 10", "first 20"]


def test_one_made_by_a_punctuator_waits_for_the_next_record() -> None:
    seen: list[str] = []

    class Growing(Processor[Any, Any, Any, Any]):
        def init(self, context: AnyContext) -> None:
            super().init(context)
            context.schedule(100 * MS, self.grow, kind="stream_time")

        def grow(self, now: int) -> None:
            seen.append(f"old {now}")
            self.context.schedule(50 * MS, lambda t: seen.append(f"new {t}"), kind="stream_time")

        def process(self, record: AnyRecord) -> None:
            pass

    driver = TopologyTestDriver(of(Growing), STRINGS)
    send(driver, 7)
    assert seen == ["old 7"]
    send(driver, 8)
    assert seen == ["old 7", "new 8"]


def test_a_punctuator_sees_no_record_and_its_writes_have_its_time() -> None:
    seen: list[Any] = []

    class Looking(Tick):
        def tick(self, now: int) -> None:
            seen.append((self.context.record_metadata, self.context.current_stream_time))
            self.calls.put(now, 1)

    driver = TopologyTestDriver(of(lambda: Looking("stream_time", 10 * MS)), STRINGS)
    send(driver, 33)
    assert seen == [(None, 33)]
    (logged,) = driver.output("test-calls-changelog").read_all()
    assert (logged.key, logged.timestamp) == (33, 33)


# -- aborts, crashes, restarts -------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("at", [None, "changelogs_written", "transaction_committed"])
def test_an_abort_or_a_crash_neither_repeats_nor_skips_a_call(at: Any, partitions: int) -> None:
    """Trap 27, and the fire times that are committed with the offsets."""
    settings = {**STRINGS, **EXACTLY_ONCE}
    driver = TopologyTestDriver(
        ticking("stream_time"), settings, commit="manual", partitions=partitions
    )
    for number, time in enumerate(range(0, 200, 4)):
        driver.input("in").send("k", "v", timestamp=time)
        if number % 3 == 0:
            driver.abort()
        if number % 4 == 0:
            driver.crash(at=at, keep=number % 8 == 0)
            driver.commit()
        if number % 7 == 0:
            driver.restart()
    driver.commit()
    assert ticks(driver) == [0, *(-(-due // 4) * 4 for due in range(10, 200, 10))]


def test_the_wall_clock_goes_on_where_it_was_after_an_abort() -> None:
    settings = {**STRINGS, **EXACTLY_ONCE}
    driver = TopologyTestDriver(ticking("wall_clock"), settings, commit="manual", now=0)
    send(driver, 0)
    driver.commit()
    driver.advance(10 * MS)
    driver.abort()
    driver.commit()
    assert ticks(driver) == [10]
    driver.advance(10 * MS)
    driver.commit()
    assert ticks(driver) == [10, 20]


def test_a_shorter_interval_in_a_new_version_counts_at_once(tmp_path: Any) -> None:
    class Changed(Tick):
        interval_now = 1_000

        def __init__(self) -> None:
            super().__init__("stream_time", Changed.interval_now * MS)

    driver = TopologyTestDriver(of(Changed), STRINGS)
    send(driver, 5)
    Changed.interval_now = 10
    driver.restart()
    send(driver, 14, 15, 24, 25)
    assert ticks(driver) == [5, 15, 25]


# -- errors --------------------------------------------------------------------------------------


class Failing(Tick):
    def tick(self, now: int) -> None:
        if now >= 10:
            raise KeyError("secret")


def test_an_error_by_stream_time_is_that_of_the_punctuators_node_behind_its_record() -> None:
    driver = TopologyTestDriver(of(lambda: Failing("stream_time", 10 * MS)), STRINGS)
    send(driver, 0)
    with pytest.raises(RecordError, match="a user function raised KeyError") as raised:
        send(driver, 12)
    assert (raised.value.node, raised.value.offset) == ("tick", 1)
    assert "secret" not in str(raised.value)


def test_an_error_by_the_wall_clock_is_that_of_the_punctuators_node() -> None:
    driver = TopologyTestDriver(of(lambda: Failing("wall_clock", 10 * MS)), STRINGS, now=0)
    driver.run()
    with pytest.raises(ProcessorFailedError, match=r"KeyError \(node tick, .*task 0_0\)"):
        driver.advance(10 * MS)


def test_a_row_of_the_clocks_that_cannot_be_encoded_is_said_without_a_record() -> None:
    class Wrong(Tick):
        def tick(self, now: int) -> None:
            self.calls.put(now, "no number")

    driver = TopologyTestDriver(of(lambda: Wrong("wall_clock", 10 * MS)), STRINGS, now=0)
    driver.run()
    with pytest.raises(ProcessorFailedError, match="calls"):
        driver.advance(10 * MS)


@pytest.mark.parametrize("kind", ["stream_time", "wall_clock"])
def test_a_handler_lets_a_failed_call_go_and_the_next_ones_come(kind: Any) -> None:
    """KIP-1033 covers punctuators."""

    class Once(Tick):
        def tick(self, now: int) -> None:
            if now == 10:
                raise KeyError("secret")
            super().tick(now)

    settings = {**STRINGS, "processing.exception.handler": "continue"}
    driver = TopologyTestDriver(of(lambda: Once(kind, 10 * MS)), settings, now=0)
    driver.run()
    for time in (1, 10, 20, 30):
        driver.advance((time - driver_now(driver)) * MS)
        send(driver, time)
    assert [time for time in ticks(driver) if time >= 10] == [20, 30]


def driver_now(driver: TopologyTestDriver) -> int:
    return driver._clock.now_ms()


# -- the schedules alone -------------------------------------------------------------------------


@given(
    interval=st.integers(1, 50),
    start=st.integers(0, 100),
    steps=st.lists(st.integers(0, 120), max_size=30),
)
def test_calls_are_on_time_and_at_most_one_an_interval(
    interval: int, start: int, steps: list[int]
) -> None:
    called: list[int] = []
    schedules = Schedules()
    schedules.add(Schedule("n", interval, called.append, Number(start)))
    now, expected, due = 0, [], start
    for step in steps:
        now += step
        schedules.run(now, lambda schedule, at: schedule.callback(at))
        if now >= due:
            expected.append(now)
            while due <= now:
                due += interval
    assert called == expected
    assert schedules.due_ms == due


def test_a_schedule_that_fails_counts_as_called_and_the_others_stay_due() -> None:
    called: list[str] = []

    def fail(now: int) -> None:
        called.append("bad")
        raise KeyError

    schedules = Schedules()
    schedules.add(Schedule("bad", 10, fail, Number(0)))
    schedules.add(Schedule("good", 10, lambda now: called.append("good"), Number(0)))
    with pytest.raises(KeyError):
        schedules.run(5, lambda schedule, now: schedule.callback(now))
    assert schedules.due_ms == 0
    schedules.run(5, lambda schedule, now: schedule.callback(now))
    assert called == ["bad", "good"]
    assert schedules.due_ms == 10


def test_without_schedules_nothing_is_ever_due() -> None:
    schedules = Schedules()
    assert schedules.due_ms == NEVER_MS
    schedule = Schedule("n", 10, print, Number(0))
    schedules.add(schedule)
    schedule.cancel()
    schedules.run(0, lambda schedule, now: schedule.callback(now))
    assert schedules.due_ms == NEVER_MS
