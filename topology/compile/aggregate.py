"""count, reduce and aggregate: fold a grouped stream into one row a key.

Null keys follow the null-key policy and null values are left out, the result's timestamp is the
larger one of the row's and the record's, and a result of None deletes the row (Kafka Streams:
`KStreamAggregate`, `KStreamReduce`).
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.topology.compile.codegen import Flow, Generator
from headrace.topology.compile.guarding import attempt, otherwise
from headrace.topology.compile.stateless import guard_key
from headrace.topology.compile.update import emit_kept, emit_update, held, read_row
from headrace.topology.graph.graph import Aggregate

Descend = Callable[[Flow], None]


def emit(gen: Generator, node: Aggregate, flow: Flow, descend: Descend) -> None:
    """Write the update of one row, and what follows from it."""
    guard_key(gen, node, flow, lambda kept: _with_value(gen, node, kept, descend), store=node.store)


def _with_value(gen: Generator, node: Aggregate, flow: Flow, descend: Descend) -> None:
    w = gen.writer
    if flow.value_is_set:
        _fold(gen, node, flow, descend)
        return
    with w.block(f"if {flow.value_or_bytes} is None:"):
        w.line(f"dropped({node.name!r}, 'null value')")
    with w.block("else:"):
        _fold(gen, node, flow, descend)


def _fold(gen: Generator, node: Aggregate, flow: Flow, descend: Descend) -> None:
    w, i = gen.writer, gen.ordinal(node)
    key_serde, value_serde = gen.store_serdes(node.store)
    row_key, new, timestamp = f"row_key_{i}", f"new_{i}", f"timestamp_{i}"
    result = Flow(
        key=flow.key,
        key_bytes=row_key,
        key_serde=key_serde,
        value=new,
        value_bytes=None,
        value_serde=value_serde,
        timestamp=timestamp,
        headers=flow.headers,
        key_is_set=True,
        key_is_own=True,
        value_is_set=node.op == "count",
    )
    kept = None
    with attempt(gen, node, flow):
        w.line(f"{row_key} = {gen.encoded_key(flow, key_serde, node)}")
        old, old_timestamp = read_row(gen, node, node.store, row_key)
        w.line(f"{new} = {_new_value(gen, node, flow, old)}")
        emit_kept(gen, node, node.store, new, exact=int if node.op == "count" else None)
        is_later = f"{flow.timestamp} > {old_timestamp}"
        if node.op != "count":
            # The entry of a deleted row has a timestamp until it is evicted: it must not matter.
            is_later = f"{old} is None or {is_later}"
        w.line(f"{timestamp} = {flow.timestamp} if {is_later} else {old_timestamp}")
        if gen.options.handles_errors:
            kept = f"kept_{i}"
            w.line(f"{kept} = {held(gen, node, node.store, result)}")
    with otherwise(gen):
        if node.op == "count":
            emit_update(gen, node, node.store, result, descend, kept=kept)
            return
        # A row that is not there needs no deleting.
        with w.block(f"if {new} is not None or row_{i}[0] is not None:"):
            emit_update(gen, node, node.store, result, descend, kept=kept)


def _new_value(gen: Generator, node: Aggregate, flow: Flow, old: str) -> str:
    i = gen.ordinal(node)
    if node.op == "count":
        return f"1 if {old} is None else {old} + 1"
    function = gen.function(f"function_{i}", node.function)
    if node.op == "reduce":
        value = flow.value_object
        return f"{value} if {old} is None else {function}({old}, {value})"
    initializer = gen.function(f"initializer_{i}", node.initializer)
    start = f"{initializer}() if {old} is None else {old}"
    return f"{function}({flow.key_object}, {flow.value_object}, {start})"
