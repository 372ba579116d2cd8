"""Results of many windows that close together are emitted over several commits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyTestDriver,
    serdes,
)
from headrace.streams.testing import memory_worker

SECOND = timedelta(seconds=1)
EPOCH = datetime.fromtimestamp(0, UTC)
KEYS = 20
PER_COMMIT = 3

Build = Callable[[StreamsBuilder], None]


TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}


def _flat(key: Any, _: Any) -> str:
    return f"{key.key}@{key.window.start_ms}"


def _windows(builder: StreamsBuilder, windows: Any) -> None:
    grouped = builder.stream("in", **TEXTS).group_by_key()
    table = grouped.windowed_by(windows, emit="on_window_close").count(store="counts")
    table.to_stream(_flat).to("out", key=serdes.string, value=serdes.long)


def tumbling(builder: StreamsBuilder) -> None:
    _windows(builder, TimeWindows(size=SECOND))


def hopping(builder: StreamsBuilder) -> None:
    _windows(builder, TimeWindows(size=SECOND, advance=SECOND / 4, grace=SECOND))


def sliding(builder: StreamsBuilder) -> None:
    _windows(builder, SlidingWindows(time_difference=SECOND, grace=SECOND))


def sessions(builder: StreamsBuilder) -> None:
    _windows(builder, SessionWindows(inactivity_gap=SECOND))


def suppressed(builder: StreamsBuilder) -> None:
    grouped = builder.stream("in", **TEXTS).group_by_key()
    table = grouped.windowed_by(TimeWindows(size=SECOND)).count(store="counts")
    final = table.suppress(Suppressed.until_window_closes())
    final.to_stream(_flat).to("out", key=serdes.string, value=serdes.long)


def unmatched(builder: StreamsBuilder) -> None:
    left, right = builder.stream("in", **TEXTS), builder.stream("right", **TEXTS)
    windows = JoinWindows(time_difference=SECOND)
    left.left_join(right, lambda a, b: f"{a} {b}", windows).to("out", value=serdes.string)


def suppressed_after_close(builder: StreamsBuilder) -> None:
    """The results of the first operator are changes for the second one, in one task."""
    grouped = builder.stream("in", **TEXTS).group_by_key()
    table = grouped.windowed_by(TimeWindows(size=SECOND), emit="on_window_close").count(store="a")
    final = table.suppress(Suppressed.until_window_closes())
    final.to_stream(_flat).to("out", key=serdes.string, value=serdes.long)


def copied(builder: StreamsBuilder) -> None:
    """A copy of each record goes to the topic of the results, before them."""
    stream = builder.stream("in", **TEXTS)
    stream.to("out", **TEXTS)
    windows = TimeWindows(size=SECOND)
    table = stream.group_by_key().windowed_by(windows, emit="on_window_close").count(store="counts")
    table.to_stream(_flat).map_values(str).to("out", **TEXTS)


def chained_behind_repartition(builder: StreamsBuilder) -> None:
    """Windows of the results of windows, in one task whose time advances without a record."""
    grouped = builder.stream("in", **TEXTS).group_by(lambda k, _: k, **TEXTS, name="again")
    table = grouped.windowed_by(TimeWindows(size=SECOND), emit="on_window_close").count(store="a")
    again = table.to_stream().group_by_key().windowed_by(TimeWindows(size=10 * SECOND))
    again.count(store="b").to_stream(lambda key, _: f"{key.key.key}@{key.window.start_ms}").to(
        "out", key=serdes.string, value=serdes.long
    )


def behind_repartition(builder: StreamsBuilder) -> None:
    """Stream time advances without a record."""
    grouped = builder.stream("in", **TEXTS).group_by(lambda k, _: k, **TEXTS, name="again")
    windows = TimeWindows(size=SECOND)
    table = grouped.windowed_by(windows, emit="on_window_close").count(store="counts")
    table.to_stream(_flat).to("out", key=serdes.string, value=serdes.long)
    final = grouped.windowed_by(windows).count(store="updated")
    kept = final.suppress(Suppressed.until_window_closes())
    kept.to_stream(_flat).to("final", key=serdes.string, value=serdes.long)


ALL: list[Build] = [
    tumbling, hopping, sliding, sessions, suppressed, unmatched, suppressed_after_close,
    behind_repartition,
    copied,
    chained_behind_repartition,
]  # fmt: skip


def driver_commits(driver: TopologyTestDriver) -> int:
    return driver._worker.counts.commits


def run(build: Build, *, crash: str | None = None, keep: bool = True) -> tuple[list[Any], int]:
    """Fill many windows, pass their ends with one record; returns the output and the commits."""
    builder = StreamsBuilder()
    build(builder)
    config = {"processing.guarantee": "exactly_once_v2", "max.poll.records": 500}
    # With two source partitions tasks follow the time of upstream tasks; order is that of each key.
    partitions = 2 if "repartition" in build.__name__ else 1
    with TopologyTestDriver(
        builder.build(), config, partitions=partitions, now=EPOCH, commit="manual"
    ) as driver:
        records = driver.input("in")
        for second in range(3):
            for number in range(KEYS):
                records.send(f"k{number:02}", "v", timestamp=10_000 * second + number)
        driver.commit()
        if crash is not None:
            records.send("last", "v", timestamp=900_000)
            driver.crash(at=crash, keep=keep)
            driver.commit()
        before = driver_commits(driver)
        driver.advance(timedelta(seconds=1_000))
        # In one batch, at the present time of the driver.
        driver.input("in", step=timedelta(milliseconds=1)).send_many([("last", "w"), ("last", "x")])
        driver.commit()
        topics = ["out", "final"] if build is behind_repartition else ["out"]
        rows = [
            (r.key, r.value, r.timestamp)
            for topic in topics
            for r in driver.output(topic).read_all()
        ]
        if partitions > 1:
            rows.sort()
        return rows, driver_commits(driver) - before


@pytest.mark.parametrize("build", ALL, ids=lambda build: build.__name__)
def test_results_over_many_commits_are_those_of_one(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, at_once = run(build)
    monkeypatch.setattr(memory_worker, "RESULTS_PER_COMMIT", PER_COMMIT)
    found, commits = run(build)
    assert found == expected
    assert len(expected) >= KEYS
    assert commits > at_once + 2


@pytest.mark.parametrize("crash", ["changelogs_written", "transaction_committed", "state_written"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("build", ALL, ids=lambda build: build.__name__)
def test_a_crash_in_between_repeats_and_loses_no_result(
    build: Build, crash: str, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = run(build, crash=crash, keep=keep)
    monkeypatch.setattr(memory_worker, "RESULTS_PER_COMMIT", PER_COMMIT)
    assert run(build, crash=crash, keep=keep)[0] == expected
