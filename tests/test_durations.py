"""Each public function that takes a timedelta rejects a number with a message about its type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast

import pytest

from headrace import (
    DeltaSink,
    DuckDbSink,
    IcebergSink,
    JoinWindows,
    KafkaStreams,
    Materialized,
    ParquetSink,
    PostgresSink,
    Retry,
    SessionWindows,
    SinkBatching,
    SlidingWindows,
    SqliteSink,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyTestDriver,
    connect,
    connect_async,
    event_time,
    serdes,
)
from headrace.sources import Feed
from headrace.testing import DevBroker
from tests.support.public_api import public_methods, public_objects

TEN = cast("Any", 10)
DAY = timedelta(days=1)
COLUMNS = {"a": "bigint"}
URL = "http://localhost:1"


def app() -> KafkaStreams:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    settings = {"application.id": "copy", "bootstrap.servers": "localhost:1"}
    return KafkaStreams(builder.build(), settings)


def driver() -> TopologyTestDriver:
    return TopologyTestDriver(app().topology)


def stream() -> Any:
    return StreamsBuilder().stream("in", key=serdes.string)


def joined(method: str) -> Any:
    builder = StreamsBuilder()
    table = builder.table("prices", store="prices")
    return getattr(builder.stream("in"), method)(table, max, grace=TEN)


CALLS: dict[str, Callable[[], Any]] = {
    "KafkaStreams.close timeout": lambda: app().close(TEN),
    "KafkaStreams.remove_worker timeout": lambda: app().remove_worker(TEN),
    "KafkaStreams.start wait": lambda: app().start(wait=TEN),
    "KafkaStreams.store max_age": lambda: app().store("rows", max_age=TEN),
    "connect timeout": lambda: connect(URL, timeout=TEN),
    "connect_async timeout": lambda: connect_async(URL, timeout=TEN),
    "DeltaSink every": lambda: DeltaSink("t", columns=COLUMNS, every=TEN),
    "DeltaSink timeout": lambda: DeltaSink("t", columns=COLUMNS, every=DAY, timeout=TEN),
    "DuckDbSink every": lambda: DuckDbSink("t", "t", columns=COLUMNS, every=TEN),
    "DuckDbSink timeout": lambda: DuckDbSink("t", "t", columns=COLUMNS, timeout=TEN),
    "IcebergSink every": lambda: IcebergSink({}, "a.b", columns=COLUMNS, every=TEN),
    "IcebergSink timeout": lambda: IcebergSink({}, "a.b", columns=COLUMNS, timeout=TEN),
    "ParquetSink every": lambda: ParquetSink("t", columns=COLUMNS, every=TEN),
    "PostgresSink timeout": lambda: PostgresSink(
        "postgresql://h", "t", columns=COLUMNS, timeout=TEN
    ),
    "SqliteSink timeout": lambda: SqliteSink("f", "t", columns=COLUMNS, timeout=TEN),
    "Feed.run every": lambda: Feed.run(cast("Any", None), every=TEN),
    "DevBroker.stop timeout": lambda: DevBroker.stop(cast("Any", None), timeout=TEN),
    "TopologyTestDriver.advance duration": lambda: driver().advance(TEN),
    "TopologyTestDriver.input step": lambda: driver().input("in", step=TEN),
    "Retry longest": lambda: Retry(longest=TEN),
    "Retry pause": lambda: Retry(pause=TEN),
    "KStream.deduplicate grace": lambda: stream().deduplicate(within=DAY, grace=TEN),
    "KStream.deduplicate within": lambda: stream().deduplicate(within=TEN),
    "KStream.join grace": lambda: joined("join"),
    "KStream.left_join grace": lambda: joined("left_join"),
    "KStream.map_async timeout": lambda: stream().map_async(str, timeout=TEN),
    "Suppressed.until_time_limit limit": lambda: Suppressed.until_time_limit(TEN),
    "SinkBatching every": lambda: SinkBatching(every=TEN),
    "Materialized history": lambda: Materialized("a", history=TEN),
    "Materialized retention": lambda: Materialized("a", retention=TEN),
    "event_time max_ahead": lambda: event_time("at", max_ahead=TEN),
    "Stores.session retention": lambda: Stores.session("a", retention=TEN),
    "Stores.timestamped_window retention": lambda: Stores.timestamped_window(
        "a", retention=TEN, size=DAY
    ),
    "Stores.timestamped_window size": lambda: Stores.timestamped_window(
        "a", retention=DAY, size=TEN
    ),
    "Stores.versioned history": lambda: Stores.versioned("a", history=TEN),
    "Stores.window retention": lambda: Stores.window("a", retention=TEN, size=DAY),
    "Stores.window size": lambda: Stores.window("a", retention=DAY, size=TEN),
    "time_windowed size": lambda: serdes.time_windowed(serdes.string, size=TEN),
    "JoinWindows after": lambda: JoinWindows(before=DAY, after=TEN, grace=DAY),
    "JoinWindows before": lambda: JoinWindows(before=TEN, after=DAY, grace=DAY),
    "JoinWindows grace": lambda: JoinWindows(time_difference=DAY, grace=TEN),
    "JoinWindows time_difference": lambda: JoinWindows(time_difference=TEN, grace=DAY),
    "SessionWindows grace": lambda: SessionWindows(inactivity_gap=DAY, grace=TEN),
    "SessionWindows inactivity_gap": lambda: SessionWindows(inactivity_gap=TEN),
    "SlidingWindows grace": lambda: SlidingWindows(time_difference=DAY, grace=TEN),
    "SlidingWindows time_difference": lambda: SlidingWindows(time_difference=TEN, grace=DAY),
    "TimeWindows advance": lambda: TimeWindows(size=DAY, advance=TEN),
    "TimeWindows grace": lambda: TimeWindows(size=DAY, grace=TEN),
    "TimeWindows size": lambda: TimeWindows(size=TEN),
}
ELSEWHERE = {"ProcessingContext.schedule interval"}
"""Tested with a running processor in tests/topology."""


def durations() -> Iterator[str]:
    for value in public_objects():
        own = {value.__name__: value}
        if inspect.isclass(value):
            own = {**public_methods(value), "": value.__init__}
        for name, function in own.items():
            if not inspect.isfunction(function):
                continue
            where = ".".join(filter(None, (value.__name__, name)))
            where = value.__name__ if where == f"{value.__name__}.{value.__name__}" else where
            for parameter in inspect.signature(function).parameters.values():
                if "timedelta" in str(parameter.annotation):
                    yield f"{where} {parameter.name}"


def test_each_duration_of_the_public_api_is_in_the_table() -> None:
    assert set(durations()) == {*CALLS, *ELSEWHERE}


@pytest.mark.parametrize("call", CALLS)
def test_a_number_in_place_of_a_duration_is_rejected(call: str) -> None:
    parameter = call.split()[1]
    with pytest.raises(Exception, match=rf"{parameter}.* must be a timedelta\b"):
        CALLS[call]()
