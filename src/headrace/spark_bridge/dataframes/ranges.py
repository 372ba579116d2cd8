"""Offset ranges of a topic's partitions, fixed at the time of the call."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.spark_bridge.errors import ReadError
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import TopicPartition

if TYPE_CHECKING:
    from headrace.spark_bridge.dataframes.topic_rows import PartitionRange


def fixed_ranges(
    config: StreamsConfig, topic: str, *, to_commits: bool = False
) -> tuple[PartitionRange, ...]:
    """Read the current ranges; `to_commits` ends them at the application's committed offsets."""
    from headrace.spark_bridge.dataframes.topic_rows import PartitionRange
    from headrace.streams.kafka.connectivity import reach
    from headrace.streams.kafka.group_admin import GroupAdmin
    from headrace.streams.plan.topics import describe_as

    reach(config.admin_config())
    admin = GroupAdmin(config.admin_config(), timeout_s=config.task_timeout_ms / 1000)
    facts = describe_as(admin, [topic]).get(topic)
    if facts is None:
        raise ReadError(f"topic {topic} does not exist{nearest(topic, admin.names())}")
    tps = [TopicPartition(topic, number) for number in range(facts.partitions)]
    starts, ends = admin.start_offsets(tps), admin.stable_offsets(tps)
    if to_commits:
        committed = admin.committed(config.application_id, decided=True)
        reached = {tp: committed[tp].offset if tp in committed else 0 for tp in tps}
        ends = {tp: min(end, reached[tp]) for tp, end in ends.items()}
    return tuple(PartitionRange(tp, starts[tp], ends[tp]) for tp in tps)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the most similar known name, or an empty text."""
    found = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""
