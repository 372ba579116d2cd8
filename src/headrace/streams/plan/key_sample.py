"""Looks whether keys of inputs lie where Kafka's own hash puts them, by the first records of each.

What this application writes lies by that hash, and so do the keys that meet it. librdkafka's own
hash is another one, so keys that a program in Python has written with its defaults never meet them,
without an error anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace.state.codec import partition_for_key
from headrace.streams.plan.plan import SubPlan
from headrace.streams.seams.clients import Log, ReceivedMessage, TopicPartition
from headrace.topology.checks.key_meetings import inputs_that_meet
from headrace.topology.graph.graph import SubTopology

SAMPLE = 300
"""Keys to look at in each partition: another hash shows in the first few of them."""


class KeySample:
    """See the module."""

    def __init__(self, plans: Sequence[SubPlan], partitions: Mapping[str, int], log: Log) -> None:
        subs = [plan.program.sub_topology for plan in plans]
        self._partitions = partitions
        self._topics = {t for t in _met_by_own(subs) if partitions.get(t, 1) > 1}
        self._left: dict[TopicPartition, int] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._log = log

    def look(self, place: TopicPartition, records: Sequence[ReceivedMessage]) -> None:
        """Look at records that a task gets, while its partition's sample lasts."""
        topic, partition = place
        if topic not in self._topics:
            return
        left = self._left.get(place, SAMPLE)
        if not left:
            return
        found = (record.key() for record in records[:left])
        keys = [key for key in found if key is not None]
        self._left[place] = left - min(left, len(records))
        count = self._partitions[topic]
        others = sum(partition_for_key(key, count) != partition for key in keys)
        looked, astray = self._seen.get(topic, (0, 0))
        looked, astray = self._seen[topic] = looked + len(keys), astray + others
        if astray:
            self._topics.discard(topic)
            self._log.warning(
                "keys_partitioned_otherwise",
                topic=topic,
                partition=partition,
                keys=looked,
                elsewhere=astray,
                share=round(astray / looked, 2),
                reason=(
                    f"{astray} of the first {looked} keys of {topic} lie in other partitions than "
                    "Kafka's hash of the key (murmur2) gives, so they do not meet equal keys that "
                    "this application writes, and matches are lost without an error: set "
                    "partitioner=murmur2_random in the producer that writes the topic "
                    "(confluent-kafka and librdkafka take another hash unless they are told) and "
                    "write it anew, or send the stream through .repartition(); a topic that was "
                    "given more partitions is the same case"
                ),
            )


def _met_by_own(subs: Iterable[SubTopology]) -> Iterator[str]:
    """The topics of others whose keys meet keys that the application writes by Kafka's hash."""
    subs = list(subs)
    sinks = [sink for sub in subs for sink in sub.sinks]
    chosen = {sink.topic for sink in sinks if sink.partitioner is not None}
    own = {sink.topic for sink in sinks if isinstance(sink.topic, str)} - chosen
    for sub in subs:
        yield from inputs_that_meet(sub, own=own, chosen=chosen)
