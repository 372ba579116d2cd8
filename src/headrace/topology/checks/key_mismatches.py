"""Check for keys in a store that different sources encode differently, so that they cannot match.

Records with equal keys match in a store: of an aggregation, of a table, of a side of a join. The
nodes that use a store read from sources whose partitions are chosen by the bytes of their keys. If
the serdes of two such sources write different bytes, equal keys are in different partitions and so
in different tasks.

A node that may change the key ends the search: records downstream are repartitioned before the next
stateful DSL operator, and a processor may use keys freely.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from headrace.topology.checks.key_forms import partitioned_by, same_bytes, written_as
from headrace.topology.errors import TopologyError
from headrace.topology.graph.graph import AnySerde, Graph, Node, SourceNode, SubTopology


@dataclass(frozen=True, slots=True)
class KeyMismatch:
    """Two sources whose keys are used in the same store, but are or may be encoded differently.

    Args:
        serdes: the serdes of their keys, with defaults applied.
        certain: whether the bytes are known to differ.
        refused: whether a DSL operator requires equal keys to match there; processors may not
            require it.
    """

    store: str
    node: str
    sources: tuple[SourceNode, SourceNode]
    serdes: tuple[AnySerde, AnySerde]
    certain: bool
    refused: bool

    def __str__(self) -> str:
        first, second = (
            _read_with(source, serde)
            for source, serde in zip(self.sources, self.serdes, strict=True)
        )
        keys = f"keys of {self.node}, in store {self.store!r}: {first}, {second}"
        if not self.certain:
            return (
                f"{keys}. Equal keys match only if both serdes encode them equally, which is "
                "unknown: use the same serde object for both"
            )
        advice = _advice(self.sources, self.serdes)
        if not self.refused:
            return (
                f"{keys}. Equal keys are encoded differently, so they may be in other partitions, "
                f"where a processor does not find them; if it looks for equal keys: {advice}"
            )
        return (
            f"{keys}. Equal keys are encoded differently, so they are in different partitions and "
            f"never match; {advice}"
        )


def require_matching_keys(topology: Graph, default_key: AnySerde) -> None:
    """Raise if the topology joins or aggregates keys that are encoded differently."""
    refused = [m for m in key_mismatches(topology, default_key) if m.refused]
    if refused:
        raise TopologyError("\n".join(map(str, refused)))


def key_mismatches(topology: Graph, default_key: AnySerde) -> Iterator[KeyMismatch]:
    """Yield each pair of sources with keys in the same store that may be encoded differently.

    >>> from headrace import StreamsBuilder, serdes
    >>> builder = StreamsBuilder()
    >>> both = builder.stream("a", key=serdes.string).merge(builder.stream("b"))
    >>> _ = both.group_by_key().count(store="counts")
    >>> [mismatch] = key_mismatches(builder.build(), serdes.json)
    >>> mismatch.store, [serde.name for serde in mismatch.serdes], mismatch.refused
    ('counts', ['string', 'json'], True)
    """
    chosen = {s.topic for s in topology.sinks if s.internal and s.partitioner is not None}
    for sub in topology.sub_topologies:
        reported: set[frozenset[str]] = set()
        mismatches = _mismatches(sub, chosen, default_key)
        for mismatch in sorted(mismatches, key=lambda mismatch: not mismatch.refused):
            names = frozenset(source.name for source in mismatch.sources)
            if names not in reported:
                reported.add(names)
                yield mismatch


def copartitioned_inputs(
    sub: SubTopology, *, own: Collection[object], chosen: Iterable[object]
) -> frozenset[str]:
    """Return the external topics that must be co-partitioned with the application's own topics.

    Args:
        own: the topics that the application writes by the hash of keys.
        chosen: the topics that it writes to partitions that a function chooses; their readers are
            not checked. Nor are topics with windowed keys, whose partitions do not depend on all
            bytes.
    """
    topics: set[str] = set()
    read = _sources_above(sub, frozenset(chosen))
    nodes = {source.name: source for source in sub.sources}
    for store in sub.stores:
        users = [node for node in sub.nodes if store.name in node.stores]
        names = {n for u in users if not u.reads_any_key(store.name) for n in _inputs(u, read)}
        sources = [nodes[name] for name in names]
        if any(topic in own for source in sources for topic in source.topics):
            topics.update(t for s in sources if not _is_windowed(s.key) for t in s.topics)
    return frozenset(topics.difference(own))


def _is_windowed(key: AnySerde | None) -> bool:
    return key is not None and partitioned_by(key) is not key


def _mismatches(
    sub: SubTopology, chosen: Iterable[object], default_key: AnySerde
) -> Iterator[KeyMismatch]:
    read = _sources_above(sub, frozenset(chosen))
    nodes = {source.name: source for source in sub.sources}
    for store in sub.stores:
        users = [node for node in sub.nodes if store.name in node.stores]
        strict = [node for node in users if not node.reads_any_key(store.name)]
        for refused, among in ((True, strict), (False, users)):
            names = dict.fromkeys(name for node in among for name in _inputs(node, read))
            sources = [nodes[name] for name in names]
            for first, second in combinations(sources, 2):
                serdes = first.key or default_key, second.key or default_key
                same = same_bytes(partitioned_by(serdes[0]), partitioned_by(serdes[1]))
                if not same:
                    yield KeyMismatch(
                        store.name,
                        next(node.name for node in among if second.name in _inputs(node, read)),
                        (first, second),
                        serdes,
                        certain=same is False,
                        refused=refused and same is False,
                    )


def _sources_above(sub: SubTopology, chosen: frozenset[object]) -> Mapping[str, tuple[str, ...]]:
    """Return, by node, the sources that its records are partitioned like, if by key."""
    sources: dict[str, tuple[str, ...]] = {}
    for node in sub.nodes:
        if node.as_source is not None:
            sources[node.name] = () if chosen.intersection(node.reads_topics) else (node.name,)
        elif node.changes_key:
            sources[node.name] = ()
        elif node.partitioned_like is not None:
            sources[node.name] = sources[
                node.partitioned_like
            ]  # responses are sent to the row's task
        else:
            sources[node.name] = _inputs(node, sources)
    return sources


def _inputs(node: Node, sources: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for parent in node.parents for name in sources[parent]))


def _read_with(source: SourceNode, serde: AnySerde) -> str:
    default = "" if source.key is not None else " (the default)"
    return f"{source.name} reads {', '.join(source.topics)} with serde {serde.name!r}{default}"


def _advice(sources: tuple[SourceNode, SourceNode], serdes: tuple[AnySerde, AnySerde]) -> str:
    unnamed = [n for n, source in enumerate(sources) if source.key is None]
    if len(unnamed) != 1:
        return (
            "write the same key= for both, or send either stream through .repartition() with "
            f"{written_as(serdes[0])} or {written_as(serdes[1])}"
        )
    (n,) = unnamed
    source, argument = sources[n], written_as(serdes[1 - n])
    if source.internal:
        return f"write {argument} at the step that sends keys through {', '.join(source.topics)}"
    return (
        f"write {argument} where {', '.join(source.topics)} is read, if its keys are encoded so; "
        "otherwise send them through .repartition() with it"
    )
