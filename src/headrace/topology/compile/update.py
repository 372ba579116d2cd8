"""Lines that read and write a row of a store, and forward the update now or at the next flush.

They work on the dictionaries of `headrace.state.buffer.Buffer`, or call the methods of rows in Rust
(`headrace.state.native_buffer`); nothing outside of this module depends on which. Mutable values
that other code could change are stored as bytes (see there); plain numbers and strings are stored
as they are in both modes.
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


def read_row(gen: Generator, node: Node, store: str, row_key: str) -> str:
    """Write the read of a row; return the variable of its value."""
    w, i = gen.writer, gen.ordinal(node)
    if gen.options.native_rows:
        row = stored_row(gen, node, store)
        w.line(f"{row} = get_{i}({row_key})")
        if row != f"old_{i}":
            w.line(f"old_{i} = {row}")
    else:
        row = f"dirty_{i}_get({row_key}) or clean_{i}_get({row_key}) or load_{i}({row_key})"
        w.line(f"row_{i} = {row}")
        w.line(f"old_{i} = row_{i}[0]")
    _decode_stored(gen, node, store, f"old_{i}")
    return f"old_{i}"


def stored_row(gen: Generator, node: Node, store: str) -> str:
    """Return the expression of the value that `read_row` has read, in its stored form."""
    i = gen.ordinal(node)
    if not gen.options.native_rows:
        return f"row_{i}[0]"
    return f"row_{i}" if gen.stored_forms[store] == "bytes" else f"old_{i}"


def emit_later_timestamp(
    gen: Generator, node: Node, old: str | None, result: RecordVariables, timestamp: str
) -> None:
    """Write the later timestamp of a record and of the row before it; rows in Rust compute it.

    Args:
        old: variable of the row's value if the row may be deleted. A deleted row keeps a timestamp
            until it is evicted, which is ignored.
    """
    if gen.options.native_rows:
        return
    row_timestamp = f"row_{gen.ordinal(node)}[1]"
    is_later = f"{timestamp} > {row_timestamp}"
    if old is not None:
        is_later = f"{old} is None or {is_later}"
    gen.writer.line(f"{result.timestamp} = {timestamp} if {is_later} else {row_timestamp}")


def emit_write(gen: Generator, node: Node, stored: str, result: RecordVariables) -> None:
    """Write the new row, without an update of the children."""
    i = gen.ordinal(node)
    if gen.options.native_rows:
        gen.writer.line(f"write_{i}({result.key_bytes}, {stored}, {result.timestamp})")
    else:
        gen.writer.line(f"dirty_{i}[{result.key_bytes}] = ({stored}, {result.timestamp})")


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
    record_timestamp: str | None = None,
) -> None:
    """Write the new row, and the children or the cached update; `read_row` has read the row.

    Args:
        stored: variable of the new value in its stored form, if it is known.
        record_timestamp: variable of the record's timestamp, if the row's may be later (see
            `emit_later_timestamp`).
    """
    stored = stored or stored_value(gen, node, store, result)
    is_cached = node.name in gen.cached
    if gen.options.native_rows:
        _emit_native_write(gen, node, stored, result, record_timestamp, is_cached=is_cached)
    else:
        emit_write(gen, node, stored, result)
        if is_cached:
            _emit_pending(gen, node, store, result)
    if not is_cached and gen.sub.children(node.name):
        descend(_with_old(gen, node, store, _read_back(gen, node, store, result)))


def _emit_native_write(
    gen: Generator,
    node: Node,
    stored: str,
    result: RecordVariables,
    record_timestamp: str | None,
    *,
    is_cached: bool,
) -> None:
    i, row = gen.ordinal(node), f"{result.key_bytes}, {stored}"
    timestamp = record_timestamp or result.timestamp
    later = "" if record_timestamp is None else "_later"
    if is_cached:
        record = _cached_record(gen, node, result)
        gen.writer.line(f"update{later}_{i}({row}, {timestamp}, {record})")
    elif record_timestamp is None:
        gen.writer.line(f"write_{i}({row}, {timestamp})")
    else:
        gen.writer.line(f"{result.timestamp} = write_later_{i}({row}, {timestamp})")


def _cached_record(gen: Generator, node: Node, result: RecordVariables) -> str:
    """Return the arguments of the record's key, if it is needed, and of the headers."""
    with_key = needs_old(gen.sub, node) or needs_key(gen, node, result.key_serde)
    return f"{(with_key and result.key) or 'None'}, {result.headers}"


def adds_in_rust(gen: Generator, node: Aggregate) -> bool:
    """Whether rows in Rust count by themselves, without a new value of the generated code."""
    serde = gen.store_serdes(node.store)[1]
    return (
        gen.options.native_rows
        and node.fold.word == "count"
        and gen.stored_forms[node.store] == "objects"
        and node.fold.makes in exact_types(serde)
        and (node.name in gen.cached or not needs_old(gen.sub, node))
    )


def emit_add(
    gen: Generator, node: Aggregate, result: RecordVariables, flow: RecordVariables
) -> None:
    """Write the count of a record or of a partial aggregate, if `adds_in_rust`."""
    w, i = gen.writer, gen.ordinal(node)
    number = "1" if flow.partial is None else f"1 if {flow.partial} is None else {flow.partial}"
    arguments = f"{result.key_bytes}, {number}, {flow.timestamp}"
    if node.name in gen.cached:
        w.line(f"add_update_{i}({arguments}, {_cached_record(gen, node, result)})")
    elif gen.sub.children(node.name):
        w.line(f"{result.value}, {result.timestamp} = add_{i}({arguments})")
    else:
        w.line(f"add_{i}({arguments})")


def _emit_pending(gen: Generator, node: Node, store: str, result: RecordVariables) -> None:
    """Write the cached update, which `emit_flush` forwards."""
    w, i = gen.writer, gen.ordinal(node)
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
    i = gen.ordinal(node)
    variable, key = f"told_{i}", result.key_bytes
    row = f"get_{i}({key})" if gen.options.native_rows else f"dirty_{i}[{key}][0]"
    gen.writer.line(f"{variable} = {row}")
    _decode_stored(gen, node, store, variable)
    return replace(result, value=variable)


def _with_old(gen: Generator, node: Node, store: str, result: RecordVariables) -> RecordVariables:
    """Return the flow with the previous value, as an object that no user function has seen."""
    if not needs_old(gen.sub, node):
        return result
    i = gen.ordinal(node)
    if gen.stored_forms[store] == "bytes":
        gen.writer.line(f"sent_{i} = {stored_row(gen, node, store)}")
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
    if not gen.options.native_rows:
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
    each = f"for key_bytes, {names} in updates:"
    if gen.options.native_rows:
        each = f"for key_bytes, key, value, old, timestamp, headers in take_{i}():"
    with w.block(each):
        if not gen.options.native_rows:
            w.line(f"value, timestamp = dirty_{i}[key_bytes]")
        _decode_stored(gen, node, store, "value")
        if not with_old:
            descend(flow)
            return
        _decode_stored(gen, node, store, "old")
        # A row that was added and deleted since the last flush was never forwarded.
        with w.block("if value is not None or old is not None:"):
            descend(flow)
