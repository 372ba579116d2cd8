"""What stops a mirror beyond what stops applications; a person has to decide each time."""

from __future__ import annotations

from headrace.streams.plan.topic_errors import TopicReplacedError
from headrace.streams.seams.clients import TopicPartition
from headrace.streams.worker_errors import OffsetLostError


class MirroredTopicReplacedError(TopicReplacedError):
    """A topic that is mirrored was deleted and created anew, at the source or at the target.

    Nobody catches it: what was copied is of the old one, and offsets of it say nothing now.

    Args:
        where: the name of the cluster.

    Example:
        >>> print(MirroredTopicReplacedError("orders", "west", mirror="m",
        ...     before="mIZ3c7IdTReMqgcwdmKasA", now="TaV9E4cwSRaMmdzz6DDvkg"))
        topic orders of west was deleted and created anew: mirror m has copied the one with id \
mIZ3c7IdTReMqgcwdmKasA, and now its id is TaV9E4cwSRaMmdzz6DDvkg; nothing was copied since. Give \
the mirror another --name, and a --rename or an empty topic at the target, to copy the new \
one from its beginning
    """

    def __init__(self, topic: str, where: str, *, before: str, now: str, mirror: str) -> None:
        super().__init__(topic, before=before, now=now)
        self.where = where
        self.mirror = mirror

    def __str__(self) -> str:
        return (
            f"topic {self.topic} of {self.where} was deleted and created anew: mirror "
            f"{self.mirror} has copied the one with id {self.before}, and now its id is "
            f"{self.now}; nothing was copied since. Give the mirror another --name, and a "
            "--rename or an empty topic at the target, to copy the new one from its beginning"
        )


class RecordsLostError(OffsetLostError):
    """Records of the source were deleted before they were copied, or those that were are gone.

    Nobody catches it: the copy would lack records without anyone having said so.

    Args:
        position: the next offset to copy.
        begin: the offset of the first record that is there.
        end: the offset behind the last one.

    Example:
        >>> print(RecordsLostError(TopicPartition("orders", 0), "west", 10, begin=25, end=90))
        orders-0 of west begins at offset 25, and the next one to copy is 10: 15 offsets were \
deleted before they were copied; raise retention.ms there, and say --skip-lost to go on behind them
    """

    def __init__(
        self, place: TopicPartition, where: str, position: int, *, begin: int, end: int
    ) -> None:
        super().__init__(str(place), f"of {where}")
        self.place = place
        self._said = (
            f"{place} of {where} begins at offset {begin}, and the next one to copy is {position}: "
            f"{begin - position} offsets were deleted before they were copied; raise retention.ms "
            "there, and say --skip-lost to go on behind them"
        )
        if position > end:
            self._said = (
                f"{place} of {where} ends at offset {end}, and offsets up to {position} were "
                "copied: the source has lost records that the target has, as by a leader that "
                "lacked them; give the mirror another --name, and a --rename or an empty topic at "
                "the target, to copy what is there now"
            )

    def __str__(self) -> str:
        return self._said
