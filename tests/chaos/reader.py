"""Reads everything that a run has left on a cluster and on disks: a live `History`.

To be called when the workers have ended. The brokers must be up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient

from tests.chaos.application import (
    INPUTS,
    OUTPUTS,
    REPARTITIONS,
    STORES,
    application_id,
    changelog_topic,
    repartition_topic,
    topic,
)
from tests.chaos.disks import read_stores
from tests.chaos.history import Committed, History, Log, Observations, Place, Record
from tests.chaos.markers import MARKER_KEY, write_markers
from tests.support import kafka

_TIMEOUT_S = 60
_AGAIN_S = 0.1
_BATCH = 10_000


def topic_names(prefix: str) -> dict[str, str]:
    """Each topic's name in a history, by its name on the cluster."""
    outside = {topic(prefix, name): name for name in (*INPUTS, *OUTPUTS)}
    return {
        **outside,
        **{repartition_topic(prefix, name): name for name in REPARTITIONS},
        **{changelog_topic(prefix, store): f"{store}-changelog" for store in STORES},
    }


def read_history(
    bootstrap: str,
    prefix: str,
    *,
    state_dirs: Iterable[str | Path] = (),
    observed: Mapping[Place, Observations] | None = None,
    marks: bool = True,
    patience_s: float = 15,
) -> History:
    """Read a run's history.

    Args:
        bootstrap: brokers to find the cluster by.
        prefix: in front of the run's names.
        state_dirs: the ``state.dir`` of each host of workers.
        observed: what a concurrent reader saw.
        marks: whether to write markers into whatever the application writes. It cannot be run
            again after that, as it would take them for data.
        patience_s: how long a marker may take to be handed out.

    Raises:
        KafkaException: the cluster does not answer.
    """
    names = topic_names(prefix)
    reader = TopicReader(bootstrap)
    logs = {
        Place(name, partition): log
        for full_name, name in names.items()
        for partition, log in reader.read(full_name).items()
    }
    reader.close()
    committed = _committed(bootstrap, prefix, names)
    written = [place for place in logs if place.topic not in INPUTS]
    places = {
        (full_name, place.partition): place
        for full_name, name in names.items()
        for place in written
        if place.topic == name
    }
    changelogs = {
        Place(place.topic.removesuffix("-changelog"), place.partition): log
        for place, log in logs.items()
        if place.topic.endswith("-changelog")
    }
    return History(
        logs={place: log for place, log in logs.items() if not _is_changelog(place)},
        changelogs=changelogs,
        committed=committed,
        stores=tuple(read_stores(prefix, state_dirs)),
        markers=write_markers(bootstrap, places, patience_s=patience_s) if marks else {},
        observed=observed or {},
    )


def _is_changelog(place: Place) -> bool:
    return place.topic.endswith("-changelog")


class TopicReader:
    """Reads whole topics, at both isolation levels.

    Args:
        bootstrap: brokers to find the cluster by.
    """

    def __init__(self, bootstrap: str) -> None:
        self._uncommitted = _consumer(bootstrap, "read_uncommitted")
        self._committed = _consumer(bootstrap, "read_committed")

    def close(self) -> None:
        """Let go of the brokers."""
        self._uncommitted.close()
        self._committed.close()

    def read(self, topic: str) -> dict[int, Log]:
        """Read all records of a topic, and which of them a reader of committed records gets."""
        logs = self._bounds(topic)
        keys: dict[bytes, bytes] = {}
        for message in _messages(self._uncommitted, topic, logs):
            key = message.key()
            partition, offset = _where(message)
            if key == MARKER_KEY or offset >= logs[partition].end:
                continue
            if key is not None:
                # Millions of records have some thousand keys.
                key = keys.setdefault(key, key)
            record = Record(offset, key, message.value(), message.timestamp()[1], False)
            logs[partition].append(record)
        _flag_committed(_messages(self._committed, topic, logs), logs)
        return logs

    def _bounds(self, topic: str) -> dict[int, Log]:
        """Empty logs, with start, end and last stable offset of each partition."""
        for consumer in (self._committed, self._uncommitted):
            known = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
            if known.error is not None:
                raise confluent_kafka.KafkaException(known.error)
        logs = {}
        for partition in sorted(known.partitions):
            place = confluent_kafka.TopicPartition(topic, partition)
            # The stable end first: what is written between the two looks open, and is seen.
            _, stable_end = _watermarks(self._committed, place)
            start, end = _watermarks(self._uncommitted, place)
            logs[partition] = Log(start=start, end=end, stable_end=stable_end)
        return logs


def _flag_committed(messages: Iterator[confluent_kafka.Message], logs: Mapping[int, Log]) -> None:
    next_index = dict.fromkeys(logs, 0)
    for message in messages:
        partition, offset = _where(message)
        log, index = logs[partition], next_index[partition]
        if message.key() == MARKER_KEY or offset >= log.end:
            continue
        while log.offsets[index] != offset:
            index += 1
        same = (message.key(), message.value()) == (log.keys[index], log.values[index])
        assert same, f"{message.topic()}-{partition}@{offset} read twice, with different bytes"
        log.committed[index] = True
        next_index[partition] = index + 1


def _where(message: confluent_kafka.Message) -> tuple[int, int]:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def _consumer(bootstrap: str, isolation: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-without-a-group",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 2,
            # The end of a partition is told after an empty answer.
            "fetch.wait.max.ms": 10,
            "queued.max.messages.kbytes": 65_536,
            "log_level": 2,
        }
    )


def _watermarks(
    consumer: confluent_kafka.Consumer, place: confluent_kafka.TopicPartition
) -> tuple[int, int]:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            found = consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)
            break
        except confluent_kafka.KafkaException:  # such as of a leader that has just changed
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_AGAIN_S)
    if found is None:
        raise TimeoutError(f"{place.topic}-{place.partition}: the brokers do not say its offsets")
    return found


def _messages(
    consumer: confluent_kafka.Consumer, topic: str, logs: Mapping[int, Log]
) -> Iterator[confluent_kafka.Message]:
    """Yield a topic's records from its start to its end."""
    unfinished = {partition for partition, log in logs.items() if log.start < log.end}
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, p, logs[p].start) for p in sorted(unfinished)]
    )
    while unfinished:
        for message in kafka.batch(consumer, _BATCH, 0.1):
            error = message.error()
            if error is None:
                yield message
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                unfinished.discard(_where(message)[0])
            elif not error.retriable():
                raise confluent_kafka.KafkaException(error)
    consumer.unassign()


def _committed(bootstrap: str, prefix: str, names: Mapping[str, str]) -> dict[Place, Committed]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    group = application_id(prefix)
    request = confluent_kafka.ConsumerGroupTopicPartitions(group)
    answer = admin.list_consumer_group_offsets([request])[group].result(_TIMEOUT_S)
    found: Sequence[confluent_kafka.TopicPartition] = answer.topic_partitions or []
    return {
        Place(names[p.topic], p.partition): Committed(p.offset, p.metadata or "")
        for p in found
        if p.offset >= 0 and p.topic in names
    }
