"""What tasks ask of a cluster before they begin, answered by an admin client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from streams.clients import TopicPartition
from streams.errors import MissingTopicError
from streams.restore import ChangelogFacts
from streams.topic_plan import TopicFacts
from streams.topics import TopicAdmin
from topology.graph import OffsetReset

DELETE_RETENTION_MS = 24 * 60 * 60 * 1000
"""Kafka's default of delete.retention.ms, where reading the topic's own is not allowed."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Answers the tasks' questions with an admin client (see `streams.tasks.Facts`)."""

    admin: TopicAdmin
    topics: Mapping[str, TopicFacts]
    from_earliest: bool
    resets: Mapping[str, OffsetReset] = field(default_factory=dict)
    """Where to begin with a topic, where that is not where all others begin."""
    _counts: dict[str, int] = field(default_factory=dict)

    def changelogs(
        self, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ChangelogFacts]:
        """Ends and identities of changelog partitions, asked for now."""
        starts, ends = self.admin.start_offsets(places), self.admin.end_offsets(places)
        facts = {}
        for place in places:
            topic = self.topics[place.topic]
            kept_ms = topic.delete_retention_ms
            facts[place] = ChangelogFacts(
                topic.topic_id,
                starts[place],
                ends[place],
                DELETE_RETENTION_MS if kept_ms is None else kept_ms,
            )
        return facts

    def first_offsets(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to begin with partitions for which nothing was ever committed."""
        default: OffsetReset = "earliest" if self.from_earliest else "latest"
        late = [p for p in places if self.resets.get(p.topic, default) == "latest"]
        early = [place for place in places if place not in late]
        return {
            **(self.admin.start_offsets(early) if early else {}),
            **(self.admin.end_offsets(late) if late else {}),
        }

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The ids of those topics that exist, asked for now."""
        return {name: facts.topic_id for name, facts in self.admin.describe(topics).items()}

    def partitions_of(self, topic: str) -> int:
        """The partition count of a topic; one that was not described before is asked for, once.

        Raises:
            MissingTopicError: there is no such topic.
        """
        known = self.topics.get(topic)
        if known is not None:
            return known.partitions
        if topic not in self._counts:
            found = self.admin.describe([topic]).get(topic)
            if found is None:
                raise MissingTopicError(
                    f"topic {topic}, which the application writes to, does not exist; create it",
                    topics=[topic],
                )
            self._counts[topic] = found.partitions
        return self._counts[topic]
