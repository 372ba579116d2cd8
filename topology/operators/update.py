"""Reading and writing one row of a store, and passing the update on at once or at the next flush.

The lines work on the dictionaries of `state.buffer.Buffer`. Values that others could change in
place are held as bytes (see there); plain numbers and strings are held as they are in both modes.
"""

from __future__ import annotations

from collections.abc import Callable

from topology.codegen import Flow, Generator
from topology.graph import Node
from topology.needs import needs_key


def read_row(gen: Generator, node: Node, store: str, row_key: str) -> tuple[str, str]:
    """Write the read of a row; returns the expressions of its value and its timestamp."""
    w, i = gen.writer, gen.ordinal(node)
    w.line(f"row_{i} = dirty_{i}_get({row_key}) or clean_{i}_get({row_key}) or load_{i}({row_key})")
    w.line(f"old_{i} = row_{i}[0]")
    if gen.holds[store] == "bytes":
        decode = gen.constant(f"decode_row_{i}", gen.store_serdes(store)[1].deserialize)
        with w.block(f"if old_{i}.__class__ is bytes:"):
            w.line(f"old_{i} = {decode}(old_{i})")
    return f"old_{i}", f"row_{i}[1]"


def emit_update(
    gen: Generator, node: Node, store: str, result: Flow, descend: Callable[[Flow], None]
) -> None:
    """Write the new row and what follows from it: the children, or a note for the next flush."""
    w, i = gen.writer, gen.ordinal(node)
    value = result.value_object
    kept = value
    if gen.holds[store] == "bytes":
        encode = gen.constant(f"encode_row_{i}", gen.store_serdes(store)[1].serialize)
        kept = f"{value} if {value}.__class__ in ATOMS else {encode}({value})"
    w.line(f"dirty_{i}[{result.key_bytes}] = ({kept}, {result.timestamp})")
    if not gen.sub.children(node.name):
        return
    if node.name not in gen.cached:
        descend(result)
        return
    key = result.key or "None"
    w.line(f"pending_{i}[{result.key_bytes}] = ({key}, {result.headers})")


def emit_flush(gen: Generator, node: Node, store: str, descend: Callable[[Flow], None]) -> None:
    """Write the loop that sends on the last update of each row that has one held back."""
    w, i = gen.writer, gen.ordinal(node)
    key_serde, value_serde = gen.store_serdes(store)
    w.line(f"updates = list(pending_{i}.items())")
    w.line(f"pending_{i}.clear()")
    with w.block("for key_bytes, (key, headers) in updates:"):
        w.line(f"value, timestamp = dirty_{i}[key_bytes]")
        if gen.holds[store] == "bytes":
            decode = gen.constant(f"decode_row_{i}", value_serde.deserialize)
            with w.block("if value.__class__ is bytes:"):
                w.line(f"value = {decode}(value)")
        flow = Flow(
            key="key" if needs_key(gen, node, key_serde) else None,
            key_bytes="key_bytes",
            key_serde=key_serde,
            value="value",
            value_bytes=None,
            value_serde=value_serde,
            key_is_set=True,
            key_is_own=True,
        )
        descend(flow)
