"""Admin client for tools: state and offsets of groups, and deletion of topics and groups."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from headrace.streams.errors import FatalClientError, MissingTopicError, ResetRefusedError
from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.kafka.clients import result_within
from headrace.streams.kafka.denials import DENIED, denial
from headrace.streams.kafka.group_offsets import client_offsets, offsets_of, tp_of
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    GroupState,
    Member,
    Offsets,
    OffsetTarget,
    PartitionReplicas,
    TopicPartition,
)
from headrace.streams.kafka.reactions import GONE, Reaction, reaction_to

# The package offers this class without declaring it, which a strict type check refuses.
_Group: Any = confluent_kafka.ConsumerGroupTopicPartitions

_RETRY_S = 0.1
_TRANSACTION_MAX_MS = 900_000
_NOT_EMPTY = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.NON_EMPTY_GROUP,
    }
)


class GroupAdmin(LiveAdmin):
    """Admin client for groups of a real cluster (see `LiveAdmin` for the arguments)."""

    def members(self, group: str) -> tuple[Member, ...]:
        """Include members that are joining."""
        return tuple(self.group_state(group).members)

    def group_state(self, group: str) -> GroupState:
        """Raise GroupDeniedError without the ACL to see the group, and see `LiveAdmin`."""
        state = super().group_state(group)
        if state.state == "dead":
            # A group without an ACL is not listed; only this request raises the denial.
            self._await_coordinator(group)
        return state

    def _await_coordinator(self, group: str) -> None:
        self._ask(
            "describe the group",
            [group],
            lambda some, request_s: self._client.describe_consumer_groups(
                some, request_timeout=request_s
            ),
        )

    def committed(
        self, group: str, *, decided: bool, only: frozenset[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Raise ResetRefusedError if a transaction stays open for the whole time limit."""
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            listed = self._committed(group, decided=decided)
            offsets = [p for p in listed if only is None or tp_of(p) in only]
            failed = [p for p in offsets if p.error is not None]
            if not failed:
                return offsets_of(offsets)
            if time.monotonic() >= give_up_at:
                raise _undecided(group, failed)
            time.sleep(_RETRY_S)

    def committed_at(
        self, group: str, tps: Iterable[TopicPartition], *, decided: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        return self.committed(group, decided=decided, only=frozenset(tps))

    def undecided_offsets(self, group: str, tps: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions whose offset an open transaction may change."""
        # Partitions without a committed offset are included only if they are named.
        named = [confluent_kafka.TopicPartition(*tp) for tp in tps]
        offsets = self._committed(group, decided=True, named=named) if named else []
        return [tp_of(p) for p in offsets if p.error is not None]

    def _committed(self, group: str, *, decided: bool, named: list[Any] | None = None) -> list[Any]:
        # librdkafka crashes the process if the broker that receives the offset request is not the
        # group's coordinator: see `group_offsets`. This first request is merely repeated then.
        self._await_coordinator(group)
        answers = self._ask(
            "list the offsets of the group",
            [group],
            lambda some, request_s: self._client.list_consumer_group_offsets(
                [_Group(name, named) for name in some],
                require_stable=decided,
                request_timeout=request_s,
            ),
        )
        return list(answers[group].topic_partitions)

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        """Raise ResetRefusedError if the group has a member, MissingTopicError without topic."""
        if not offsets:
            return
        give_up_at = time.monotonic() + self._timeout_s
        while _is_temporary(results := self._altered(group, offsets)):
            if time.monotonic() >= give_up_at:
                break
            time.sleep(_RETRY_S)
        for tp in results:
            if tp.error is None:
                continue
            what = f"cannot set the offset of {tp.topic}-{tp.partition}: {tp.error.str()}"
            if tp.error.code() in _NOT_EMPTY:
                raise ResetRefusedError(
                    f"{what}; a worker of the application was started. Stop all workers"
                )
            if tp.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise MissingTopicError(f"{what}; was it deleted?", topics=[tp.topic])
            if tp.error.code() in DENIED:
                raise denial(tp.error, self._config, topic=tp.topic, group=group, right="Read")
            raise FatalClientError(what)

    def _altered(self, group: str, offsets: Offsets) -> list[Any]:
        answers = self._ask(
            "set the offsets of the group",
            [group],
            lambda some, request_s: self._client.alter_consumer_group_offsets(
                [_Group(name, client_offsets(offsets)) for name in some], request_timeout=request_s
            ),
        )
        return list(answers[group].topic_partitions)

    def layout(self, topic: str) -> list[PartitionReplicas]:
        description = self._described([topic])[topic]
        return [
            PartitionReplicas(
                one.id,
                -1 if one.leader is None else one.leader.id,
                tuple(node.id for node in one.replicas),
                tuple(node.id for node in one.isr),
            )
            for one in sorted(description.partitions, key=lambda one: one.id)
        ]

    def delete_groups(self, names: Iterable[str]) -> None:
        """Ignore missing groups; raise FatalClientError if a group has a member."""
        self._ask(
            "delete the group",
            names,
            lambda some, request_s: self._client.delete_consumer_groups(
                some, request_timeout=request_s
            ),
            ignored=frozenset({KafkaError.GROUP_ID_NOT_FOUND}),
        )

    def transaction_timeout_max_ms(self) -> int:
        """Return the brokers' transaction.max.timeout.ms, or Kafka's default if it is not known."""
        name = "transaction.max.timeout.ms"
        try:
            brokers = self._client.list_topics(timeout=self._request_s).brokers
            config = result_within(self._ask_broker(min(brokers)), 2 * self._request_s)
            return int(config[name].value)
        except (KafkaException, KeyError, TypeError, ValueError):
            return _TRANSACTION_MAX_MS

    def delete_topics(self, names: Iterable[str]) -> None:
        """Wait until the topics no longer exist; missing topics are ignored."""
        topics = list(names)
        self._ask(
            "delete",
            topics,
            lambda some, request_s: self._client.delete_topics(
                some, request_timeout=request_s, operation_timeout=request_s
            ),
            ignored=GONE,
        )
        give_up_at = time.monotonic() + self._timeout_s
        while topics and (left := self.describe(topics)):
            if time.monotonic() >= give_up_at:
                raise FatalClientError(
                    f"topics {', '.join(left)} still exist after deletion. Check the brokers' logs"
                )
            time.sleep(_RETRY_S)

    def offsets_for(
        self, target: OffsetTarget, tps: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Limit offsets to available offsets; a time after all records is the end offset."""
        asked = list(tps)
        starts, ends = self.start_offsets(asked), self.end_offsets(asked)
        if target.kind == "earliest":
            return starts
        if target.kind == "latest":
            return ends
        offsets: dict[TopicPartition, int | None] = dict.fromkeys(asked, target.number)
        if target.kind == "time":
            offsets = self.offsets_at(asked, target.number, committed=False)
        return {
            tp: ends[tp] if offset is None or offset < 0 else min(max(offset, starts[tp]), ends[tp])
            for tp, offset in offsets.items()
        }


class RetryingAdmin(LiveAdmin):
    """Admin client for repeated checks of a group by a process that survives broker failures."""

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        asked = list(partitions)
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            try:
                return super().committed_offsets(group, asked)
            except FatalClientError:
                if time.monotonic() >= give_up_at:
                    raise
            time.sleep(_RETRY_S)


def _is_temporary(tps: Iterable[Any]) -> bool:
    """Return whether offsets were rejected for a temporary reason, such as a moving coordinator."""
    errors = [tp.error for tp in tps if tp.error is not None]
    return any(reaction_to(error, "query") is Reaction.RETRY for error in errors)


def _undecided(group: str, tps: Iterable[Any]) -> ResetRefusedError:
    named = ", ".join(f"{tp.topic}-{tp.partition}" for tp in tps)
    return ResetRefusedError(
        f"a transaction on the offsets of {named} in the group {group} is open, perhaps because a "
        "worker was killed. Try again after the worker's producer.transaction.timeout.ms, when "
        "the broker has aborted it"
    )
