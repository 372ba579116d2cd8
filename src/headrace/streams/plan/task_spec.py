"""What a task is: its name, and what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.state.layout import Layout
from headrace.streams.plan.source_rows import SourceRows
from headrace.streams.seams.clients import TopicPartition
from headrace.topology.compile.compiler import Program
from headrace.topology.processors.store import Store


def unknown_partitions(topic: str) -> int:
    """Say that nobody told the partition counts of topics."""
    raise LookupError(f"the partition count of {topic} is not known here")


class TaskId(NamedTuple):
    """A sub-topology and a partition, as Kafka Streams writes it: ``0_3``."""

    sub_topology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.sub_topology}_{self.partition}"


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What makes a task, besides the facts that are committed.

    Args:
        changelogs: the changelog partition of each logged store.
        value_serdes: the serde of each store's values.
        internal_topics: inputs that this application writes itself.
    """

    id: TaskId
    program: Program
    changelogs: Mapping[str, TopicPartition]
    value_serdes: Mapping[str, Any]
    internal_topics: frozenset[str] = frozenset()

    partitions_of: Callable[[str], int] = unknown_partitions
    """Tells the partition count of a topic that is written to."""
    source_rows: Mapping[str, SourceRows] = field(default_factory=dict)
    """The stores whose changelogs are topics that are read."""

    @property
    def restored_from(self) -> Mapping[str, TopicPartition]:
        """The partition that each store is restored from, written by this task or read."""
        read = {s: TopicPartition(r.topic, self.id.partition) for s, r in self.source_rows.items()}
        return {**self.changelogs, **read}

    @property
    def stores(self) -> tuple[Store, ...]:
        """The sub-topology's stores."""
        return self.program.sub_topology.stores

    def layout(self, store: str) -> Layout:
        """How the rows of a store lie on disk."""
        return next(s.spec.rows for s in self.stores if s.name == store)
