"""How long to wait for an answer while there is other work to do."""

from __future__ import annotations

from headrace.streams.seams.clients import Clock

_ASK_MIN_S = 0.1
_ASK_MAX_S = 1.0


class Patience:
    """How long to wait for offsets that may be undecided, while other tasks have work to do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Begin with little patience again."""
        self._wait_s = _ASK_MIN_S
        self._next_s = 0.0

    def wait_s(self, *, busy: bool) -> float | None:
        """How long to wait for an answer now; None where it is too early to ask again."""
        if not busy:
            return _ASK_MAX_S
        return self._wait_s if self._clock.monotonic_s() >= self._next_s else None

    def more(self) -> None:
        """Wait longer the next time, and leave as much time for others before it."""
        self._next_s = self._clock.monotonic_s() + self._wait_s
        self._wait_s = min(2 * self._wait_s, _ASK_MAX_S)
