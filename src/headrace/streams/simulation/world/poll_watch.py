"""Whether a simulated consumer is polled within max.poll.interval.ms (librdkafka's own thread)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.streams.config.client_settings import MAX_POLL_INTERVAL_MS
from headrace.streams.simulation.world.kernel import MS
from headrace.streams.simulation.world.process import Process


class PollWatch:
    """See the module.

    Args:
        exceeded: called when it was not polled for too long; returns whether to go on watching.
    """

    def __init__(
        self, process: Process, config: dict[str, Any], exceeded: Callable[[], bool]
    ) -> None:
        self._process = process
        self._kernel = process.kernel
        max_poll_ms = config.get("max.poll.interval.ms", MAX_POLL_INTERVAL_MS)
        self._max_poll_us = int(str(max_poll_ms)) * MS
        self._exceeded = exceeded
        self._polled_us = self._kernel.now_us
        self._is_on = False

    def polled(self) -> None:
        """The consumer is polled now; the first time begins to watch."""
        self._polled_us = self._kernel.now_us
        if not self._is_on:
            self._is_on = True
            self._look_later()

    def _look_later(self) -> None:
        left_us = self._polled_us + self._max_poll_us - self._kernel.now_us
        self._process.when_up(max(MS, left_us), self._look)

    def _look(self) -> None:
        if self._kernel.now_us - self._polled_us >= self._max_poll_us:
            if not self._exceeded():
                return
            self._polled_us = self._kernel.now_us
        self._look_later()
