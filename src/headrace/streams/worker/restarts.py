"""Limits of repeated failures: restarts of crashed workers, and events within a time window.

The pause before a restart doubles with each crash, and the actual pause is random below it, so that
workers that crashed together do not restart together. A worker that ran well for a while restarts
with the first pause again. A worker that keeps crashing does not recover: after a number of
restarts within a window it is not restarted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random

from headrace.streams.kafka.protocols import Clock

_DOUBLINGS_MAX = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLimits:
    """Limits for the number of restarts of a worker, and for the pauses before them.

    Args:
        first_s: the longest pause after a first crash, in seconds; the shortest is half of it.
        longest_s: the maximum pause.
        steady_s: after a run of this duration the next pause is the first pause again.
        most: restarts of a worker within `within_s`; one more crash ends it.
        within_s: the window in seconds.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    steady_s: float = 60.0
    most: int = 10
    within_s: float = 600.0


class Restarts:
    """The restarts of a worker.

    Examples:
        >>> restarts = Restarts(RestartLimits(first_s=1.0, most=1), Random(1))
        >>> 0.5 <= restarts.pause_s(started_s=0.0, ended_s=2.0) <= 1.0
        True
        >>> restarts.pause_s(started_s=3.0, ended_s=4.0) is None
        True
    """

    def __init__(self, limits: RestartLimits, random: Random) -> None:
        self._limits = limits
        self._random = random
        self._recent: deque[float] = deque()
        self._in_a_row = 0

    def pause_s(self, *, started_s: float, ended_s: float) -> float | None:
        """Return the pause before the next restart, or None over the limit; times are monotonic."""
        if ended_s - started_s >= self._limits.steady_s:
            self._in_a_row = 0
        while self._recent and ended_s - self._recent[0] >= self._limits.within_s:
            self._recent.popleft()
        if len(self._recent) >= self._limits.most:
            return None
        self._recent.append(ended_s)
        doubled_s = self._limits.first_s * 2.0 ** min(self._in_a_row, _DOUBLINGS_MAX)
        self._in_a_row += 1
        return min(doubled_s, self._limits.longest_s) * self._random.uniform(0.5, 1.0)


class RateWindow:
    """Counter of events within a time window, to detect persistent failures.

    Args:
        times: the number of events that is too many.
        within_s: the window, in seconds.

    Examples:
        >>> from headrace.streams.testing.memory_worker import ManualClock
        >>> fenced = RateWindow(2, within_s=60, clock=ManualClock(0))
        >>> fenced.is_too_much(), fenced.is_too_much()
        (False, True)
    """

    def __init__(self, times: int, *, within_s: float, clock: Clock) -> None:
        self._within_s = within_s
        self._clock = clock
        self._seen_s: deque[float] = deque(maxlen=times)

    def is_too_much(self) -> bool:
        """Count an event; return whether the window now has too many events."""
        now_s = self._clock.monotonic_s()
        self._seen_s.append(now_s)
        full = len(self._seen_s) == self._seen_s.maxlen
        return full and now_s - self._seen_s[0] < self._within_s
