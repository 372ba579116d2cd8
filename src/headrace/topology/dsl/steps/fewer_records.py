"""Nodes of `KStream.deduplicate` and `KStream.sample`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from headrace.topology import serdes
from headrace.topology.errors import Arguments
from headrace.topology.graph.draft import Edge
from headrace.topology.graph.graph import Fused, Operator
from headrace.topology.graph.materialized import Materialized
from headrace.topology.operators.deduplicate import Deduplicate, SeenSerde
from headrace.topology.operators.sample import By, Sample
from headrace.topology.processors.store import Store
from headrace.topology.serdes import Serde
from headrace.topology.windows import duration_ms


@dataclass(frozen=True, slots=True)
class Deduplication:
    """Arguments of `KStream.deduplicate`.

    Args:
        identify: function that returns the rest of the id.
        id_serde: serde of the function's results.
        name: name of the node and of a repartition topic.
    """

    within: timedelta
    grace: timedelta
    identify: Callable[..., Any] | None
    with_key: bool
    id_serde: Serde[Any] | None
    kept: Materialized
    name: str | None


def deduplicated(edge: Edge, given: Deduplication) -> Edge:
    within_ms = duration_ms("within", given.within, at_least=1)
    grace_ms = duration_ms("grace", given.grace, at_least=0)
    names, kept = edge.draft.names, given.kept
    store = names.store("KSTREAM-DEDUPLICATE-") if kept.store is None else kept.store
    node_name = names.node("KSTREAM-DEDUPLICATE-", given.name)
    if edge.rekeyed:
        arguments: Arguments = {"key": "key_serde", "value": "value_serde"}
        edge = edge.repartitioned(given.name or store, arguments=arguments)
    # Records without a key are forwarded here, so the repartition topic must keep them.
    edge.draft.keep_null_keys(edge.node)
    spec = kept.timed_spec(store, "window", least_ms=within_ms + grace_ms)
    assert spec.retention_ms is not None
    # Rows are never overwritten, so compaction is useless.
    config = {"cleanup.policy": "delete", **spec.topic_config}
    rows = Store(
        replace(spec, cached=False, topic_config=config),
        SeenSerde(edge.key, given.id_serde, keys_only=given.identify is None),
        serdes.bytes,
    )
    step = Deduplicate(
        store=store,
        within_ms=within_ms,
        grace_ms=grace_ms,
        retention_ms=spec.retention_ms,
        identify=given.identify,
        with_key=given.with_key,
    )
    node = Operator(node_name, (edge.node,), spec=step, uses=(store,))
    return replace(edge, node=edge.draft.add(node, store=rows))


def sampled(
    edge: Edge, fraction: float, by: By, serde: Serde[Any] | None, name: str | None
) -> Edge:
    node_name = edge.draft.names.node("KSTREAM-SAMPLE-", name)
    own = edge.key if by == "key" else edge.value
    spec = Sample(fraction, by, own if serde is None else serde, node_name)
    return edge.then(Fused(node_name, (edge.node,), spec=spec))
