"""Finds keys that a program changes behind a named serde, and writes with one that nobody named.

``stream("orders", key=serdes.string).select_key(f).to("out")`` writes keys with the default serde,
``default.key.serde``, although everything around it may look as if they stayed strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.topology.checks.key_forms import same_bytes, written_as
from headrace.topology.graph.graph import AnySerde, Graph, Sink, Source


@dataclass(frozen=True, slots=True)
class UnnamedKey:
    """Keys that are written with the default serde behind a step that may have changed them.

    Args:
        changed: the step that may have.
        source: the node behind which it stands, whose serde is named.
        named: that serde.
        sink: what writes them.
        default: the serde that it writes them with.
    """

    changed: str
    source: Source
    named: AnySerde
    sink: Sink
    default: AnySerde

    def __str__(self) -> str:
        topic = "a topic of its choice" if callable(self.sink.topic) else self.sink.topic
        argument = self.sink.serde_arguments.get("key", "key")
        read = f"{', '.join(self.source.topics)} is read with the key serde {self.named.name!r}"
        return (
            f"new keys of {self.changed} are written to {topic} by {self.sink.name} with the "
            f"default serde {self.default.name!r}, as none is named, while {read}: write "
            f"{written_as(self.named, argument)} at the step that writes them, or "
            f"{written_as(self.default, argument)} if that is meant"
        )


def unnamed_keys(topology: Graph, default_key: AnySerde) -> Iterator[UnnamedKey]:
    """The places where such keys are written, in the program's order.

    Args:
        default_key: the serde of keys where the topology names none.

    Example:
        >>> from headrace import StreamsBuilder, serdes
        >>> builder = StreamsBuilder()
        >>> orders = builder.stream("orders", key=serdes.string)
        >>> orders.select_key(lambda key, order: order["customer"]).to("out")
        >>> print(*unnamed_keys(builder.build(), serdes.json))
        new keys of KSTREAM-KEY-SELECT-0000000001 are written to out by KSTREAM-SINK-0000000002 \
with the default serde 'json', as none is named, while orders is read with the key serde \
'string': write key=serdes.string at the step that writes them, or key=serdes.json if that is \
meant
    """
    named: dict[str, Source | None] = {}
    changed: dict[str, tuple[str, Source] | None] = {}
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
        changed[node.name] = (node.name, source) if is_change and source is not None else before
        if sink is not None and sink.key is None and before is not None:
            step, behind = before
            assert behind.key is not None
            if same_bytes(behind.key, default_key) is not True:
                yield UnnamedKey(step, behind, behind.key, sink, default_key)
