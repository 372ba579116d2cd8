"""Errors about topics that are not the ones that offsets and state belong to."""

from __future__ import annotations

from collections.abc import Mapping

from streams.errors import StreamsError
from streams.topic_identity import same_topic, shown

__all__ = ["TopicReplacedError", "require_same"]


class TopicReplacedError(StreamsError):
    """An input topic was deleted and created anew: what was read of the old one says nothing now.

    Nobody catches it: where to begin with the new topic is for a person to decide, and an offset of
    the old one would leave records out.

    Args:
        topic: its name.
        before: the id of the topic that was read.
        now: the id of the topic that is there.

    Example:
        >>> print(TopicReplacedError("orders", before="mIZ3c7IdTReMqgcwdmKasA",
        ...     now="TaV9E4cwSRaMmdzz6DDvkg"))
        topic orders was deleted and created anew: the application has read the one with id \
mIZ3c7IdTReMqgcwdmKasA, and now its id is TaV9E4cwSRaMmdzz6DDvkg; nothing of the new one is \
committed. Stop all workers. To begin anew, run headrace reset; to keep the state and read the new \
topic behind it, set the group's offsets of orders with kafka-consumer-groups --reset-offsets \
--to-earliest
    """

    def __init__(self, topic: str, *, before: str, now: str) -> None:
        super().__init__(topic, before, now)
        self.topic = topic
        self.before = shown(before)
        self.now = shown(now)

    def __str__(self) -> str:
        return (
            f"topic {self.topic} was deleted and created anew: the application has read the one "
            f"with id {self.before}, and now its id is {self.now}; nothing of the new one is "
            "committed. Stop all workers. To begin anew, run headrace reset; to keep the state and "
            f"read the new topic behind it, set the group's offsets of {self.topic} with "
            "kafka-consumer-groups --reset-offsets --to-earliest"
        )


def require_same(known: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Compare the ids of topics; one that is not there is no other one.

    Raises:
        TopicReplacedError: a topic is another one.
    """
    for topic, now in found.items():
        before = known.get(topic)
        if before is not None and not same_topic(before, now):
            raise TopicReplacedError(topic, before=before, now=now)
