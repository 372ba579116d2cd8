"""The pieces that the compiler writes source with: a line writer, and what is known of a record.

A `Flow` says how the record at one edge of the graph is held in the generated function: which
variables hold its key and value, decoded or as bytes, and which of them cannot be None. Operators
take a flow, write lines and hand the changed flow to their children. Bytes that are known already
are never encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headrace.topology.graph.graph import AnySerde, Node, SubTopology
from headrace.topology.timestamps import TimestampExtractor

NullKeyPolicy = Literal["fail", "drop"]
Hold = Literal["objects", "bytes"]


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What the compiler must know besides the topology.

    Args:
        application_id: put in front of the names of internal topics.
        default_key: the serde of keys where the topology names none.
        default_value: the serde of values where the topology names none.
        caching: hold back a table's updates until the next flush, so only the last one goes on.
        null_key_policy: what a stateful operator does with a null key.
        handles_errors: whether a handler may let records go on after one of them failed.
        skips_undecodable: whether a handler may pass over bytes that no serde can read.
        timestamps: the timestamp extractor where a source names none.
    """

    application_id: str
    default_key: AnySerde
    default_value: AnySerde
    caching: bool = True
    null_key_policy: NullKeyPolicy = "fail"
    handles_errors: bool = False
    skips_undecodable: bool = False
    timestamps: TimestampExtractor | None = None


@dataclass(frozen=True, slots=True)
class Flow:
    """Where a record's parts are, at one edge of the graph, by the names of variables.

    `key` and `value` are None while only the bytes are there; `key_bytes` and `value_bytes` are
    None once the object has changed.
    """

    key: str | None
    key_bytes: str | None
    key_serde: AnySerde | None
    value: str | None
    value_bytes: str | None
    value_serde: AnySerde | None
    timestamp: str = "timestamp"
    headers: str = "headers"
    key_is_set: bool = False
    value_is_set: bool = False
    old: str | None = None
    """The value that was forwarded before, where a table tells it (see `graph.tells_old`)."""
    key_is_own: bool = False
    """Whether this application encoded the key's bytes, so that encoding it again gives them."""
    partial: str | None = None
    """The partial result that the record may be, or None where it is a record like any other."""

    def with_key(self, variable: str, *, is_set: bool = False) -> Flow:
        """The same record under a new key object."""
        return replace(
            self,
            key=variable,
            key_bytes=None,
            key_serde=None,
            key_is_set=is_set,
            key_is_own=False,
        )

    def with_value(self, variable: str, *, is_set: bool = False) -> Flow:
        """The same record with a new value object."""
        return replace(
            self, value=variable, value_bytes=None, value_serde=None, value_is_set=is_set
        )

    @property
    def key_or_bytes(self) -> str:
        """A variable that is None exactly when the key is null."""
        return self.key or self.key_bytes or "None"

    @property
    def value_or_bytes(self) -> str:
        """A variable that is None exactly when the value is null."""
        return self.value or self.value_bytes or "None"

    @property
    def key_object(self) -> str:
        """The variable of the decoded key; the source has decoded it where a node needs it."""
        assert self.key is not None, "the source must decode a key that a node reads"
        return self.key

    @property
    def value_object(self) -> str:
        """The variable of the decoded value; the source has decoded it where a node needs it."""
        assert self.value is not None, "the source must decode a value that a node reads"
        return self.value


@dataclass(slots=True)
class Writer:
    """Source text in the making, with the node that each line belongs to."""

    lines: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    depth: int = 0
    node: str = ""

    def line(self, text: str) -> None:
        """Add one line at the present indentation, for the present node."""
        self.lines.append("    " * self.depth + text if text else "")
        self.nodes.append(self.node)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Add a header line and indent what follows; where nothing follows, it says so."""
        self.line(header)
        begin = len(self.lines)
        self.depth += 1
        yield
        if all(line.lstrip().startswith("#") for line in self.lines[begin:]):
            self.line("pass")
        self.depth -= 1

    @contextmanager
    def of(self, node: Node) -> Iterator[None]:
        """Attribute what follows to `node`, under a comment with its name."""
        outer, self.node = self.node, node.name
        self.line(f"# {node.name}")
        yield
        self.node = outer


@dataclass(slots=True)
class Generator:
    """The state of compiling one sub-topology."""

    sub: SubTopology
    options: CompileOptions
    holds: dict[str, Hold]
    cached: frozenset[str]
    writer: Writer = field(default_factory=Writer)
    constants: dict[str, Any] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    """The constants that are the user's functions."""
    looked_at: set[str] = field(default_factory=set)
    """The constants whose first result is looked at, see `first_result`."""
    ordinals: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ordinals = {node.name: i for i, node in enumerate(self.sub.nodes)}

    def ordinal(self, node: Node) -> int:
        """A small number that is the node's own, for the names of its variables."""
        return self.ordinals[node.name]

    def constant(self, name: str, value: object) -> str:
        """Make an object known to the generated code under `name`."""
        # A bound method is another object each time it is looked up, and equal.
        assert self.constants.setdefault(name, value) == value, name
        return name

    def function(self, name: str, value: object, *, looked_at: bool = False) -> str:
        """Make a function of the user known to the generated code under `name`.

        Args:
            name: a name that is this function's alone.
            looked_at: whether its first result is looked at, see `first_result`.
        """
        self.functions.add(name)
        if looked_at:
            self.looked_at.add(name)
        return self.constant(name, value)

    def store_serdes(self, name: str) -> tuple[AnySerde, AnySerde]:
        """The key and value serdes of a store, defaults applied."""
        store = next(s for s in self.sub.stores if s.name == name)
        return (
            store.key or self.options.default_key,
            store.value or self.options.default_value,
        )

    def encoded_key(self, flow: Flow, serde: AnySerde, node: Node) -> str:
        """A variable or expression of the key's bytes in `serde`."""
        if flow.key_bytes is not None and flow.key is not None and flow.key_serde is serde:
            if flow.key_is_own:
                return flow.key_bytes
            again = getattr(serde, "reserialize", None)
            if again is not None:
                function = self.constant(f"encode_key_{self.ordinal(node)}", again)
                call = f"{function}({flow.key}, {flow.key_bytes})"
                return call if flow.key_is_set else f"None if {flow.key} is None else {call}"
        return self._encoded(
            flow.key, flow.key_bytes, flow.key_serde, serde, flow.key_is_set, "key", node
        )

    def encoded_value(self, flow: Flow, serde: AnySerde, node: Node) -> str:
        """A variable or expression of the value's bytes in `serde`."""
        return self._encoded(
            flow.value, flow.value_bytes, flow.value_serde, serde, flow.value_is_set, "value", node
        )

    def _encoded(
        self,
        variable: str | None,
        known: str | None,
        known_serde: AnySerde | None,
        serde: AnySerde,
        is_set: bool,
        part: str,
        node: Node,
    ) -> str:
        if known is not None and (variable is None or (_reusable(known_serde, serde))):
            return known
        encode = self.constant(f"encode_{part}_{self.ordinal(node)}", serde.serialize)
        if is_set:
            return f"{encode}({variable})"
        return f"None if {variable} is None else {encode}({variable})"


def _reusable(known: AnySerde | None, wanted: AnySerde) -> bool:
    # A mutable object may have been changed in place since it was decoded.
    return known is wanted and wanted.canonical and wanted.immutable
