"""What is measured of a worker from outside of its loop: a seam, and silent but on a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec


class Usage(NamedTuple):
    """What the worker's process has used; None where the system does not tell."""

    cpu_s: float | None = None
    memory_bytes: int | None = None


class NodeKey(NamedTuple):
    """Where a worker's thread was seen: in a node, or in a function of the user that it called."""

    sub_topology: int
    node: str
    is_user: bool


@dataclass(frozen=True, slots=True)
class Times:
    """About how long the worker's thread was where, in seconds.

    Args:
        nodes: in nodes of the topology.
        busy: by what it did, nodes included as "process".
    """

    nodes: Mapping[NodeKey, float] = field(default_factory=dict)
    busy: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measures:
    """Measurements of a worker from outside its loop; empty without a cluster.

    Args:
        sent: the records that were sent to each topic.
        are_served: whether the producer has those to tell, and is to be asked now and then.
    """

    usage: Callable[[], Usage] = Usage
    times: Callable[[], Times] = Times
    sent: Callable[[], Mapping[str, int]] = dict
    are_served: bool = False


NOTHING_MEASURED = Measures()


SENT_EVERY_MS = 2_000
"""How often librdkafka tells what it has sent, in the thread that serves its callbacks."""


class _Partition(msgspec.Struct):
    txmsgs: int = 0


class _Topic(msgspec.Struct):
    partitions: dict[str, _Partition] = {}


class _Statistics(msgspec.Struct):
    topics: dict[str, _Topic] = {}


class SentRecords:
    """Records by topic, those of aborted transactions included, of one producer after another.

    librdkafka's own statistics have them, so nothing is done for a record or for a commit.

    >>> sent = SentRecords()
    >>> sent.hearing({})["stats_cb"]('{"topics": {"out": {"partitions": {"0": {"txmsgs": 7}}}}}')
    >>> sent.totals()
    {'out': 7}
    """

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._present: dict[str, int] = {}
        self._decode = msgspec.json.Decoder(_Statistics).decode

    def totals(self) -> Mapping[str, int]:
        """What is known so far."""
        return _sum(self._before, self._present)

    def hearing(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of the next producer, which tells what it sends; the one before has ended.

        Args:
            settings: its others. Statistics that they ask for go to their function, too.
        """
        self._before, self._present = _sum(self._before, self._present), {}
        told: Callable[[str], object] | None = settings.get("stats_cb")

        def heard(text: str) -> None:
            topics = self._decode(text).topics
            sent = {
                name: sum(one.txmsgs for one in topic.partitions.values())
                for name, topic in topics.items()
            }
            # A producer also knows topics that it has only asked about.
            self._present = {name: count for name, count in sent.items() if count}
            if told is not None:
                told(text)

        every = settings.get("statistics.interval.ms") or SENT_EVERY_MS
        return {**settings, "statistics.interval.ms": every, "stats_cb": heard}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


# What this process uses of the machine.


_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process_usage() -> Usage:
    """Processor time, and resident memory where the system tells it cheaply.

    >>> process_usage().cpu_s > 0
    True
    """
    try:
        pages = int(_STATM.read_text().split()[1])
    except OSError:  # not Linux
        return Usage(time.process_time(), None)
    return Usage(time.process_time(), pages * _PAGE_BYTES)
