"""When a worker commits: at its interval, when too much is uncommitted, and when it is drained."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.streams.config.config import StreamsConfig
from headrace.streams.seams.clients import Clock, Consumer
from headrace.streams.task.task import Task
from headrace.streams.tasks.tasks import Tasks

IDLE_COMMIT_MIN_S = 0.005
IDLE_COMMIT_COST_FACTOR = 5
IDLE_COMMITS_PER_S = 50


class CommitTiming:
    """See the module.

    Args:
        config: commit.interval.ms, commit.when.idle and statestore.uncommitted.max.bytes.
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
        self._cost_s = 0.0

    def is_due_for_all(self) -> bool:
        """Whether all offsets must be committed again, those that did not move too."""
        return self._clock.monotonic_s() - self._all_s >= self._keep_offsets_s

    def is_due(self, dirty: Sequence[Task], *, processed: int) -> bool:
        """Whether what these tasks did is to be committed now.

        Args:
            processed: how many records this turn has processed.
        """
        waited_s = self._clock.monotonic_s() - self._last_s
        if waited_s * 1000 >= self._config.commit_interval_ms:
            return True
        limit = self._config.statestore_uncommitted_max_bytes
        if processed and sum(task.uncommitted_bytes() for task in dirty) > limit:
            return True
        return waited_s >= self._idle_wait_s() and self._is_drained()

    def waits_to_be_drained(self) -> bool:
        """Whether something is dirty that the next idle moment commits."""
        return self._commits_idle() and any(task.needs_commit() for task in self._tasks.running)

    def nothing_to_commit(self) -> None:
        """The interval begins with the first record after this."""
        self._last_s = self._clock.monotonic_s()

    def committed(self, begun_s: float, *, everything: bool) -> None:
        """A commit that began at `begun_s` is final."""
        self._last_s = self._clock.monotonic_s()
        self._cost_s = self._last_s - begun_s
        if everything:
            self._all_s = self._last_s

    def _commits_idle(self) -> bool:
        return self._config.exactly_once and self._config.commit_when_idle

    def _idle_wait_s(self) -> float:
        return max(
            IDLE_COMMIT_MIN_S, IDLE_COMMIT_COST_FACTOR * self._cost_s, 1 / IDLE_COMMITS_PER_S
        )

    def _is_drained(self) -> bool:
        """Whether the worker keeps up: nothing waits here, and little at the broker.

        Under steady input something has arrived in the meantime whenever one looks; that must not
        put the commit off.
        """
        if not self._commits_idle():
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
