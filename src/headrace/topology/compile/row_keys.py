"""The key of a record that changes a row: what the row's bytes give back.

A key that another serde has read, or that a function has made, may be another object with the same
bytes: 1 where the store of doubles has 1.0. A result that is sent at once would have the one, and a
result that is read from the store the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.topology.compile.codegen import Flow, Generator
from headrace.topology.compile.guarding import attempt, otherwise
from headrace.topology.graph.graph import Aggregate, AnySerde, Node, Operator, TableSource
from headrace.topology.serdes.join_serdes import KeptKeySerde
from headrace.topology.serdes.kept import exact_types, keeper
from headrace.topology.serdes.windows_serde import SessionWindowedSerde, WindowStoreSerde


def emit(gen: Generator, node: Node, flow: Flow, descend: Callable[[Flow], None]) -> None:
    """Write that the key becomes what a row's bytes give back, if it may be anything else."""
    serde = _row_key_serde(gen, node)
    if serde is None or flow.key is None or _has_read(serde, flow):
        descend(flow)
        return
    w, i = gen.writer, gen.ordinal(node)
    kept = f"stored_key_{i}"
    keep = gen.constant(f"keep_key_{i}", keeper(serde))
    exact = gen.constant(f"exact_key_{i}", exact_types(serde))
    with attempt(gen, node, flow):
        w.line(f"{kept} = {flow.key}")
        with w.block(f"if {kept}.__class__ not in {exact}:"):
            w.line(f"{kept} = {keep}({kept})")
    with otherwise(gen):
        descend(replace(flow.with_key(kept, is_set=flow.key_is_set), key_serde=None))


def _row_key_serde(gen: Generator, node: Node) -> AnySerde | None:
    """The serde of the keys of the rows that the node changes; None where they have others."""
    if isinstance(node, (Aggregate, TableSource)):
        return None if node.store is None else gen.store_serdes(node.store)[0]
    if not isinstance(node, Operator) or not node.needs_key or not node.uses:
        return None
    serde = gen.store_serdes(node.uses[0])[0]
    if isinstance(serde, KeptKeySerde):
        return serde.inner
    if not node.spec.rows_have_its_keys:
        return None  # its keys are those of a table, or of no row
    if isinstance(serde, WindowStoreSerde):
        return serde.windowed.inner
    if isinstance(serde, SessionWindowedSerde) and node.spec.makes_windows:
        return serde.inner
    return serde  # a session may be the key of a row that is none


def _has_read(serde: AnySerde, flow: Flow) -> bool:
    """Whether the key comes from bytes of that serde; it may be told other topics."""
    read = flow.key_serde
    if read is None or flow.key_bytes is None:
        return False
    return read is serde or (type(read) is type(serde) and read.name == serde.name)
