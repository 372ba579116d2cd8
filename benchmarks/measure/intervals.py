"""Intervals between commits, with the work that an application in this process does in each.

An interval that ended between two commits could contain one commit more or less than the next one.
No record is read during a commit, which takes about half of the time, so the rates would differ.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.peers.peer import CACHE_BYTES, COMMIT_MS
from headrace.streams.plan.plan import TaskId

COMMIT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Interval:
    """Number of records and processor time of an interval.

    Args:
        records: number of committed records.
        process_s: CPU time of the process, including the clients' threads.
        worker_s: CPU time of the worker's thread.
        wall_s: elapsed time.
        monitoring_s: CPU time of monitoring, by the clocks of the threads that do it.
    """

    records: int
    process_s: float
    worker_s: float
    wall_s: float
    monitoring_s: float = 0.0


Pair = tuple[Interval, Interval]
"""An interval with the measured feature, and the one next to it without the feature."""


def settings_of(bootstrap: str, name: str, state: str) -> dict[str, object]:
    """Return settings of a measured application, with several commits in each interval.

    Args:
        bootstrap: bootstrap servers.
        name: application id.
        state: state directory.
    """
    return {
        "application.id": name,
        "bootstrap.servers": bootstrap,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": state,
        "statestore.cache.max.bytes": CACHE_BYTES,
        "commit.interval.ms": COMMIT_MS,
        "commit.interval.max.ms": COMMIT_MS,
        "consumer.auto.offset.reset": "earliest",
    }


class IntervalMeter:
    """Listener that measures intervals; the application must have one worker.

    Args:
        monitoring_s: returns the CPU time of monitoring so far, in seconds.
    """

    def __init__(self, monitoring_s: Callable[[], float] = lambda: 0.0) -> None:
        self._monitoring_s = monitoring_s
        self.processed: Callable[[], int] = lambda: 0
        """Returns the number of processed records; at the end of a commit, all are committed."""
        self._committed = threading.Condition()
        self._commits = 0
        self._now = (0, 0.0, 0.0, 0.0, 0.0)

    @property
    def records(self) -> int:
        """Number of committed records since the start."""
        return self._now[0]

    def on_assignment(self, tasks: Sequence[TaskId]) -> None: ...

    def on_running(self) -> None: ...

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:  # noqa: ARG002
        """Read all clocks; the worker's thread calls this, so its own clock can be read."""
        now = (
            self.processed(),
            time.process_time(),
            time.thread_time(),
            time.monotonic(),
            self._monitoring_s(),
        )
        with self._committed:
            self._now = now
            self._commits += 1
            self._committed.notify_all()

    def measure(self, seconds: float) -> Interval:
        """Measure from the end of the next commit until the first commit after some seconds.

        Raises:
            TimeoutError: there was no commit for ten seconds.
        """
        begin = self._at_next_commit()
        time.sleep(max(0.0, begin[3] + seconds - time.monotonic()))
        end = self._at_next_commit()
        records, *seconds_of = (b - a for a, b in zip(begin, end, strict=True))
        return Interval(int(records), *seconds_of)

    def _at_next_commit(self) -> tuple[int, float, float, float, float]:
        with self._committed:
            seen = self._commits
            if not self._committed.wait_for(lambda: self._commits > seen, COMMIT_TIMEOUT_S):
                raise TimeoutError(f"no commit within {COMMIT_TIMEOUT_S:.0f} s")
            return self._now


def rounds(
    meter: IntervalMeter,
    modes: Sequence[str],
    switch: Callable[[str], object],
    *,
    seconds: float,
    until_s: float,
    max_records: int,
) -> Iterator[dict[str, Interval]]:
    """Yield rounds until the time is over: one interval for each mode, in an order that rotates.

    Args:
        meter: listener of the application.
        modes: modes to compare.
        switch: called with the mode before each interval.
        seconds: minimum duration of an interval.
        until_s: end of the measurement on the monotonic clock.
        max_records: number of records in the backlog; a round that reaches it is discarded.
    """
    first = 0
    while time.monotonic() < until_s:
        intervals = {}
        for mode in (*modes[first:], *modes[:first]):
            switch(mode)
            try:
                intervals[mode] = meter.measure(seconds)
            except TimeoutError:
                return
        if meter.records >= max_records:
            return
        yield intervals
        first = (first + 1) % len(modes)
