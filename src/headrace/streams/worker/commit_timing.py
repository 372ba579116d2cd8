"""Decision when a worker commits: at its interval, with too much uncommitted, or when drained.

A drained worker does not wait for the interval. It starts a commit every commit.interval.min.ms,
and pauses after each commit for at least a quarter of its duration, so that these commits take at
most four fifths of its time. Records that arrive during a commit wait for the whole next commit, so
the pause adds to the latency of results. The faster of the last two commits counts, so that one
slow commit does not prolong the pause. A worker is not drained if it has more to read, or if it has
just received so many records that more are expected. Then only the interval counts.

An early commit may happen before the client has passed the markers of the transactions that it
read. Offsets that advance past markers alone are committed with other work, or after an interval
without other work. Otherwise a lag would remain although all records are processed. Such a commit
writes no marker into an input topic, so it does not cause another one.

A worker that is far behind has more records to read than it has read since its last commit. It
commits less often if commits are slow, so that they take a fifth of its time, but at least every
commit.interval.max.ms. Its output is late anyway, and each skipped commit saves a changelog record
per key that changes again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import Clock, Consumer
from headrace.streams.tasks.task import Task, lags_of
from headrace.streams.tasks.tasks import Tasks

DRAINED_CHECK_S = 0.005
"""Seconds until the next check whether a worker is drained, if it was not when its commit was due.
"""
BEHIND_FACTOR = 4
"""Time without a commit of a worker that is far behind, as a multiple of the commit duration."""
EARLY_FACTOR = 0.25
"""Minimum pause after the commit of a drained worker, as a fraction of the commit duration."""
BURST_RECORDS = 2_500
"""Number of records processed in a turn above which more records are expected."""
TRANSACTIONS_SHARE = 4
"""Divisor of transaction.timeout.ms for the maximum time without a commit of such a worker."""
COMMIT_COPIES = 4
"""Copies of a row during a commit: changelog record, forwarded record, RocksDB batch, RocksDB
memory."""
CLIENT_S = 0.001
"""The shortest wait that the client supports."""


class CommitTiming:
    """Decision when a worker commits: interval, uncommitted volume, or drained input.

    Args:
        recommit_s: how often unchanged offsets are committed again, in seconds.
    """

    def __init__(
        self,
        config: StreamsConfig,
        consumer: Consumer,
        tasks: Tasks,
        *,
        clock: Clock,
        recommit_s: float,
    ) -> None:
        self._config = config
        self._consumer = consumer
        self._tasks = tasks
        self._clock = clock
        self._recommit_s = recommit_s
        self._last_s = clock.monotonic_s()
        self._all_committed_s = self._last_s
        self._begun_s = -math.inf
        """Start of the last commit."""
        self._ended_s = -math.inf
        self._markers_checked_s = self._last_s
        """Time of the last check for markers."""
        self._durations_s = (0.0, 0.0)
        """Durations of the last two commits."""

    def is_due_for_all(self) -> bool:
        """Return whether all offsets must be committed again, including unchanged offsets."""
        return self._clock.monotonic_s() - self._all_committed_s >= self._recommit_s

    def is_due(self, dirty: Sequence[Task], *, processed: int) -> bool:
        """Return whether these tasks must commit now; `processed` counts records of this turn."""
        waited_s = self._clock.monotonic_s() - self._last_s
        is_interval_over = waited_s * 1000 >= self._config.commit_interval_ms
        # If nothing was processed, other workers may wait for the uncommitted records.
        may_wait = processed and waited_s < self._behind_wait_s()
        if is_interval_over and not (may_wait and self._is_far_behind()):
            return True
        limit = self._config.statestore_uncommitted_max_bytes
        if processed and sum(task.uncommitted_bytes(COMMIT_COPIES) for task in dirty) > limit:
            return True
        is_time = processed < BURST_RECORDS and self._clock.monotonic_s() >= self._early_at_s()
        return is_time and self._is_drained()

    def wait_s(self) -> float | None:
        """Return the time until an early commit is allowed, or None without uncommitted work."""
        if not self._commits_early():
            return None
        if not any(task.needs_commit() for task in self._tasks.running):
            return None
        left_s = self._early_at_s() - self._clock.monotonic_s()
        return max(left_s, CLIENT_S) if left_s > 0 else DRAINED_CHECK_S

    def is_due_for_markers(self, *, alone: bool) -> bool:
        """Return whether to check for inputs that advanced past markers, at most once per interval.

        If the commit would contain such offsets `alone`, it must not closely follow another commit.
        """
        now_s = self._clock.monotonic_s()
        since_s = max(self._markers_checked_s, self._ended_s) if alone else self._markers_checked_s
        if (now_s - since_s) * 1000 < self._config.commit_interval_ms:
            return False
        self._markers_checked_s = now_s
        return True

    def nothing_to_commit(self) -> None:
        """Restart the interval with the first record after this."""
        self._last_s = self._clock.monotonic_s()

    def committed(self, begun_s: float, *, everything: bool) -> None:
        self._last_s = self._ended_s = self._clock.monotonic_s()
        self._begun_s = begun_s
        self._durations_s = (self._durations_s[1], self._last_s - begun_s)
        if everything:
            self._all_committed_s = self._last_s

    def _commits_early(self) -> bool:
        config = self._config
        return config.exactly_once and config.commit_interval_min_ms < config.commit_interval_ms

    def _early_at_s(self) -> float:
        """Return the time from which a drained worker may commit."""
        least_s = self._config.commit_interval_min_ms / 1000
        return max(self._begun_s + least_s, self._ended_s + EARLY_FACTOR * min(self._durations_s))

    def _behind_wait_s(self) -> float:
        """Return how long a worker that is far behind continues without a commit."""
        config = self._config
        if not config.commit_interval_ms:
            return 0.0
        most_ms = config.commit_interval_max_ms
        most_ms = min(most_ms, config.transaction_timeout_ms // TRANSACTIONS_SHARE)
        return min(BEHIND_FACTOR * min(self._durations_s), most_ms / 1000)

    def _is_far_behind(self) -> bool:
        done = left = 0
        for task in self._tasks.running:
            for tp, lag in lags_of(task, self._consumer, task.external_inputs).items():
                done += task.next_offset[tp] - task.start[tp].offset
                left += task.queued_in(tp) + (lag or 0)
        return left > done

    def _is_drained(self) -> bool:
        """Return whether nothing is queued and lag is small, as it is under steady input."""
        if not self._commits_early():
            return False
        for task in self._tasks.running:
            if task.queued():
                return False
            positions = self._consumer.positions(task.external_inputs)
            for tp, position in positions.items():
                lag = self._consumer.lag(tp, max(position, task.next_offset[tp])) or 0
                if lag >= self._config.max_poll_records:
                    return False
        return True
