"""What may end an application: offsets that are gone, topics that are others or none.

A run with a disaster has two good ends: the results are as if it had not happened, or a worker ends
with one of the errors that name it, and what is committed until then is right. The supervisor ends
the others with it, as `headrace run` does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from confluent_kafka import Message

from headrace.streams.errors import MissingTopicError
from headrace.streams.plan.topic_errors import ChangelogLostError, TopicReplacedError
from headrace.streams.seams.clients import CommittedOffset, TopicPartition
from headrace.streams.simulation.world.cluster import Cluster
from headrace.streams.simulation.world.disk import Host
from headrace.streams.simulation.world.kernel import MS, SECOND
from headrace.streams.simulation.world.process import Process
from headrace.streams.tasks.lost_offsets import StateWithoutOffsetsError
from headrace.streams.worker_errors import OffsetLostError


@dataclass(frozen=True, slots=True)
class Disaster:
    """One kind.

    Args:
        refusals: the errors that name it.
        needs_rest: whether it can happen only while no worker lives.
    """

    refusals: tuple[type[Exception], ...]
    needs_rest: bool


DISASTERS: Mapping[str, Disaster] = {
    "offsets of one input": Disaster((StateWithoutOffsetsError,), needs_rest=True),
    "offsets of all inputs": Disaster((StateWithoutOffsetsError,), needs_rest=True),
    "whole group": Disaster((StateWithoutOffsetsError,), needs_rest=True),
    "expired offsets": Disaster((StateWithoutOffsetsError,), needs_rest=False),
    "lost changelog": Disaster((ChangelogLostError,), needs_rest=True),
    "recreated topic": Disaster(
        (TopicReplacedError, OffsetLostError, MissingTopicError), needs_rest=False
    ),
    "restored snapshot": Disaster((), needs_rest=True),
}
"""
| disaster | what happens |
|---|---|
| `offsets of one input`, `of all inputs` | somebody deletes them while no worker runs |
| `whole group` | somebody deletes it, with the offsets of repartition topics too |
| `expired offsets` | the broker lets those expire of an input that is not subscribed to |
| `lost changelog` | a changelog is deleted while no worker runs, or made anew and hosts lose rows |
| `recreated topic` | an input topic is deleted and made anew, while workers run or not |
| `restored snapshot` | all topics and offsets go back to an earlier moment, local rows do not |
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The topics of a cluster and the offsets of its group, while no transaction is open."""

    ends: Mapping[TopicPartition, int]
    entries: Mapping[TopicPartition, Sequence[Message | None]]
    starts: Mapping[TopicPartition, int]
    offsets: Mapping[TopicPartition, CommittedOffset]

    @classmethod
    def of(cls, cluster: Cluster) -> Snapshot:
        """Take one."""
        logs = {place: cluster.log(place) for place in cluster.all_places()}
        return cls(
            {place: log.end for place, log in logs.items()},
            # Compaction has taken some of them away by the time of the restore.
            {place: list(log.entries) for place, log in logs.items()},
            {place: log.start for place, log in logs.items()},
            dict(cluster.group.offsets),
        )

    def restore(self, cluster: Cluster) -> str:
        """Take a cluster back to it; returns what was lost."""
        lost = []
        for place in cluster.all_places():
            log, end = cluster.log(place), self.ends.get(place, 0)
            if log.end > end:
                lost.append(f"{place} from {end} to {log.end}")
            log.cut(self.entries.get(place, ()), self.starts.get(place, 0))
        cluster.group.offsets = dict(self.offsets)
        return ", ".join(lost) or "nothing"


class Worker(Protocol):
    """A worker across its lives."""

    is_paused: bool

    @property
    def process(self) -> Process | None:
        """The life that goes on now."""


@dataclass(slots=True)
class Disasters:
    """Lets one disaster happen, and tells which errors name it.

    Args:
        inputs: its source topics, outside of it.
    """

    cluster: Cluster
    workers: Sequence[Worker]
    hosts: Sequence[Host]
    inputs: Sequence[str]
    changelogs: Sequence[str]
    subscribed: frozenset[str]
    dice: random.Random
    _snapshot: Snapshot | None = None
    happened: dict[str, str] = field(default_factory=dict)
    """What, and to which topic."""

    def plan(self, name: str, seconds: float) -> None:
        """Let it happen at some moment.

        Args:
            seconds: how long trouble lasts.
        """
        # A cluster that went back is to grow past its old end while there is still input.
        first, last = (0.05, 0.3) if name == "restored snapshot" else (0.2, 1)
        self.cluster.kernel.after(
            int(self.dice.uniform(first, last) * seconds * SECOND), lambda: self._begin(name)
        )

    def is_named_by(self, error: BaseException) -> bool:
        """Whether an error names what has happened."""
        return any(isinstance(error, DISASTERS[name].refusals) for name in self.happened)

    def _begin(self, name: str) -> None:
        if not DISASTERS[name].needs_rest:
            self._happen(name)
            return
        for worker in self.workers:
            worker.is_paused = True
            if worker.process is not None:
                worker.process.die()
        self.cluster.kernel.after(10 * MS, lambda: self._rest(name))

    def _rest(self, name: str) -> None:
        """Wait until the group is empty and no transaction is undecided."""
        group = self.cluster.group
        if group.members or group.pending or self.cluster.transactions.busy:
            self.cluster.kernel.after(100 * MS, lambda: self._rest(name))
            return
        if name == "restored snapshot" and self._snapshot is None:
            self._snapshot = Snapshot.of(self.cluster)
            self._resume(self.workers)
            between = int(self.dice.uniform(0.2, 0.8) * SECOND)
            self.cluster.kernel.after(between, lambda: self._begin(name))
            return
        ends = {p: self.cluster.log(p).end for t in self.changelogs for p in self.cluster.places(t)}
        self._happen(name)
        self._resume(self.workers[:1] if name == "restored snapshot" else self.workers)
        if name == "restored snapshot":
            self._await_growth(ends, self.cluster.kernel.now_us + 9 * SECOND)

    def _await_growth(self, ends: Mapping[TopicPartition, int], until_us: int) -> None:
        """Keep the other workers, whose rows are of the old history, until this one is longer."""
        cluster = self.cluster
        has_grown = all(cluster.log(place).end > end + 2 for place, end in ends.items())
        if has_grown or cluster.kernel.now_us >= until_us:
            self._resume(self.workers)
        else:
            cluster.kernel.after(100 * MS, lambda: self._await_growth(ends, until_us))

    def _resume(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.is_paused = False

    def _go_back(self) -> str:
        assert self._snapshot is not None
        return self._snapshot.restore(self.cluster)

    def _happen(self, name: str) -> None:
        act: dict[str, Callable[[], str]] = {
            "offsets of one input": lambda: self._forget([self._choose(self.inputs)]),
            "offsets of all inputs": lambda: self._forget(self.inputs),
            "whole group": lambda: self._forget(list(self.cluster.topics)),
            "expired offsets": lambda: self._forget(
                [self._choose([t for t in self.inputs if t not in self.subscribed])]
            ),
            "lost changelog": lambda: self._lose_changelog(self._choose(self.changelogs)),
            "restored snapshot": self._go_back,
            "recreated topic": lambda: self._recreate(self._choose(self.inputs)),
        }
        self.happened[name] = act[name]()
        self.cluster.kernel.note("nemesis", f"DISASTER: {name}: {self.happened[name]}")

    def _choose(self, topics: Sequence[str]) -> str:
        assert topics, "the topology has no such topic"
        return self.dice.choice(list(topics))

    def _forget(self, topics: Sequence[str]) -> str:
        offsets = self.cluster.group.offsets
        gone: list[TopicPartition] = [place for place in offsets if place.topic in topics]
        for place in gone:
            del offsets[place]
        return ", ".join(map(str, gone)) or "nothing"

    def _lose_changelog(self, topic: str) -> str:
        if self.dice.random() < 0.5:
            return self.cluster.delete(topic).name
        self._recreate(topic)
        gone = [host.lose(all_of_it=True) for host in self.hosts if self.dice.random() < 0.7]
        return f"{topic}, made anew; local rows: {'; '.join(filter(None, gone)) or 'all there'}"

    def _recreate(self, topic: str) -> str:
        found = self.cluster.delete(topic)
        self.cluster.create(topic, len(found.logs), found.config)
        return topic
