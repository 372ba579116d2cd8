"""count, reduce and aggregate: lines that aggregate a grouped stream into a row per key.

Null keys follow the null-key policy, null values are dropped, the result's timestamp is the later
of the row's and the record's, and None deletes the row (`KStreamAggregate`, `KStreamReduce`).
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.topology.compile.codegen import Generator, RecordVariables, attempt, otherwise
from headrace.topology.compile.stateless import guard_key
from headrace.topology.compile.update import emit_normalised, emit_update, read_row, stored_value
from headrace.topology.graph.graph import Aggregate

Descend = Callable[[RecordVariables], None]


def emit(gen: Generator, node: Aggregate, flow: RecordVariables, descend: Descend) -> None:
    guard_key(
        gen, node, flow, lambda keyed: _with_value(gen, node, keyed, descend), store=node.store
    )


def _with_value(gen: Generator, node: Aggregate, flow: RecordVariables, descend: Descend) -> None:
    if flow.value_is_set:
        _fold(gen, node, flow, descend)
        return
    with gen.writer.block(f"if {flow.value_or_bytes} is None:"):
        gen.writer.line(f"dropped({node.name!r}, 'null value')")
    with gen.writer.block("else:"):
        _fold(gen, node, flow, descend)


def _fold(gen: Generator, node: Aggregate, flow: RecordVariables, descend: Descend) -> None:
    w, i = gen.writer, gen.ordinal(node)
    key_serde, value_serde = gen.store_serdes(node.store)
    row_key, new, timestamp, stored = f"row_key_{i}", f"new_{i}", f"timestamp_{i}", None
    result = RecordVariables(
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
        value_is_set=not node.fold.asks_user,
    )
    with attempt(gen, node, flow):
        w.line(f"{row_key} = {gen.encoded_key(flow, key_serde, node)}")
        old, old_timestamp = read_row(gen, node, node.store, row_key)
        w.line(f"{new} = {_new_value(gen, node, flow, old)}")
        emit_normalised(gen, node, node.store, new, exact=node.fold.makes)
        is_later = f"{flow.timestamp} > {old_timestamp}"
        if node.fold.asks_user:
            # A deleted row keeps a timestamp until it is evicted; ignore it.
            is_later = f"{old} is None or {is_later}"
        w.line(f"{timestamp} = {flow.timestamp} if {is_later} else {old_timestamp}")
        if gen.options.handles_errors:
            stored = f"kept_{i}"
            w.line(f"{stored} = {stored_value(gen, node, node.store, result)}")
    with otherwise(gen):
        if not node.fold.asks_user:
            emit_update(gen, node, node.store, result, descend, stored=stored)
            return
        # Do not delete a row that does not exist.
        with w.block(f"if {new} is not None or row_{i}[0] is not None:"):
            emit_update(gen, node, node.store, result, descend, stored=stored)


def _new_value(gen: Generator, node: Aggregate, flow: RecordVariables, old: str) -> str:
    fold, i = node.fold, gen.ordinal(node)
    return fold.source_of(flow.partial).format(
        key=flow.key_object if fold.reads_key else None,
        value=flow.value_object if fold.reads_value else None,
        old=old,
        **{name: gen.function(f"{name}_{i}", given) for name, given in fold.functions.items()},
    )
