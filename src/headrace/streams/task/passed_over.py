"""The records of one task that somebody has said are to be left out.

Hot path: `of` is called with every batch, and does nothing where no record is to be left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.streams.plan.left_out import left_out, left_out_values
from headrace.streams.plan.progress import Progress
from headrace.streams.seams.clients import Log, ReceivedMessage, TopicPartition


class PassedOver:
    """See the module.

    Args:
        progress: what was committed, by input partition.
        log: told of each record.
    """

    def __init__(
        self, progress: Mapping[TopicPartition, Progress], task_id: str, log: Log | None
    ) -> None:
        found = {place: frozenset(left_out(p.values)) for place, p in progress.items()}
        self._offsets = {place: offsets for place, offsets in found.items() if offsets}
        self._task_id = task_id
        self._log = log

    def of(
        self, place: TopicPartition, records: Sequence[ReceivedMessage]
    ) -> Sequence[ReceivedMessage]:
        """A batch without them."""
        if not self._offsets:
            return records
        offsets = self._offsets.get(place, frozenset())
        kept = [record for record in records if record.offset() not in offsets]
        if len(kept) == len(records):
            return records
        for record in records:
            if record.offset() in offsets and self._log is not None:
                self._log.warning(
                    "record_left_out",
                    task=self._task_id,
                    topic=place.topic,
                    partition=place.partition,
                    offset=record.offset(),
                    reason="headrace skip said so",
                )
        return kept

    def values(self, place: TopicPartition, offset: int) -> dict[str, int]:
        """The numbers to commit beside an offset: of those that are still to come."""
        if not self._offsets:
            return {}
        return left_out_values(o for o in self._offsets.get(place, ()) if o >= offset)
