"""Sinks that collect rows over many commits: large batches, and each record once all the same."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, get_args

import pytest

from headrace.streams.testing.driver import CrashPoint, TopologyTestDriver
from headrace.streams.testing.driver_store import SinkPoint
from headrace.streams.worker import sink_writes
from headrace.topology import (
    MemorySink,
    SinkBatching,
    StreamsBuilder,
    Topology,
    TopologyError,
    serdes,
)
from headrace.topology.operators.outbox import ROW_BYTES
from headrace.topology.serdes import serde_from

MINUTE = timedelta(minutes=1)
BATCHING = SinkBatching(every=MINUTE)
EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2"}
PAIRS = [("k", n) for n in range(6)]


class Counted(MemorySink):
    """A sink in memory that tells how large its batches were."""

    def __init__(self, batching: SinkBatching | None = BATCHING) -> None:
        super().__init__(batching=batching)
        self.sizes: list[int] = []

    def open(self, name: str) -> Any:
        connection = super().open(name)
        write = connection.write

        def counting(batch: Any) -> None:
            write(batch)
            self.sizes.append(len(batch.rows))

        connection.write = counting  # type: ignore[method-assign]
        return connection

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        return [(row.key, row.value) for row in self.rows]


def topology(sink: Any) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.long)
    stream.to_sink(sink, name="keep")
    stream.to("out")
    return builder.build()


def driver_of(sink: Any, settings: Any = EXACTLY_ONCE, **more: Any) -> Any:
    return TopologyTestDriver(topology(sink), settings, partitions=1, real_sinks=True, **more)


def committed(driver: Any) -> Any:
    return driver.committed_offsets("test-keep-repartition").get(0)


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_rows_are_collected_over_commits_and_the_offsets_wait_for_them(guarantee: str) -> None:
    sink = Counted()
    driver = driver_of(sink, {"processing.guarantee": guarantee})
    for pair in PAIRS:
        driver.input("in").send(*pair)
        driver.advance(timedelta(seconds=5))
    before = committed(driver)
    assert len(driver.output("out").read_all()) == len(PAIRS)
    assert sink.pairs == []
    driver.advance(MINUTE)
    assert sink.pairs == PAIRS
    assert sink.sizes == [len(PAIRS)]
    assert committed(driver) > (before or 0)
    (position,) = sink._positions.values()
    assert committed(driver) >= position  # past the marks of transactions, too


def test_the_first_row_says_when_and_not_the_last_one() -> None:
    sink = Counted()
    driver = driver_of(sink)
    for pair in PAIRS[:5]:
        driver.input("in").send(*pair)
        driver.advance(timedelta(seconds=14))
    assert sink.sizes == [5]
    driver.input("in").send(*PAIRS[5])
    driver.advance(timedelta(seconds=59))
    assert sink.sizes == [5]
    driver.advance(timedelta(seconds=1))
    assert sink.sizes == [5, 1]


@pytest.mark.parametrize(
    "batching", [replace(BATCHING, max_rows=4), replace(BATCHING, max_bytes=4 * ROW_BYTES)]
)
def test_many_rows_are_written_earlier(batching: SinkBatching) -> None:
    sink = Counted(batching)
    driver = driver_of(sink, {**EXACTLY_ONCE, "max.poll.records": 1})
    driver.input("in").send_many(PAIRS)
    assert sink.sizes == [4]


def test_what_all_tasks_collect_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fullest of them are written, and the others go on."""
    monkeypatch.setattr(sink_writes, "BATCHED_BYTES_MAX", 10 * ROW_BYTES)
    sink = Counted(replace(BATCHING, max_bytes=5 * ROW_BYTES))
    settings = {**EXACTLY_ONCE, "max.poll.records": 1}
    driver = TopologyTestDriver(topology(sink), settings, partitions=4, real_sinks=True)
    driver.input("in").send_many([(f"k{n % 7}", n) for n in range(40)])
    assert max(sink.sizes) < 6
    held = [task.context.outbox.bytes for task in driver._worker.worker.tasks.running
            if task.context.outbox is not None]  # fmt: skip
    assert 0 < sum(held) <= 10 * ROW_BYTES


@pytest.mark.parametrize("end", ["restart", "exit"])
def test_who_stops_writes_what_was_collected(end: str) -> None:
    sink = Counted()
    with driver_of(sink) as driver:
        driver.input("in").send_many(PAIRS)
        if end == "restart":
            driver.restart()
            assert sink.pairs == PAIRS
    assert sink.pairs == PAIRS
    assert sink.sizes == [len(PAIRS)]


@pytest.mark.parametrize("at", [*get_args(CrashPoint), *get_args(SinkPoint), None])
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_a_kill_at_any_step_leaves_each_row_once(guarantee: str, at: Any) -> None:
    sink = Counted()
    driver = driver_of(sink, {"processing.guarantee": guarantee})
    driver.input("in").send_many(PAIRS[:3])
    driver.advance(MINUTE)
    driver.input("in").send_many(PAIRS[3:])
    driver.crash(at)
    for _ in range(3):
        driver.advance(MINUTE)
    assert sink.pairs == PAIRS


def test_an_abort_begins_to_collect_again() -> None:
    sink = Counted()
    driver = driver_of(sink)
    driver.input("in").send_many(PAIRS[:3])
    driver.abort()
    driver.input("in").send_many(PAIRS[3:])
    driver.advance(MINUTE)
    assert sink.pairs == PAIRS
    assert sink.sizes == [len(PAIRS)]


def test_work_that_is_collected_is_in_no_transaction_that_could_take_too_long() -> None:
    """A minute of it is more than a transaction may last, and is nobody's fault."""
    sink = Counted()
    drivers: list[Any] = []

    def slow(data: bytes) -> int:
        for driver in drivers:
            driver._clock.pass_ms(3_000)
        return serdes.long.deserialize(data)

    builder = StreamsBuilder()
    numbers = serde_from(serialize=serdes.long.serialize, deserialize=slow, name="slow")
    builder.stream("in", key=serdes.string, value=numbers).to_sink(sink, name="keep")
    settings = {**EXACTLY_ONCE, "producer.transaction.timeout.ms": 10_000}
    driver = TopologyTestDriver(
        builder.build(), settings, partitions=1, real_sinks=True, commit="manual"
    )
    driver.input("in").send_many(PAIRS)
    drivers.append(driver)
    driver.commit(rounds=1)
    drivers.clear()
    driver.abort()
    driver.run()
    driver.advance(MINUTE)
    assert not [e for e in driver.events if e["event"] == "work_took_too_long"]
    assert sink.pairs == PAIRS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": 5}, "every must be a timedelta, not int"),
        ({"every": MINUTE, "max_rows": 0}, "max_rows must be a whole number of at least 1, not 0"),
        ({"every": MINUTE, "max_bytes": "1"}, "max_bytes must be a whole number of at least 1, "),
    ],
)
def test_what_it_is_given_is_looked_at(options: Any, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        SinkBatching(**options)


def test_records_that_are_no_rows_are_passed_without_a_batch() -> None:
    """Each batch may be a file: none is made of nothing."""
    sink = Counted()
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.bytes)
    stream.to_sink(sink, name="keep")
    settings = {**EXACTLY_ONCE, "deserialization.exception.handler": "continue"}
    driver = TopologyTestDriver(builder.build(), settings, partitions=1, real_sinks=True)
    driver.run()
    driver.cluster.append("test-keep-repartition", b"2", b"\xff", 0, 0, None)
    driver.advance(MINUTE)
    assert (sink.sizes, committed(driver)) == ([], 1)
    driver.restart()
    driver.input("in").send("a", b"3")
    driver.advance(MINUTE)
    assert [key for key, _ in sink.pairs] == ["a"]
