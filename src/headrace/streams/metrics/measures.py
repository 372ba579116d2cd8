"""Measurements of a worker from outside its loop; all are empty without a cluster."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec


class Usage(NamedTuple):
    """Resource usage of the worker's process; None if the system does not provide it."""

    cpu_s: float | None = None
    memory_bytes: int | None = None


class NodeKey(NamedTuple):
    """Location of a sample: a node, or a user function that the node called."""

    sub_topology: int
    node: str
    is_user: bool


@dataclass(frozen=True, slots=True)
class Times:
    """Approximate time of the worker's thread by location, in seconds.

    Args:
        nodes: time in nodes of the topology.
        busy: time by activity, with all nodes as "process".
    """

    nodes: Mapping[NodeKey, float] = field(default_factory=dict)
    busy: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measures:
    """Measurements of a worker from outside its loop; empty without a cluster.

    Args:
        sent: returns the records sent to each topic.
        are_served: whether the producer must be polled regularly for `sent`.
    """

    usage: Callable[[], Usage] = Usage
    times: Callable[[], Times] = Times
    sent: Callable[[], Mapping[str, int]] = dict
    are_served: bool = False


NOTHING_MEASURED = Measures()


SENT_EVERY_MS = 2_000
"""Interval of librdkafka's statistics, which arrive in the thread that polls for callbacks."""


class _PartitionStatistics(msgspec.Struct):
    txmsgs: int = 0


class _TopicStatistics(msgspec.Struct):
    partitions: dict[str, _PartitionStatistics] = {}


class _Statistics(msgspec.Struct):
    topics: dict[str, _TopicStatistics] = {}


_decode_statistics = msgspec.json.Decoder(_Statistics).decode


class SentRecords:
    """Sent records by topic, including aborted transactions, over consecutive producers.

    They come from librdkafka's statistics, without any work per record or commit.

    >>> sent = SentRecords()
    >>> sent.attach({})["stats_cb"]('{"topics": {"out": {"partitions": {"0": {"txmsgs": 7}}}}}')
    >>> sent.totals()
    Counter({'out': 7})
    """

    def __init__(self) -> None:
        self._before: Counter[str] = Counter()
        self._present: Counter[str] = Counter()

    def totals(self) -> Mapping[str, int]:
        return self._before + self._present

    def attach(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the next producer; its own statistics callback is called, too."""
        self._before, self._present = self._before + self._present, Counter()
        user_callback: Callable[[str], object] | None = settings.get("stats_cb")

        def on_statistics(text: str) -> None:
            topics = _decode_statistics(text).topics
            sent = {
                name: sum(one.txmsgs for one in topic.partitions.values())
                for name, topic in topics.items()
            }
            # A producer also knows topics of which it has only requested metadata.
            self._present = Counter({name: count for name, count in sent.items() if count})
            if user_callback is not None:
                user_callback(text)

        every = settings.get("statistics.interval.ms") or SENT_EVERY_MS
        return {**settings, "statistics.interval.ms": every, "stats_cb": on_statistics}


# Resource usage of this process.


_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process_usage() -> Usage:
    """Return the processor time, and the resident memory if the system provides it cheaply.

    >>> process_usage().cpu_s > 0
    True
    """
    try:
        pages = int(_STATM.read_text().split()[1])
    except OSError:  # not Linux
        return Usage(time.process_time(), None)
    return Usage(time.process_time(), pages * _PAGE_BYTES)
