"""Deleting what was processed of repartition topics, now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.streams.plan.topics import TopicAdmin
from headrace.streams.seams.background import Background
from headrace.streams.seams.clients import Clock, Log, TopicPartition
from headrace.streams.task.task import Task


class Purger:
    """Deletes what was processed of repartition topics, now and then."""

    def __init__(
        self,
        admin: TopicAdmin,
        topics: frozenset[str],
        interval_s: float,
        *,
        background: Background,
        clock: Clock,
        log: Log,
    ) -> None:
        self._admin = admin
        self._topics = topics
        self._interval_s = interval_s
        self._background = background
        self._clock = clock
        self._log = log
        self._last_s = clock.monotonic_s()
        self._done: dict[TopicPartition, int] = {}

    def __call__(self, tasks: Sequence[Task]) -> None:
        """Note what `tasks` have committed, and delete it when it is time."""
        if not self._topics:
            return
        for task in tasks:
            for place, committed in task.start.items():
                if place.topic in self._topics:
                    self._done[place] = committed.offset
        now_s = self._clock.monotonic_s()
        if now_s - self._last_s < self._interval_s or not self._done:
            return
        done = dict(self._done)
        if self._background(lambda: self._purge(done)):
            self._last_s = now_s
            self._done.clear()

    def _purge(self, done: Mapping[TopicPartition, int]) -> None:
        try:
            self._admin.delete_records(done)
        except Exception as error:
            # Nothing depends on it: the next round deletes the same and more.
            self._log.warning("purge_failed", reason=str(error))
