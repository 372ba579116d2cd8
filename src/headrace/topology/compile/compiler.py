"""Turns each sub-topology into Python source: one function per source that runs a batch of records.

The fused operators are straight lines of one loop: no node objects, no dispatch and no context per
record. Only a node that several others feed, or one that is nested deeply, is a function of its
own. The source has the node names as comments, is registered with `linecache` so that tracebacks
and debuggers show it, and is printed by ``Topology.describe(code=True)``.

What the generated code calls while it runs is in `TaskEnvironment`; what it hands back is a
`BoundProgram`.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType, FrameType, TracebackType
from typing import Any

from headrace.state.buffer import ATOMS
from headrace.topology import blame, functions
from headrace.topology.compile import (
    aggregate,
    fused,
    guarding,
    preamble,
    row_keys,
    sink,
    source,
    stateless,
    table,
    update,
)
from headrace.topology.compile.codegen import CompileOptions, Flow, Generator, Hold, Writer
from headrace.topology.compile.holding import hold_of
from headrace.topology.compile.objects import gathered, keeping
from headrace.topology.compile.objects.making import OperatorMaker
from headrace.topology.context.context import Operator as RunningOperator
from headrace.topology.context.environment import Message, TaskEnvironment
from headrace.topology.errors import (
    BadRecordError,
    FutureTimestampError,
    NegativeTimestampError,
    NullKeyError,
    SerdeError,
)
from headrace.topology.first_result import looked_at
from headrace.topology.functions import Place, place_of
from headrace.topology.graph.graph import (
    Aggregate,
    Branch,
    Fused,
    Node,
    Operator,
    Sink,
    Source,
    Stateless,
    SubTopology,
    TableSource,
    by_name,
    is_versioned,
    tells_old,
)
from headrace.topology.operators.cogroup import CogroupMerge
from headrace.topology.operators.table_mapping import StoredMapping
from headrace.topology.operators.transform_values import TransformValues
from headrace.topology.operators.versioned import OutOfOrder
from headrace.topology.serdes.pairs import as_pair
from headrace.topology.timestamps import Stamper

MAX_DEPTH = 14
"""How deep blocks nest before a node becomes a function; Python allows 20 nested loops."""
_code_of = lru_cache(maxsize=64)(compile)  # an application that is made again has the same


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """The functions of one task."""

    process: Mapping[str, Callable[[Iterable[Message]], int]]
    """By topic: runs a batch and returns the largest timestamp in it, or -1."""
    flush: Callable[[], None]
    """Sends on everything that caches hold back."""
    pending: Sequence[MutableMapping[Any, Any]]
    """What caches hold back now."""
    operators: Mapping[str, RunningOperator]
    """By node: the steps that are objects."""
    stampers: Mapping[str, Callable[[int], Stamper]]
    """By topic, where an extractor tells the time: makes what asks it for one partition."""
    gathers: bool
    """Whether a step gathers records, so that what is left of a run may better wait."""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled sub-topology: the source, and how to bind it to a task."""

    sub_topology: SubTopology
    source_code: str
    filename: str
    holds: Mapping[str, Hold]
    _options: CompileOptions
    line_nodes: tuple[str, ...]
    _constants: Mapping[str, Any]
    _functions: frozenset[str]
    _code: CodeType

    @property
    def options(self) -> CompileOptions:
        """What it was compiled with."""
        return self._options

    def bind(self, environment: TaskEnvironment) -> BoundProgram:
        """Make the functions for one task."""
        namespace: dict[str, Any] = {
            "constants": self._constants,
            "ATOMS": ATOMS,
            "NullKeyError": NullKeyError,
            "FutureTimestampError": FutureTimestampError,
            "NegativeTimestampError": NegativeTimestampError,
            **sink.CALLED,
            **source.CALLED,
            "OutOfOrder": OutOfOrder,
            "as_pair": as_pair,
            "looked_at": looked_at,
        }
        exec(self._code, namespace)  # noqa: S102
        maker = OperatorMaker(self.sub_topology, self._options, environment)
        process, flush, pending = namespace["bind"](environment, maker.make)
        stampers = source.stampers(self.sub_topology, self._options, environment.now_ms)
        gathers = bool(gathered.gathering(self.sub_topology.nodes))
        return BoundProgram(process, flush, pending, maker.made, stampers, gathers)

    def current(self, frame: FrameType | None) -> Any:
        """Find the message that is processed in a frame, or in those that called it, or None."""
        return self._locals(frame).get("m")

    def stream_time(self, frame: FrameType | None) -> int:
        """Find the largest time of the batch that is processed in a frame so far, or -1."""
        time: int = self._locals(frame).get("stream_time", -1)
        return time

    def _locals(self, frame: FrameType | None) -> Mapping[str, Any]:
        """The variables of the loop over messages that a frame is called from."""
        while frame is not None:
            if frame.f_code.co_filename == self.filename and "m" in frame.f_locals:
                return frame.f_locals
            frame = frame.f_back
        return {}

    def explain(self, error: Exception, node: str | None, message: Any) -> Exception:
        """Return the error to report: that of the checked decoding, where a source failed."""
        error = blame.explained(error, self.filename, self.source_code.splitlines())
        if isinstance(error, SerdeError):
            failed = next((n for n in self.sub_topology.nodes if n.name == node), None)
            error.named_by({} if failed is None else failed.serde_arguments)
        source_node = next((s for s in self.sub_topology.sources if s.name == node), None)
        if source_node is None or message is None or isinstance(error, BadRecordError):
            return error
        defaults = (self._options.default_key, self._options.default_value)
        return source.decoding_error(source_node, defaults, message) or error

    def called(
        self, error: BaseException | None, node: str | None, *, likely: bool
    ) -> tuple[Place, ...]:
        """The user's function that failed.

        Args:
            error: as it was raised.
            node: the node that it came from.
            likely: whether it must be one of the node's where nothing tells which one.
        """
        lines = self.source_code.splitlines()
        traceback = None if error is None else error.__traceback__
        name = blame.name_called(traceback, self.filename, lines)
        given = self._constants[name] if name in self._functions else None
        exact = place_of(given) or functions.called(traceback, self.filename)
        if exact is not None or not likely:
            return () if exact is None else (exact,)
        found = next((n for n in self.sub_topology.nodes if n.name == node), None)
        places = (place_of(function) for function in functions.functions_in(found))
        return tuple(dict.fromkeys(place for place in places if place is not None))

    def locate(self, traceback: TracebackType | None) -> tuple[str | None, Any]:
        """Find the node that an exception came from, and the message that was processed.

        Returns:
            The node's name, and the message; each None where the traceback does not tell.
        """
        node, message = None, None
        while traceback is not None:
            frame = traceback.tb_frame
            if frame.f_code.co_filename == self.filename:
                node = self.line_nodes[traceback.tb_lineno - 1] or node
                message = frame.f_locals.get("m", message)
            traceback = traceback.tb_next
        return node, message


def compile_sub_topology(sub: SubTopology, options: CompileOptions) -> Program:
    """Generate and compile the batch functions of one sub-topology.

    Args:
        options: the defaults and policies that the settings name.

    Returns:
        The program; its code is the same for each of the sub-topology's tasks.
    """
    holds: dict[str, Hold] = {}
    for store in sub.stores:
        serde = store.value or options.default_value
        holds[store.name] = hold_of(
            sub,
            store.name,
            immutable=serde.immutable,
            outlives_errors=options.handles_errors,
        )
    gen = Generator(sub, options, holds, _cached_nodes(sub, options))
    writer = _Assembler(gen).assemble()
    text = "\n".join(writer.lines) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    filename = f"<{options.application_id} sub-topology {sub.id} {digest}>"
    # Without a modification time linecache takes the lines as they are and never looks for a file.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return Program(
        sub_topology=sub,
        source_code=text,
        filename=filename,
        holds=holds,
        _options=options,
        line_nodes=tuple(writer.nodes),
        _constants=gen.constants,
        _functions=frozenset(gen.functions),
        _code=_code_of(text, filename, "exec"),
    )


_ROW_BY_ROW = (StoredMapping, TransformValues, CogroupMerge)
"""Operators whose table has the rows of the one above, in time and in keys."""


def _followers(sub: SubTopology, node: Node) -> Iterator[Operator]:
    """Return what follows the time of a node's windows through filters and mappings of its rows."""
    if isinstance(node, Operator) and node.makes_windows:
        yield from _followers_below(sub, node)


def _followers_below(sub: SubTopology, node: Node) -> Iterator[Operator]:
    for child in sub.children(node.name):
        if isinstance(child, Operator) and child.follows_windows:
            yield child
        elif _is_row_by_row(child):
            yield from _followers_below(sub, child)


def _is_row_by_row(node: Node) -> bool:
    if isinstance(node, Operator):
        return isinstance(node.spec, _ROW_BY_ROW)
    return isinstance(node, Stateless) and not node.stream


def _cached_nodes(sub: SubTopology, options: CompileOptions) -> frozenset[str]:
    if not options.caching:
        return frozenset()
    cached = {store.name for store in sub.stores if store.spec.cached}
    return frozenset(
        node.name
        for node in sub.nodes
        if isinstance(node, (Aggregate, TableSource))
        and node.store in cached
        and sub.children(node.name)
    )


class _Assembler:
    """Writes the parts of one module and joins them."""

    def __init__(self, gen: Generator) -> None:
        self._gen = gen
        self._functions: dict[str, Writer] = {}
        self._loop: Writer | None = None
        """Writes the loop over a batch."""

    def assemble(self) -> Writer:
        gen = self._gen
        sources = gen.sub.sources
        bodies = [self._in_own_writer(partial(self._process, s)) for s in sources]
        for node in gen.sub.nodes:
            if isinstance(node, Operator) and not node.gathers:
                for child in gen.sub.children(node.name):
                    self._shared(child)
        bodies += [self._in_own_writer(partial(self._release, n)) for n in self._gathering]
        flush = self._in_own_writer(self._flush)
        whole = Writer()
        whole.line(f'"""Sub-topology {gen.sub.id} of {gen.options.application_id}."""')
        whole.line("")
        whole.line("")
        whole.line("def bind(env, make_operator):")
        body = self._body((*self._functions.values(), *bodies, flush))
        whole.depth = 1
        preamble.write(whole, gen, body.lines)
        whole.lines += body.lines
        whole.nodes += body.nodes
        return whole

    def _body(self, parts: Iterable[Writer]) -> Writer:
        gen = self._gen
        whole = Writer(depth=1)
        for part in parts:
            whole.line("")
            whole.lines += part.lines
            whole.nodes += part.nodes
        whole.line("")
        topics = [
            f"{self._topic_name(s, t)!r}: process_{gen.ordinal(s)}"
            for s in gen.sub.sources
            for t in s.topics
        ]
        pending = [f"pending_{gen.ordinal(n)}" for n in gen.sub.nodes if n.name in gen.cached]
        for node in gen.sub.nodes:
            if isinstance(node, Operator):
                self._make_operator(whole, node)
                pending.append(f"operator_{gen.ordinal(node)}.pending")
            elif isinstance(node, Sink) and node.combines is not None:
                pending.append(sink.emit_partials(gen, node, whole))
        whole.line(f"return {{{', '.join(topics)}}}, flush, [{', '.join(pending)}]")
        return whole

    def _make_operator(self, w: Writer, node: Operator) -> None:
        i = self._gen.ordinal(node)
        children = () if node.gathers else self._gen.sub.children(node.name)
        receivers = ", ".join(f"{c.name!r}: node_{self._gen.ordinal(c)}" for c in children)
        places = preamble.said_of(functions.functions_in(node))
        w.node = node.name  # of which an error is that comes from what makes it
        w.line(f"operator_{i} = make_operator({node.name!r}, {{{receivers}}}){places}")
        w.node = ""
        if node.gathers:
            w.line(f"operator_{i}.released_by(release_{i})")
        w.line(f"process_{i} = operator_{i}.process")
        if keeping.is_kept(self._gen, node):
            keeping.emit_keeper(self._gen, node, w)

    def _topic_name(self, node: Source, topic: str) -> str:
        return f"{self._gen.options.application_id}-{topic}" if node.internal else topic

    def _in_own_writer(self, write: Callable[[], None]) -> Writer:
        outer = self._gen.writer
        self._gen.writer = own = Writer(depth=1, node=outer.node)
        write()
        self._gen.writer = outer
        return own

    def _process(self, node: Source) -> None:
        gen = self._gen
        w = self._loop = gen.writer
        asking = [one for one in gen.sub.nodes if one.needs_record]
        # What writes to a table outside asks which record it is, and nothing else.
        has_turns = any(one.writes_outside is None for one in asking)
        with w.block(f"def process_{gen.ordinal(node)}(batch):"):
            w.line("stream_time = -1")
            with w.block("for m in batch:"):
                with w.of(node):
                    flow = source.emit(gen, node)
                    if asking:
                        begin = "task.begin(m, timestamp)" if has_turns else "task.record = m"
                        w.line(begin)
                    self._children(node, flow)
                if has_turns:
                    # Of no node: punctuators run here, and the task knows whose.
                    w.line("task.end()")
            gathered.emit_run_ended(gen)
            w.line("return stream_time")

    @property
    def _gathering(self) -> list[Operator]:
        return gathered.gathering(self._gen.sub.nodes)

    def _release(self, node: Operator) -> None:
        gathered.emit_release(self._gen, node, self._children)

    def _flush(self) -> None:
        gen = self._gen
        w = gen.writer
        with w.block("def flush():"):
            for node in gen.sub.nodes:
                if node.name in gen.cached:
                    assert isinstance(node, (Aggregate, TableSource))
                    assert node.store is not None
                    with w.of(node):
                        update.emit_flush(gen, node, node.store, partial(self._children, node))
                elif isinstance(node, Operator):
                    with w.of(node):
                        w.line(f"operator_{gen.ordinal(node)}.flush()")
                elif isinstance(node, Sink) and node.combines is not None:
                    with w.of(node):
                        w.line(f"partials_{gen.ordinal(node)}.send()")
            w.line("return None")

    def _children(self, node: Node, flow: Flow) -> None:
        for child in self._gen.sub.children(node.name):
            self._descend(child, flow)

    def _descend(self, node: Node, flow: Flow) -> None:
        w = self._gen.writer
        if len(node.parents) > 1:
            self._call_shared(node, flow)
        elif w.depth > MAX_DEPTH:
            self._call_nested(node, flow)
        else:
            with w.of(node):
                self._inline(node, flow)

    def _inline(self, node: Node, flow: Flow) -> None:
        nodes = by_name(self._gen.sub.nodes)
        if isinstance(node, Stateless) or not any(is_versioned(nodes, p) for p in node.parents):
            self._emit(node, flow)
            return
        # What computes with the present rows is not told what came out of order.
        with self._gen.writer.block(f"if {flow.old}.__class__ is not OutOfOrder:"):
            self._emit(node, flow)

    def _emit(self, node: Node, flow: Flow) -> None:
        gen = self._gen
        if isinstance(node, Stateless):
            stateless.emit(gen, node, flow, self._descend)
        elif isinstance(node, Fused):
            fused.emit(gen, node, flow, partial(self._children, node))
        elif isinstance(node, Branch):
            stateless.emit_branch(gen, node, flow, self._descend)
        elif isinstance(node, Aggregate):
            emit = partial(aggregate.emit, gen, node, descend=partial(self._children, node))
            row_keys.emit(gen, node, flow, emit)
        elif isinstance(node, TableSource):
            emit = partial(table.emit, gen, node, descend=partial(self._children, node))
            row_keys.emit(gen, node, flow, emit)
        elif isinstance(node, Sink):
            sink.emit(gen, node, flow)
        elif isinstance(node, Operator):
            row_keys.emit(gen, node, flow, partial(self._operator, node))
        else:
            raise AssertionError(f"no operator for {node!r}")

    def _operator(self, node: Operator, flow: Flow) -> None:
        gen = self._gen
        if keeping.is_kept(gen, node) and gen.writer is self._loop:
            keeping.emit_kept(gen, node, flow)
            return

        def call(flow: Flow) -> None:
            value = flow.value_object if node.reads_value else flow.value_or_bytes
            record = f"{flow.key_object}, {value}, {flow.old or 'None'}"
            line = f"process_{gen.ordinal(node)}({record}, {flow.timestamp}, {flow.headers})"
            with guarding.attempt(gen, node, flow):
                gen.writer.line(line)
            for follower in _followers(gen.sub, node):
                own, other = gen.ordinal(node), gen.ordinal(follower)
                gen.writer.line(f"operator_{other}.follow(operator_{own}.stream_time)")
            if node.gathers:
                gathered.emit_full(gen, node)

        if node.needs_key:
            store = node.uses[0] if node.uses else None
            stateless.guard_key(gen, node, flow, call, store=store)
        else:
            call(flow)

    def _call_shared(self, node: Node, flow: Flow) -> None:
        """Several nodes feed this one: it takes the decoded record, whoever calls."""
        record = (flow.key_object, flow.value_object, flow.old or "None")
        arguments = ", ".join((*record, flow.timestamp, flow.headers))
        self._gen.writer.line(f"node_{self._gen.ordinal(node)}({arguments})")
        self._shared(node)

    def _shared(self, node: Node) -> None:
        """Write a node that takes the decoded record as a function of its own, once."""
        if node.name in self._functions:
            return
        nodes = by_name(self._gen.sub.nodes)
        old = "old" if any(tells_old(nodes, parent) for parent in node.parents) else None
        inner = Flow("key", None, None, "value", None, None, old=old)
        self._function(node, inner, "key, value, old, timestamp, headers")

    def _call_nested(self, node: Node, flow: Flow) -> None:
        """Too deep to inline: the same variables become parameters."""
        names = (
            flow.key, flow.key_bytes, flow.value, flow.value_bytes, flow.old,
            flow.timestamp, flow.headers, flow.partial,
        )  # fmt: skip
        parameters = ", ".join(dict.fromkeys(name for name in names if name))
        self._gen.writer.line(f"node_{self._gen.ordinal(node)}({parameters})")
        self._function(node, flow, parameters)

    def _function(self, node: Node, flow: Flow, parameters: str) -> None:
        def write() -> None:
            w = self._gen.writer
            with w.block(f"def node_{self._gen.ordinal(node)}({parameters}):"), w.of(node):
                self._inline(node, flow)

        self._functions[node.name] = Writer()  # reserves the place and ends recursion
        self._functions[node.name] = self._in_own_writer(write)
