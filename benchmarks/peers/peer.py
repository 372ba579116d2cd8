"""A variant: the peer that runs a job, and its settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.streams.devbroker.jars import KAFKA_VERSION

Guarantee = Literal["exactly_once_v2", "at_least_once"]
Peer = Literal[
    "headrace",
    "checkout",
    "kafka-streams",
    "kafka-streams next",
    "kafka-streams next transactional",
    "by hand",
    "quix",
]

CACHE_BYTES = 10 * 1024 * 1024
"""Default of Kafka Streams and of Headrace."""
COMMIT_MS = 100
STREAMS_VERSION, NEXT_STREAMS_VERSION = KAFKA_VERSION, "4.4.0"
"""Versions of `kafka-streams` and of `kafka-streams next`; the second has transactional stores."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a job.

    Args:
        peer: name of the peer.
        guarantee: processing guarantee; the commit interval is the same for both.
        caches: one output per key and commit; otherwise each update is written.
        workers: number of threads of a JVM, or of processes of Python.
        combined: whether counts are aggregated before the repartition topic. Only for hand-written
            consumers: Headrace does so automatically with caches, and Kafka Streams cannot.
        repeated: whether it runs in every round, so that its ratios are reported.
    """

    peer: Peer
    guarantee: Guarantee = "exactly_once_v2"
    caches: bool = True
    workers: int = 1
    combined: bool = False
    repeated: bool = True

    @property
    def settings(self) -> str:
        """Settings without the peer; runs of equal settings are compared."""
        promise = "exactly-once" if self.guarantee == "exactly_once_v2" else "at-least-once"
        many = f", {self.workers} workers" if self.workers > 1 else ""
        return f"{promise}, {'caches' if self.caches else 'every update'}{many}"

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"{self.peer}{' combined' if self.combined else ''}, {self.settings}"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Program, topics and state directory for a peer.

    Args:
        kind: name of the program.
        bootstrap: the cluster.
        run: `application.id`, group, and prefix of internal topics.
        source: prefix of the input topics.
        output: the output topic.
        state: an empty directory.
    """

    kind: str
    bootstrap: str
    run: str
    source: str
    output: str
    state: Path
