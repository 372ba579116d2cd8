"""The topology while it is being built: DSL calls add to it, and `build` reads it.

A draft only grows. A `DraftStep` holds the nodes of one call: mostly one node, for a repartition
the three nodes around its topic. Steps keep the order of the calls, which decides the ids of
sub-topologies. A repartition that is used again moves to the position of its last use (both as in
Kafka Streams).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

from headrace.topology.errors import NO_ARGUMENTS, Arguments, TopologyError
from headrace.topology.functions import CreationLines, at_lines, with_lines
from headrace.topology.graph.graph import (
    AnySerde,
    Branch,
    Function,
    Node,
    Sink,
    SourceNode,
    Stateless,
)
from headrace.topology.naming import Names
from headrace.topology.processors.store import Store
from headrace.topology.processors.stores import StoreBuilder, with_stores

_OF_REPARTITION = re.compile(r"(?<=.)-repartition-(?:sink|filter|source)$")


@dataclass(frozen=True, slots=True)
class DraftStep:
    """The nodes of a DSL call, in order; the last node feeds the following steps."""

    nodes: tuple[Node, ...]
    stores: tuple[Store, ...] = ()

    @property
    def name(self) -> str:
        return self.nodes[-1].name

    @property
    def parents(self) -> tuple[str, ...]:
        own = {node.name for node in self.nodes}
        return tuple(p for node in self.nodes for p in node.parents if p not in own)

    @property
    def source(self) -> SourceNode | None:
        return next((s for node in self.nodes if (s := node.as_source) is not None), None)


@dataclass(frozen=True, slots=True)
class ForJoin:
    """A repartition topic that a join added downstream of a node.

    Args:
        source: the node that reads it.
        is_named: whether the join gave it a name.
    """

    source: str
    serdes: tuple[AnySerde | None, AnySerde | None]
    is_named: bool


@dataclass(slots=True, eq=False)
class Draft:
    """The steps of a builder by name, in the order of the calls."""

    names: Names = field(default_factory=Names)
    _steps: dict[str, DraftStep] = field(default_factory=dict)
    _nodes: set[str] = field(default_factory=set)
    _reserved: dict[str, Store] = field(default_factory=dict)
    state_stores: tuple[Store, ...] = ()
    """Stores of processors, which belong to no step."""
    lines: CreationLines = field(default_factory=dict)
    """Source locations of nodes and stores."""
    _for_joins: dict[str, list[ForJoin]] = field(default_factory=dict)

    def __str__(self) -> str:
        nodes = [node for step in self._steps.values() for node in step.nodes]
        read = [topic for node in nodes if not node.internal for topic in node.reads_topics]
        sinks = [sink for node in nodes if (sink := node.as_sink) is not None]
        written = [s.topic for s in sinks if isinstance(s.topic, str) and not s.internal]
        stores = [store.name for step in self._steps.values() for store in step.stores]
        stores += [store.name for store in self.state_stores]
        return (
            f"{len(nodes)} nodes; reads {', '.join(dict.fromkeys(read)) or 'nothing'}; writes "
            f"{', '.join(dict.fromkeys(written)) or 'nothing'}"
            f"{'; keeps ' if stores else ''}{', '.join(stores)}"
        )

    def add(self, *nodes: Node, store: Store | None = None, stores: tuple[Store, ...] = ()) -> str:
        """Add a step; return the name of the node that feeds the following steps."""
        step = DraftStep(nodes, stores if store is None else (store, *stores))
        self.lines = with_lines(self.lines, "node", (node.name for node in nodes))
        self.lines = with_lines(self.lines, "store", (store.name for store in step.stores))
        for node in nodes:
            if node.name in self._nodes:
                given_name = _OF_REPARTITION.sub("", node.name)  # what the user wrote
                raise TopologyError(
                    f"two nodes are named {given_name!r}{at_lines(self.lines, 'node', node.name)}; "
                    "give either node another name="
                )
            self._nodes.add(node.name)
        self._steps[step.name] = step
        return step.name

    def add_state_stores(self, stores: Iterable[StoreBuilder[Any] | str]) -> None:
        """Add the stores that are given as builders; ignore plain names."""
        self.state_stores, self.lines = with_stores(self.state_stores, stores, self.lines)

    def reserve(self, table: str, store: Store) -> None:
        """Reserve a store for a table that is stored only if its rows are read."""
        self._reserved[table] = store

    def readable(self, table: str) -> tuple[str, ...]:
        """Store a table unless its rows can be computed; return the stores to read them."""
        step = next(s for s in self._steps.values() if any(n.name == table for n in s.nodes))
        node = next(n for n in step.nodes if n.name == table)
        if table in self._reserved:
            store = self._reserved.pop(table)
            nodes = tuple(n.with_store(store.name) if n is node else n for n in step.nodes)
            self._steps[step.name] = DraftStep(nodes, (*step.stores, store))
            return (store.name,)
        if node.maps_table:
            return self.readable(node.parents[0])
        return node.view_stores

    def tables_above(self, name: str) -> set[str]:
        """Return the tables, `name` included, that feed a node without a topic in between."""
        nodes = {node.name: node for step in self._steps.values() for node in step.nodes}
        upstream, pending = set[str](), [name]
        while pending:
            node = nodes[pending.pop()]
            if node.name not in upstream:
                upstream.add(node.name)
                pending.extend(node.parents)
        return {name for name in upstream if nodes[name].is_table}

    def stores(self, names: Iterable[str]) -> list[Store]:
        requested = set(names)
        declared = (store for step in self._steps.values() for store in step.stores)
        return [store for store in (*declared, *self.state_stores) if store.name in requested]

    def for_joins(self, node: str) -> list[ForJoin]:
        """Return the joins' repartition topics downstream of a node, as a list to append to."""
        return self._for_joins.setdefault(node, [])

    def keep_null_keys(self, name: str) -> None:
        """Let null keys pass the repartition topics of a node that gives them a result."""
        step = next(s for s in self._steps.values() if any(n.name == name for n in s.nodes))
        node = next(n for n in step.nodes if n.name == name)
        if node.as_source is not None:
            nodes = tuple(n.keeping_null_keys() for n in step.nodes)
            self._steps[step.name] = DraftStep(nodes, step.stores)
        elif node.passes_null_keys:
            for parent in node.parents:
                self.keep_null_keys(parent)

    def again(self, step: DraftStep) -> bool:
        """Move an existing step to the end; return False if the draft does not have it."""
        unfiltered = DraftStep(tuple(n.keeping_null_keys() for n in step.nodes), step.stores)
        if self._steps.get(step.name) not in (step, unfiltered):
            return False
        self._steps[step.name] = self._steps.pop(step.name)
        return True

    def extend_branch(self, name: str, predicate: Function | None, child: str) -> None:
        node = cast("Branch", self._steps[name].nodes[0])
        node = replace(
            node, predicates=(*node.predicates, predicate), children=(*node.children, child)
        )
        self._steps[name] = DraftStep((node,))

    def steps(self) -> Iterator[DraftStep]:
        """Yield the steps, parents first, with the sources of the same topics merged."""
        pending = _merge_sources(list(self._steps.values()), self.lines)
        written: set[str] = set()
        while pending:
            ready = next(s for s in pending if written.issuperset(s.parents))
            pending.remove(ready)
            written.add(ready.name)
            yield ready


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """End of a stream or table in the draft: the last node, and the serdes of its records.

    `rekeyed` is true if the key may have changed since the records were last partitioned.
    """

    draft: Draft
    node: str
    key: AnySerde | None
    value: AnySerde | None
    rekeyed: bool = False

    def __repr__(self) -> str:
        serdes = [f"{part}={serde.name}" for part, serde in self._serdes() if serde is not None]
        return " ".join([self.node, *serdes])

    def _serdes(self) -> tuple[tuple[str, AnySerde | None], ...]:
        return (("key", self.key), ("value", self.value))

    def then(self, node: Node) -> Edge:
        """Add a node after this edge that changes neither key nor value."""
        return replace(self, node=self.draft.add(node))

    def repartitioned(
        self, prefix: str, *, partitions: int | None = None, arguments: Arguments = NO_ARGUMENTS
    ) -> Edge:
        """Add a repartition topic, or use the topic of the same edge and name again."""
        names = self.draft.names.repartition(prefix)
        sink = Sink(
            names.sink,
            (names.filter,),
            names.topic,
            self.key,
            self.value,
            internal=True,
            arguments=arguments,
        )
        step = DraftStep(
            (
                Stateless(names.filter, (self.node,), op="null_key_filter"),
                sink,
                SourceNode(
                    names.source,
                    topics=(names.topic,),
                    key=self.key,
                    value=self.value,
                    internal=True,
                    partitions=partitions,
                ),
            )
        )
        if not self.draft.again(step):
            self.draft.add(*step.nodes)
        return replace(self, node=names.source, rekeyed=False)

    def repartitioned_for_join(self, name: str | None, arguments: Arguments = NO_ARGUMENTS) -> Edge:
        """Add a repartition topic for a join, or use that of an earlier join.

        A join with a name has a topic of its own. A join without a name uses an existing topic with
        the same serdes, also if that has a name.
        """
        repartitions = self.draft.for_joins(self.node)
        serdes = (self.key, self.value)
        again = [repartition.source for repartition in repartitions if repartition.serdes == serdes]
        if name in (None, self.node) and again:
            self.draft.names.repartition(self.node)  # consumes numbers, as in Kafka Streams
            return replace(self, node=again[-1], rekeyed=False)
        unnamed = sum(not repartition.is_named for repartition in repartitions)
        prefix = self.node if unnamed == 0 else f"{self.node}-{unnamed + 1}"
        edge = self.repartitioned(prefix if name is None else name, arguments=arguments)
        repartitions.append(ForJoin(edge.node, serdes, is_named=name is not None))
        return edge


def _merge_sources(steps: list[DraftStep], lines: CreationLines) -> list[DraftStep]:
    """Merge sources of the same topics into the first of them, which keeps its name."""
    readers: dict[str, DraftStep] = {}
    merged: dict[str, str] = {}
    remaining = []
    for step in steps:
        source = step.source
        first = None
        if source is not None:
            first = next((readers[t] for t in source.topics if t in readers), None)
        if first is not None:
            _check_mergeable(first, step, lines)
            merged[step.name] = first.name
            continue
        remaining.append(step)
        if source is not None:
            readers.update(dict.fromkeys(source.topics, step))
    return [_fed_by_merged(step, merged) for step in remaining]


def _check_mergeable(first: DraftStep, second: DraftStep, lines: CreationLines) -> None:
    a, b = first.source, second.source
    assert a is not None
    assert b is not None
    both = sorted(set(a.topics) & set(b.topics))
    reader, other_reader = (f"{s.name!r}{at_lines(lines, 'node', s.name)}" for s in (a, b))
    topic, readers = f"topic {both[0]!r} is read", f"by {reader}, and by {other_reader}"
    if len(first.nodes) > 1 or len(second.nodes) > 1:
        raise TopologyError(
            f"{topic} {readers}, not both times by stream(); read it once and use the result twice"
        )
    if set(a.topics) != set(b.topics):
        raise TopologyError(
            f"{topic} {readers}, each with further topics; give stream() the same topics both "
            "times, or a single topic each, and merge() the streams"
        )
    if (a.key, a.value) != (b.key, b.value):
        raise TopologyError(
            f"{topic} with different serdes {readers}; call stream() once and use it twice"
        )
    if (a.timestamps, a.offset_reset) != (b.timestamps, b.offset_reset):
        raise TopologyError(
            f"{topic} with different timestamps= or offset_reset= {readers}; call stream() once "
            "and use it twice"
        )


def _fed_by_merged(step: DraftStep, merged: dict[str, str]) -> DraftStep:
    node = step.nodes[0]
    if merged.keys().isdisjoint(node.parents):
        return step
    unchanged = (p for p in node.parents if p not in merged)
    moved = (first for second, first in merged.items() if second in node.parents)
    parents = tuple(dict.fromkeys((*unchanged, *moved)))
    return replace(step, nodes=(replace(node, parents=parents), *step.nodes[1:]))
