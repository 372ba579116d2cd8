"""Parts of the compiler: a writer of source lines, and the variables of a record.

Then: lines that may fail for a single record, the stored form of buffers, the nodes that need a
decoded key or value, and the head of the generated module.

`RecordVariables` describes how the generated function holds the record at one edge of the graph:
which variables have its key and value, decoded or as bytes, and which of them cannot be None.
Operators take them, write lines and pass the changed variables to their children. Bytes that are
already known are never encoded again.
"""

from __future__ import annotations

import symtable
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from headrace.topology.functions import location_of
from headrace.topology.graph.graph import (
    Aggregate,
    AnySerde,
    Node,
    OperatorNode,
    SubTopology,
    TableSource,
    by_name,
)
from headrace.topology.timestamps import TimestampExtractor

NullKeyPolicy = Literal["fail", "drop"]
StoredForm = Literal["objects", "bytes"]


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Settings that the compiler depends on.

    Args:
        application_id: prefix of the names of internal topics.
        default_key: the serde of keys if the topology names none.
        default_value: the serde of values if the topology names none.
        caching: cache a table's updates until the next flush, so that only the last one is
            forwarded.
        null_key_policy: what a stateful operator does with a null key.
        handles_errors: whether a handler may skip a failed record and continue.
        skips_undecodable: whether a handler may skip bytes that no serde can read.
        timestamps: the timestamp extractor if a source names none.
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
class RecordVariables:
    """The variables that hold the parts of a record at an edge of the graph.

    `key` and `value` are None while only the bytes are known; `key_bytes` and `value_bytes` are
    None after the object has changed.
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
    """Variable of the previous value, if a table forwards it (see `graph.sends_old_values`)."""
    key_is_own: bool = False
    """Whether this application encoded the key, so that encoding it again gives equal bytes."""
    partial: str | None = None
    """Variable of the partial aggregate that the record may be, or None for ordinary records."""

    def with_key(self, variable: str, *, is_set: bool = False) -> RecordVariables:
        return replace(
            self,
            key=variable,
            key_bytes=None,
            key_serde=None,
            key_is_set=is_set,
            key_is_own=False,
        )

    def with_value(self, variable: str, *, is_set: bool = False) -> RecordVariables:
        return replace(
            self, value=variable, value_bytes=None, value_serde=None, value_is_set=is_set
        )

    @property
    def key_or_bytes(self) -> str:
        """Variable that is None exactly if the key is null."""
        return self.key or self.key_bytes or "None"

    @property
    def value_or_bytes(self) -> str:
        return self.value or self.value_bytes or "None"

    @property
    def key_object(self) -> str:
        assert self.key is not None, "the source must decode a key that a node reads"
        return self.key

    @property
    def value_object(self) -> str:
        assert self.value is not None, "the source must decode a value that a node reads"
        return self.value


@dataclass(slots=True)
class Writer:
    """Lines of source text, each with the node that it belongs to."""

    lines: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    depth: int = 0
    node: str = ""

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text if text else "")
        self.nodes.append(self.node)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Add a header line and indent the lines written inside; an empty block gets ``pass``."""
        self.line(header)
        begin = len(self.lines)
        self.depth += 1
        yield
        if all(line.lstrip().startswith("#") for line in self.lines[begin:]):
            self.line("pass")
        self.depth -= 1

    @contextmanager
    def of(self, node: Node) -> Iterator[None]:
        """Attribute the lines written inside to `node`, under a comment with its name."""
        outer, self.node = self.node, node.name
        self.line(f"# {node.name}")
        yield
        self.node = outer


@dataclass(slots=True)
class Generator:
    """State of compiling a sub-topology."""

    sub: SubTopology
    options: CompileOptions
    stored_forms: dict[str, StoredForm]
    cached: frozenset[str]
    writer: Writer = field(default_factory=Writer)
    constants: dict[str, Any] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    """Constants that are user functions."""
    looked_at: set[str] = field(default_factory=set)
    """Constants that are functions whose first result is checked, see `functions.looked_at`."""
    ordinals: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ordinals = {node.name: i for i, node in enumerate(self.sub.nodes)}

    def ordinal(self, node: Node) -> int:
        return self.ordinals[node.name]

    def constant(self, name: str, value: object) -> str:
        """Make an object available to the generated code under `name`."""
        # Compared by equality, because each access of a bound method makes a new object.
        assert self.constants.setdefault(name, value) == value, name
        return name

    def function(self, name: str, value: object, *, looked_at: bool = False) -> str:
        """Make a user function available to the generated code under a `name` for it only."""
        self.functions.add(name)
        if looked_at:
            self.looked_at.add(name)
        return self.constant(name, value)

    def store_serdes(self, name: str) -> tuple[AnySerde, AnySerde]:
        store = next(s for s in self.sub.stores if s.name == name)
        return (
            store.key or self.options.default_key,
            store.value or self.options.default_value,
        )

    def encoded_key(self, flow: RecordVariables, serde: AnySerde, node: Node) -> str:
        """Return a variable or expression of the key's bytes in `serde`."""
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

    def encoded_value(self, flow: RecordVariables, serde: AnySerde, node: Node) -> str:
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


# Lines that may fail for a single record, if a handler may skip it.
#
# If a node fails on a record, the record is skipped there; siblings of the node, and other records
# from its parent, are processed (KIP-1033). Only the node's own lines are in the ``try``. Its
# children are in the ``else``, so each failure is attributed to the failed node. If errors always
# stop the application, no ``try`` is written.


@contextmanager
def attempt(
    gen: Generator,
    node: Node,
    flow: RecordVariables,
    *,
    part: str = "None",
    instead: str | None = None,
) -> Iterator[None]:
    """Write the lines of a node in a ``try`` block that reports failures to the handler.

    Args:
        part: for a sink, the expression of the part that could not be written.
        instead: a line to run after a failure, if the following lines run without `otherwise`.
    """
    w = gen.writer
    if not gen.options.handles_errors:
        yield
        return
    with w.block("try:"):
        yield
    with w.block("except Exception as error:"):
        emit_handler_call(gen, node, flow, "error", part=part)
        if instead is not None:
            w.line(instead)


@contextmanager
def otherwise(gen: Generator) -> Iterator[None]:
    """Write the lines that run if the preceding attempt did not fail."""
    if not gen.options.handles_errors:
        yield
        return
    with gen.writer.block("else:"):
        yield


def emit_handler_call(
    gen: Generator, node: Node, flow: RecordVariables, error: str, *, part: str = "None"
) -> None:
    """Write the call of the error handler; it raises if the application must stop."""
    record = f"{flow.key_or_bytes}, {flow.value_or_bytes}, {flow.timestamp}, {flow.headers}"
    gen.writer.line(f"failed({node.name!r}, {error}, {record}, {part})")


# The stored form of buffers: values as objects, or their bytes.
#
# A store that contains objects encodes a row once per commit, however often it changes. For mutable
# values this is correct only if no other code has a reference to the object: a user function
# downstream could change it in place, and a function upstream could keep the value that a reducer
# returns.


def stored_form_of(
    sub: SubTopology, store: str, *, immutable: bool, outlives_errors: bool = False
) -> StoredForm:
    """Decide whether the buffer of `store` stores values as objects or as bytes.

    With `outlives_errors`, a row keeps its value after a user function failed on it, and is
    encoded immediately so that a failure is found.
    """
    users = [node for node in sub.nodes if store in node.stores]
    if outlives_errors and not all(node.counts for node in users):
        return "bytes"
    if immutable:
        return "objects"
    if any(isinstance(node, OperatorNode) for node in users):
        return "bytes"
    if all(
        _has_exclusive_input(sub, node) and _has_pass_through_output(sub, node) for node in users
    ):
        return "objects"
    return "bytes"


def owns_records(sub: SubTopology, node: Node) -> bool:
    """Whether no other code has a reference to the keys and values that a node receives."""
    return _has_exclusive_input(sub, node) and not any(
        other.changes_key for other in sub.nodes if other is not node
    )


def _has_pass_through_output(sub: SubTopology, node: Node) -> bool:
    below = sub.children(node.name)
    return all(child.is_pass_through and _has_pass_through_output(sub, child) for child in below)


def _has_exclusive_input(sub: SubTopology, node: Node) -> bool:
    nodes = by_name(sub.nodes)
    while node.parents:
        if len(node.parents) != 1:
            return False
        node = nodes[node.parents[0]]
        if not node.leaves_value_alone or len(sub.children(node.name)) != 1:
            return False
    return True


# Nodes that need a decoded key or value; what no node reads stays bytes.


def needs_key(gen: Generator, node: Node, serde: object) -> bool:
    """Whether a node downstream reads the decoded key, or writes it in another serde."""
    if gen.options.handles_errors:
        return True  # the handler receives the record
    for child in gen.sub.children(node.name):
        if len(child.parents) > 1 or child.reads_key:
            return True
        sink = child.as_sink
        if sink is not None and (sink.key or gen.options.default_key) is not serde:
            return True
        if isinstance(child, (Aggregate, TableSource)):
            store = child.store
            if store is not None and gen.store_serdes(store)[0] is not serde:
                return True
        if not child.changes_key and needs_key(gen, child, serde):
            return True
    return False


def needs_value(gen: Generator, node: Node, serde: object) -> bool:
    if gen.options.handles_errors:
        return True
    for child in gen.sub.children(node.name):
        if len(child.parents) > 1 or child.reads_value:
            return True
        sink = child.as_sink
        if sink is not None and (sink.value or gen.options.default_value) is not serde:
            return True
        if not child.changes_value and needs_value(gen, child, serde):
            return True
    return False


def needs_old(sub: SubTopology, node: Node) -> bool:
    return any(child.needs_old for child in sub.children(node.name))


# The head of the generated module: bindings of only the names that its functions read.


_ENVIRONMENT_NAMES = (
    "send",
    "dropped",
    "write_line",
    "partitions_of",
    "partition_of",
    "task",
    "failed",
    "let_go",
    "undecodable",
)
"""Members of `TaskEnvironment` that the generated code may use."""


@dataclass(frozen=True, slots=True)
class _Binding:
    """A name, the lines that bind it, and the bound name that these lines read."""

    name: str
    lines: tuple[str, ...]
    requires: str | None = None


def write(w: Writer, gen: Generator, body: Sequence[str]) -> None:
    """Write the bindings of the names that `body` reads, after the generator has written it."""
    read = _names_read(tuple(body))
    needed: list[_Binding] = []
    for binding in reversed(
        [*_environment_bindings(), *_constant_bindings(gen), *_buffer_bindings(gen)]
    ):
        if binding.name in read:
            needed.append(binding)
            read |= {binding.requires} if binding.requires else set()
    for binding in reversed(needed):
        for line in binding.lines:
            w.line(line)


def location_comment(functions: Iterable[object]) -> str:
    """Return a comment with the source locations of user functions; empty if unknown."""
    locations = dict.fromkeys(str(at) for f in functions if (at := location_of(f)) is not None)
    return f"  # {', '.join(locations)}" if locations else ""


@lru_cache(maxsize=64)  # a re-created application has the same body
def _names_read(body: tuple[str, ...]) -> frozenset[str]:
    """Return the global names that the body reads, found by parsing, not by searching text."""
    open_tables = [symtable.symtable("\n".join(("def bind():", *body)), "<bind>", "exec")]
    names: set[str] = set()
    while open_tables:
        table = open_tables.pop()
        open_tables += table.get_children()
        if isinstance(table, symtable.Function):
            names.update(table.get_globals())
    return frozenset(names)


def _environment_bindings() -> Iterator[_Binding]:
    for name in _ENVIRONMENT_NAMES:
        yield _Binding(name, (f"{name} = env.{name}",))


def _constant_bindings(gen: Generator) -> Iterator[_Binding]:
    for name, value in gen.constants.items():
        comment = location_comment([value]) if name in gen.functions else ""
        if name not in gen.looked_at:
            yield _Binding(name, (f"{name} = constants[{name!r}]{comment}",))
            continue
        replace_wrapper = (
            f"def keep_{name}(function):",
            f"    nonlocal {name}",
            f"    {name} = function",
        )
        checked = f"{name} = looked_at(constants[{name!r}], keep_{name}){comment}"
        yield _Binding(name, (*replace_wrapper, checked))


def _buffer_bindings(gen: Generator) -> Iterator[_Binding]:
    for node in gen.sub.nodes:
        if isinstance(node, (Aggregate, TableSource)) and node.store is not None:
            i = gen.ordinal(node)
            buffer = f"buffer_{i}"
            yield _Binding(buffer, (f"{buffer} = env.buffers[{node.store!r}]",))
            yield _Binding(f"dirty_{i}", (f"dirty_{i} = {buffer}.dirty",), buffer)
            yield _Binding(f"dirty_{i}_get", (f"dirty_{i}_get = dirty_{i}.get",), f"dirty_{i}")
            yield _Binding(f"clean_{i}_get", (f"clean_{i}_get = {buffer}.clean.get",), buffer)
            yield _Binding(f"load_{i}", (f"load_{i} = {buffer}.load",), buffer)
            yield _Binding(f"pending_{i}", (f"pending_{i} = {{}}",))
