"""A record that is dropped does not advance stream time, whatever drops it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headrace.streams.plan.progress import OffsetMetadata
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import (
    JoinWindows,
    KStream,
    Processor,
    ProcessorContext,
    Record,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
)

SECOND = timedelta(seconds=1)
FAR_MS = 1_000_000
CONTINUE = {
    "application.id": "app",
    "deserialization.exception.handler": "continue",
    "processing.exception.handler": "continue",
    "production.exception.handler": "continue",
}
Steps = Callable[[KStream[Any, Any], KStream[Any, Any]], Any]
WINDOWS: dict[str, Any] = {
    "tumbling": TimeWindows(size=SECOND),
    "sliding": SlidingWindows(time_difference=SECOND),
    "sessions": SessionWindows(inactivity_gap=SECOND),
}


def refuse(record: Any, _: int) -> int:
    if record.value == "bad":
        raise ValueError
    return record.timestamp


def windowed(windows: Any) -> Steps:
    return lambda s, _: s.group_by_key().windowed_by(windows).count(store="rows").to_stream()


def reduced(windows: Any) -> Steps:
    return lambda s, _: (
        s.group_by_key().windowed_by(windows).reduce(lambda a, b: a + b, store="rows").to_stream()
    )


def joined(s: KStream[Any, Any], other: KStream[Any, Any]) -> Any:
    return s.join(other, lambda a, b: a + b, windows=JoinWindows(time_difference=SECOND))


STEPS: dict[str, Steps] = {
    **{name: windowed(windows) for name, windows in WINDOWS.items()},
    **{f"reduced {name}": reduced(windows) for name, windows in WINDOWS.items()},
    "joined": joined,
    "after a repartition": lambda s, _: (
        s.group_by(lambda _, v: v[:1], key=serdes.string, name="by")
        .windowed_by(TimeWindows(size=SECOND))
        .count(store="rows")
        .to_stream()
    ),
}
"""Each drops what is late."""


def late(steps: Steps, bad: dict[str, Any], *, extractor: Any = None) -> dict[Any, int]:
    """What is dropped as late if one record far in the future is dropped between two of now."""
    builder = StreamsBuilder()
    read: dict[str, Any] = {"key": serdes.string, "value": serdes.json, "timestamps": extractor}
    stream, other = builder.stream("in", **read), builder.stream("other", **read)
    steps(stream, other).for_each(lambda *_: None)
    with TopologyTestDriver(builder.build(), CONTINUE, partitions=2) as driver:
        topic = driver.input("in")
        topic.send("k", "a", timestamp=1_000, partition=0)
        topic.append(
            bad.get("key", b"k"), bad.get("value", b'"bad"'), timestamp=FAR_MS, partition=0
        )
        driver.run()
        topic.send("k", "b", timestamp=1_001, partition=0)
        dropped = dict(driver.dropped)
    assert sum(n for (_, why), n in dropped.items() if "late" not in why) == 1, dropped
    return {what: n for what, n in dropped.items() if "late" in what[1]}


@pytest.mark.parametrize("name", STEPS)
def test_one_that_cannot_be_decoded(name: str) -> None:
    assert late(STEPS[name], {"value": b"{"}) == {}


@pytest.mark.parametrize("name", STEPS)
def test_one_that_its_extractor_fails_on(name: str) -> None:
    assert late(STEPS[name], {}, extractor=refuse) == {}


@pytest.mark.parametrize("name", STEPS)
def test_one_that_cannot_be_decoded_before_its_extractor(name: str) -> None:
    assert late(STEPS[name], {"value": b"{"}, extractor=refuse) == {}


@pytest.mark.parametrize("name", [*WINDOWS, "joined"])
def test_one_with_a_null_key(name: str) -> None:
    assert late(STEPS[name], {"key": None}) == {}


@pytest.mark.parametrize("name", ["sliding", "reduced sliding", "joined"])
def test_one_with_a_null_value(name: str) -> None:
    assert late(STEPS[name], {"value": None}) == {}


class Closing(Processor[Any, Any, Any, Any]):
    """Forward the stream time of each punctuation."""

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        super().init(context)
        context.schedule(SECOND, self.note, kind="stream_time")

    def process(self, record: Record[Any, Any]) -> None:
        """Only the time of the record counts."""

    def note(self, time: int) -> None:
        self.context.forward(Record("time", time, time))


@pytest.mark.parametrize("bad", [b"{", b'"bad"'])
def test_punctuators_by_stream_time_and_the_partitions_time(bad: bytes) -> None:
    """The bad record cannot be decoded, or its extractor fails."""
    builder = StreamsBuilder()
    extractor = refuse if bad != b"{" else None
    stream = builder.stream("in", key=serdes.string, value=serdes.json, timestamps=extractor)
    stream.process(Closing).to("out", key=serdes.string, value=serdes.json)
    with TopologyTestDriver(builder.build(), CONTINUE) as driver:
        topic = driver.input("in")
        topic.send("k", "a", timestamp=1_000)
        topic.append(b"k", bad, timestamp=FAR_MS)
        topic.send("k", "b", timestamp=1_001)
        times = [r.value for r in driver.output("out").read_all()]
        assert all(time < FAR_MS for time in times), times
        (committed,) = driver.cluster.offsets["app"].values()
    assert OffsetMetadata.decode(committed.metadata).partition_time == 1_001
