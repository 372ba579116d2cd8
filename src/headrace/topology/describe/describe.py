"""A topology as text, equal to the output of Kafka Streams for the same topology.

Nodes are ordered by the number of nodes downstream, the largest first, then by name. The names
after the arrows have the same order, but with the numbers at the time when each name was added,
while the graph was still growing; so the order in which nodes are connected is visible (see
`hash_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from headrace.topology import serdes, timestamps
from headrace.topology.compile.codegen import CompileOptions
from headrace.topology.compile.compiler import compile_sub_topology
from headrace.topology.errors import TopologyError
from headrace.topology.graph.binding import bound_to_topics
from headrace.topology.graph.graph import (
    GlobalStore,
    Graph,
    Node,
    Sink,
    SubTopology,
)
from headrace.topology.graph.optimizer import BY_NAME, DEFAULT, Rewrite, optimize

# The order in which Java's hash and tree collections return their elements.
#
# Kafka Streams prints topologies in such orders, so they are part of the text that is compared.


T = TypeVar("T")


def hash_order(names: Iterable[str], *, sized: bool = False) -> list[str]:
    """Return distinct names in the order of a ``java.util.HashSet``, or of a ``HashMap``'s keys.

    `sized`: the set is created from another collection, which determines its initial capacity.
    """
    added = list(names)
    capacity = 16
    while capacity < len(added) / 0.75 + sized:
        capacity *= 2
    return sorted(added, key=lambda name: _spread(_string_hash(name)) & (capacity - 1))


def _string_hash(text: str) -> int:
    units = memoryview(text.encode("utf-16-le")).cast("H")
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


def _spread(value: int) -> int:
    return value ^ (value >> 16)


@dataclass(slots=True, eq=False)
class _Entry(Generic[T]):
    item: T
    parent: _Entry[T] | None
    left: _Entry[T] | None = None
    right: _Entry[T] | None = None
    red: bool = True


@dataclass(slots=True, eq=False)
class TreeSet(Generic[T]):
    """A ``java.util.TreeSet`` that supports only adding.

    The result of the comparison may change between additions. The position of an element then
    depends on the shape of the tree, so the tree is balanced in the same way as in Java.
    """

    compare: Callable[[T, T], int]
    _root: _Entry[T] | None = field(default=None)

    def __iter__(self) -> Iterator[T]:
        return self._walk(self._root)

    def _walk(self, entry: _Entry[T] | None) -> Iterator[T]:
        if entry is not None:
            yield from self._walk(entry.left)
            yield entry.item
            yield from self._walk(entry.right)

    def add(self, item: T) -> None:
        parent, order = None, 0
        entry = self._root
        while entry is not None:
            parent, order = entry, self.compare(item, entry.item)
            if order == 0:
                return
            entry = entry.left if order < 0 else entry.right
        added = _Entry(item, parent)
        if parent is None:
            self._root = added
        elif order < 0:
            parent.left = added
        else:
            parent.right = added
        self._balance(added)

    def _balance(self, entry: _Entry[T]) -> None:
        while entry.parent is not None and entry.parent.red and entry.parent.parent is not None:
            parent, grand = entry.parent, entry.parent.parent
            on_left = parent is grand.left
            uncle = grand.right if on_left else grand.left
            if uncle is not None and uncle.red:
                parent.red = uncle.red = False
                grand.red = True
                entry = grand
                continue
            if entry is (parent.right if on_left else parent.left):
                self._rotate(parent, left=on_left)
                entry, parent = parent, entry
            parent.red = False
            grand.red = True
            self._rotate(grand, left=not on_left)
        assert self._root is not None
        self._root.red = False

    def _rotate(self, entry: _Entry[T], *, left: bool) -> None:
        child = entry.right if left else entry.left
        assert child is not None
        inner = child.left if left else child.right
        if left:
            entry.right, child.left = inner, entry
        else:
            entry.left, child.right = inner, entry
        if inner is not None:
            inner.parent = entry
        child.parent = entry.parent
        if entry.parent is None:
            self._root = child
        elif entry.parent.left is entry:
            entry.parent.left = child
        else:
            entry.parent.right = child
        entry.parent = child


_DEFAULTS: Final = CompileOptions(
    "<application.id>", serdes.json, serdes.json, timestamps=timestamps.fail_on_invalid_timestamp
)
"""Options without a configuration; the application id is a placeholder."""


class RunSettings(Protocol):
    """Settings that determine the generated code, as in `StreamsConfig`."""

    @property
    def compile_options(self) -> CompileOptions:
        """Options that the generated code depends on."""

    @property
    def rewrites(self) -> Sequence[Rewrite]:
        """Rewrites of the topology."""


def describe(topology: Graph, *, code: bool = False, config: RunSettings | None = None) -> str:
    """Return the text that Kafka Streams prints for the topology, optionally with the source.

    Without `config` and code, the text describes the topology before optimization.
    """
    if config is not None:
        if not hasattr(config, "compile_options"):
            raise TopologyError(
                "describe(config=...) takes the result of StreamsConfig.parse(settings), or the "
                f"config of an application; it was given a {type(config).__name__}"
            )
        topology = optimize(topology, config.rewrites)
    elif code:
        topology = optimize(topology, [BY_NAME[name] for name in DEFAULT])
    subs = topology.sub_topologies
    groups = {sub.id: f"  {_sub_topology(sub)}\n" for sub in subs}
    groups |= {store.id: _global_store(store) for store in topology.global_stores}
    text = "Topologies:\n " + "".join(groups[number] for number in sorted(groups))
    return text + _code(topology, config.compile_options if config else _DEFAULTS) if code else text


def _global_store(group: GlobalStore) -> str:
    source, table = _Described(group.source), _Described(group.table)
    source.successors.add(table)
    table.predecessors.add(source)
    return (
        f"  Sub-topology: {group.id} for global store (will not generate tasks)\n"
        f"    {_node(source)}\n    {_node(table)}\n"
    )


def _sub_topology(sub: SubTopology) -> str:
    nodes = _connected(sub)
    lines = [f"    {_node(node)}\n" for node in sorted(nodes, key=lambda n: (-n.size, n.name))]
    return f"Sub-topology: {sub.id}\n{''.join(lines)}"


@dataclass(slots=True, eq=False)
class _Described:
    """A node with its neighbours, and the number of nodes downstream including itself."""

    node: Node
    size: int = 1
    predecessors: TreeSet[_Described] = field(default_factory=lambda: TreeSet(_compare))
    successors: TreeSet[_Described] = field(default_factory=lambda: TreeSet(_compare))

    @property
    def name(self) -> str:
        return self.node.name

    def grow(self, by: int) -> None:
        self.size += by
        for predecessor in self.predecessors:
            predecessor.grow(by)


def _compare(a: _Described, b: _Described) -> int:
    if a is b:
        return 0
    if a.size != b.size:
        return b.size - a.size
    return -1 if a.name < b.name else 1


def _connected(sub: SubTopology) -> list[_Described]:
    nodes = {node.name: _Described(node) for node in sub.nodes}
    for name in hash_order(nodes):
        node = nodes[name]
        for parent in node.node.parents:
            predecessor = nodes[parent]
            node.predecessors.add(predecessor)
            predecessor.successors.add(node)
            predecessor.grow(node.size)
    return list(nodes.values())


def _node(described: _Described) -> str:
    node = described.node
    feeds = f"\n      --> {_names(described.successors)}"
    fed_by = f"\n      <-- {_names(described.predecessors)}"
    if node.reads_topics:
        topics = ", ".join(hash_order(node.reads_topics, sized=True))
        return f"Source: {node.name} (topics: [{topics}]){feeds}"
    if node.as_sink is not None:
        combines = node.as_sink.combines
        folded = "" if combines is None else f", combines: {combines.fold.word}"
        return f"Sink: {node.name} ({_target(node.as_sink)}{folded}){fed_by}"
    stores = ", ".join(hash_order(node.stores, sized=True))
    return f"Processor: {node.name} (stores: [{stores}]){feeds}{fed_by}"


def _target(node: Sink) -> str:
    if callable(node.topic):
        return f"extractor class: {getattr(node.topic, '__qualname__', type(node.topic).__name__)}"
    return f"topic: {node.topic}"


def _names(nodes: Iterable[_Described]) -> str:
    return ", ".join(node.name for node in nodes) or "none"


def _code(topology: Graph, options: CompileOptions) -> str:
    bound = bound_to_topics(
        topology,
        application_id=options.application_id,
        default_key=options.default_key,
        default_value=options.default_value,
    )
    programs = (compile_sub_topology(sub, options) for sub in bound.sub_topologies)
    return "".join(f"{program.source_code}\n" for program in programs)
