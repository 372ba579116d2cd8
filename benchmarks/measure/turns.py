"""Turns of an application that runs in this process, each from the end of a commit to one's end.

A turn that ends anywhere has one commit more or less than its neighbour. A commit is half of the
work while no record is read in it, so such turns differ by half where nothing differs.
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
class Turn:
    """What was done in a second or so.

    Args:
        all_s: processor time of the whole process, clients' threads included.
        own_s: that of the worker's thread.
        watch_s: that of the watching, by the clocks of the threads that do it.
    """

    records: int
    all_s: float
    own_s: float
    wall_s: float
    watch_s: float = 0.0


Pair = tuple[Turn, Turn]
"""A turn in which something was done beside the work, and its neighbour in which it was not."""


def settings_of(bootstrap: str, name: str, state: str) -> dict[str, object]:
    """The settings of an application whose turns are measured: commits so short that each has some.

    Args:
        bootstrap: the cluster.
        name: of the application.
        state: its directory.
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


class Meter:
    """A worker's listener that measures turns of its application, which has one worker.

    Args:
        watch_s: the processor time that watching it has taken so far, in seconds.
    """

    def __init__(self, watch_s: Callable[[], float] = lambda: 0.0) -> None:
        self._watch_s = watch_s
        self.processed: Callable[[], int] = lambda: 0
        """How many records the application has processed; at the end of a commit, committed."""
        self._committed = threading.Condition()
        self._commits = 0
        self._now = (0, 0.0, 0.0, 0.0, 0.0)

    @property
    def records(self) -> int:
        """Committed since the start."""
        return self._now[0]

    def on_assignment(self, tasks: Sequence[TaskId]) -> None: ...

    def on_running(self) -> None: ...

    def on_commit(self, tasks: Sequence[TaskId], records: int) -> None:  # noqa: ARG002
        """Read all clocks, that of the worker's thread included, in which this is called."""
        now = (
            self.processed(),
            time.process_time(),
            time.thread_time(),
            time.monotonic(),
            self._watch_s(),
        )
        with self._committed:
            self._now = now
            self._commits += 1
            self._committed.notify_all()

    def turn(self, seconds: float) -> Turn:
        """Measure from the end of the next commit, for so long and until another one ends.

        Raises:
            TimeoutError: nothing was committed for ten seconds.
        """
        begin = self._at_next_commit()
        time.sleep(max(0.0, begin[3] + seconds - time.monotonic()))
        end = self._at_next_commit()
        records, *seconds_of = (b - a for a, b in zip(begin, end, strict=True))
        return Turn(int(records), *seconds_of)

    def _at_next_commit(self) -> tuple[int, float, float, float, float]:
        with self._committed:
            seen = self._commits
            if not self._committed.wait_for(lambda: self._commits > seen, COMMIT_TIMEOUT_S):
                raise TimeoutError(f"no commit within {COMMIT_TIMEOUT_S:.0f} s")
            return self._now


def rounds(
    meter: Meter,
    ways: Sequence[str],
    switch: Callable[[str], object],
    *,
    seconds: float,
    until_s: float,
    most: int,
) -> Iterator[dict[str, Turn]]:
    """Measure a turn of each way in rounds, each begun by another one, until time is up.

    Args:
        switch: is told which way it is now, before each turn.
        seconds: of a turn, at least.
        until_s: on the monotonic clock.
        most: so many records are surely there; a round that goes behind them is not told of.
    """
    first = 0
    while time.monotonic() < until_s:
        turns = {}
        for way in (*ways[first:], *ways[:first]):
            switch(way)
            try:
                turns[way] = meter.turn(seconds)
            except TimeoutError:
                return
        if meter.records >= most:
            return
        yield turns
        first = (first + 1) % len(ways)
