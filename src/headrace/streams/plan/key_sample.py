"""Check of key partitioning: compares the first keys of each input with Kafka's default hash.

This application partitions its output by Kafka's murmur2 hash, and so must all keys that have to
match it be partitioned. librdkafka uses another hash by default, so keys written by a Python
program with default settings never match, and no error is raised.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from headrace.state.codec import partition_for_key
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import Log, ReceivedMessage, TopicPartition
from headrace.streams.plan.plan import SubPlan, optimized
from headrace.topology.checks.key_mismatches import (
    KeyMismatch,
    copartitioned_inputs,
    key_mismatches,
)
from headrace.topology.checks.unnamed import UnnamedKey, unnamed_keys
from headrace.topology.errors import KeySerdeWarning
from headrace.topology.graph.combinable import FoldSeen, folds_of
from headrace.topology.graph.graph import SubTopology
from headrace.topology.topology import Topology

# Notes on a plan before it runs: keys that may not match, and mergers without effect.


def mismatches_of(topology: Topology, config: StreamsConfig) -> Iterator[KeyMismatch]:
    return key_mismatches(optimized(topology, config), config.default_key_serde)


def unnamed_keys_of(topology: Topology, config: StreamsConfig) -> Iterator[UnnamedKey]:
    return unnamed_keys(optimized(topology, config), config.default_key_serde)


def folds_as_run(topology: Topology, config: StreamsConfig) -> Iterator[FoldSeen]:
    """Yield the aggregations of grouped streams; state why some write no partial results."""
    for seen in folds_of(optimized(topology, config)):
        reason = config.why_not_combined(asks_user=seen.fold.asks_user)
        if seen.combining is None or reason is None:
            yield seen
        else:
            yield replace(seen, combining=None, reason=reason)


def log_plan_notes(topology: Topology, config: StreamsConfig, log: Log) -> None:
    for mismatch in mismatches_of(topology, config):
        log.warning("keys_may_not_match", store=mismatch.store, reason=str(mismatch))
    for seen in folds_as_run(topology, config):
        if seen.is_declared and seen.combining is None:
            call = seen.fold.word
            log.info("pre_aggregation_disabled", store=seen.store, call=call, reason=seen.reason)


def warn_of_keys(topology: Topology, config: StreamsConfig, *, above: int) -> None:
    """Warn of keys; `above` is the number of stack frames between this function and the test."""
    for finding in (*mismatches_of(topology, config), *unnamed_keys_of(topology, config)):
        warnings.warn(str(finding), KeySerdeWarning, stacklevel=above + 2)


SAMPLE = 300
"""Number of keys to check in each partition; a different hash shows within the first few."""


class KeySample:
    """Sample of input keys, to warn of keys that cannot match."""

    def __init__(self, plans: Sequence[SubPlan], partitions: Mapping[str, int], log: Log) -> None:
        subs = [plan.program.sub_topology for plan in plans]
        self._partitions = partitions
        self._topics = {t for t in _met_by_own(subs) if partitions.get(t, 1) > 1}
        self._left: dict[TopicPartition, int] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._log = log

    def add(self, tp: TopicPartition, records: Sequence[ReceivedMessage]) -> None:
        topic, partition = tp
        if topic not in self._topics:
            return
        left = self._left.get(tp, SAMPLE)
        if not left:
            return
        record_keys = (record.key() for record in records[:left])
        keys = [key for key in record_keys if key is not None]
        self._left[tp] = left - min(left, len(records))
        count = self._partitions[topic]
        others = sum(partition_for_key(key, count) != partition for key in keys)
        looked, astray = self._seen.get(topic, (0, 0))
        looked, astray = self._seen[topic] = looked + len(keys), astray + others
        if astray:
            self._topics.discard(topic)
            self._log.warning(
                "keys_partitioned_differently",
                topic=topic,
                partition=partition,
                keys=looked,
                elsewhere=astray,
                share=round(astray / looked, 2),
                reason=(
                    f"{astray} of the first {looked} keys of {topic} are in other partitions than "
                    "Kafka's hash of the key (murmur2) selects, so they do not match equal keys "
                    "that this application writes, and matches are lost without an error: set "
                    "partitioner=murmur2_random in the producer that writes the topic "
                    "(confluent-kafka and librdkafka use another hash by default) and write the "
                    "topic again, or send the stream through .repartition(); partitions that were "
                    "added to a topic have the same effect"
                ),
            )


def _met_by_own(subs: Iterable[SubTopology]) -> Iterator[str]:
    """Yield the external topics whose keys must match keys that the application writes."""
    subs = list(subs)
    sinks = [sink for sub in subs for sink in sub.sinks]
    chosen = {sink.topic for sink in sinks if sink.partitioner is not None}
    own_topics = {sink.topic for sink in sinks if isinstance(sink.topic, str)} - chosen
    for sub in subs:
        yield from copartitioned_inputs(sub, own=own_topics, chosen=chosen)
