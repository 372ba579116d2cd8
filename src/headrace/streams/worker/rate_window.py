"""Rate limit that distinguishes occasional events from persistent failures."""

from __future__ import annotations

from collections import deque

from headrace.streams.kafka.protocols import Clock


class RateWindow:
    """Counter of events within a time window.

    Args:
        times: the number of events that is too many.
        within_s: the window, in seconds.

    Example:
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
