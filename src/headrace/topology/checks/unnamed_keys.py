"""Finds keys that a program changes behind a named serde, and writes with one that nobody named.

``stream("orders", key=serdes.string).select_key(f).to("out")`` writes keys with the default serde,
``default.key.serde``, although everything around it may look as if they stayed strings.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.topology import serdes
from headrace.topology.checks.key_forms import same_bytes, written_as
from headrace.topology.functions import functions_in
from headrace.topology.graph.graph import AnySerde, Graph, Node, Sink, Source

_SERDES: dict[Any, AnySerde] = {
    str: serdes.string,
    bytes: serdes.bytes,
    int: serdes.long,
    float: serdes.double,
}


@dataclass(frozen=True, slots=True)
class UnnamedKey:
    """Keys that are written with the default serde behind a step that may have changed them.

    Args:
        changed: the step that may have.
        source: the node behind which it stands, whose serde is named.
        named: that serde.
        sink: what writes them.
        default: the serde that it writes them with.
        likely: that of the type which the step's function says to return.
    """

    changed: str
    source: Source
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
            f"default serde {self.default.name!r}, as none is named, while {read}: name the serde "
            f"of the new keys at the step that writes them: {self._advice(argument)}"
        )

    def _advice(self, argument: str) -> str:
        now = f"{written_as(self.default, argument)}, which they have now"
        if self.likely is not None and self.likely != self.default:
            likely = written_as(self.likely, argument)
            return f"{likely} by what the function of {self.changed} says to return, or {now}"
        old = f"{written_as(self.named, argument)}, if they are of the type of the old ones"
        return f"{now}, or {old}"


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
'string': name the serde of the new keys at the step that writes them: key=serdes.json, which they \
have now, or key=serdes.string, if they are of the type of the old ones
    """
    named: dict[str, Source | None] = {}
    changed: dict[str, tuple[Node, Source] | None] = {}
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
    """The serde for what the step's function says to return, or for the first of its pair."""
    found = [_SERDES.get(_returned(function)) for function in functions_in(step)]
    return found[0] if len(found) == 1 else None


def _returned(function: Callable[..., Any]) -> object:
    try:
        kind = typing.get_type_hints(function).get("return")
    except Exception:  # names that are known to type checkers alone
        return None
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else kind
