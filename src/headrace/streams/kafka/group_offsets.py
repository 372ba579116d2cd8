"""Offsets of a group without members, through a consumer that never joins it.

An admin client could do the same, but librdkafka 2.16 crashes the process if the group's
coordinator moves during an offset request: it accesses a group handle that only consumers have.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from headrace.streams.config.secrets import revealed
from headrace.streams.errors import FatalClientError, StopRequestedError
from headrace.streams.kafka.clients import BrokerState, new_consumer
from headrace.streams.kafka.denials import denial
from headrace.streams.kafka.offset_texts import text_of
from headrace.streams.kafka.protocols import CommittedOffset, Offsets, TopicPartition
from headrace.streams.kafka.reactions import Reaction, reaction_to

T = TypeVar("T")

_REQUEST_S = 5.0
_FIRST_S = 1.0
"""Short first timeout: a denied group does not answer, and the denial is reported only afterwards.
"""
_WAIT_S = 0.2


class MemberlessGroup:
    """Client that reads and commits offsets of a group without joining it.

    It implements `headrace.streams.kafka.protocols.OffsetClient`. `config` has no group.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout_s: float,
        stopping: Callable[[], bool],
        brokers: BrokerState | None = None,
        waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._stopping = stopping
        self._brokers = brokers or BrokerState()
        self._waiting = waiting

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        """Return only the offsets at partition 0 of every topic."""
        return self.committed_at(group, (), decided=decided, topics_max=sys.maxsize)

    def committed_at(
        self,
        group: str,
        tps: Iterable[TopicPartition],
        *,
        decided: bool = True,
        topics_max: int = 0,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Request also partition 0 of every topic in a cluster of at most `topics_max` topics."""
        requested = list(tps)

        def read(
            consumer: confluent_kafka.Consumer, within_s: float
        ) -> list[confluent_kafka.TopicPartition]:
            wanted = [confluent_kafka.TopicPartition(*tp) for tp in requested]
            topics = consumer.list_topics(timeout=_REQUEST_S).topics if topics_max else {}
            if len(topics) <= topics_max:
                heads = {TopicPartition(name, 0) for name in topics} - set(requested)
                wanted += [confluent_kafka.TopicPartition(*tp) for tp in sorted(heads)]
            return _settled(consumer.committed(wanted, timeout=within_s) if wanted else [])

        return offsets_of(self._repeat(group, "read the offsets of", read, decided=decided))

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        tps = client_offsets(offsets)
        self._repeat(
            group,
            "set the offsets of",
            lambda consumer, _: _accepted(consumer.commit(offsets=tps, asynchronous=False)),
        )

    def _repeat(
        self,
        group: str,
        action: str,
        call: Callable[[confluent_kafka.Consumer, float], T],
        *,
        decided: bool = True,
    ) -> T:
        begun_s = time.monotonic()
        consumer = _consumer_of(group, self._config, self._brokers, decided=decided)
        within_s = _FIRST_S
        try:
            while True:
                try:
                    return call(consumer, within_s)
                except KafkaException as error:
                    cause = _cause_of(consumer, error.args[0])
                    reaction = reaction_to(cause, "query")
                    if reaction is Reaction.DENIED:
                        raise denial(cause, self._config, group=group, right="Read") from error
                    is_over = time.monotonic() - begun_s > self._timeout_s and not self._waiting()
                    if reaction is not Reaction.RETRY or is_over:
                        what = f"cannot {action} the group {group}: {cause.str()}"
                        raise FatalClientError(f"{what}{self._brokers.failures_note()}") from error
                if self._stopping():
                    raise StopRequestedError(f"stopped while waiting to {action} {group}")
                within_s = _REQUEST_S
                time.sleep(_WAIT_S)
        finally:
            consumer.close()


class OpenGroup:
    """Client for repeated reads of a group's offsets over a single connection."""

    def __init__(
        self, config: Mapping[str, Any], group: str, *, brokers: BrokerState | None = None
    ) -> None:
        self._config = config
        self._group = group
        self._consumer = _consumer_of(group, config, brokers or BrokerState(), decided=False)

    def committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Raise FatalClientError immediately, without retries."""
        requested = [confluent_kafka.TopicPartition(*tp) for tp in tps]
        try:
            return offsets_of(_settled(self._consumer.committed(requested, timeout=_REQUEST_S)))
        except KafkaException as error:
            cause = _cause_of(self._consumer, error.args[0])
            if reaction_to(cause, "query") is Reaction.DENIED:
                raise denial(cause, self._config, group=self._group, right="Read") from error
            raise FatalClientError(f"cannot read {self._group}: {cause.str()}") from error

    def close(self) -> None:
        self._consumer.close()


def _consumer_of(
    group: str, config: Mapping[str, Any], brokers: BrokerState, *, decided: bool
) -> confluent_kafka.Consumer:
    settings = {
        **revealed(config),
        "group.id": group,
        "enable.auto.commit": False,
        # The client requests stable offsets only at the level read_committed.
        "isolation.level": "read_committed" if decided else "read_uncommitted",
    }
    return new_consumer(settings, brokers)


def _cause_of(consumer: confluent_kafka.Consumer, error: KafkaError) -> KafkaError:
    """Return the cause of an error: requests for a denied group time out, polls have the reason."""
    while (message := consumer.poll(0)) is not None:
        reported = message.error()
        if reported is not None and reaction_to(reported, "query") is Reaction.DENIED:
            return reported
    return error


def tp_of(position: confluent_kafka.TopicPartition) -> TopicPartition:
    return TopicPartition(position.topic, position.partition)


def client_offsets(offsets: Offsets) -> list[confluent_kafka.TopicPartition]:
    return [
        confluent_kafka.TopicPartition(tp.topic, tp.partition, c.offset, c.metadata)
        for tp, c in offsets.items()
    ]


def offsets_of(
    tps: Iterable[confluent_kafka.TopicPartition],
) -> dict[TopicPartition, CommittedOffset]:
    return {
        tp_of(p): CommittedOffset(p.offset, text_of(p))
        for p in tps
        if p.error is None and p.offset >= 0
    }


def _accepted(tps: Iterable[confluent_kafka.TopicPartition] | None) -> None:
    for tp in tps or ():
        if tp.error is not None:
            raise KafkaException(tp.error)


def _settled(
    tps: list[confluent_kafka.TopicPartition],
) -> list[confluent_kafka.TopicPartition]:
    """Raise the error of any partition that must be requested again."""
    for tp in tps:
        if tp.error is not None and reaction_to(tp.error, "query") is Reaction.RETRY:
            raise KafkaException(tp.error)
    return tps
