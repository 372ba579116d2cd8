"""Transactions that never end: found, and ended by another one of the same worker.

Where the brokers have lost the end of a transaction no marker of it comes any more, and nothing is
read of what stands behind its begin. A broker knows one open transaction of a producer in a
partition. So one more transaction of the same `transactional.id` that writes to the same
partitions, and to the same group's offsets, and is aborted, ends the old one with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.connectivity import (
    BrokerState,
    new_consumer,
    new_transactional_producer,
)
from headrace.streams.kafka.protocols import TopicPartition

KEY = b"headrace.ends-a-transaction"
"""Of the records that are aborted: compacted topics take none without a key."""


class Cluster(Protocol):
    """What is asked; a live one is `headrace.streams.kafka.group_admin.GroupAdmin`."""

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """How many partitions those topics have that exist."""

    def stable_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Behind everything whose transaction is decided."""

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Behind the last record."""

    def undecided_offsets(
        self, group: str, places: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """Those places whose offset in the group an open transaction may change."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """What open transactions hold back.

    Args:
        places: partitions, with the last stable offset and the end.
        offsets: places whose offset in the group is.
    """

    places: Mapping[TopicPartition, tuple[int, int]]
    offsets: Sequence[TopicPartition]

    @property
    def is_nothing(self) -> bool:
        """Whether all is decided."""
        return not self.places and not self.offsets

    def is_less_than(self, before: Undecided) -> bool:
        """Whether some of what was held back before is not any more."""
        is_same = self.places.keys() >= before.places.keys()
        return not is_same or not set(self.offsets) >= set(before.offsets)


def find_undecided(
    cluster: Cluster, group: str, topics: Iterable[str], *, inputs: Iterable[str]
) -> Undecided:
    """Find what open transactions hold back.

    Args:
        topics: in whose records; those that do not exist have none.
        inputs: at whose partitions the group has offsets.
    """
    looked, read = frozenset(topics), frozenset(inputs)
    counts = cluster.partition_counts(looked | read)
    known = [TopicPartition(name, n) for name, count in counts.items() for n in range(count)]
    places = [place for place in known if place.topic in looked]
    # In this order an end is never behind a stable offset that has moved meanwhile.
    ends, stable = cluster.end_offsets(places), cluster.stable_offsets(places)
    open_ones = {p: (stable[p], ends[p]) for p in sorted(places) if stable[p] < ends[p]}
    read_places = [place for place in known if place.topic in read]
    return Undecided(open_ones, sorted(cluster.undecided_offsets(group, read_places)))


def end_transactions(
    settings: Mapping[str, Any],
    undecided: Undecided,
    *,
    member: Mapping[str, Any],
    timeout_s: float,
) -> None:
    """Have what one worker left open aborted; a worker of this identity that runs is fenced.

    Args:
        settings: those of the worker's producer.
        undecided: where to end it.
        member: settings of a consumer of the group; it joins nothing.
        timeout_s: how long each call may take, in seconds.

    Raises:
        FatalClientError: the brokers refuse it, or do not answer.
    """
    offsets = [confluent_kafka.TopicPartition(*place, 0) for place in undecided.offsets]
    failed: list[KafkaError] = []

    def reported(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error)

    consumer = new_consumer(member, BrokerState())
    try:
        producer = new_transactional_producer(settings, BrokerState())
        producer.init_transactions(timeout_s)
        producer.begin_transaction()
        for topic, partition in undecided.places:
            producer.produce(topic, None, KEY, partition, on_delivery=reported)
        if offsets:
            group = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(offsets, group, timeout_s)
        # The brokers hear of a transaction with what is written in it.
        is_late = producer.flush(timeout_s) > 0
        producer.abort_transaction(timeout_s)
        if failed or is_late:
            raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))
    except KafkaException as error:
        raise FatalClientError(
            f"the transactions of {settings['transactional.id']} cannot be ended: "
            f"{error.args[0].str()}"
        ) from error
    finally:
        consumer.close()
