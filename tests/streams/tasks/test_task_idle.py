"""max.task.idle.ms: how long a task with several inputs waits for one that is empty."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.errors import AbortableError, OutcomeUnknownError, StreamsError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.memory_clients import MemoryConsumer
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.support.topologies import EXACTLY_ONCE

SECOND = timedelta(seconds=1)


def merged(*topics: str) -> Topology:
    builder = StreamsBuilder()
    first, *others = (builder.stream(t, key=serdes.string, value=serdes.string) for t in topics)
    for other in others:
        first = first.merge(other)
    first.to("out")
    return builder.build()


def driver_of(idle_ms: int | None, *topics: str, **options: Any) -> TopologyTestDriver:
    settings = {**EXACTLY_ONCE, "max.task.idle.ms": idle_ms}
    driver = TopologyTestDriver(merged(*(topics or "ab")), settings, commit="manual", **options)
    driver.run()
    return driver


def written(driver: TopologyTestDriver) -> list[str]:
    records = driver.output("out", isolation="read_uncommitted").read_all()
    return [str(record.value) for record in records]


def hide_lag(driver: TopologyTestDriver, topic: str) -> Callable[[], None]:
    """Let nothing be known of a topic's end, as before the first fetch; returns what ends it."""
    consumer = driver._worker.consumer
    assert consumer is not None
    known = consumer.lag
    consumer.lag = lambda place, offset: (  # type: ignore[method-assign]
        None if place.topic == topic else known(place, offset)
    )

    def end() -> None:
        consumer.lag = known  # type: ignore[method-assign]

    return end


def test_by_default_a_task_goes_on_when_the_broker_has_no_more_of_the_empty_input() -> None:
    """Trap 3: 0 waits for data that is known to be there, not for new data."""
    driver = driver_of(None)
    driver.input("b").send(None, "2", timestamp=2)
    assert written(driver) == ["2"]


@pytest.mark.parametrize(("idle_ms", "found"), [(0, []), (-1, ["2"]), (1000, [])])
def test_an_input_of_which_nothing_is_known_yet_is_waited_for(
    idle_ms: int, found: list[str]
) -> None:
    """Trap 3: an unknown lag is no lag of zero; only -1 does not care."""
    driver = driver_of(idle_ms)
    end = hide_lag(driver, "a")
    driver.input("b").send(None, "2", timestamp=2)
    driver.advance(10 * SECOND)
    assert written(driver) == found
    end()
    driver.run()
    driver.advance(SECOND)
    assert driver.output("out", isolation="read_uncommitted").read().value == "2"


def test_an_idle_input_is_waited_for_as_long_as_the_setting_says() -> None:
    """Trap 3: the time is wall-clock time, from when the input was seen to have nothing."""
    driver = driver_of(5000)
    driver.input("a").send(None, "1", timestamp=1)
    driver.input("b").send(None, "2", timestamp=2)
    assert written(driver) == ["1"]
    driver.advance(4 * SECOND)
    assert written(driver) == ["1"]
    driver.advance(SECOND)
    assert written(driver) == ["1", "2"]


def test_what_comes_within_the_time_goes_first_by_its_timestamp() -> None:
    """Trap 2: the queue with the lowest head goes first, once both have one."""
    driver = driver_of(5000)
    driver.input("b").send(None, "2", timestamp=2)
    driver.advance(4 * SECOND)
    driver.input("a").send(None, "1", timestamp=1)
    assert written(driver) == ["1"]
    driver.advance(5 * SECOND)
    assert written(driver) == ["1", "2"]


def test_the_time_passes_while_the_task_has_no_records_at_all() -> None:
    """An input that was idle long enough delays nobody, until it has records again."""
    driver = driver_of(5000)
    driver.advance(5 * SECOND)
    driver.input("b").send(None, "2", timestamp=2)
    driver.input("b").send(None, "3", timestamp=3)
    assert written(driver) == ["2", "3"]
    driver.input("a").send(None, "4", timestamp=4)
    assert written(driver) == ["2", "3"], "b had records: its time begins anew"
    driver.advance(5 * SECOND)
    assert written(driver) == ["2", "3", "4"]


def test_a_task_of_one_input_waits_for_nothing() -> None:
    driver = driver_of(5000, "a")
    driver.input("a").send(None, "1", timestamp=1)
    assert written(driver) == ["1"]


def test_partitions_wait_each_for_their_own() -> None:
    driver = driver_of(5000, partitions=2)
    driver.input("a").send(None, "0", partition=0, timestamp=1)
    driver.input("b").send(None, "1", partition=1, timestamp=1)
    driver.input("b").send(None, "0", partition=0, timestamp=2)
    assert written(driver) == ["0"]
    driver.advance(5 * SECOND)
    assert sorted(written(driver)) == ["0", "0", "1"]


def test_a_worker_sleeps_in_its_poll_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that wait must not make it poll without a pause for all of the time."""
    driver = driver_of(5000)
    waits: list[float] = []
    poll = MemoryConsumer.poll

    def recorded(self: MemoryConsumer, max_records: int, timeout_s: float) -> Any:
        waits.append(timeout_s)
        return poll(self, max_records, timeout_s)

    driver.input("b").send(None, "2", timestamp=2)
    monkeypatch.setattr(MemoryConsumer, "poll", recorded)
    driver.advance(timedelta(milliseconds=4990))
    assert waits == [pytest.approx(0.01)]
    driver.advance(SECOND)
    assert written(driver) == ["2"]


def test_a_full_queue_of_a_waiting_task_is_paused_and_taken_up_again() -> None:
    """Trap 4: buffered.records.per.partition bounds what waits."""
    settings = {"max.task.idle.ms": 1000, "buffered.records.per.partition": 2}
    driver = TopologyTestDriver(merged("a", "b"), settings)
    driver.run()
    source = driver.input("b")
    for number in range(6):
        source.send(None, str(number), timestamp=number)
    worker = driver._worker.worker
    assert worker is not None
    assert sum(task.queued() for task in worker.tasks.running) == 2
    driver.advance(SECOND)
    assert written(driver) == [str(number) for number in range(6)]


def test_a_batch_ends_where_an_input_has_become_empty() -> None:
    """Trap 2: what comes next of that input may have to go before the other's later records."""
    driver = driver_of(5000)
    for topic, times in (("a", [1, 4]), ("b", [2, 5, 6])):
        for time in times:
            driver.cluster.append(topic, b"%d" % time, None, 0, time, None)
    driver.run()
    assert written(driver) == ["1", "2", "4"]
    driver.input("a").send(None, "5b", timestamp=5)
    assert written(driver) == ["1", "2", "4", "5b"]
    driver.advance(5 * SECOND)
    assert written(driver) == ["1", "2", "4", "5b", "5", "6"]


@pytest.mark.parametrize(
    "error", [AbortableError("odd"), OutcomeUnknownError("timed out")], ids=["abort", "replace"]
)
def test_a_queue_is_bounded_after_an_abort_too(error: StreamsError) -> None:
    """What was paused is read anew, and nothing of it is paused any more."""
    settings = {**EXACTLY_ONCE, "max.task.idle.ms": 1000, "buffered.records.per.partition": 2}
    driver = TopologyTestDriver(merged("a", "b"), settings)
    driver.run()
    source = driver.input("b")
    for number in range(6):
        source.send(None, str(number), timestamp=number)
    worker, consumer = driver._worker.worker, driver._worker.consumer
    assert worker is not None
    assert consumer is not None
    for _ in range(2):
        consumer.fail(error)
        driver.run()
        assert sum(task.queued() for task in worker.tasks.running) == 2
    driver.advance(SECOND)
    assert written(driver) == [str(number) for number in range(6)]


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each poll has asked for."""
    found: list[int] = []
    poll = MemoryConsumer.poll

    def recorded(self: MemoryConsumer, max_records: int, timeout_s: float) -> Any:
        found.append(max_records)
        return poll(self, max_records, timeout_s)

    monkeypatch.setattr(MemoryConsumer, "poll", recorded)
    return found


def test_what_waits_takes_no_room_from_others(rooms: list[int]) -> None:
    """Their records are what it waits for."""
    settings = {
        **EXACTLY_ONCE,
        "max.task.idle.ms": 1000,
        "buffered.records.per.partition": 2,
        "max.poll.records": 10,
    }
    driver = TopologyTestDriver(merged("a", "b"), settings, commit="manual")
    driver.run()
    driver.input("b").send(None, "1", timestamp=1)
    driver.run()
    assert rooms[-1] == 10
    driver.input("b").send(None, "2", timestamp=2)
    driver.run()
    assert rooms[-1] == 10


def test_fewer_large_records_are_asked_for(rooms: list[int]) -> None:
    """About 16 MiB may wait in tasks, however many records that is."""
    settings = {**EXACTLY_ONCE, "max.task.idle.ms": 1000}
    driver = TopologyTestDriver(merged("a", "b"), settings, commit="manual")
    driver.run()
    driver.input("b").send(None, "1", timestamp=1)
    driver.run()
    assert rooms[-1] == 5000
    driver.input("b").send(None, "2" * 1_000_000, timestamp=2)
    driver.run()
    assert rooms[-1] == 16
    driver.advance(SECOND)
    for _ in range(12):
        driver.input("b").send(None, "3", timestamp=3)
        driver.advance(SECOND)
    assert rooms[-1] == 5000


def test_a_task_that_begins_anew_waits_anew() -> None:
    """What it had seen of its inputs before says nothing of what it reads now."""
    driver = driver_of(5000)
    driver.input("b").send(None, "2", timestamp=2)
    driver.advance(4 * SECOND)
    driver.abort()
    driver.advance(4 * SECOND)
    assert written(driver) == []
    driver.input("a").send(None, "1", timestamp=1)
    driver.advance(5 * SECOND)
    assert written(driver) == ["1", "2"]


def test_a_queue_that_is_still_full_stays_paused() -> None:
    """A record of the other input goes first, and makes no room in this one."""
    settings = {
        **EXACTLY_ONCE,
        "max.task.idle.ms": 5000,
        "buffered.records.per.partition": 2,
        "max.poll.records": 10,
    }
    driver = TopologyTestDriver(merged("a", "b"), settings, commit="manual")
    for number in range(10, 40):
        driver.cluster.append("b", b"%d" % number, None, 0, number, None)
    driver.run()
    worker = driver._worker.worker
    assert worker is not None
    (task,) = worker.tasks.running
    assert task.queued() == 10
    for number in range(3):
        driver.input("a").send(None, str(number), timestamp=number)
    assert written(driver) == ["0", "1", "2"]
    assert task.queued() == 10


def test_a_task_that_waits_keeps_nobody_from_reading_what_it_waits_for(rooms: list[int]) -> None:
    """All inputs wait in one line: read one by one, what is behind 10,000 others comes too late."""
    settings = {**EXACTLY_ONCE, "max.poll.records": 10}
    driver = TopologyTestDriver(merged("a", "b"), settings, commit="manual")
    driver.run()
    end = hide_lag(driver, "a")
    for number in range(30):
        driver.input("b").send(None, str(number), timestamp=number)
    assert written(driver) == []
    assert set(rooms[-30:]) == {10}
    end()
    driver.run()
    assert len(written(driver)) == 30


def test_a_task_that_has_run_out_of_an_input_leaves_room_for_it_at_once(rooms: list[int]) -> None:
    """Else each poll would bring one record of it, and each turn of the worker process that one."""
    settings = {**EXACTLY_ONCE, "max.poll.records": 10}
    driver = TopologyTestDriver(merged("a", "b"), settings, commit="manual")
    driver.run()
    end = hide_lag(driver, "a")
    driver.cluster.append("a", b"0", None, 0, 0, None)
    for number in range(1, 10):
        driver.cluster.append("b", b"%d" % number, None, 0, number, None)
    rooms.clear()
    driver.run()
    assert written(driver) == ["0"]
    assert set(rooms) == {10}
    end()
    driver.run()
    assert len(written(driver)) == 10
