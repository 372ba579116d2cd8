"""A variant: who does a job, and with which promises."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Guarantee = Literal["exactly_once_v2", "at_least_once"]

CACHE_BYTES = 10 * 1024 * 1024
"""The default of Kafka Streams and of Headrace."""
COMMIT_MS = 100


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a job.

    Args:
        peer: who runs it.
        guarantee: both have the same commit interval here.
        caches: one output per key and commit; without, each update goes out.
        workers: threads of a JVM, processes of Python.
        combined: whether partial counts are made before the repartition topic; of loops alone, as
            Headrace does so by itself with caches, and Kafka Streams cannot.
    """

    peer: Literal["headrace", "kafka-streams", "by hand", "quix"]
    guarantee: Guarantee = "exactly_once_v2"
    caches: bool = True
    workers: int = 1
    combined: bool = False

    @property
    def settings(self) -> str:
        """What is set, without who it is: what is equal can be compared."""
        promise = "exactly-once" if self.guarantee == "exactly_once_v2" else "at-least-once"
        many = f", {self.workers} workers" if self.workers > 1 else ""
        return f"{promise}, {'caches' if self.caches else 'every update'}{many}"

    @property
    def published(self) -> bool:
        """Whether its ratio is told with its spread, so that it is in every round."""
        usual = self.guarantee == "exactly_once_v2" and self.workers == 1
        return usual and self.peer != "quix" and self.caches

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.peer}{' combined' if self.combined else ''}, {self.settings}"


@dataclass(frozen=True, slots=True)
class Order:
    """What a peer is told to run.

    Args:
        kind: the program.
        bootstrap: the cluster.
        run: `application.id`, group, and first part of the topics of its own.
        source: the input topics up to their ends.
        output: the output topic.
        state: a directory that is empty.
    """

    kind: str
    bootstrap: str
    run: str
    source: str
    output: str
    state: Path
