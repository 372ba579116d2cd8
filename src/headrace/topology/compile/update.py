"""Reading and writing one row of a store, and passing the update on at once or at the next flush.

The lines work on the dictionaries of `headrace.state.buffer.Buffer`. Values that others could
change in place are held as bytes (see there); plain numbers and strings are held as they are in
both modes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.topology.compile.codegen import Flow, Generator, needs_key, needs_old, needs_value
from headrace.topology.graph.graph import Aggregate, Node
from headrace.topology.serdes.kept import exact_types, keeper


def read_row(gen: Generator, node: Node, store: str, row_key: str) -> tuple[str, str]:
    """Write the read of a row; returns the expressions of its value and its timestamp."""
    w, i = gen.writer, gen.ordinal(node)
    w.line(f"row_{i} = dirty_{i}_get({row_key}) or clean_{i}_get({row_key}) or load_{i}({row_key})")
    w.line(f"old_{i} = row_{i}[0]")
    _decode_held(gen, node, store, f"old_{i}")
    return f"old_{i}", f"row_{i}[1]"


def emit_kept(
    gen: Generator, node: Node, store: str, value: str, *, exact: type | None = None
) -> None:
    """Write that a new value becomes what its bytes give back, where it is held as an object.

    Args:
        exact: the class that the value has in any case, if that is known.
    """
    serde = gen.store_serdes(store)[1]
    known = exact_types(serde)
    if gen.holds[store] == "bytes" or exact in known:
        return
    i = gen.ordinal(node)
    # None is among the known ones, so a serde's own function never sees it.
    keep = gen.constant(f"keep_{i}", getattr(serde, "normalise", None) or keeper(serde))
    with gen.writer.block(f"if {other_than(gen, value, known, f'exact_{i}')}:"):
        gen.writer.line(f"{value} = {keep}({value})")


def other_than(gen: Generator, value: str, known: frozenset[type], name: str) -> str:
    """The condition that a value is of none of these classes; None may be taken for one of them."""
    if len(known) == 2:  # that of None, which is rare, and one more
        (only,) = known - {type(None)}
        return f"{value}.__class__ is not {only.__name__}"
    return f"{value}.__class__ not in {gen.constant(name, known)}"


def emit_update(
    gen: Generator,
    node: Node,
    store: str,
    result: Flow,
    descend: Callable[[Flow], None],
    *,
    kept: str | None = None,
) -> None:
    """Write the new row and what follows from it: the children, or a note for the next flush.

    The row was read before, by `read_row`. `kept` is what `held` gave, where it was needed before.
    """
    w, i = gen.writer, gen.ordinal(node)
    kept = kept or held(gen, node, store, result)
    w.line(f"dirty_{i}[{result.key_bytes}] = ({kept}, {result.timestamp})")
    if not gen.sub.children(node.name):
        return
    if node.name not in gen.cached:
        descend(_with_old(gen, node, store, _read_back(gen, node, store, result)))
        return
    key = result.key or "None"
    if not needs_old(gen.sub, node):
        with_key = needs_key(gen, node, gen.store_serdes(store)[0])
        noted = f"({key}, {result.headers})" if with_key else result.headers
        w.line(f"pending_{i}[{result.key_bytes}] = {noted}")
        return
    w.line(f"held_{i} = pending_{i}.get({result.key_bytes})")
    first = f"row_{i}[0] if held_{i} is None else held_{i}[2]"
    w.line(f"pending_{i}[{result.key_bytes}] = ({key}, {result.headers}, {first})")


def held(gen: Generator, node: Node, store: str, result: Flow) -> str:
    """The expression of the value as the store holds it."""
    value = result.value_object
    if gen.holds[store] != "bytes":
        return value
    encode = gen.constant(f"encode_row_{gen.ordinal(node)}", gen.store_serdes(store)[1].serialize)
    at_once = gen.options.handles_errors and not result.value_is_set
    if at_once or len(exact_types(gen.store_serdes(store)[1])) == 1:
        # What the serde refuses must be refused here, where the record can be passed over.
        # And a serde that names no exact types may give back another number for a number.
        return f"None if {value} is None else {encode}({value})"
    return f"{value} if {value}.__class__ in ATOMS else {encode}({value})"


def _read_back(gen: Generator, node: Node, store: str, result: Flow) -> Flow:
    """The update as the store gives it back, where its value is held as bytes.

    What is only written, by the store's own serde, has the same bytes as it is.
    """
    serde = gen.store_serdes(store)[1]
    read = result.value_serde is serde and result.value_bytes is not None
    plain = isinstance(node, Aggregate) and node.fold.makes in exact_types(serde)
    if gen.holds[store] != "bytes" or read or plain or not needs_value(gen, node, serde):
        return result
    told = f"told_{gen.ordinal(node)}"
    gen.writer.line(f"{told} = dirty_{gen.ordinal(node)}[{result.key_bytes}][0]")
    _decode_held(gen, node, store, told)
    return replace(result, value=told)


def _with_old(gen: Generator, node: Node, store: str, result: Flow) -> Flow:
    """Tell what was forwarded before: an object that no user function has seen."""
    if not needs_old(gen.sub, node):
        return result
    i = gen.ordinal(node)
    if gen.holds[store] == "bytes":
        gen.writer.line(f"sent_{i} = row_{i}[0]")
        _decode_held(gen, node, store, f"sent_{i}")
        return replace(result, old=f"sent_{i}")
    return replace(result, old=f"old_{i}")


def _decode_held(gen: Generator, node: Node, store: str, variable: str) -> None:
    if gen.holds[store] == "bytes":
        name = f"decode_row_{gen.ordinal(node)}"
        decode = gen.constant(name, gen.store_serdes(store)[1].deserialize)
        with gen.writer.block(f"if {variable}.__class__ is bytes:"):
            gen.writer.line(f"{variable} = {decode}({variable})")


def emit_flush(gen: Generator, node: Node, store: str, descend: Callable[[Flow], None]) -> None:
    """Write the loop that sends on the last update of each row that has one held back."""
    w, i = gen.writer, gen.ordinal(node)
    key_serde, value_serde = gen.store_serdes(store)
    with_old, with_key = needs_old(gen.sub, node), needs_key(gen, node, key_serde)
    w.line(f"updates = list(pending_{i}.items())")
    w.line(f"pending_{i}.clear()")
    flow = Flow(
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
        _decode_held(gen, node, store, "value")
        if not with_old:
            descend(flow)
            return
        _decode_held(gen, node, store, "old")
        # A row that came and went since the last flush was never there for those below.
        with w.block("if value is not None or old is not None:"):
            descend(flow)
