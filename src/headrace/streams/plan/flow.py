"""Flow between sub-topologies over repartition topics: writers, readers, depth and stream time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.plan import SubPlan
from headrace.topology.graph.graph import Node, by_name


@dataclass(frozen=True, slots=True)
class RepartitionFlow:
    """Sub-topologies that are connected by repartition topics.

    Args:
        feeds: by sub-topology, the repartition topics that it writes and that do not lead back to
            it.
        writers: by such topic, the sub-topologies that write it.
        depths: by sub-topology, the length of the longest chain of sub-topologies downstream.
    """

    feeds: Mapping[int, tuple[str, ...]]
    writers: Mapping[str, tuple[int, ...]]
    depths: Mapping[int, int]


def flow_of(plans: Sequence[SubPlan]) -> RepartitionFlow:
    """Leave out topics of a cycle, as in foreign-key joins: a task could wait for itself."""
    readers, downstream = _readers(plans), downstream_of(plans)
    written = {plan.id: plan.topics.repartition_sinks for plan in plans}
    feeds = {
        sub: tuple(
            topic
            for topic in dict.fromkeys(topics)
            if not any(sub == r or sub in downstream[r] for r in readers.get(topic, (sub,)))
        )
        for sub, topics in written.items()
    }
    ahead = {s: {r for t in topics for r in readers[t]} for s, topics in feeds.items()}
    return RepartitionFlow(
        feeds,
        {
            topic: tuple(sub for sub in feeds if topic in feeds[sub])
            for topics in feeds.values()
            for topic in topics
        },
        {sub: _depth(ahead, sub) for sub in feeds},
    )


def downstream_of(plans: Sequence[SubPlan]) -> Mapping[int, Collection[int]]:
    """Return all sub-topologies downstream of each; in a cycle that includes itself."""
    readers = _readers(plans)
    behind = {
        plan.id: {r for topic in plan.topics.repartition_sinks for r in readers.get(topic, ())}
        for plan in plans
    }
    return {sub: reached(behind, sub) for sub in behind}


def _readers(plans: Sequence[SubPlan]) -> Mapping[str, Sequence[int]]:
    readers: dict[str, list[int]] = {}
    for plan in plans:
        for topic in plan.topics.repartition_sources:
            readers.setdefault(topic.name, []).append(plan.id)
    return readers


def reached(behind: Mapping[int, Collection[int]], sub: int) -> set[int]:
    """Return all sub-topologies downstream of `sub`; `behind` has the direct readers of each."""
    visited: set[int] = set()
    waiting = list(behind[sub])
    while waiting:
        reader = waiting.pop()
        if reader not in visited:
            visited.add(reader)
            waiting += behind[reader]
    return visited


def _depth(ahead: Mapping[int, Collection[int]], sub: int) -> int:
    return max((1 + _depth(ahead, reader) for reader in ahead[sub]), default=0)


# Inputs that bound stream time after a repartition topic: the inputs of the tasks that write it.
#
# Only repartition topics are bounded, and only if an operator in the sub-topology that reads them,
# or downstream of it, depends on stream time.


@dataclass(frozen=True, slots=True)
class Writers:
    """Tasks that write a repartition topic.

    Args:
        topics: the input topics of these tasks whose records reach the repartition topic.
        all_topics: all input topics of each sub-topology of these tasks.
        holders: by sub-topology, the nodes between these inputs and the topic.
        processors: the processors among these nodes, which can set the timestamps of their results.
        name: the topic's name in the committed numbers.
    """

    topics: tuple[str, ...]
    all_topics: Sequence[tuple[str, ...]]
    holders: Mapping[int, frozenset[str]]
    processors: frozenset[str]
    name: str

    def inputs(self, partitions: Mapping[str, int]) -> tuple[TopicPartition, ...]:
        return tuple(
            TopicPartition(topic, partition)
            for topic in self.topics
            for partition in range(partitions[topic])
        )

    def are_many(self, partitions: Mapping[str, int]) -> bool:
        """Return whether several tasks write it; the output of a single task is in order."""
        return sum(max(partitions[t] for t in topics) for topics in self.all_topics) > 1


@dataclass(frozen=True, slots=True)
class Upstream:
    """Inputs whose tasks bound stream time after a repartition topic, by that topic."""

    writers: Mapping[str, Writers] = field(default_factory=dict)

    @property
    def bounded(self) -> frozenset[int]:
        """The sub-topologies whose stream time bounds the time of downstream sub-topologies."""
        return frozenset(sub for writers in self.writers.values() for sub in writers.holders)

    def written(self, sub: int) -> Mapping[str, Writers]:
        return {topic: w for topic, w in self.writers.items() if sub in w.holders}


def upstream_of(plans: Sequence[SubPlan]) -> Upstream:
    by_id = {plan.id: plan for plan in plans}
    downstream = downstream_of(plans)
    followed = {
        topic.name
        for plan in plans
        for topic in plan.topics.repartition_sources
        if any(_is_timed(by_id[sub]) for sub in (plan.id, *downstream[plan.id]))
    }
    return Upstream({topic: _writers(plans, topic) for topic in sorted(followed)})


def _is_timed(plan: SubPlan) -> bool:
    nodes = plan.program.sub_topology.nodes
    return any(node.is_timed or node.needs_record for node in nodes)


def _writers(plans: Sequence[SubPlan], topic: str) -> Writers:
    writing = [plan for plan in plans if topic in plan.topics.repartition_sinks]
    above = {plan.id: frozenset(_above(plan, topic)) for plan in writing}
    topics = dict.fromkeys(
        name
        for plan in writing
        for source in plan.program.sub_topology.sources
        if source.name in above[plan.id]
        for name in (_full_names(plan, source.topics) if source.internal else source.topics)
    )
    all_topics = [plan.topics.all_sources for plan in writing]
    processors = frozenset(
        node.name
        for plan in writing
        for node in plan.program.sub_topology.nodes
        if node.is_processor and node.name in above[plan.id]
    )
    name = topic.removeprefix(f"{plans[0].program.options.application_id}-")
    return Writers(tuple(topics), all_topics, above, processors, name)


def _above(plan: SubPlan, topic: str) -> Iterator[str]:
    """Yield the nodes whose records reach a repartition topic, without looked-up tables."""
    sub = plan.program.sub_topology
    nodes = by_name(sub.nodes)
    waiting: list[Node] = [
        s for s in sub.sinks if s.internal and topic in _full_names(plan, [str(s.topic)])
    ]
    seen: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node.name not in seen:
            seen.add(node.name)
            yield node.name
            waiting += [nodes[parent] for parent in node.parents]


def _full_names(plan: SubPlan, topics: Sequence[str]) -> list[str]:
    return [f"{plan.program.options.application_id}-{topic}" for topic in topics]
