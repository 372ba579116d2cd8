"""Compiler from a sub-topology to Python source: for each source a function that runs a batch.

Fused operators are straight lines of one loop: no node objects, no dispatch and no context per
record. Only a node with several parents, or a deeply nested node, is a function. The source has the
node names as comments, is registered with `linecache` so that tracebacks and debuggers show it, and
is printed by ``Topology.describe(code=True)``.

The generated code calls `TaskEnvironment` while it runs; binding it returns a `BoundProgram`.

The file begins with the lines of single nodes: samplers, operators that batch records, appends to
the outbox of an external sink, keys of rows, and tables. The compiler itself is
`compile_sub_topology`.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import CodeType, TracebackType
from typing import Any

from headrace.state.buffer import ATOMS
from headrace.topology import functions
from headrace.topology.compile import (
    aggregate,
    attribution,
    codegen,
    sink,
    source,
    stateless,
    update,
)
from headrace.topology.compile.codegen import (
    CompileOptions,
    Generator,
    RecordVariables,
    StoredForm,
    Writer,
    attempt,
    otherwise,
    owns_records,
    stored_form_of,
)
from headrace.topology.compile.operator_factory import OperatorFactory
from headrace.topology.compile.stateless import guard_key
from headrace.topology.compile.update import emit_normalised, emit_update, read_row, stored_value
from headrace.topology.context.context import Operator as RunningOperator
from headrace.topology.context.environment import Message, TaskEnvironment
from headrace.topology.errors import (
    BadRecordError,
    FutureTimestampError,
    NegativeTimestampError,
    NullKeyError,
    SerdeError,
)
from headrace.topology.functions import SourceLocation, location_of, looked_at
from headrace.topology.graph.graph import (
    Aggregate,
    AnySerde,
    Branch,
    Node,
    OperatorNode,
    Sampler,
    Sink,
    SourceNode,
    Stateless,
    SubTopology,
    TableSource,
    by_name,
    is_versioned,
    sends_old_values,
)
from headrace.topology.operators.cogroup import CogroupMerge
from headrace.topology.operators.table_rows import StoredMapping
from headrace.topology.operators.transform_values import TransformValues
from headrace.topology.operators.versioned import OutOfOrder
from headrace.topology.serdes.join_serdes import KeptKeySerde
from headrace.topology.serdes.normalise import as_pair, exact_types, normaliser
from headrace.topology.serdes.windows_serde import SessionWindowedSerde, WindowStoreSerde
from headrace.topology.timestamps import TimestampAssigner

Descend = Callable[[RecordVariables], None]


def emit_sampler(gen: Generator, node: Sampler, flow: RecordVariables, descend: Descend) -> None:
    i, options = gen.ordinal(node), gen.options
    takes = gen.constant(f"takes_{i}", node.takes)
    if node.by == "key":
        data = gen.encoded_key(flow, node.serde or options.default_key, node)
    else:
        data = gen.encoded_value(flow, node.serde or options.default_value, node)
    condition = f"{takes}(({data}))"
    if options.handles_errors:
        in_sample = f"kept_{i}"
        with attempt(gen, node, flow):
            gen.writer.line(f"{in_sample} = True if {condition} else False")
        with otherwise(gen), gen.writer.block(f"if {in_sample}:"):
            descend(flow)
        return
    with gen.writer.block(f"if {condition}:"):
        descend(flow)


# Operators that batch records: their results are forwarded (see `operators.batching`).
#
# The lines are in a function, which is called when the batch is full, at the end of each run and at
# a flush. In it `m` is the message that a result comes from, as in the loop over a batch.


Children = Callable[[Node, RecordVariables], None]


def batching_nodes(nodes: Iterable[Node]) -> list[OperatorNode]:
    """Return the nodes that batch records, parents first."""
    return [node for node in nodes if isinstance(node, OperatorNode) and node.batches_records]


def emit_release(gen: Generator, node: OperatorNode, children: Children) -> None:
    w, i = gen.writer, gen.ordinal(node)
    given = RecordVariables("key", None, None, "value", None, None)
    each = w.block(f"for one in operator_{i}.joined():")
    with w.block(f"def release_{i}():"), w.of(node), each:
        w.line("m = one.message")
        w.line("key, value, timestamp, headers = one.record")
        with _reacting(gen, node, given):
            w.line(f"value_{i} = one.result()")
        with otherwise(gen) if node.failure_reaction is None else w.block("else:"):
            children(node, given.with_value(f"value_{i}"))


@contextmanager
def _reacting(gen: Generator, node: OperatorNode, flow: RecordVariables) -> Iterator[None]:
    """Write the reaction to a failed call: the node's own, or else a call of the handler."""
    reaction = node.failure_reaction
    if reaction is None:
        with attempt(gen, node, flow):
            yield
        return
    w = gen.writer
    with w.block("try:"):
        yield
    with w.block("except Exception as error:"):
        w.line(f"let_go({node.name!r}, error, key, value, timestamp, headers, {reaction!r})")


def emit_run_ended(gen: Generator) -> None:
    """Write the check at the end of a run: forward the results of nodes that require it."""
    for node in batching_nodes(gen.sub.nodes):
        i = gen.ordinal(node)
        with gen.writer.of(node), gen.writer.block(f"if operator_{i}.ends_with_run:"):
            gen.writer.line(f"release_{i}()")


# External sinks: a record is appended to the outbox without a call of a Python function.
#
# If no other code can change the record's objects, the loop over a batch appends them directly.
# Elsewhere, such as after a merge, the operator's `process` is called.


def is_appended_inline(gen: Generator, node: OperatorNode) -> bool:
    """Whether the record's objects may be appended to the sink's outbox without a copy."""
    return node.external_sink is not None and owns_records(gen.sub, node)


def emit_append(gen: Generator, node: OperatorNode, flow: RecordVariables) -> None:
    """Write the line that appends the record; `m` is the message that is processed."""
    record = f"{flow.key_object}, {flow.value_object}, {flow.timestamp}, m"
    gen.writer.line(f"keep_{gen.ordinal(node)}(({record}))")


# Keys of rows: the key of a record that changes a row is the object that the row's bytes decode to.
#
# A key that another serde decoded, or that a function returned, may be another object with the same
# bytes, such as 1 in a store of doubles, which has 1.0. Otherwise a result that is forwarded
# immediately would have 1, and a result that is read from the store 1.0.


def emit_row_keys(
    gen: Generator, node: Node, flow: RecordVariables, descend: Callable[[RecordVariables], None]
) -> None:
    serde = _row_key_serde(gen, node)
    if serde is None or flow.key is None or _is_decoded_with(serde, flow):
        descend(flow)
        return
    w, i = gen.writer, gen.ordinal(node)
    stored_key = f"stored_key_{i}"
    keep = gen.constant(f"keep_key_{i}", normaliser(serde))
    exact = gen.constant(f"exact_key_{i}", exact_types(serde))
    with attempt(gen, node, flow):
        w.line(f"{stored_key} = {flow.key}")
        with w.block(f"if {stored_key}.__class__ not in {exact}:"):
            w.line(f"{stored_key} = {keep}({stored_key})")
    with otherwise(gen):
        descend(replace(flow.with_key(stored_key, is_set=flow.key_is_set), key_serde=None))


def _row_key_serde(gen: Generator, node: Node) -> AnySerde | None:
    """Return the serde of the row keys, or None if rows do not have the record's key."""
    if isinstance(node, (Aggregate, TableSource)):
        return None if node.store is None else gen.store_serdes(node.store)[0]
    if not isinstance(node, OperatorNode) or not node.needs_key or not node.uses:
        return None
    serde = gen.store_serdes(node.uses[0])[0]
    if isinstance(serde, KeptKeySerde):
        return serde.inner
    if not node.spec.rows_have_its_keys:
        return None  # its store has the keys of a table, or no rows
    if isinstance(serde, WindowStoreSerde):
        return serde.windowed.inner
    if isinstance(serde, SessionWindowedSerde) and node.spec.makes_windows:
        return serde.inner
    return serde  # a session may be the key of a row that is not a session


def _is_decoded_with(serde: AnySerde, flow: RecordVariables) -> bool:
    """Whether the key was decoded with this serde, which may be bound to another topic."""
    read = flow.key_serde
    if read is None or flow.key_bytes is None:
        return False
    return read is serde or (type(read) is type(serde) and read.name == serde.name)


# Tables: a stream is read as the last value of each key, and a null value deletes the row.
#
# The last value to arrive wins, whatever its timestamp (Kafka Streams: `KTableSource`). An update
# that does not change the row is not forwarded, nor is the deletion of a missing row (KIP-557).


def emit_table(gen: Generator, node: TableSource, flow: RecordVariables, descend: Descend) -> None:
    guard_key(gen, node, flow, lambda keyed: _upsert(gen, node, keyed, descend), store=node.store)


def _upsert(gen: Generator, node: TableSource, flow: RecordVariables, descend: Descend) -> None:
    if node.store is None:
        descend(flow)
        return
    w, i = gen.writer, gen.ordinal(node)
    key_serde, value_serde = gen.store_serdes(node.store)
    result = replace(flow, key_bytes=f"row_key_{i}", key_serde=key_serde, key_is_own=True)
    with attempt(gen, node, flow):
        w.line(f"row_key_{i} = {gen.encoded_key(flow, key_serde, node)}")
        old, _ = read_row(gen, node, node.store, f"row_key_{i}")
        if flow.value_bytes is None or flow.value_serde is not value_serde:
            w.line(f"kept_{i} = {flow.value_object}")
            result = result.with_value(f"kept_{i}", is_set=flow.value_is_set)
            emit_normalised(gen, node, node.store, f"kept_{i}")
        new, stored = result.value_object, None
        if gen.stored_forms[node.store] == "bytes":
            w.line(f"new_{i} = {stored_value(gen, node, node.store, result)}")
            old, new = f"row_{i}[0]", f"new_{i}"
            stored = new
        encode = gen.constant(f"encode_row_{i}", value_serde.serialize)
        # Equal values of other classes may be other documents, as 1, 1.0 and true are.
        changed = f"{new}.__class__ is not {old}.__class__ or {new} != {old}"
        if gen.stored_forms[node.store] == "bytes":
            # A number from disk is bytes, a number that was written since the last commit is not.
            mixed = f"{old}.__class__ is bytes and {new}.__class__ in ATOMS and {new} is not None"
            changed = f"{encode}({new}) != {old} if {mixed} else {changed}"
        else:
            changed += f" or {new}.__class__ not in ATOMS and {encode}({new}) != {encode}({old})"
        w.line(f"changed_{i} = {changed}")
    with otherwise(gen):
        with w.block(f"if changed_{i}:"):
            emit_update(gen, node, node.store, result, descend, stored=stored)
        if any(s.name == node.store and s.source_topic is not None for s in gen.sub.stores):
            # A restore from the source topic finds the last record of each key, even if unchanged.
            with w.block(f"elif {result.value_object} is not None:"):
                row = stored or stored_value(gen, node, node.store, result)
                w.line(f"dirty_{i}[row_key_{i}] = ({row}, {flow.timestamp})")


# The compiler: `compile_sub_topology` puts the lines of all nodes together.


MAX_DEPTH = 14
"""How deep blocks nest before a node becomes a function; Python allows 20 nested loops."""
_code_of = lru_cache(maxsize=64)(compile)  # a re-created application has the same code


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """Functions of a task."""

    process: Mapping[str, Callable[[Iterable[Message]], int]]
    """By topic: function that runs a batch and returns its largest timestamp, or -1."""
    flush: Callable[[], None]
    """Function that forwards all cached updates."""
    pending: Sequence[MutableMapping[Any, Any]]
    """Cached updates of each node."""
    operators: Mapping[str, RunningOperator]
    """By node: operators that run as objects."""
    stampers: Mapping[str, Callable[[int], TimestampAssigner]]
    """By topic with a timestamp extractor: factory of the assigner of a partition."""
    batches_records: bool
    """Whether a node batches records, so that a task should wait for larger runs."""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled sub-topology: the source, and the method that binds it to a task."""

    sub_topology: SubTopology
    source_code: str
    filename: str
    stored_forms: Mapping[str, StoredForm]
    options: CompileOptions
    line_nodes: tuple[str, ...]
    _constants: Mapping[str, Any]
    _functions: frozenset[str]
    _code: CodeType

    def bind(self, environment: TaskEnvironment) -> BoundProgram:
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
        factory = OperatorFactory(self.sub_topology, self.options, environment)
        process, flush, pending = namespace["bind"](environment, factory.make)
        stampers = source.stampers(self.sub_topology, self.options, environment.now_ms)
        batches_records = bool(batching_nodes(self.sub_topology.nodes))
        return BoundProgram(process, flush, pending, factory.operators, stampers, batches_records)

    def explain(self, error: Exception, node: str | None, message: Any) -> Exception:
        """Return the error to report; for a source, the error of the checked decoding."""
        error = attribution.clarified(error, self.filename, self.source_code.splitlines())
        if isinstance(error, SerdeError):
            failed = next((n for n in self.sub_topology.nodes if n.name == node), None)
            error.named_by({} if failed is None else failed.serde_arguments)
        source_node = next((s for s in self.sub_topology.sources if s.name == node), None)
        if source_node is None or message is None or isinstance(error, BadRecordError):
            return error
        defaults = (self.options.default_key, self.options.default_value)
        return source.decoding_error(source_node, defaults, message) or error

    def called(
        self, error: BaseException | None, node: str | None, *, likely: bool
    ) -> tuple[SourceLocation, ...]:
        """Return the user function that failed, or if `likely` the node's functions if unknown."""
        lines = self.source_code.splitlines()
        traceback = None if error is None else error.__traceback__
        name = attribution.called_name(traceback, self.filename, lines)
        function = self._constants[name] if name in self._functions else None
        exact = location_of(function) or functions.called(traceback, self.filename)
        if exact is not None or not likely:
            return () if exact is None else (exact,)
        failed = next((n for n in self.sub_topology.nodes if n.name == node), None)
        locations = (location_of(function) for function in functions.functions_in(failed))
        return tuple(dict.fromkeys(at for at in locations if at is not None))

    def node_of(self, traceback: TracebackType | None) -> str | None:
        """Return the node that an exception came from, or None."""
        node = None
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == self.filename:
                node = self.line_nodes[traceback.tb_lineno - 1] or node
            traceback = traceback.tb_next
        return node


def compile_sub_topology(sub: SubTopology, options: CompileOptions) -> Program:
    """Generate and compile the batch functions; the code is the same for all tasks."""
    stored_forms: dict[str, StoredForm] = {}
    for store in sub.stores:
        serde = store.value or options.default_value
        stored_forms[store.name] = stored_form_of(
            sub,
            store.name,
            immutable=serde.immutable,
            outlives_errors=options.handles_errors,
        )
    gen = Generator(sub, options, stored_forms, _cached_nodes(sub, options))
    writer = _Assembler(gen).assemble()
    text = "\n".join(writer.lines) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    filename = f"<{options.application_id} sub-topology {sub.id} {digest}>"
    # Without a modification time linecache uses the lines and does not check for a file.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return Program(
        sub_topology=sub,
        source_code=text,
        filename=filename,
        stored_forms=stored_forms,
        options=options,
        line_nodes=tuple(writer.nodes),
        _constants=gen.constants,
        _functions=frozenset(gen.functions),
        _code=_code_of(text, filename, "exec"),
    )


_ROW_BY_ROW = (StoredMapping, TransformValues, CogroupMerge)
"""Operators whose table has the keys and timestamps of the table upstream."""


def _following_operators(sub: SubTopology, node: Node) -> Iterator[OperatorNode]:
    """Yield the operators that follow the stream time of a node's windows."""
    if isinstance(node, OperatorNode) and node.makes_windows:
        yield from _following_downstream(sub, node)


def _following_downstream(sub: SubTopology, node: Node) -> Iterator[OperatorNode]:
    for child in sub.children(node.name):
        if isinstance(child, OperatorNode) and child.follows_windows:
            yield child
        elif _is_row_by_row(child):
            yield from _following_downstream(sub, child)


def _is_row_by_row(node: Node) -> bool:
    if isinstance(node, OperatorNode):
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
    """Writer of the parts of a generated module, which it joins."""

    def __init__(self, gen: Generator) -> None:
        self._gen = gen
        self._functions: dict[str, Writer] = {}
        self._loop: Writer | None = None
        """Writer of the loop over a batch."""

    def assemble(self) -> Writer:
        gen = self._gen
        sources = gen.sub.sources
        bodies = [self._in_own_writer(partial(self._process, s)) for s in sources]
        for node in gen.sub.nodes:
            if isinstance(node, OperatorNode) and not node.batches_records:
                for child in gen.sub.children(node.name):
                    self._shared(child)
        bodies += [
            self._in_own_writer(partial(emit_release, gen, node, self._children))
            for node in batching_nodes(gen.sub.nodes)
        ]
        flush = self._in_own_writer(self._flush)
        module = Writer()
        module.line(f'"""Sub-topology {gen.sub.id} of {gen.options.application_id}."""')
        module.line("")
        module.line("")
        module.line("def bind(env, make_operator):")
        body = self._body((*self._functions.values(), *bodies, flush))
        module.depth = 1
        codegen.write(module, gen, body.lines)
        module.lines += body.lines
        module.nodes += body.nodes
        return module

    def _body(self, parts: Iterable[Writer]) -> Writer:
        gen = self._gen
        module = Writer(depth=1)
        for part in parts:
            module.line("")
            module.lines += part.lines
            module.nodes += part.nodes
        module.line("")
        topics = []
        for source_node in gen.sub.sources:
            prefix = f"{gen.options.application_id}-" if source_node.internal else ""
            function = f"process_{gen.ordinal(source_node)}"
            topics += [f"{prefix + topic!r}: {function}" for topic in source_node.topics]
        pending = [f"pending_{gen.ordinal(n)}" for n in gen.sub.nodes if n.name in gen.cached]
        for node in gen.sub.nodes:
            if isinstance(node, OperatorNode):
                self._make_operator(module, node)
                pending.append(f"operator_{gen.ordinal(node)}.pending")
            elif isinstance(node, Sink) and node.combines is not None:
                pending.append(sink.emit_partials(gen, node, module))
        module.line(f"return {{{', '.join(topics)}}}, flush, [{', '.join(pending)}]")
        return module

    def _make_operator(self, w: Writer, node: OperatorNode) -> None:
        i = self._gen.ordinal(node)
        children = () if node.batches_records else self._gen.sub.children(node.name)
        receivers = ", ".join(f"{c.name!r}: node_{self._gen.ordinal(c)}" for c in children)
        comment = codegen.location_comment(functions.functions_in(node))
        w.node = node.name  # attributes an error of `make` to the node
        w.line(f"operator_{i} = make_operator({node.name!r}, {{{receivers}}}){comment}")
        w.node = ""
        if node.batches_records:
            w.line(f"operator_{i}.released_by(release_{i})")
        w.line(f"process_{i} = operator_{i}.process")
        if is_appended_inline(self._gen, node):
            w.line(f"keep_{i} = operator_{i}.kept.append")

    def _in_own_writer(self, write: Callable[[], None]) -> Writer:
        outer = self._gen.writer
        self._gen.writer = own = Writer(depth=1, node=outer.node)
        write()
        self._gen.writer = outer
        return own

    def _process(self, node: SourceNode) -> None:
        gen = self._gen
        w = self._loop = gen.writer
        readers = [node for node in gen.sub.nodes if node.needs_record]
        # An external sink only reads the record; processors also need the calls of begin and end.
        has_processors = any(node.external_sink is None for node in readers)
        with w.block(f"def process_{gen.ordinal(node)}(batch):"):
            w.line("stream_time = -1")
            with w.block("for m in batch:"):
                with w.of(node):
                    flow = source.emit(gen, node)
                    if readers:
                        begin = "task.begin(m, timestamp)" if has_processors else "task.record = m"
                        w.line(begin)
                    self._children(node, flow)
                if has_processors:
                    # Punctuators run here; the task attributes their errors to a node.
                    w.line("task.end()")
            emit_run_ended(gen)
            w.line("return stream_time")

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
                elif isinstance(node, OperatorNode):
                    with w.of(node):
                        w.line(f"operator_{gen.ordinal(node)}.flush()")
                elif isinstance(node, Sink) and node.combines is not None:
                    with w.of(node):
                        w.line(f"partials_{gen.ordinal(node)}.send()")
            w.line("return None")

    def _children(self, node: Node, flow: RecordVariables) -> None:
        for child in self._gen.sub.children(node.name):
            self._descend(child, flow)

    def _descend(self, node: Node, flow: RecordVariables) -> None:
        w = self._gen.writer
        if len(node.parents) > 1:
            self._call_shared(node, flow)
        elif w.depth > MAX_DEPTH:
            self._call_nested(node, flow)
        else:
            with w.of(node):
                self._inline(node, flow)

    def _inline(self, node: Node, flow: RecordVariables) -> None:
        nodes = by_name(self._gen.sub.nodes)
        if isinstance(node, Stateless) or not any(is_versioned(nodes, p) for p in node.parents):
            self._emit(node, flow)
            return
        # Operators that use only the latest rows do not receive out-of-order changes.
        with self._gen.writer.block(f"if {flow.old}.__class__ is not OutOfOrder:"):
            self._emit(node, flow)

    def _emit(self, node: Node, flow: RecordVariables) -> None:
        gen = self._gen
        if isinstance(node, Stateless):
            stateless.emit(gen, node, flow, self._descend)
        elif isinstance(node, Sampler):
            emit_sampler(gen, node, flow, partial(self._children, node))
        elif isinstance(node, Branch):
            stateless.emit_branch(gen, node, flow, self._descend)
        elif isinstance(node, Aggregate):
            emit = partial(aggregate.emit, gen, node, descend=partial(self._children, node))
            emit_row_keys(gen, node, flow, emit)
        elif isinstance(node, TableSource):
            emit = partial(emit_table, gen, node, descend=partial(self._children, node))
            emit_row_keys(gen, node, flow, emit)
        elif isinstance(node, Sink):
            sink.emit(gen, node, flow)
        elif isinstance(node, OperatorNode):
            emit_row_keys(gen, node, flow, partial(self._operator, node))
        else:
            raise AssertionError(f"no operator for {node!r}")

    def _operator(self, node: OperatorNode, flow: RecordVariables) -> None:
        gen = self._gen
        if is_appended_inline(gen, node) and gen.writer is self._loop:
            emit_append(gen, node, flow)
            return

        def call(flow: RecordVariables) -> None:
            value = flow.value_object if node.reads_value else flow.value_or_bytes
            record = f"{flow.key_object}, {value}, {flow.old or 'None'}"
            line = f"process_{gen.ordinal(node)}({record}, {flow.timestamp}, {flow.headers})"
            with codegen.attempt(gen, node, flow):
                gen.writer.line(line)
            for follower in _following_operators(gen.sub, node):
                own, other = gen.ordinal(node), gen.ordinal(follower)
                gen.writer.line(f"operator_{other}.follow(operator_{own}.stream_time)")
            if node.batches_records:
                with gen.writer.block(f"if operator_{gen.ordinal(node)}.is_full:"):
                    gen.writer.line(f"release_{gen.ordinal(node)}()")

        if node.needs_key:
            store = node.uses[0] if node.uses else None
            stateless.guard_key(gen, node, flow, call, store=store)
        else:
            call(flow)

    def _call_shared(self, node: Node, flow: RecordVariables) -> None:
        record = (flow.key_object, flow.value_object, flow.old or "None")
        arguments = ", ".join((*record, flow.timestamp, flow.headers))
        self._gen.writer.line(f"node_{self._gen.ordinal(node)}({arguments})")
        self._shared(node)

    def _shared(self, node: Node) -> None:
        """Write a node as a function of the decoded record, only the first time."""
        if node.name in self._functions:
            return
        nodes = by_name(self._gen.sub.nodes)
        old = "old" if any(sends_old_values(nodes, parent) for parent in node.parents) else None
        inner = RecordVariables("key", None, None, "value", None, None, old=old)
        self._function(node, inner, "key, value, old, timestamp, headers")

    def _call_nested(self, node: Node, flow: RecordVariables) -> None:
        """Write a node that is too deep to inline as a function of its flow's variables."""
        names = (
            flow.key, flow.key_bytes, flow.value, flow.value_bytes, flow.old,
            flow.timestamp, flow.headers, flow.partial,
        )  # fmt: skip
        parameters = ", ".join(dict.fromkeys(name for name in names if name))
        self._gen.writer.line(f"node_{self._gen.ordinal(node)}({parameters})")
        self._function(node, flow, parameters)

    def _function(self, node: Node, flow: RecordVariables, parameters: str) -> None:
        def write() -> None:
            w = self._gen.writer
            with w.block(f"def node_{self._gen.ordinal(node)}({parameters}):"), w.of(node):
                self._inline(node, flow)

        self._functions[node.name] = Writer()  # reserves the position and ends the recursion
        self._functions[node.name] = self._in_own_writer(write)
