"""Checks for stores and repartition topics whose names are generated, and for unnamed key serdes.

A generated name has a number that counts the nodes of the program. If a DSL call is added or
removed, the numbers of all later calls change, and state stored under an old name is not found.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from headrace.topology import serdes
from headrace.topology.checks.key_forms import same_bytes, written_as
from headrace.topology.compile.batch_order import mixes_downstream
from headrace.topology.functions import functions_in
from headrace.topology.graph.graph import (
    AnySerde,
    Graph,
    Node,
    Sink,
    SourceNode,
    SubTopology,
    by_name,
)

# Finds async operators whose calls run one at a time, although many could be in flight.


def calls_alone(subs: Iterable[SubTopology]) -> Iterator[str]:
    """Yield a message for each async operator whose calls run sequentially, in program order.

    >>> from headrace import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> lines = builder.stream("lines")
    >>> lines.merge(lines.map_async(len, name="ask")).to("out")
    >>> print(*calls_alone(builder.build().sub_topologies))
    ask makes its calls sequentially: its results are combined with other records of lines, or \
reach a processor, and their order is kept; give map_async order="any", or add .repartition()
    """
    for sub in subs:
        for node in sub.nodes:
            if (
                node.batches_records
                and not node.allows_reordering
                and mixes_downstream(sub, node, same_source=True)
            ):
                read = ", ".join(t for s in sub.sources for t in s.topics)
                yield (
                    f"{node.name} makes its calls sequentially: its results are combined with "
                    f"other records of {read}, or reach a processor, and their order is kept; give "
                    'map_async order="any", or add .repartition()'
                )


# Finds keys that were read with an explicit serde, changed, and written with the default serde.
#
# ``stream("orders", key=serdes.string).select_key(f).to("out")`` writes keys with the default
# serde, ``default.key.serde``, although the program looks as if they remained strings.


_SERDES: dict[Any, AnySerde] = {
    str: serdes.string,
    bytes: serdes.bytes,
    int: serdes.long,
    float: serdes.double,
}


@dataclass(frozen=True, slots=True)
class UnnamedKey:
    """Keys that are written with the default serde after an operator may have changed them.

    Args:
        changed: the node that may have changed the keys.
        source: the source upstream, which has an explicit serde.
        likely: the serde of the return type of the node's function, if known.
    """

    changed: str
    source: SourceNode
    named: AnySerde
    sink: Sink
    default: AnySerde
    likely: AnySerde | None = None

    def __str__(self) -> str:
        topic = "a topic of its choice" if callable(self.sink.topic) else self.sink.topic
        argument = self.sink.serde_arguments.get("key", "key")
        read = f"{', '.join(self.source.topics)} is read with the key serde {self.named.name!r}"
        return (
            f"new keys of {self.changed} are written to {topic} by {self.sink.name} with the "
            f"default serde {self.default.name!r}, but {read}; set the serde of the new keys at "
            f"the step that writes them: {self._advice(argument)}"
        )

    def _advice(self, argument: str) -> str:
        now = f"{written_as(self.default, argument)}, which they have now"
        if self.likely is not None and self.likely != self.default:
            likely = written_as(self.likely, argument)
            return f"{likely} by the return type of the function of {self.changed}, or {now}"
        old = f"{written_as(self.named, argument)}, if they have the type of the old keys"
        return f"{now}, or {old}"


def unnamed_keys(topology: Graph, default_key: AnySerde) -> Iterator[UnnamedKey]:
    """Yield the sinks that write such keys, in program order.

    >>> from headrace import StreamsBuilder, serdes
    >>> builder = StreamsBuilder()
    >>> orders = builder.stream("orders", key=serdes.string)
    >>> orders.select_key(lambda key, order: order["customer"]).to("out")
    >>> print(*unnamed_keys(builder.build(), serdes.json))
    new keys of KSTREAM-KEY-SELECT-0000000001 are written to out by KSTREAM-SINK-0000000002 \
with the default serde 'json', but orders is read with the key serde 'string'; set the serde of \
the new keys at the step that writes them: key=serdes.json, which they have now, or \
key=serdes.string, if they have the type of the old keys
    """
    named: dict[str, SourceNode | None] = {}
    changed: dict[str, tuple[Node, SourceNode] | None] = {}
    for node in topology.nodes:
        parents = node.parents
        reader, sink = node.as_source, node.as_sink
        if reader is not None:
            named[node.name] = None if reader.key is None else reader
            changed[node.name] = None
            continue
        source = next((s for p in parents if (s := named.get(p)) is not None), None)
        before = next((c for p in parents if (c := changed.get(p)) is not None), None)
        named[node.name] = source
        is_change = node.changes_key
        changed[node.name] = (node, source) if is_change and source is not None else before
        if sink is not None and sink.key is None and before is not None:
            step, behind = before
            assert behind.key is not None
            if same_bytes(behind.key, default_key) is not True:
                yield UnnamedKey(step.name, behind, behind.key, sink, default_key, _likely(step))


def _likely(step: Node) -> AnySerde | None:
    """Return the serde of the function's return type, or of the first type of its pair."""
    serdes_ = [_SERDES.get(_returned(function)) for function in functions_in(step)]
    return serdes_[0] if len(serdes_) == 1 else None


def _returned(function: Callable[..., Any]) -> object:
    try:
        kind = typing.get_type_hints(function).get("return")
    except Exception:  # names that only type checkers know
        return None
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind


_NUMBERED = re.compile(r"(?:KSTREAM|KTABLE|STATE-STORE)[A-Z-]*-[0-9]{10}")
_REPARTITION = "-repartition"


def is_generated(name: str) -> bool:
    """Whether the name of a store or topic contains a generated number.

    >>> is_generated("KSTREAM-AGGREGATE-STATE-STORE-0000000003")
    True
    >>> is_generated("orders-STATE-STORE-0000000000"), is_generated("counts")
    (True, False)
    """
    return _NUMBERED.search(name) is not None


@dataclass(frozen=True, slots=True)
class Unnamed:
    """A store or a repartition topic whose name was generated.

    Args:
        kind: store or repartition topic.
        name: the generated name, without the application's id.
        node: the node that it belongs to.
        reads: the external topics that the node's sub-topology reads, directly or through
            repartition topics.
        advice: the code that gives it a name.
    """

    kind: Literal["store", "repartition topic"]
    name: str
    node: str
    reads: tuple[str, ...]
    advice: str

    def __str__(self) -> str:
        reads = ", ".join(self.reads)
        return f"{self.kind} {self.name}, of {self.node} downstream of {reads}: write {self.advice}"


def unnamed_steps(subs: Iterable[SubTopology]) -> Iterator[Unnamed]:
    """Yield the stores and repartition topics without an explicit name, in program order.

    >>> from headrace import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> table = builder.stream("lines").group_by_key().count()
    >>> print(*unnamed_steps(builder.build().sub_topologies))
    store KSTREAM-AGGREGATE-STATE-STORE-0000000001, of KSTREAM-AGGREGATE-0000000002 downstream of \
lines: write count(store="...")
    """
    subs = list(subs)
    for sub in subs:
        reads = _external_topics_upstream(sub, subs)
        nodes, reported = by_name(sub.nodes), set[str]()
        for node in sub.nodes:
            if node.internal:
                yield from _unnamed_topics(sub, node, reads)
            for store in node.stores:
                # The first node with the store is its owner; other users were added later.
                if is_generated(store) and store not in reported:
                    reported.add(store)
                    parents = (nodes[parent] for parent in node.parents)
                    read = any(parent.reads_topics and not parent.internal for parent in parents)
                    advice = node.store_advice(reads_topic=read)
                    yield Unnamed("store", store, node.name, reads, advice)


def _external_topics_upstream(sub: SubTopology, subs: Iterable[SubTopology]) -> tuple[str, ...]:
    """Return the external topics that the records of a sub-topology come from."""
    writers = {sink.topic: sub for sub in subs for sink in sub.sinks if sink.internal}
    topics: dict[str, None] = {}
    seen, pending = set[int](), [sub]
    while pending:
        current = pending.pop()
        if current.id in seen:
            continue
        seen.add(current.id)
        for source in current.sources:
            for topic in source.topics:
                if topic in writers:
                    pending.append(writers[topic])
                else:
                    topics[topic] = None
    return tuple(topics)


def _unnamed_topics(sub: SubTopology, source: Node, reads: tuple[str, ...]) -> Iterator[Unnamed]:
    for topic in source.reads_topics:
        if is_generated(topic):
            advice = _repartition_advice(sub, source, topic.removesuffix(_REPARTITION))
            yield Unnamed("repartition topic", topic, source.name, reads, advice)


def _repartition_advice(sub: SubTopology, source: Node, prefix: str) -> str:
    if prefix.startswith("KSTREAM-REPARTITION-"):
        return 'repartition(name="...")'
    advice = next(filter(None, (c.repartition_advice for c in sub.children(source.name))), None)
    if advice is None and any(prefix in node.stores for node in sub.nodes):
        return 'group_by(name="...")'
    return advice or 'name="..." at the next step'
