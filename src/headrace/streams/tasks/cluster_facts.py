"""What tasks ask of a cluster before they begin, answered by an admin client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import MissingTopicError
from headrace.streams.plan.topic_plan import did_you_mean
from headrace.streams.plan.topics import TopicAdmin, describe_twice
from headrace.streams.seams.clients import TopicPartition
from headrace.streams.seams.topic_facts import TopicFacts
from headrace.streams.tasks.restore_plan import ChangelogFacts
from headrace.topology.graph.graph import OffsetReset

DELETE_RETENTION_MS = 24 * 60 * 60 * 1000
"""Kafka's default of delete.retention.ms, where reading the topic's own is not allowed."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Answers the tasks' questions with an admin client.

    See `headrace.streams.tasks.slot.Facts`.
    """

    admin: TopicAdmin
    topics: MutableMapping[str, TopicFacts]
    from_earliest: bool
    resets: Mapping[str, OffsetReset] = field(default_factory=dict)
    """Where to begin with a topic, where that is not where all others begin."""

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

        From then on it is one of the application's topics.

        Raises:
            MissingTopicError: there is no such topic.
        """
        if topic not in self.topics:
            found = describe_twice(self.admin, [topic], {topic}, written={topic})
            if topic not in found:
                named = did_you_mean(topic, sorted(self.admin.names()))
                raise MissingTopicError(
                    f"topic {named}, which a function of the topology has named for a record, does "
                    "not exist; create it, or correct the function",
                    topics=[topic],
                )
            self.topics[topic] = found[topic]
        return self.topics[topic].partitions


def begins_earliest(config: StreamsConfig) -> bool:
    """Whether partitions without an offset are read from their beginning."""
    reset = config.consumer_config("").get("auto.offset.reset")
    return reset in ("earliest", "smallest", "beginning")
