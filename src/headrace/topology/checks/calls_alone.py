"""Finds the steps whose calls are made one by one, though many might be under way together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.topology.compile.objects.meeting import meets_others
from headrace.topology.graph.graph import SubTopology


def calls_alone(subs: Iterable[SubTopology]) -> Iterator[str]:
    """What is said of each of them, in the program's order.

    Example:
        >>> from headrace import StreamsBuilder
        >>> builder = StreamsBuilder()
        >>> lines = builder.stream("lines")
        >>> lines.merge(lines.map_async(len, name="ask")).to("out")
        >>> print(*calls_alone(builder.build().sub_topologies))
        ask makes its calls one by one: its results meet records of lines that went another way, \
or a processor, and their order is kept; give map_async order="any", or put .repartition() behind it
    """
    for sub in subs:
        for node in sub.nodes:
            if node.gathers and not node.gives_up_order and meets_others(sub, node, in_runs=True):
                read = ", ".join(t for s in sub.sources for t in s.topics)
                yield (
                    f"{node.name} makes its calls one by one: its results meet records of {read} "
                    "that went another way, or a processor, and their order is kept; give "
                    'map_async order="any", or put .repartition() behind it'
                )
