"""Measured intervals start and end with commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.measure import intervals
from benchmarks.measure.intervals import IntervalMeter, rounds

RECORDS_PER_COMMIT = 7


@pytest.fixture
def meter() -> Iterator[IntervalMeter]:
    """Return the meter of an application that commits seven records at a time."""
    meter, ended, done = IntervalMeter(), threading.Event(), 0

    def work() -> None:
        nonlocal done
        while not ended.wait(0.001):
            done += RECORDS_PER_COMMIT - 1
            time.sleep(0.001)  # an interval must not end here
            done += 1
            meter.on_commit([], 0)  # without monitoring, the number of records is 0

    meter.processed = lambda: done
    thread = threading.Thread(target=work)
    thread.start()
    yield meter
    ended.set()
    thread.join()


def test_an_interval_has_whole_commits_and_the_minimum_duration(meter: IntervalMeter) -> None:
    interval = meter.measure(0.03)
    assert interval.records
    assert interval.records % RECORDS_PER_COMMIT == 0
    assert interval.wall_s >= 0.03
    assert meter.records >= interval.records


def test_each_round_has_all_modes_and_starts_with_another_one(
    meter: IntervalMeter,
) -> None:
    modes: list[str] = []
    deadline_s = time.monotonic() + 60
    found = rounds(meter, "abc", modes.append, seconds=0.0, until_s=deadline_s, max_records=10**9)
    assert [sorted(next(found)) for _ in range(4)] == [["a", "b", "c"]] * 4
    assert "".join(modes) == "abc" + "bca" + "cab" + "abc"


def test_a_round_that_reaches_the_end_of_the_backlog_is_discarded(meter: IntervalMeter) -> None:
    deadline_s = time.monotonic() + 60
    assert not [*rounds(meter, "ab", str, seconds=0.0, until_s=deadline_s, max_records=1)]


def test_rounds_end_if_the_application_commits_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intervals, "COMMIT_TIMEOUT_S", 0.01)
    with pytest.raises(TimeoutError, match="no commit"):
        IntervalMeter().measure(0.0)
    deadline_s = time.monotonic() + 60
    assert not [*rounds(IntervalMeter(), "ab", str, seconds=0.0, until_s=deadline_s, max_records=1)]
