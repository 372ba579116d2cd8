"""How long to wait for an answer while there is other work to do, and when to say so."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.streams.seams.clients import Clock, Log, TopicPartition

_ASK_MIN_S = 0.1
_ASK_MAX_S = 1.0
TELL_AFTER_S = 30.0
"""Longer than transactions last: what a predecessor left open is decided by then."""
_ADVICE = (
    "the broker ends an open transaction after its producer.transaction.timeout.ms; where this "
    "goes on while all brokers are up, headrace transactions list shows it, and headrace "
    "transactions abort ends it"
)


class Patience:
    """How long to wait for offsets that may be undecided, while other tasks have work to do."""

    def __init__(self, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self.reset()

    def reset(self) -> None:
        """Begin with little patience again."""
        self._wait_s = _ASK_MIN_S
        self._next_s = 0.0
        self._since_s: float | None = None
        self._tell_s = TELL_AFTER_S

    def wait_s(self, *, busy: bool) -> float | None:
        """How long to wait for an answer now; None where it is too early to ask again."""
        if not busy:
            return _ASK_MAX_S
        return self._wait_s if self._clock.monotonic_s() >= self._next_s else None

    def more(self, undecided: Sequence[TopicPartition]) -> None:
        """Wait longer the next time, and leave as much time for others before it.

        Args:
            undecided: the partitions whose offsets there is no answer for.
        """
        now_s = self._clock.monotonic_s()
        self._next_s = now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, _ASK_MAX_S)
        self._tell(now_s, [str(place) for place in undecided])

    def _tell(self, now_s: float, partitions: list[str]) -> None:
        if self._since_s is None:
            self._since_s = now_s
            self._log.info("offsets_undecided", partitions=partitions)
            return
        waited_s = now_s - self._since_s
        if waited_s < self._tell_s:
            return
        self._tell_s = 2 * waited_s
        self._log.warning(
            "offsets_undecided",
            partitions=partitions,
            waited_s=round(waited_s, 1),
            reason="a transaction that wrote these offsets has not ended, so nobody can know them",
            next=f"asks again all the time; said again in {waited_s:.0f} s",
            advice=_ADVICE,
        )
