"""Refuses tables outside of Kafka that read a topic directly where their position would not do.

A sink's position is that of the one partition that its task reads. So everything between is to
follow from each record alone, and nothing else may be made of the same topic: what another sink or
topic has by then, the position would not tell.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.topology.errors import TopologyError
from headrace.topology.graph.graph import Graph, Node, SubTopology

_ADVICE = "leave direct=True out, so that it reads a topic of its own"


def refuse_shared_sinks(topology: Graph) -> None:
    """Raise where a sink that reads directly is not alone with what it reads.

    Raises:
        TopologyError: naming the sink, and what is in its way.
    """
    for sub in topology.sub_topologies:
        node = sub.outside
        if node is None:
            continue
        why = next(_obstacles(sub, node), None)
        if why is not None:
            raise TopologyError(f"to_sink({node.name!r}, direct=True) {why}; {_ADVICE}")


def _obstacles(sub: SubTopology, node: Node) -> Iterator[str]:
    topics = [topic for source in sub.sources for topic in source.topics]
    if len(topics) > 1:
        yield f"would read {', '.join(map(repr, topics))}, and has a position in one topic alone"
    (topic,) = topics
    others = [other for other in sub.nodes if other is not node]
    for other in others:
        if other.writes_outside is not None:
            yield (
                f"reads topic {topic!r}, and so does to_sink({other.name!r}), whose position may "
                "be another one"
            )
        if other.as_sink is not None:
            yield f"reads topic {topic!r}, of which {other.name!r} writes records to another topic"
        if not other.keeps_nothing:
            yield f"reads topic {topic!r}, and so does {other.name!r}, which is not stateless"
    assert node.writes_outside is not None
    if node.writes_outside.keyed:
        rekeys = next((other.name for other in others if other.changes_key), None)
        if rekeys is not None:
            yield (
                f"has rows under keys, which {rekeys!r} changes: those of one key would come from "
                "several partitions, in no order"
            )
