"""A record that is left out without an error is named in the log, and a late one with the times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import SessionWindows, SlidingWindows, StreamsBuilder, TimeWindows, serdes
from headrace.topology.dsl.grouped import KGroupedStream
from headrace.topology.windows import JoinWindows

MINUTE = timedelta(minutes=1)
YEAR_3000_MS = 32_503_680_000_000
NOW_MS = 1_700_000_000_000


Grouped = KGroupedStream[str, int]


@pytest.mark.parametrize(
    "count",
    [
        lambda grouped: grouped.windowed_by(TimeWindows(size=MINUTE)).count(),
        lambda grouped: grouped.windowed_by(TimeWindows(size=MINUTE, advance=MINUTE / 2)).count(),
        lambda grouped: grouped.windowed_by(SessionWindows(inactivity_gap=MINUTE)).count(),
        lambda grouped: grouped.windowed_by(SlidingWindows(time_difference=MINUTE)).count(),
    ],
    ids=["tumbling", "hopping", "sessions", "sliding"],
)
@pytest.mark.parametrize("alone", [True, False], ids=["in batches of one", "in one batch"])
def test_a_late_record_is_named_with_its_time_and_that_of_its_task(
    count: Callable[[Grouped], object], alone: bool
) -> None:
    builder = StreamsBuilder()
    count(builder.stream("in", key=serdes.string).group_by_key())
    driver = TopologyTestDriver(builder.build(), commit="each_record" if alone else "manual")
    # The driver takes a record alone at first, and then more of them at a time.
    times = [NOW_MS] * (1 if alone else 16) + [YEAR_3000_MS, NOW_MS + 1]
    for time in times:
        if alone:
            driver.input("in").send("a", 1, timestamp=time)
        else:
            driver.input("in").append(b"a", b"1", timestamp=time)
    driver.run()
    (told,) = [e for e in driver.events if e["event"] == "records_dropped"]
    assert told["reason"].startswith("late")
    assert (told["task"], told["topic"], told["partition"], told["offset"]) == (
        "0_0",
        "in",
        0,
        len(times) - 1,
    )
    assert told["record_time"] == "2023-11-14T22:13:20.001Z"
    assert told["stream_time"] == "3000-01-01T00:00:00.000Z"
    assert told["behind_by"] == "356524 days, 1:46:39.999000"
    assert "a wrong time" in told["advice"]


def test_a_late_record_of_a_join_is_named() -> None:
    builder = StreamsBuilder()
    one, other = (builder.stream(name, key=serdes.string) for name in ("one", "other"))
    one.join(other, lambda a, b: [a, b], windows=JoinWindows(before=MINUTE, after=MINUTE)).to("out")
    driver = TopologyTestDriver(builder.build())
    driver.input("one").send("a", 1, timestamp=YEAR_3000_MS)
    driver.input("one").send("a", 1, timestamp=NOW_MS)
    (told,) = [e for e in driver.events if e["event"] == "records_dropped"]
    assert (told["topic"], told["offset"]) == ("one", 1)
    assert told["stream_time"] == "3000-01-01T00:00:00.000Z"


def test_a_late_record_is_named_with_the_input_that_is_ahead() -> None:
    builder = StreamsBuilder()
    one, other = (builder.stream(name, key=serdes.string) for name in ("one", "other"))
    one.merge(other).group_by_key().windowed_by(TimeWindows(size=MINUTE)).count()
    driver = TopologyTestDriver(builder.build())
    driver.input("other").send("a", 1, timestamp=NOW_MS)
    driver.input("one").send("a", 1, timestamp=NOW_MS + 7_200_000)
    driver.input("other").send("a", 1, timestamp=NOW_MS + 1)
    (told,) = [e for e in driver.events if e["event"] == "records_dropped"]
    assert told["skew"] == "other-0 is 2:00:00 behind one-0"


def test_the_time_of_a_late_record_is_the_one_that_an_extractor_gave() -> None:
    builder = StreamsBuilder()
    source = builder.stream("in", key=serdes.string, timestamps=lambda record, _: record.value)
    source.group_by_key().windowed_by(TimeWindows(size=MINUTE)).count()
    driver = TopologyTestDriver(builder.build())
    for time in (YEAR_3000_MS, NOW_MS + 1):
        driver.input("in").send("a", time, timestamp=5)
    (told,) = [e for e in driver.events if e["event"] == "records_dropped"]
    assert told["record_time"] == "2023-11-14T22:13:20.001Z"
    assert told["stream_time"] == "3000-01-01T00:00:00.000Z"
