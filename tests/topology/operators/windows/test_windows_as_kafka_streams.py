"""Windows hold what they hold in Kafka Streams 4.3.1, record for record (tests/golden/windows)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import SlidingWindows, StreamsBuilder, TimeWindows, serdes
from tests.support.operators import NO_CACHE

LINES = (Path(__file__).parents[3] / "golden" / "windows" / "results.jsonl").read_text()
CASES = [json.loads(line) for line in LINES.splitlines()]
Results = dict[str, tuple[str, int]]
"""The last value and timestamp of each key with its window."""


def windows(case: dict[str, Any]) -> Any:
    size, advance, grace = (
        timedelta(milliseconds=case[name]) for name in ("size", "advance", "grace")
    )
    if case["kind"] == "sliding":
        return SlidingWindows(time_difference=size, grace=grace)
    return TimeWindows(size=size, advance=advance, grace=grace)


def ours(case: dict[str, Any]) -> Iterator[Sequence[tuple[str, str, int]]]:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    table: Any = stream.group_by_key().windowed_by(windows(case))
    joined = table.aggregate(str, lambda _, value, all_: all_ + value, value=serdes.string)
    joined.to_stream(lambda key, _: f"{key.key}@{key.window.start_ms}-{key.window.end_ms}").to(
        "out", key=serdes.string
    )
    with TopologyTestDriver(builder.build(), NO_CACHE) as driver:
        output = driver.output("out")
        for key, value, timestamp, _ in case["records"]:
            driver.input("in").send(key, value, timestamp=timestamp)
            yield [(r.key, r.value, r.timestamp) for r in output.read_all()]


def last(results: Sequence[Any]) -> Results:
    return {key: (value, timestamp) for key, value, timestamp in results}


def right_window(case: dict[str, Any], key: str, timestamp: int) -> str:
    return f"{key}@{timestamp + 1}-{timestamp + 1 + case['size']}"


def same_until_a_late_record(case: dict[str, Any]) -> bool:
    """Whether all results are the same; ends where Kafka Streams lets a late record do something.

    It makes the right window of a record that came too late for every window that holds it.
    """
    for (key, _, timestamp, theirs), mine in zip(case["records"], ours(case), strict=True):
        assert len(mine) == len(last(mine)), "one result a window and record"
        if not mine and last(theirs).keys() == {right_window(case, key, timestamp)}:
            return False
        assert last(mine) == last(theirs)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tumbling", "hopping", "sliding"])
def test_each_record_changes_the_windows_that_it_changes_in_kafka_streams(kind: str) -> None:
    """Traps 6 and 11: also the timestamps, and what is left out as late."""
    cases = [case for case in CASES if case["kind"] == kind]
    same = [same_until_a_late_record(case) for case in cases]
    if kind != "sliding":
        assert all(same)
    assert len(cases) >= 60
    assert sum(same) / len(same) > 0.95


def test_the_cases_have_late_records_and_windows_that_are_made_of_others() -> None:
    records = [(case["kind"], *record) for case in CASES for record in case["records"]]
    for kind in ("tumbling", "hopping", "sliding"):
        assert sum(not results for of, *_, results in records if of == kind) > 50
    behind = [r for r in records if r[0] == "sliding" and any(r[2] not in v for _, v, _ in r[4])]
    assert len(behind) > 100
