"""Says which partitions hold a committed record: that a transaction is committed, and not begun."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from headrace.streams.errors import FatalClientError
from headrace.streams.plan.topics import TopicAdmin
from headrace.streams.seams.clients import Clock, Consumer, TopicPartition
from headrace.streams.seams.place_ranges import named_places
from headrace.streams.worker_errors import OffsetLostError

_POLL_S = 0.1
_RECORDS = 500
_PAUSE_S = 1.0
_TRIES = 5
"""How often partitions are looked at that are shortened meanwhile."""


class CommittedRecords:
    """Reads partitions up to their first committed record.

    That a partition has an end says nothing: aborted transactions move it. Nothing is waited for:
    what is behind the last stable offset is not decided, and so not committed.

    Args:
        make_consumer: makes one without a group that reads committed records; called only where
            something is to be read.
    """

    def __init__(
        self, make_consumer: Callable[[], Consumer], *, clock: Clock, timeout_s: float
    ) -> None:
        self._make_consumer = make_consumer
        self._clock = clock
        self._timeout_s = timeout_s

    def pause(self) -> None:
        """Wait for what follows on records at once."""
        self._clock.sleep(_PAUSE_S)

    def among(self, admin: TopicAdmin, places: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those of some partitions that hold a committed record now.

        Raises:
            FatalClientError: the brokers did not hand out what they have.
        """
        left = sorted(set(places))
        for _ in range(_TRIES):
            ends, starts = admin.stable_offsets(left), admin.start_offsets(left)
            left = [place for place in left if starts[place] < ends[place]]
            if not left:
                return set()
            try:
                return self._read({place: starts[place] for place in left}, ends)
            except OffsetLostError:
                continue  # somebody deleted records since they were asked for
        raise FatalClientError(
            f"records of {named_places(left)} were deleted again and again while they were looked "
            "for; see who deletes them, and start again"
        )

    def _read(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> set[TopicPartition]:
        found: set[TopicPartition] = set()
        left = dict(starts)
        give_up_at_s = self._clock.monotonic_s() + self._timeout_s
        consumer = self._make_consumer()
        try:
            consumer.add(left)
            while left:
                batches = consumer.poll(_RECORDS, _POLL_S)
                positions = consumer.positions(list(left))
                over = [p for p in left if p in batches or positions.get(p, -1) >= ends[p]]
                found |= batches.keys() & left.keys()
                consumer.remove(over)
                for place in over:
                    del left[place]
                if left and self._clock.monotonic_s() > give_up_at_s:
                    raise FatalClientError(
                        f"cannot read {named_places(left)}, for {self._timeout_s:.0f} s; see that "
                        "the brokers at bootstrap.servers are up, or raise task.timeout.ms"
                    )
        finally:
            consumer.close(leave=False)
        return found
