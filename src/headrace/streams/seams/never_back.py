"""A wall clock that goes back must not make what is old look young."""

from __future__ import annotations

from headrace.streams.seams.clients import Clock


class NeverBack:
    """A clock whose wall time goes on at least as fast as time does (see
    `headrace.streams.seams.clients.Clock`).

    Args:
        clock: the real one; what it says of durations is taken as it is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_ms = clock.now_ms()
        self._seen_s = clock.monotonic_s()

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970; where it was set back, as if it were not."""
        now_s = self._clock.monotonic_s()
        passed_ms = int((now_s - self._seen_s) * 1000)
        now_ms = self._clock.now_ms()
        if now_ms > self._seen_ms + passed_ms:
            self._seen_ms, self._seen_s = now_ms, now_s
            return now_ms
        return self._seen_ms + passed_ms

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back, for durations."""
        return self._clock.monotonic_s()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self._clock.sleep(seconds)
