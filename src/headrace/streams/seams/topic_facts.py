"""What a cluster says of a topic, and what it is asked to make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_NO_LIMIT_MS = 2**63 - 1
"""Kafka's word for any time."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the cluster says of a topic; `config` is empty where reading it is not allowed."""

    name: str
    partitions: int
    topic_id: str
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def cleanup_policy(self) -> frozenset[str] | None:
        """The policies, without order: compact, delete or both."""
        policy = self.config.get("cleanup.policy")
        return None if policy is None else policies_of(policy)

    @property
    def max_message_bytes(self) -> int | None:
        """The largest record batch that the topic takes."""
        return self._number("max.message.bytes")

    @property
    def delete_retention_ms(self) -> int | None:
        """How long a tombstone stays after compaction, in milliseconds."""
        return self._number("delete.retention.ms")

    @property
    def retention_ms(self) -> int | None:
        """How long records stay where the policy deletes, in milliseconds; -1 is for ever."""
        return self._number("retention.ms")

    @property
    def min_compaction_lag_ms(self) -> int | None:
        """How long a record stays before it may be compacted, in milliseconds."""
        return self._number("min.compaction.lag.ms")

    @property
    def max_ahead_ms(self) -> int | None:
        """How far a timestamp may be ahead of the broker's clock; None is any time."""
        return self._time_limit("message.timestamp.after.max.ms")

    @property
    def max_behind_ms(self) -> int | None:
        """How far a timestamp may be behind the broker's clock; None is any time."""
        return self._time_limit("message.timestamp.before.max.ms")

    def _time_limit(self, name: str) -> int | None:
        """Return a limit; there is none where the broker replaces the timestamp by its own."""
        limit = self._number(name)
        is_replaced = self.config.get("message.timestamp.type") == "LogAppendTime"
        return None if is_replaced or limit == _NO_LIMIT_MS else limit

    def _number(self, name: str) -> int | None:
        value = self.config.get(name)
        return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """An internal topic as it should be; `because` says where its partition count comes from."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]
    because: str
    changelog: bool


def policies_of(policy: str) -> frozenset[str]:
    """The words of a cleanup.policy."""
    return frozenset(part.strip() for part in policy.split(",") if part.strip())
