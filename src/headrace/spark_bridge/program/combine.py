"""Repartition topics that receive partial aggregates in a backfill, by the live rewrite.

Compared with a backfill record by record, an aggregation forwards fewer intermediate updates, as
with a cache. The last update is the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headrace.streams.config.config import StreamsConfig
from headrace.streams.plan.plan import optimized
from headrace.topology.graph.optimizer import COMBINE, combinable, combining
from headrace.topology.topology import Topology


def combined_topics(topology: Topology, config: StreamsConfig, order: str) -> frozenset[str]:
    """Return the repartition topics that receive partial aggregates, as named in the topology.

    "auto" does as the live application, "combine" as the live application would with caches.
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
    """Return a topology with pre-aggregation of the records for these repartition topics."""
    folds = combinable(topology) if topics else {}
    return combining(topology, {topic: folds[topic] for topic in topics})
