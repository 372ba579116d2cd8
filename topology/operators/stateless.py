"""Filters, maps, side effects and branches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from topology.codegen import Flow, Generator
from topology.graph import Branch, Node, Stateless
from topology.needs import needs_old

Descend = Callable[[Node, Flow], None]


def emit(gen: Generator, node: Stateless, flow: Flow, descend: Descend) -> None:
    """Write one stateless operator and, inside it, its children."""
    _EMITTERS[node.op](gen, node, flow, descend)


def emit_branch(gen: Generator, node: Branch, flow: Flow, descend: Descend) -> None:
    """Write an if/elif chain; a record goes to the first branch whose predicate holds."""
    w, i = gen.writer, gen.ordinal(node)
    children = {child.name: child for child in gen.sub.children(node.name)}
    for number, (predicate, name) in enumerate(zip(node.predicates, node.children, strict=True)):
        if predicate is None:
            header = "else:" if number else "if True:"
        else:
            function = gen.constant(f"predicate_{i}_{number}", predicate)
            word = "elif" if number else "if"
            header = f"{word} {function}({flow.key_object}, {flow.value_object}):"
        with w.block(header):
            descend(children[name], flow)
    if not node.predicates:
        w.line("pass")


def _filter(gen: Generator, node: Stateless, flow: Flow, descend: Descend) -> None:
    negation = "not " if node.op == "filter_not" else ""
    with gen.writer.block(f"if {negation}{_call(gen, node, flow)}:"):
        _children(gen, node, flow, descend)


def _map(gen: Generator, node: Stateless, flow: Flow, descend: Descend) -> None:
    i = gen.ordinal(node)
    gen.writer.line(f"key_{i}, value_{i} = {_call(gen, node, flow)}")
    _children(gen, node, flow.with_key(f"key_{i}").with_value(f"value_{i}"), descend)


def _map_values(gen: Generator, node: Stateless, flow: Flow, descend: Descend) -> None:
    i = gen.ordinal(node)
    gen.writer.line(f"value_{i} = {_call(gen, node, flow)}")
    result = flow.with_value(f"value_{i}")
    if node.stream or flow.old is None:
        _children(gen, node, result, descend)
    else:
        _map_change(gen, node, flow, result, descend)


def _map_change(
    gen: Generator, node: Stateless, flow: Flow, result: Flow, descend: Descend
) -> None:
    """Tables: what the row was here follows from what it was above; nothing comes of nothing."""
    w, i = gen.writer, gen.ordinal(node)
    assert flow.old is not None
    before = _call(gen, node, replace(flow, value=flow.old))
    if needs_old(gen.sub, node):
        w.line(f"before_{i} = {before}")
        before = f"before_{i}"
        result = replace(result, old=before)
    else:
        result = replace(result, old=None)
    with w.block(f"if value_{i} is not None or {before} is not None:"):
        _children(gen, node, result, descend)


def _flat_map(gen: Generator, node: Stateless, flow: Flow, descend: Descend) -> None:
    i = gen.ordinal(node)
    with gen.writer.block(f"for key_{i}, value_{i} in {_call(gen, node, flow)}:"):
        _children(gen, node, flow.with_key(f"key_{i}").with_value(f"value_{i}"), descend)


def _flat_map_values(gen: Generator, node: Stateless, flow: Flow, descend: Descend) -> None:
    i = gen.ordinal(node)
    with gen.writer.block(f"for value_{i} in {_call(gen, node, flow)}:"):
        _children(gen, node, flow.with_value(f"value_{i}"), descend)


def _select_key(gen: Generator, node: Stateless, flow: Flow, descend: Descend) -> None:
    i = gen.ordinal(node)
    gen.writer.line(f"key_{i} = {_call(gen, node, flow)}")
    _children(gen, node, flow.with_key(f"key_{i}"), descend)


def _side_effect(gen: Generator, node: Stateless, flow: Flow, descend: Descend) -> None:
    gen.writer.line(_call(gen, node, flow))
    _children(gen, node, flow, descend)


def _print(gen: Generator, node: Stateless, flow: Flow, descend: Descend) -> None:
    text = f'f"[{{label_{gen.ordinal(node)}}}]: {{{flow.key_object}}}, {{{flow.value_object}}}"'
    gen.constant(f"label_{gen.ordinal(node)}", node.label or node.name)
    gen.writer.line(f"write_line({text})")
    _children(gen, node, flow, descend)


def _pass(gen: Generator, node: Stateless, flow: Flow, descend: Descend) -> None:
    _children(gen, node, flow, descend)


def _null_key_filter(gen: Generator, node: Stateless, flow: Flow, descend: Descend) -> None:
    guard_key(gen, node, flow, lambda kept: _children(gen, node, kept, descend))


def guard_key(
    gen: Generator, node: Node, flow: Flow, rest: Callable[[Flow], None], store: str | None = None
) -> None:
    """Write what a null key means where one is needed, and the rest for keys that are set."""
    w = gen.writer
    if flow.key_is_set:
        rest(flow)
        return
    kept = _set_key(flow)
    if gen.options.null_key_policy == "fail":
        with w.block(f"if {flow.key_or_bytes} is None:"):
            w.line(f"raise NullKeyError({node.name!r}, {store!r})")
        rest(kept)
        return
    with w.block(f"if {flow.key_or_bytes} is None:"):
        w.line(f"dropped({node.name!r}, 'null key')")
    with w.block("else:"):
        rest(kept)


def _set_key(flow: Flow) -> Flow:
    return replace(flow, key_is_set=True)


def _call(gen: Generator, node: Stateless, flow: Flow) -> str:
    function = gen.constant(f"function_{gen.ordinal(node)}", node.function)
    if node.with_key:
        return f"{function}({flow.key_object}, {flow.value_object})"
    return f"{function}({flow.value_object})"


def _children(gen: Generator, node: Node, flow: Flow, descend: Descend) -> None:
    children = gen.sub.children(node.name)
    for child in children:
        descend(child, flow)
    if not children:
        gen.writer.line("pass")


_EMITTERS: dict[str, Callable[[Generator, Stateless, Flow, Descend], None]] = {
    "filter": _filter,
    "filter_not": _filter,
    "map": _map,
    "map_values": _map_values,
    "flat_map": _flat_map,
    "flat_map_values": _flat_map_values,
    "select_key": _select_key,
    "peek": _side_effect,
    "for_each": _side_effect,
    "print": _print,
    "pass": _pass,
    "null_key_filter": _null_key_filter,
}
