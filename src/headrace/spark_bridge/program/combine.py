"""Which repartition topics take partial results in a backfill: the rewrite is the live one.

What differs from a backfill record by record is what a fold forwards on its way to the last value,
as it does with a cache: fewer updates, the same last one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.plan import optimized
from headrace.topology.graph.optimizer import COMBINE, combinable, combining
from headrace.topology.topology import Topology


def combined_topics(topology: Topology, config: StreamsConfig, order: str) -> frozenset[str]:
    """The repartition topics that take partial results, as the topology names them.

    Args:
        order: "exact" for none, "auto" for those that the live application combines, "combine"
            for those that it would combine with caches.
    """
    if order == "exact":
        return frozenset()
    if order == "combine":
        config = replace(
            config,
            topology_optimization=(*config.topology_optimization, COMBINE),
            statestore_cache_max_bytes=config.statestore_cache_max_bytes or 1,
        )
    sinks = optimized(topology, config).sinks
    return frozenset(str(sink.topic) for sink in sinks if sink.combines is not None)


def with_partials(topology: Topology, topics: Collection[str]) -> Topology:
    """Let the records for these repartition topics be folded before they are written."""
    folds = combinable(topology) if topics else {}
    return combining(topology, {topic: folds[topic] for topic in topics})
