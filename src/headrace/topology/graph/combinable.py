"""Conditions for pre-aggregation before a repartition topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.topology.graph.fold import Combining, Fold
from headrace.topology.graph.graph import AnySerde, Graph, Node, SourceNode, SubTopology, by_name


def reaches_time(topology: Graph) -> frozenset[str]:
    return frozenset(timed_behind(topology))


def timed_behind(topology: Graph) -> Mapping[str, str]:
    """Return, by node, the first node downstream that depends on stream time, if any."""
    readers: dict[str, list[str]] = {}
    by_topic = {
        topic: node.name for node in topology.sources if node.internal for topic in node.topics
    }
    for node in topology.nodes:
        for parent in node.parents:
            readers.setdefault(parent, []).append(node.name)
        topic = node.writes_topic
        if node.internal and topic is not None:
            readers.setdefault(node.name, []).append(by_topic[topic])
    timed = [node.name for node in topology.nodes if node.is_timed]
    first_timed: dict[str, str] = {}
    for name in readers:
        downstream = _downstream(name, readers)
        first = next((other for other in timed if other in downstream), None)
        if first is not None:
            first_timed[name] = first
    return first_timed


def _downstream(name: str, readers: dict[str, list[str]]) -> set[str]:
    visited: set[str] = set()
    pending = list(readers.get(name, ()))
    while pending:
        current = pending.pop()
        if current not in visited:
            visited.add(current)
            pending += readers.get(current, ())
    return visited


@dataclass(frozen=True, slots=True)
class FoldSeen:
    """An aggregation of a grouped stream, and the reason if it cannot be pre-aggregated.

    Args:
        combining: how its partial aggregates are made; None if they must not be.
        reason: why they must not be, as the rest of a sentence.
    """

    fold: Fold
    store: str
    topic: str | None
    combining: Combining | None = None
    reason: str = ""

    @property
    def is_declared(self) -> bool:
        """Whether the user passed a merger for partial aggregates."""
        return self.fold.asks_user and self.fold.combines


def folds_of(topology: Graph) -> Iterator[FoldSeen]:
    """Yield each aggregation of a grouped stream, and whether it can be pre-aggregated.

    Pre-aggregation is allowed only if it cannot be observed:

    - the aggregation has mergeable partial aggregates, and is the only reader of its repartition
      topic;
    - no node of its sub-topology depends on stream time or on a record's headers, and no node
      downstream depends on stream time;
    - its store is cached;
    - functions that take a key get the same keys in both places, because the store has the topic's
      key serde.
    """
    timed = timed_behind(topology)
    for sub in topology.sub_topologies:
        stores = {store.name: store for store in sub.stores}
        for node in sub.nodes:
            fold = node.folds
            if fold is None:
                continue
            store = stores[node.stores[0]]
            source = _repartition_above(sub, node)
            topic = None if source is None else source.topics[0]
            reason = _hindrance(sub, node, fold, source)
            if reason is None and node.name in timed:
                reason = f"{timed[node.name]} downstream may depend on the time of each result"
            elif reason is None and not store.spec.cached:
                reason = "its store has cached=False"
            elif reason is None and not _is_given_same_keys(fold, store.key, source):
                reason = "its store has another serde of keys than the topic (key=)"
            if reason is None:
                combining = Combining(fold, node.name, store.name, store.value)
                yield FoldSeen(fold, store.name, topic, combining)
            else:
                yield FoldSeen(fold, store.name, topic, None, reason)


def _is_given_same_keys(fold: Fold, key: AnySerde | None, source: SourceNode | None) -> bool:
    return not fold.adds_with_key or source is None or key == source.key


def _hindrance(sub: SubTopology, node: Node, fold: Fold, source: SourceNode | None) -> str | None:
    if not fold.combines:
        return "it has no merger= for partial aggregates"
    if source is None:
        return "its records do not pass through a repartition topic"
    if node.parents != (source.name,):
        return "an operator is between the repartition topic and the aggregation"
    others = [_named(child) for child in sub.children(source.name) if child is not node]
    if others:
        return (
            f"{', '.join(others)} read{'s' if len(others) == 1 else ''} the topic too; call "
            "group_by for each of them, with different names"
        )
    timed = next((other for other in sub.nodes if other.is_timed or other.needs_record), None)
    if timed is not None:
        return f"{timed.name}, of the same sub-topology, may depend on the time of each record"
    return None


def _named(node: Node) -> str:
    return f"{node.name} (store {node.stores[0]})" if node.stores else node.name


def _repartition_above(sub: SubTopology, node: Node) -> SourceNode | None:
    nodes = by_name(sub.nodes)
    upstream, pending = set[str](), list(node.parents)
    for name in pending:
        if name in upstream or name not in nodes:
            continue
        upstream.add(name)
        source = nodes[name].as_source
        if source is not None and source.internal:
            return source
        pending += nodes[name].parents
    return None
