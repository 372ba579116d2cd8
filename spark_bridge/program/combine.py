"""Counting before the repartition topic: one partial count a key instead of one record each.

Live, the same count is made of single records. A sum of partial sums is the same number, and the
row's timestamp, the largest one, is the same too. What differs is what the count forwards on its
way there, as it does with a cache: fewer updates, the same last one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

from headrace.topology import serdes
from headrace.topology.graph.fold import Aggregating
from headrace.topology.graph.graph import Aggregate, Node, Operator
from headrace.topology.graph.timed import reaches_time
from headrace.topology.topology import Topology


def combinable(topology: Topology) -> frozenset[str]:
    """The repartition topics that may take counts, as the topology names them.

    Those that one un-windowed count reads, and nothing else, where nothing behind the count
    depends on stream time.
    """
    timed = reaches_time(topology)
    found = set()
    for sub in topology.sub_topologies:
        for source in sub.sources:
            children = sub.children(source.name)
            if (
                source.internal
                and len(source.topics) == 1
                and len(children) == 1
                and children[0].counts
                and children[0].parents == (source.name,)
                and children[0].name not in timed
            ):
                found.add(source.topics[0])
    return frozenset(found)


def with_partials(topology: Topology, topics: Collection[str]) -> Topology:
    """Let the counts behind these repartition topics add up partial counts."""
    if not topics:
        return topology
    from headrace.spark_bridge.program.partial_counts import CountPartials  # loads Arrow

    nodes: list[Node] = []
    changed: set[str] = set()
    for node in topology.nodes:
        source, sink = node.as_source, node.as_sink
        if sink is not None and sink.internal and sink.topic in topics:
            counting = f"{node.name}-partials"
            spec = CountPartials()
            nodes.append(Operator(counting, node.parents, spec=spec, reads_value=False))
            nodes.append(replace(sink, parents=(counting,), value=serdes.long))
        elif source is not None and source.internal and source.topics[0] in topics:
            changed.add(node.name)
            nodes.append(replace(source, value=serdes.long))
        elif node.counts and changed.intersection(node.parents):
            count = cast("Aggregate", node)
            nodes.append(replace(count, fold=Aggregating(int, _plus)))
        else:
            nodes.append(node)
    return Topology(tuple(nodes), topology.stores)


def _plus(key: Any, partial: int, count: int) -> int:  # noqa: ARG001
    return count + partial
