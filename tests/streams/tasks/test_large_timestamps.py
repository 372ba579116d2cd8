"""Times beyond all reckoning are refused where they come in; the largest legal one goes through."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    JoinWindows,
    Processor,
    Record,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    TopologyError,
    UnlimitedWindows,
    ValueAndTimestamp,
    serdes,
    timestamps,
)
from headrace.topology.errors import LAST_TIME_MS, FutureTimestampError
from headrace.topology.windows import Window, Windowed
from tests.support.topologies import EXACTLY_ONCE

pytestmark = pytest.mark.filterwarnings("ignore::headrace.topology.errors.FarTimeWarning")

SECOND = timedelta(seconds=1)
LONGEST = timedelta(milliseconds=timedelta.max // timedelta(milliseconds=1))
TOO_LARGE = (LAST_TIME_MS + 1, 2**63 - 1)

Write = Callable[[Any, StreamsBuilder], Any]


def _sum(windows: Any) -> Write:
    def write(stream: Any, _: StreamsBuilder) -> None:
        grouped = stream.group_by_key().windowed_by(windows)
        grouped.reduce(operator.add, store="s").to_stream().to("out")

    return write


def _closed(windows: Any) -> Write:
    def write(stream: Any, _: StreamsBuilder) -> None:
        closing = stream.group_by_key().windowed_by(windows, emit="on_window_close")
        closing.reduce(operator.add, store="s").to_stream().to("out")

    return write


class _Punctuated(Processor[Any, Any, Any, Any]):
    def __init__(self, interval: timedelta) -> None:
        self._interval = interval

    def init(self, context: Any) -> None:
        self._context = context
        context.schedule(self._interval, lambda _: None, kind="stream_time")

    def process(self, record: Any) -> None:
        self._context.forward(record)


def _suppressed(stream: Any, _: StreamsBuilder) -> None:
    counts = stream.group_by_key().windowed_by(TimeWindows(size=SECOND)).count(store="s")
    counts.suppress(Suppressed.until_window_closes()).to_stream().to("out")


def _joined(windows: JoinWindows) -> Write:
    def write(stream: Any, builder: StreamsBuilder) -> None:
        other = builder.stream("other", key=serdes.string, value=serdes.json)
        stream.outer_join(other, lambda one, two: [one, two], windows).to("out")

    return write


STEPS: dict[str, Write] = {
    "none": lambda stream, _: stream.to("out"),
    "tumbling": _sum(TimeWindows(size=SECOND)),
    "hopping": _sum(TimeWindows(size=3 * SECOND, advance=SECOND, grace=SECOND)),
    "longest": _sum(TimeWindows(size=LONGEST, grace=LONGEST)),
    "sliding": _sum(SlidingWindows(time_difference=SECOND)),
    "longest sliding": _sum(SlidingWindows(time_difference=LONGEST, grace=LONGEST)),
    "sessions": _sum(SessionWindows(inactivity_gap=SECOND)),
    "longest sessions": _sum(SessionWindows(inactivity_gap=LONGEST, grace=LONGEST)),
    "unlimited": _sum(UnlimitedWindows()),
    "sliding on close": _closed(SlidingWindows(time_difference=SECOND)),
    "sessions on close": _closed(SessionWindows(inactivity_gap=SECOND)),
    "suppressed": _suppressed,
    "join": _joined(JoinWindows(time_difference=SECOND)),
    "longest join": _joined(JoinWindows(time_difference=LONGEST, grace=LONGEST)),
    "table": lambda stream, _: stream.to_table(store="s").to_stream().to("out"),
    "punctuator": lambda stream, _: stream.process(lambda: _Punctuated(SECOND)).to(
        "out", key=serdes.string
    ),
    "longest punctuator": lambda stream, _: stream.process(lambda: _Punctuated(LONGEST)).to(
        "out", key=serdes.string
    ),
}


def _topology(step: str, **options: Any) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.json, **options)
    STEPS[step](stream, builder)
    return builder.build()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("time", TOO_LARGE)
def test_a_time_that_is_too_large_is_refused_with_its_place(step: str, time: int) -> None:
    with TopologyTestDriver(_topology(step), EXACTLY_ONCE) as driver:
        driver.input("in").send("k", 1, timestamp=5)
        with pytest.raises(RecordError, match=f"the timestamp {time} is larger than") as caught:
            driver.input("in").send("k", 2, timestamp=time)
    assert isinstance(caught.value.__cause__, FutureTimestampError)
    assert "in-0" in str(caught.value)


@pytest.mark.parametrize("step", STEPS)
def test_the_largest_time_goes_through_commits_and_crashes(step: str) -> None:
    with TopologyTestDriver(_topology(step), EXACTLY_ONCE) as driver:
        for number in range(3):
            driver.input("in").send("k", number, timestamp=LAST_TIME_MS - number % 2)
            driver.commit()
            driver.crash(keep=number == 1)
        driver.input("in").send("k", 9, timestamp=LAST_TIME_MS)
        driver.commit()
        assert driver.processed >= 4


@pytest.mark.parametrize("time", TOO_LARGE)
def test_a_time_of_an_extractor_is_refused_likewise(time: int) -> None:
    topology = _topology("sessions", timestamps=lambda record, _: record.value)
    with (
        TopologyTestDriver(topology) as driver,
        pytest.raises(RecordError, match=f"the timestamp {time} is larger than"),
    ):
        driver.input("in").send("k", time, timestamp=5)


def test_an_extractor_for_times_that_are_none_takes_those_that_are_too_large() -> None:
    skips = timestamps.log_and_skip_on_invalid_timestamp
    with TopologyTestDriver(_topology("none", timestamps=skips)) as driver:
        driver.input("in").send("k", 1, timestamp=2**63 - 1)
        driver.input("in").send("k", 2, timestamp=7)
        assert [record.value for record in driver.output("out").read_all()] == [2]
        assert sum(driver.dropped.values()) == 1
    goes_back = timestamps.use_partition_time_on_invalid_timestamp
    with TopologyTestDriver(_topology("none", timestamps=goes_back)) as driver:
        driver.input("in").send("k", 1, timestamp=7)
        driver.input("in").send("k", 2, timestamp=2**63 - 1)
        assert [record.timestamp for record in driver.output("out").read_all()] == [7, 7]


@pytest.mark.parametrize("time", TOO_LARGE)
def test_a_record_of_a_processor_has_a_time_that_windows_can_take(time: int) -> None:
    with pytest.raises(ValueError, match=f"{time} is larger than"):
        Record("k", "v", time)
    with pytest.raises(ValueError, match=f"{time} is larger than"):
        Record("k", "v", 5).with_timestamp(time)


class _Puts(Processor[Any, Any, Any, Any]):
    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put = put

    def init(self, context: Any) -> None:
        self._store = context.store("s")

    def process(self, record: Any) -> None:
        del record
        self._put(self._store)


OPTIONS: dict[str, Any] = {"key": serdes.string, "value": serdes.json}
SPAN = {"size": SECOND, "retention": 10 * SECOND}


@pytest.mark.parametrize(
    ("store", "put"),
    [
        (
            Stores.timestamped_key_value("s", **OPTIONS),
            lambda store: store.put("k", ValueAndTimestamp(1, 2**63)),
        ),
        (Stores.window("s", **OPTIONS, **SPAN), lambda store: store.put("k", 1, 2**63 - 1)),
        (
            Stores.session("s", **OPTIONS, retention=SECOND),
            lambda store: store.put(Windowed("k", Window(0, 2**63 - 1)), 1),
        ),
        (
            Stores.versioned("s", **OPTIONS, history=SECOND),
            lambda store: store.put("k", 1, 2**63 - 1),
        ),
    ],
    ids=["timestamped", "window", "session", "versioned"],
)
def test_a_store_refuses_a_time_that_no_record_has(store: Any, put: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in", **OPTIONS).process(lambda: _Puts(put), stores=[store])
    with (
        TopologyTestDriver(builder.build(), EXACTLY_ONCE) as driver,
        pytest.raises(RecordError, match=r"given the time .*store s") as caught,
    ):
        driver.input("in").send("k", 1, timestamp=5)
    assert "was given the time" in str(caught.value.__cause__)


def test_an_unlimited_window_begins_at_a_time_of_records() -> None:
    with pytest.raises(TopologyError, match="start_ms must be"):
        UnlimitedWindows(start_ms=2**63 - 1)
