"""When a worker commits: at its interval, when too much is uncommitted, and when it is drained.

A drained worker need not wait for the interval: it begins a commit each commit.interval.min.ms, and
no sooner after one than a quarter of what that takes, so that these commits take four fifths of its
time at most. What comes while one is made waits for all of the next, so a pause in between is what
results are late by. Of the last two the quicker one counts: behind one that was slow for once,
nobody is to wait the longer. A worker that has more to read, or was just given so much that more is
on its way, is not drained, and the interval alone decides.

So soon a commit may come before the client has passed the markers of the transactions that it read.
What is behind markers alone is committed once nothing else was for an interval, or with what is: or
else a lag would be left that nobody is behind by. Such a commit writes no marker into a topic that
is read, so that it is the last one.

One that is far behind, with more to read than it has read since its last commit, commits less often
where commits are slow: so that they take a fifth of its time, but each commit.interval.max.ms at
least. What it writes is late by more than that, and each commit that it leaves out saves it a
record for each key that comes again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import Clock, Consumer
from headrace.streams.tasks.task import Task
from headrace.streams.tasks.tasks import Tasks

LOOK_S = 0.005
"""How soon to look again whether a worker is drained that was not when its commit was due."""
BEHIND_FACTOR = 4
"""How many times as long as a commit takes a worker that is far behind goes on without one."""
EARLY_FACTOR = 0.25
"""How long a drained worker goes on without a commit, by what one takes."""
MANY = 2_500
"""A worker that had so many records to process in one turn is about to be given more of them."""
TRANSACTIONS_SHARE = 4
"""It does so for no more than this part of what the brokers let a transaction take."""
COMMIT_COPIES = 4
"""So often a commit has a row once more: as a record of its changelog, as one of what is sent on,
in RocksDB's batch, and in its memory."""
CLIENT_S = 0.001
"""The shortest wait that the client knows."""


class CommitTiming:
    """Decision when a worker commits: interval, uncommitted volume, or drained input.

    Args:
        config: commit.interval.ms, commit.interval.min.ms and statestore.uncommitted.max.bytes.
        keep_offsets_s: how often offsets that do not move are committed again, in seconds.
    """

    def __init__(
        self,
        config: StreamsConfig,
        consumer: Consumer,
        tasks: Tasks,
        *,
        clock: Clock,
        keep_offsets_s: float,
    ) -> None:
        self._config = config
        self._consumer = consumer
        self._tasks = tasks
        self._clock = clock
        self._keep_offsets_s = keep_offsets_s
        self._last_s = clock.monotonic_s()
        self._all_s = self._last_s
        self._begun_s = -math.inf
        """When the last commit began."""
        self._ended_s = -math.inf
        self._looked_s = self._last_s
        """When one last looked for markers."""
        self._costs_s = (0.0, 0.0)
        """What the last two commits took."""

    def is_due_for_all(self) -> bool:
        """Whether all offsets must be committed again, those that did not move too."""
        return self._clock.monotonic_s() - self._all_s >= self._keep_offsets_s

    def is_due(self, dirty: Sequence[Task], *, processed: int) -> bool:
        """Whether what these tasks did is to be committed now.

        Args:
            processed: how many records this turn has processed.
        """
        waited_s = self._clock.monotonic_s() - self._last_s
        is_over = waited_s * 1000 >= self._config.commit_interval_ms
        # Where nothing was processed, others may wait to read what is not committed yet.
        may_wait = processed and waited_s < self._behind_wait_s()
        if is_over and not (may_wait and self._is_far_behind()):
            return True
        limit = self._config.statestore_uncommitted_max_bytes
        if processed and self._commit_bytes(dirty) > limit:
            return True
        is_time = processed < MANY and self._clock.monotonic_s() >= self._early_at_s()
        return is_time and self._is_drained()

    def wait_s(self) -> float | None:
        """How long it is until what was done may be committed early; None where nothing was."""
        if not self._commits_early():
            return None
        if not any(task.needs_commit() for task in self._tasks.running):
            return None
        left_s = self._early_at_s() - self._clock.monotonic_s()
        return max(left_s, CLIENT_S) if left_s > 0 else LOOK_S

    def is_due_for_markers(self, *, alone: bool) -> bool:
        """Whether to look for inputs that went on without a record; each interval at most.

        Args:
            alone: whether a commit would be made for those alone, and not so soon behind another.
        """
        now_s = self._clock.monotonic_s()
        since_s = max(self._looked_s, self._ended_s) if alone else self._looked_s
        if (now_s - since_s) * 1000 < self._config.commit_interval_ms:
            return False
        self._looked_s = now_s
        return True

    def nothing_to_commit(self) -> None:
        """The interval begins with the first record after this."""
        self._last_s = self._clock.monotonic_s()

    def committed(self, begun_s: float, *, everything: bool) -> None:
        """A commit that began at `begun_s` is final."""
        self._last_s = self._ended_s = self._clock.monotonic_s()
        self._begun_s = begun_s
        self._costs_s = (self._costs_s[1], self._last_s - begun_s)
        if everything:
            self._all_s = self._last_s

    def _commit_bytes(self, dirty: Sequence[Task]) -> int:
        """What uncommitted rows take once they are being committed."""
        return sum(task.uncommitted_bytes(COMMIT_COPIES) for task in dirty)

    def _commits_early(self) -> bool:
        config = self._config
        return config.exactly_once and config.commit_interval_min_ms < config.commit_interval_ms

    def _early_at_s(self) -> float:
        """When a drained worker may commit."""
        least_s = self._config.commit_interval_min_ms / 1000
        return max(self._begun_s + least_s, self._ended_s + EARLY_FACTOR * min(self._costs_s))

    def _behind_wait_s(self) -> float:
        """How long a worker that is far behind goes on without a commit."""
        config = self._config
        if not config.commit_interval_ms:
            return 0.0
        most_ms = config.commit_interval_max_ms
        most_ms = min(most_ms, config.transaction_timeout_ms // TRANSACTIONS_SHARE)
        return min(BEHIND_FACTOR * min(self._costs_s), most_ms / 1000)

    def _is_far_behind(self) -> bool:
        """Whether more waits than was read since the last commit."""
        done = left = 0
        for task in self._tasks.running:
            places = task.external_inputs
            positions = self._consumer.positions(places)
            for place in places:
                done += task.next_offset[place] - task.start[place].offset
                left += task.queued_in(place)
                position = max(positions.get(place, 0), task.next_offset[place])
                left += self._consumer.lag(place, position) or 0
        return left > done

    def _is_drained(self) -> bool:
        """Whether the worker keeps up: nothing waits here, and little at the broker.

        Under steady input something has arrived in the meantime whenever one looks; that must not
        put the commit off.
        """
        if not self._commits_early():
            return False
        for task in self._tasks.running:
            if task.queued():
                return False
            positions = self._consumer.positions(task.external_inputs)
            for place, position in positions.items():
                lag = self._consumer.lag(place, max(position, task.next_offset[place])) or 0
                if lag >= self._config.max_poll_records:
                    return False
        return True
