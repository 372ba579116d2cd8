"""Lines that read and write a row of a store, and forward the update now or at the next flush.

They work on the dictionaries of `headrace.state.buffer.Buffer`. Mutable values that other code
could change are stored as bytes (see there); plain numbers and strings are stored as they are in
both modes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.topology.compile.codegen import (
    Generator,
    RecordVariables,
    needs_key,
    needs_old,
    needs_value,
)
from headrace.topology.graph.graph import Aggregate, Node
from headrace.topology.serdes.normalise import exact_types, normaliser


def read_row(gen: Generator, node: Node, store: str, row_key: str) -> tuple[str, str]:
    """Write the read of a row; return the expressions of its value and its timestamp."""
    w, i = gen.writer, gen.ordinal(node)
    w.line(f"row_{i} = dirty_{i}_get({row_key}) or clean_{i}_get({row_key}) or load_{i}({row_key})")
    w.line(f"old_{i} = row_{i}[0]")
    _decode_stored(gen, node, store, f"old_{i}")
    return f"old_{i}", f"row_{i}[1]"


def emit_normalised(
    gen: Generator, node: Node, store: str, value: str, *, exact: type | None = None
) -> None:
    """Write the conversion of a new value to the object that its bytes decode to."""
    serde = gen.store_serdes(store)[1]
    exact_classes = exact_types(serde)
    if gen.stored_forms[store] == "bytes" or exact in exact_classes:
        return
    i = gen.ordinal(node)
    # The known classes include that of None, so the serde's function never receives it.
    keep = gen.constant(f"keep_{i}", getattr(serde, "normalise", None) or normaliser(serde))
    with gen.writer.block(f"if {other_than(gen, value, exact_classes, f'exact_{i}')}:"):
        gen.writer.line(f"{value} = {keep}({value})")


def other_than(gen: Generator, value: str, exact_classes: frozenset[type], name: str) -> str:
    """Return the condition that a value's class is not in `exact_classes`, which include None's."""
    if len(exact_classes) == 2:  # the class of None, which is rare, and another class
        (only,) = exact_classes - {type(None)}
        return f"{value}.__class__ is not {only.__name__}"
    return f"{value}.__class__ not in {gen.constant(name, exact_classes)}"


def emit_update(
    gen: Generator,
    node: Node,
    store: str,
    result: RecordVariables,
    descend: Callable[[RecordVariables], None],
    *,
    stored: str | None = None,
) -> None:
    """Write the new row, and the children or the cached update; `read_row` has read the row."""
    w, i = gen.writer, gen.ordinal(node)
    stored = stored or stored_value(gen, node, store, result)
    w.line(f"dirty_{i}[{result.key_bytes}] = ({stored}, {result.timestamp})")
    if not gen.sub.children(node.name):
        return
    if node.name not in gen.cached:
        descend(_with_old(gen, node, store, _read_back(gen, node, store, result)))
        return
    key = result.key or "None"
    if not needs_old(gen.sub, node):
        with_key = needs_key(gen, node, gen.store_serdes(store)[0])
        update = f"({key}, {result.headers})" if with_key else result.headers
        w.line(f"pending_{i}[{result.key_bytes}] = {update}")
        return
    w.line(f"held_{i} = pending_{i}.get({result.key_bytes})")
    first = f"row_{i}[0] if held_{i} is None else held_{i}[2]"
    w.line(f"pending_{i}[{result.key_bytes}] = ({key}, {result.headers}, {first})")


def stored_value(gen: Generator, node: Node, store: str, result: RecordVariables) -> str:
    value = result.value_object
    if gen.stored_forms[store] != "bytes":
        return value
    encode = gen.constant(f"encode_row_{gen.ordinal(node)}", gen.store_serdes(store)[1].serialize)
    encodes_now = gen.options.handles_errors and not result.value_is_set
    if encodes_now or len(exact_types(gen.store_serdes(store)[1])) == 1:
        # A value that the serde rejects must fail here, where the record can be skipped.
        # A serde that names no exact types may decode another number than it encoded.
        return f"None if {value} is None else {encode}({value})"
    return f"{value} if {value}.__class__ in ATOMS else {encode}({value})"


def _read_back(gen: Generator, node: Node, store: str, result: RecordVariables) -> RecordVariables:
    """Return the flow with the value as the store decodes it, unless it is only written again."""
    serde = gen.store_serdes(store)[1]
    read = result.value_serde is serde and result.value_bytes is not None
    plain = isinstance(node, Aggregate) and node.fold.makes in exact_types(serde)
    if gen.stored_forms[store] != "bytes" or read or plain or not needs_value(gen, node, serde):
        return result
    variable = f"told_{gen.ordinal(node)}"
    gen.writer.line(f"{variable} = dirty_{gen.ordinal(node)}[{result.key_bytes}][0]")
    _decode_stored(gen, node, store, variable)
    return replace(result, value=variable)


def _with_old(gen: Generator, node: Node, store: str, result: RecordVariables) -> RecordVariables:
    """Return the flow with the previous value, as an object that no user function has seen."""
    if not needs_old(gen.sub, node):
        return result
    i = gen.ordinal(node)
    if gen.stored_forms[store] == "bytes":
        gen.writer.line(f"sent_{i} = row_{i}[0]")
        _decode_stored(gen, node, store, f"sent_{i}")
        return replace(result, old=f"sent_{i}")
    return replace(result, old=f"old_{i}")


def _decode_stored(gen: Generator, node: Node, store: str, variable: str) -> None:
    if gen.stored_forms[store] == "bytes":
        name = f"decode_row_{gen.ordinal(node)}"
        decode = gen.constant(name, gen.store_serdes(store)[1].deserialize)
        with gen.writer.block(f"if {variable}.__class__ is bytes:"):
            gen.writer.line(f"{variable} = {decode}({variable})")


def emit_flush(
    gen: Generator, node: Node, store: str, descend: Callable[[RecordVariables], None]
) -> None:
    w, i = gen.writer, gen.ordinal(node)
    key_serde, value_serde = gen.store_serdes(store)
    with_old, with_key = needs_old(gen.sub, node), needs_key(gen, node, key_serde)
    w.line(f"updates = list(pending_{i}.items())")
    w.line(f"pending_{i}.clear()")
    flow = RecordVariables(
        key="key" if with_key else None,
        key_bytes="key_bytes",
        key_serde=key_serde,
        value="value",
        value_bytes=None,
        value_serde=value_serde,
        old="old" if with_old else None,
        key_is_set=True,
        key_is_own=True,
    )
    names = "(key, headers)" if with_key else "headers"
    names = "(key, headers, old)" if with_old else names
    with w.block(f"for key_bytes, {names} in updates:"):
        w.line(f"value, timestamp = dirty_{i}[key_bytes]")
        _decode_stored(gen, node, store, "value")
        if not with_old:
            descend(flow)
            return
        _decode_stored(gen, node, store, "old")
        # A row that was added and deleted since the last flush was never forwarded.
        with w.block("if value is not None or old is not None:"):
            descend(flow)
