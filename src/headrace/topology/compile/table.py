"""A stream read as a table: the last value of each key, a null value deletes the row.

The last value to arrive wins, whatever its timestamp (Kafka Streams: `KTableSource`). A value that
changes nothing goes no further, and so does the deletion of a row that is not there (KIP-557).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.topology.compile.codegen import Flow, Generator
from headrace.topology.compile.guarding import attempt, otherwise
from headrace.topology.compile.stateless import guard_key
from headrace.topology.compile.update import emit_kept, emit_update, held, read_row
from headrace.topology.graph.graph import TableSource

Descend = Callable[[Flow], None]


def emit(gen: Generator, node: TableSource, flow: Flow, descend: Descend) -> None:
    """Write the update of one row, and what follows from it."""
    guard_key(gen, node, flow, lambda kept: _upsert(gen, node, kept, descend), store=node.store)


def _upsert(gen: Generator, node: TableSource, flow: Flow, descend: Descend) -> None:
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
            emit_kept(gen, node, node.store, f"kept_{i}")
        new, kept = result.value_object, None
        if gen.holds[node.store] == "bytes":
            w.line(f"new_{i} = {held(gen, node, node.store, result)}")
            old, new = f"row_{i}[0]", f"new_{i}"
            kept = new
        encode = gen.constant(f"encode_row_{i}", value_serde.serialize)
        # Equal values of other classes may be other documents, as 1, 1.0 and true are.
        changed = f"{new}.__class__ is not {old}.__class__ or {new} != {old}"
        if gen.holds[node.store] == "bytes":
            # A number that was read from disk is bytes, one that was written just now is not.
            mixed = f"{old}.__class__ is bytes and {new}.__class__ in ATOMS and {new} is not None"
            changed = f"{encode}({new}) != {old} if {mixed} else {changed}"
        else:
            changed += f" or {new}.__class__ not in ATOMS and {encode}({new}) != {encode}({old})"
        w.line(f"changed_{i} = {changed}")
    with otherwise(gen):
        with w.block(f"if changed_{i}:"):
            emit_update(gen, node, node.store, result, descend, kept=kept)
        if any(s.name == node.store and s.source_topic is not None for s in gen.sub.stores):
            # A restore from the source finds the last record of each key, whatever changed.
            with w.block(f"elif {result.value_object} is not None:"):
                row = kept or held(gen, node, node.store, result)
                w.line(f"dirty_{i}[row_key_{i}] = ({row}, {flow.timestamp})")
