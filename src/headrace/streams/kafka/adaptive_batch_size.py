"""Adaptive batch size for systems of unknown speed, such as a broker or a database.

A batch of fixed size with a time limit never completes on a slow system: it times out, is repeated,
and times out again. So the size is adapted to the measured rate.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import linear_regression
from typing import Any

from headrace.streams.errors import StreamsError
from headrace.streams.kafka.protocols import Clock, Log, Producer

FIRST_RECORDS = 200
"""Number of records of the first transaction, while the brokers' speed is unknown."""
_GROWTH, _GROWTH_AFTER = 1.5, 1.25
"""Growth factors after a batch in time: before and after the first batch that was too large.

A Kafka quota accepts ten seconds of its rate immediately, which hides the actual rate. When batches
that grow by a factor g have used up this burst, the next batch takes up to (g - 1) * 10 s: 5 s of
the 10 s that a transaction has by default.
"""
_SHRINK_ABOVE = 1.5
"""Factor above the target time from which a batch shrinks, so that the size converges."""
_LEAST_PART = 4
"""Maximum divisor of the size after a single slow success, which may have been a pause."""
_TIME_OUT_FACTOR = 4
"""Divisor of the target time after a timeout, because the rate may vary more than expected.

A Kafka quota counts the bytes of ten seconds. After a burst it accepts hardly any data until the
burst is that old, and the bytes of a batch that timed out count, too.
"""
_LEAST_SHARE = 1 / 8
_RECENT = 12
"""Number of batches in time from which the fixed time of a batch is estimated."""
_RECOVERY = 1.01
"""Factor by which each batch in time raises a target time that timeouts have lowered."""
_LOWERED = (
    "nothing is lost. Smaller batches are sent until they are accepted faster. Act only if the "
    "rate is too low: check for a quota, a slow disk, a lock or a trigger"
)


class AdaptiveBatchSize:
    """Limit of a batch that adapts to the amount accepted within a target time.

    Args:
        target_s: maximum seconds per batch, well below its timeout.
        log: receives `batch_size_lowered` and `batch_size_raised`; None disables logging.
        fields: additional fields of these events: the kind of batch, and the unit of its size.

    Examples:
        >>> batch = AdaptiveBatchSize(target_s=3.0, size=1000)
        >>> batch.timed_out(1000, 10.0, taken=600)
        >>> batch.size
        45
        >>> batch.succeeded(45, 0.5)
        >>> batch.size
        56
    """

    __slots__ = (
        "_fields",
        "_fixed_s",
        "_has_shrunk",
        "_log",
        "_lowered",
        "_recent",
        "_share",
        "max_size",
        "size",
        "target_s",
    )

    def __init__(
        self,
        *,
        target_s: float,
        size: int,
        max_size: int = sys.maxsize,
        log: Log | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self.target_s = target_s
        self._share = 1.0
        """Fraction of the target time for which batches are sized; smaller after timeouts."""
        self.max_size = max_size
        self.size = min(size, max_size)
        self._log = log
        self._fields = fields or {}
        self._recent = deque[tuple[int, float]](maxlen=_RECENT)
        """Size and seconds of the last batches since a timeout."""
        self._fixed_s = 0.0
        """Estimated seconds of a batch that do not depend on its size."""
        self._lowered: int | None = None
        """The size after the last decrease, unless it has recovered since."""
        self._has_shrunk = False
        """Whether a batch was ever too large: from then on sizes grow slowly."""

    def succeeded(self, size: int, seconds: float) -> None:
        self._share = min(1.0, self._share * _RECOVERY)
        target_s = self._share * self.target_s
        if not size:
            return
        before = self.size
        self._recent.append((size, seconds))
        if seconds <= target_s and size < self.size:
            return  # most batches of an idle application: in time, and not full
        work_s = self._work_s(size, seconds)
        if work_s <= target_s or self._may_try_more(size, seconds):
            if size >= self.size:
                self._grow(work_s)
                self._log_raised(size, seconds)
        elif work_s > _SHRINK_ABOVE * target_s:
            wanted = max(int(size * target_s / work_s), size // _LEAST_PART, 1)
            self.size = min(self.size, wanted)
            self._has_shrunk = True
            self._log_lowered(before, size, seconds)

    def _work_s(self, size: int, seconds: float) -> float:
        """Estimate the part of a batch's time that grows with its size, by linear regression.

        The rest, such as the time of a commit, stays when the batch gets smaller.
        """
        sizes = [size for size, _ in self._recent]
        if len(sizes) >= 3 and max(sizes) >= 1.5 * min(sizes):
            times = [seconds for _, seconds in self._recent]
            slope, fixed_s = linear_regression(sizes, times)
            self._fixed_s = max(0.0, min(fixed_s, *times))
            if self._fixed_s:
                return max(0.0, slope * size)
        return max(0.0, seconds - self._fixed_s)

    def _may_try_more(self, size: int, seconds: float) -> bool:
        """Return whether a slightly larger batch may take as long, and is in time if it does not.

        Batches of nearly one size do not tell whether their time depends on the size.
        """
        *before, _ = self._recent
        if all(one == 1 for one, _ in self._recent):
            return seconds <= self.target_s
        if seconds > _SHRINK_ABOVE * self._share * self.target_s:
            return False
        return not before or (size > before[-1][0] and seconds < 1.2 * before[-1][1])

    def timed_out(self, size: int, seconds: float, *, taken: int = 0) -> None:
        """Lower the size; a failure before the target time has another reason, and is ignored.

        `taken` is the accepted part of the batch; 0 if unknown, then all of it is assumed.
        """
        if not size or seconds < self.target_s:
            return
        before = self.size
        self._recent.clear()
        self._fixed_s = 0.0
        self._has_shrunk = True
        self._share = max(_LEAST_SHARE, self._share / _TIME_OUT_FACTOR)
        in_time = min((taken or size) * self._share * self.target_s / seconds, size / 2)
        self.size = min(self.size, max(1, int(in_time)))
        self._log_lowered(before, taken, seconds)

    def _grow(self, work_s: float) -> None:
        """Enlarge the size, but not beyond the amount that fits the target time at this rate."""
        target_s = self._share * self.target_s
        factor = _GROWTH_AFTER if self._has_shrunk or work_s > target_s else _GROWTH
        if work_s <= target_s < factor * work_s:
            factor = target_s / work_s
        self.size = min(self.max_size, max(self.size + 1, int(self.size * factor)))

    def _log_lowered(self, before: int, taken: int, seconds: float) -> None:
        if self.size >= before or (self._lowered is not None and self.size > self._lowered / 2):
            return  # it settles
        self._lowered = self.size
        if self._log is None:
            return
        self._log.warning(
            "batch_size_lowered",
            **self._fields,
            size=self.size,
            before=before,
            rate_per_s=round(taken / seconds, 1),
            took_s=round(seconds, 1),
            target_s=round(self._share * self.target_s, 1),
            advice=_LOWERED,
        )

    def _log_raised(self, taken: int, seconds: float) -> None:
        if self._lowered is None or self.size < 4 * self._lowered:
            return
        self._lowered = None
        rate = round(taken / max(seconds, 0.001), 1)
        if self._log is not None:
            self._log.info("batch_size_raised", **self._fields, size=self.size, rate_per_s=rate)


@contextmanager
def adjusting(
    batch: AdaptiveBatchSize,
    size: int,
    producer: Producer,
    clock: Clock,
    *,
    waited_s: float = 0.0,
) -> Iterator[None]:
    """Adjust a batch size by a block that waits until the brokers have a transaction.

    `waited_s` is the time that its records have waited for the brokers before.
    """
    begun_s, sent = clock.monotonic_s(), producer.in_flight
    try:
        yield
    except StreamsError:
        took_s = waited_s + clock.monotonic_s() - begun_s
        batch.timed_out(size, took_s, taken=acknowledged(size, sent=sent, left=producer.in_flight))
        raise
    batch.succeeded(size, waited_s + clock.monotonic_s() - begun_s)


def acknowledged(size: int, *, sent: int, left: int) -> int:
    """Estimate the accepted part of a batch from the records in flight after its send, and now.

    >>> acknowledged(10, sent=50, left=20), acknowledged(10, sent=0, left=0)
    (6, 0)
    """
    return int(size * (1 - min(left, sent) / sent)) if sent else 0
