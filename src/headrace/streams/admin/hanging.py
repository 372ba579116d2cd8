"""Detection of hanging transactions, and their end by another transaction of the same producer.

If the brokers have lost the end of a transaction, its marker is never written, and consumers of
committed records read nothing after its start. A partition has at most one open transaction per
producer. So another transaction of the same `transactional.id` that writes to the same partitions,
and to the same group's offsets, and is then aborted, ends the old transaction as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.clients import BrokerState, new_consumer, new_transactional_producer
from headrace.streams.kafka.protocols import GroupAdminClient, TopicPartition

KEY = b"headrace.ends-a-transaction"
"""Key of the aborted records; compacted topics reject records without a key."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """Partitions and offsets that open transactions hold back.

    Args:
        partitions: partitions, with the last stable offset and the end offset.
        offsets: partitions with a pending offset of the group.
    """

    partitions: Mapping[TopicPartition, tuple[int, int]]
    offsets: Sequence[TopicPartition]

    @property
    def is_empty(self) -> bool:
        return not self.partitions and not self.offsets

    def has_progressed(self, before: Undecided) -> bool:
        """Return whether a partition or offset that was held back before is free now."""
        is_same = self.partitions.keys() >= before.partitions.keys()
        return not is_same or not set(self.offsets) >= set(before.offsets)


def find_undecided(
    cluster: GroupAdminClient, group: str, topics: Iterable[str], *, inputs: Iterable[str]
) -> Undecided:
    """Ignore missing topics; the group has offsets for the partitions of `inputs`."""
    looked, read = frozenset(topics), frozenset(inputs)
    counts = cluster.partition_counts(looked | read)
    known = [TopicPartition(name, n) for name, count in counts.items() for n in range(count)]
    tps = [tp for tp in known if tp.topic in looked]
    # Ends first: a stable offset that moves meanwhile cannot make a finished transaction look open.
    ends, stable = cluster.end_offsets(tps), cluster.stable_offsets(tps)
    open_ones = {p: (stable[p], ends[p]) for p in sorted(tps) if stable[p] < ends[p]}
    read_tps = [tp for tp in known if tp.topic in read]
    return Undecided(open_ones, sorted(cluster.undecided_offsets(group, read_tps)))


def end_transactions(
    settings: Mapping[str, Any],
    undecided: Undecided,
    *,
    member: Mapping[str, Any],
    timeout_s: float,
) -> None:
    """Abort a worker's open transactions; a running worker with this identity is fenced.

    `member` configures a consumer of the group, which it does not join.
    """
    offsets = [confluent_kafka.TopicPartition(*tp, 0) for tp in undecided.offsets]
    failed: list[KafkaError] = []

    def reported(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error)

    consumer = new_consumer(member, BrokerState())
    try:
        producer = new_transactional_producer(settings, BrokerState())
        producer.init_transactions(timeout_s)
        producer.begin_transaction()
        for topic, partition in undecided.partitions:
            producer.produce(topic, None, KEY, partition, on_delivery=reported)
        if offsets:
            group = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(offsets, group, timeout_s)
        # A broker learns of the transaction from the records written in it.
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
