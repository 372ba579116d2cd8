"""Flow between sub-topologies over repartition topics: writers, readers and depth."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace.streams.plan.plan import SubPlan


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
    found: set[int] = set()
    waiting = list(behind[sub])
    while waiting:
        reader = waiting.pop()
        if reader not in found:
            found.add(reader)
            waiting += behind[reader]
    return found


def _depth(ahead: Mapping[int, Collection[int]], sub: int) -> int:
    return max((1 + _depth(ahead, reader) for reader in ahead[sub]), default=0)
