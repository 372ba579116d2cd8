"""Work that takes longer than a transaction, or than the group waits for a poll.

The functions under test let virtual time pass, as a call to a slow service does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.simulation import CALM, Simulation, SimulationResult
from headrace.streams.simulation.run import SimulatedRun
from headrace.streams.simulation.world.kernel import SECOND
from headrace.topology import Processor, ProcessorContext, Record, StreamsBuilder, Topology, serdes

KEYS = 3
EXACTLY_ONCE: dict[str, Any] = {}
AT_LEAST_ONCE = {"processing.guarantee": "at_least_once", "commit.interval.ms": 200}
BOTH = pytest.mark.parametrize("settings", [EXACTLY_ONCE, AT_LEAST_ONCE], ids=["once", "at least"])

Sleep = Callable[[float], None]


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Sleep:
    """Lets the time of the run pass in which it is called."""
    runs: list[SimulatedRun] = []
    right = SimulatedRun.__init__

    def init(self: SimulatedRun, *args: Any, **kwargs: Any) -> None:
        right(self, *args, **kwargs)
        runs.append(self)

    monkeypatch.setattr(SimulatedRun, "__init__", init)

    def sleep(seconds: float) -> None:
        kernel = runs[-1].kernel
        until_us = kernel.now_us + int(seconds * SECOND)
        while kernel.now_us < until_us:  # a record that comes ends a sleep
            kernel.sleep(until_us - kernel.now_us)

    return sleep


def counting(slow: Callable[[int], None], *, tells_first: bool = False) -> Topology:
    """Counts by key behind a function; `tells_first` writes to a topic before it."""
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=serdes.string, value=serdes.integer)
    if tells_first:
        numbers.to("told", key=serdes.string, value=serdes.integer)
    numbers.peek(lambda _, n: slow(n)).group_by_key().count(store="counts").to_stream().to("counts")
    return builder.build()


def simulation(topology: Topology, settings: dict[str, Any], rows: int = 40) -> Simulation:
    return Simulation(
        topology,
        inputs={"numbers": [(f"k{n % KEYS}", n) for n in range(rows)]},
        settings=settings,
        workers=1,
        partitions=1,
        faults=CALM,
    )


def failures(result: SimulationResult) -> list[str]:
    return [line for line in result.history.splitlines() if " fails: " in line]


def before_failing(result: SimulationResult) -> str:
    return result.history.split(" fails: ")[0]


def warnings(result: SimulationResult) -> int:
    return before_failing(result).count("work_took_too_long")


@BOTH
def test_a_record_that_takes_longer_than_the_group_waits_stops_the_worker(
    settings: dict[str, Any], sleep: Sleep
) -> None:
    topology = counting(lambda n: sleep(31) if n == 7 else None)
    settings = {**settings, "consumer.max.poll.interval.ms": 30_000}
    result = simulation(topology, settings).run(1)
    first = failures(result)[0]
    assert "RecordError: offsets numbers-0 7 took 31.0 s of work" in first
    assert "consumer.max.poll.interval.ms allows 30 s: it was done 2 times" in first
    assert "set consumer.max.poll.interval.ms to more than 31" in first
    assert warnings(result) == 4, "two times with others, and two times alone"


def test_a_record_that_takes_longer_than_a_transaction_that_it_has_begun_stops_the_worker(
    sleep: Sleep,
) -> None:
    topology = counting(lambda n: sleep(11) if n == 7 else None, tells_first=True)
    result = simulation(topology, EXACTLY_ONCE).run(1)
    first = failures(result)[0]
    assert "RecordError: offsets numbers-0 7 took 11.0 s of work" in first
    assert "producer.transaction.timeout.ms allows 10 s: it was done 2 times" in first
    assert "set producer.transaction.timeout.ms to more than 11" in first
    assert warnings(result) == 4
    reasons = re.findall(r"\[warning: producer_replaced\] reason=(.*)", before_failing(result))
    assert len(reasons) == 3
    assert all(r.startswith("the broker ended the transaction: it was open for") for r in reasons)
    assert sum(value == 7 for _, value in result.outputs("told")) == 0


def test_the_same_record_is_committed_where_it_has_a_transaction_of_its_own(sleep: Sleep) -> None:
    """The broker's time begins with the first record that is sent, which is behind the work."""
    result = simulation(counting(lambda n: sleep(11) if n == 7 else None), EXACTLY_ONCE).run(1)
    assert result.check().store("counts") == {"k0": 14, "k1": 13, "k2": 13}
    assert failures(result) == []
    assert warnings(result) <= 2


def test_records_that_take_too_long_together_are_committed_in_smaller_chunks(sleep: Sleep) -> None:
    topology = counting(lambda n: sleep(1.5), tells_first=True)
    result = simulation(topology, EXACTLY_ONCE).run(1)
    assert result.check().store("counts") == {"k0": 14, "k1": 13, "k2": 13}
    assert failures(result) == []
    assert warnings(result) == 1


def test_tasks_that_take_too_long_together_take_turns(sleep: Sleep) -> None:
    """Each of four partitions has a record of four seconds at a time."""
    slow = Simulation(
        counting(lambda n: sleep(4), tells_first=True),
        inputs={"numbers": [(f"k{n}", n) for n in range(40)]},
        settings={"max.poll.records": 1},
        workers=1,
        partitions=4,
        faults=CALM,
    )
    result = slow.run(1)
    assert failures(result) == []
    assert sum(result.check().store("counts").values()) == 40
    assert warnings(result) == 0


def punctuated(punctuate: Callable[[Record[str, int], Any], None], kind: Any) -> Topology:
    """Forwards each record; calls a function now and then with the last one."""

    class Punctuated(Processor[str, int, str, int]):
        def init(self, context: ProcessorContext[str, int]) -> None:
            self._forward = context.forward
            self._last: Record[str, int] | None = None
            context.schedule(timedelta(seconds=0.01), self._call, kind=kind)

        def process(self, record: Record[str, int]) -> None:
            self._last = record
            self._forward(record)

        def _call(self, _: int) -> None:
            if self._last is not None:
                punctuate(self._last, self._forward)

    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=serdes.string, value=serdes.integer)
    numbers.process(Punctuated, name="now-and-then").to(
        "out", key=serdes.string, value=serdes.integer
    )
    return builder.build()


def test_a_punctuator_that_takes_longer_than_its_transaction_stops_the_worker(
    sleep: Sleep,
) -> None:
    """It is named, and the records before it are committed."""

    def slow(last: Record[str, int], forward: Any) -> None:
        forward(Record("called", -1, last.timestamp))
        sleep(11)

    result = simulation(punctuated(slow, "wall_clock"), {"max.poll.records": 1}).run(1)
    first = failures(result)[0]
    assert "ConfigError: a punctuator by wall clock took 11.0 s" in first
    assert "producer.transaction.timeout.ms allows 10 s: it was called 3 times in a row" in first
    assert "(node now-and-then, task 0_0)" in first
    assert "set producer.transaction.timeout.ms to more than 11000" in first
    before = before_failing(result)
    assert before.count("punctuator_took_too_long") == 3, "it is said each time"
    assert warnings(result) == 0, "the records are not at fault"
    written = [value for _, value in result.outputs("out")]
    assert written, "records before it are committed"
    assert -1 not in written


def test_records_are_not_repeated_with_a_slow_punctuator(sleep: Sleep) -> None:
    """It takes most of a transaction's time: with the records of before it would be too much."""
    calls = 0

    def slow(last: Record[str, int], forward: Any) -> None:
        nonlocal calls
        calls += 1
        forward(Record("called", -1, last.timestamp))
        sleep(9)

    result = simulation(punctuated(slow, "wall_clock"), EXACTLY_ONCE).run(1)
    assert failures(result) == []
    assert sorted(v for _, v in result.outputs("out") if v >= 0) == list(range(40))
    assert [value for _, value in result.outputs("out")].count(-1) >= calls - 1 > 0


def test_a_punctuator_that_writes_when_its_work_is_done_goes_on(sleep: Sleep) -> None:
    """The broker's time begins with the first record that is sent: none was before."""

    def slow(last: Record[str, int], forward: Any) -> None:
        sleep(12)
        forward(Record("called", -1, last.timestamp))

    result = simulation(punctuated(slow, "wall_clock"), EXACTLY_ONCE).run(1)
    assert failures(result) == []
    assert sorted(v for _, v in result.outputs("out") if v >= 0) == list(range(40))
    assert [value for _, value in result.outputs("out")].count(-1) > 1
    assert before_failing(result).count("punctuator_took_too_long") <= 1


def test_a_slow_punctuator_by_stream_time_is_named(sleep: Sleep) -> None:
    def slow(last: Record[str, int], forward: Any) -> None:
        forward(Record("called", -1, last.timestamp))
        sleep(11)

    first = failures(simulation(punctuated(slow, "stream_time"), EXACTLY_ONCE).run(1))[0]
    assert "RecordError: offsets numbers-0 0 took 11.0 s of work, most of it in the" in first
    assert "punctuator by stream time of node now-and-then" in first


def test_a_processor_that_takes_too_long_to_begin_stops_the_worker(sleep: Sleep) -> None:
    class Slow(Processor[str, int, str, int]):
        def init(self, context: ProcessorContext[str, int]) -> None:
            sleep(31)
            self._context = context

        def process(self, record: Record[str, int]) -> None:
            self._context.forward(record)

    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=serdes.string, value=serdes.integer)
    numbers.process(Slow, name="slow").to("out", key=serdes.string, value=serdes.integer)
    settings = {"consumer.max.poll.interval.ms": 30_000}
    first = failures(simulation(builder.build(), settings).run(1))[0]
    assert "ConfigError: the init of node slow of task 0_0 took 31.0 s" in first
    assert "set consumer.max.poll.interval.ms to more than 31" in first
