"""The machine's clocks, for what runs on a real cluster."""

from __future__ import annotations

import time


class SystemClock:
    """Time as the machine tells it (see `headrace.streams.seams.clients.Clock`)."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
