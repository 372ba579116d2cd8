"""A stream read as a table: the last value of each key, a null value deletes the row.

The last value to arrive wins, whatever its timestamp (Kafka Streams: `KTableSource`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from topology.codegen import Flow, Generator
from topology.graph import TableSource
from topology.operators.stateless import guard_key
from topology.operators.update import emit_update

Descend = Callable[[Flow], None]


def emit(gen: Generator, node: TableSource, flow: Flow, descend: Descend) -> None:
    """Write the update of one row, and what follows from it."""
    guard_key(gen, node, flow, lambda kept: _upsert(gen, node, kept, descend), store=node.store)


def _upsert(gen: Generator, node: TableSource, flow: Flow, descend: Descend) -> None:
    if node.store is None:
        descend(flow)
        return
    w, i = gen.writer, gen.ordinal(node)
    key_serde, _ = gen.store_serdes(node.store)
    w.line(f"row_key_{i} = {gen.encoded_key(flow, key_serde, node)}")
    result = replace(flow, key_bytes=f"row_key_{i}", key_serde=key_serde, key_is_own=True)
    emit_update(gen, node, node.store, result, descend)
