"""Filters, maps, side effects and branches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.topology.compile.codegen import (
    Generator,
    RecordVariables,
    attempt,
    emit_handler_call,
    needs_old,
    otherwise,
)
from headrace.topology.graph.graph import Branch, Node, Stateless, by_name, is_versioned

Descend = Callable[[Node, RecordVariables], None]


def emit(gen: Generator, node: Stateless, flow: RecordVariables, descend: Descend) -> None:
    _EMITTERS[node.op](gen, node, flow, descend)


def emit_branch(gen: Generator, node: Branch, flow: RecordVariables, descend: Descend) -> None:
    w, i = gen.writer, gen.ordinal(node)
    children = {child.name: child for child in gen.sub.children(node.name)}
    if gen.options.handles_errors:
        _emit_guarded_branch(gen, node, flow, descend)
        return
    for number, (predicate, name) in enumerate(zip(node.predicates, node.children, strict=True)):
        if predicate is None:
            header = "else:" if number else "if True:"
        else:
            function = gen.function(f"predicate_{i}_{number}", predicate, looked_at=True)
            word = "elif" if number else "if"
            header = f"{word} {function}({flow.key_object}, {flow.value_object}):"
        with w.block(header):
            descend(children[name], flow)


def _emit_guarded_branch(
    gen: Generator, node: Branch, flow: RecordVariables, descend: Descend
) -> None:
    """Evaluate all predicates first, because only they belong to the node itself."""
    w, i = gen.writer, gen.ordinal(node)
    children = {child.name: child for child in gen.sub.children(node.name)}
    choice = "-1"
    for number, predicate in reversed(list(enumerate(node.predicates))):
        if predicate is None:
            choice = str(number)
            continue
        function = gen.function(f"predicate_{i}_{number}", predicate, looked_at=True)
        condition = f"{function}({flow.key_object}, {flow.value_object})"
        choice = f"{number} if {condition} else ({choice})"
    with attempt(gen, node, flow):
        w.line(f"branch_{i} = {choice}")
    with otherwise(gen):
        for number, name in enumerate(node.children):
            with w.block(f"{'elif' if number else 'if'} branch_{i} == {number}:"):
                descend(children[name], flow)


def _filter(gen: Generator, node: Stateless, flow: RecordVariables, descend: Descend) -> None:
    negation = "not " if node.op == "filter_not" else ""
    if gen.options.handles_errors:
        condition = f"kept_{gen.ordinal(node)}"
        with attempt(gen, node, flow):
            gen.writer.line(f"{condition} = {negation}{_call(gen, node, flow)}")
            gen.writer.line(f"{condition} = True if {condition} else False")
        with otherwise(gen), gen.writer.block(f"if {condition}:"):
            _children(gen, node, flow, descend)
        return
    with gen.writer.block(f"if {negation}{_call(gen, node, flow)}:"):
        _children(gen, node, flow, descend)


def _map(gen: Generator, node: Stateless, flow: RecordVariables, descend: Descend) -> None:
    i = gen.ordinal(node)
    with attempt(gen, node, flow):
        gen.writer.line(f"pair_{i} = {_call(gen, node, flow)}")
        _take_apart(gen, i)
    with otherwise(gen):
        _children(gen, node, flow.with_key(f"key_{i}").with_value(f"value_{i}"), descend)


def _take_apart(gen: Generator, i: int) -> None:
    with gen.writer.block(f"if pair_{i}.__class__ is not tuple:"):
        gen.writer.line(f"pair_{i} = as_pair(pair_{i})")
    gen.writer.line(f"key_{i}, value_{i} = pair_{i}")


def _map_values(gen: Generator, node: Stateless, flow: RecordVariables, descend: Descend) -> None:
    i = gen.ordinal(node)
    result = flow.with_value(f"value_{i}")
    if node.stream:
        with attempt(gen, node, flow):
            gen.writer.line(f"value_{i} = {_call(gen, node, flow)}")
        with otherwise(gen):
            _children(gen, node, result, descend)
        return
    # Nodes downstream have the previous row: if the function fails now, they must delete it.
    with attempt(gen, node, flow, instead=f"value_{i} = None"):
        gen.writer.line(f"value_{i} = {_call(gen, node, flow)}")
    if flow.old is None:
        _children(gen, node, result, descend)
    else:
        _map_change(gen, node, flow, result, descend)


def _map_change(
    gen: Generator,
    node: Stateless,
    flow: RecordVariables,
    result: RecordVariables,
    descend: Descend,
) -> None:
    """Write the change of a mapped table, whose previous value is computed in the same way."""
    w, i = gen.writer, gen.ordinal(node)
    versioned = is_versioned(by_name(gen.sub.nodes), node.name)
    if versioned:
        # Out-of-order changes remain marked, see `operators.versioned`.
        w.line(f"late_{i} = {flow.old}.__class__ is OutOfOrder")
        w.line(f"old_{i} = {flow.old}.value if late_{i} else {flow.old}")
        flow = replace(flow, old=f"old_{i}")
    before, is_read = _call_before(gen, node, flow), versioned or needs_old(gen.sub, node)
    was_there = f"{before} is not None"
    if gen.options.handles_errors:
        # If the function fails on the previous value, it failed before, and the row was deleted.
        with w.block("try:"):
            w.line(f"before_{i} = {before}")
        with w.block("except Exception:"):
            w.line(f"before_{i} = None")
        was_there = f"before_{i} is not None"
    elif is_read:
        w.line(f"before_{i} = {before}")
        was_there = f"before_{i} is not None"
    result = replace(result, old=f"before_{i}" if is_read else None)
    with w.block(f"if value_{i} is not None or {was_there}:"):
        if versioned:
            w.line(f"before_{i} = OutOfOrder(before_{i}) if late_{i} else before_{i}")
        _children(gen, node, result, descend)


def _call_before(gen: Generator, node: Stateless, flow: RecordVariables) -> str:
    assert flow.old is not None
    return _call(gen, node, replace(flow, value=flow.old))


def _flat_map(gen: Generator, node: Stateless, flow: RecordVariables, descend: Descend) -> None:
    i = gen.ordinal(node)
    outputs = _call(gen, node, flow)
    if gen.options.handles_errors:
        # Collect all outputs first: if the function fails halfway, none of them is forwarded.
        with attempt(gen, node, flow):
            pair = "(pair if pair.__class__ is tuple else as_pair(pair),)"
            gen.writer.line(f"outputs_{i} = [(k, v) for pair in {outputs} for k, v in {pair}]")
        outputs = f"outputs_{i}"
    with otherwise(gen), gen.writer.block(f"for pair_{i} in {outputs}:"):
        _take_apart(gen, i)
        _children(gen, node, flow.with_key(f"key_{i}").with_value(f"value_{i}"), descend)


def _flat_map_values(
    gen: Generator, node: Stateless, flow: RecordVariables, descend: Descend
) -> None:
    i = gen.ordinal(node)
    outputs = _call(gen, node, flow)
    if gen.options.handles_errors:
        with attempt(gen, node, flow):
            gen.writer.line(f"outputs_{i} = list({outputs})")
        outputs = f"outputs_{i}"
    with otherwise(gen), gen.writer.block(f"for value_{i} in {outputs}:"):
        _children(gen, node, flow.with_value(f"value_{i}"), descend)


def _select_key(gen: Generator, node: Stateless, flow: RecordVariables, descend: Descend) -> None:
    i = gen.ordinal(node)
    with attempt(gen, node, flow):
        gen.writer.line(f"key_{i} = {_call(gen, node, flow)}")
    with otherwise(gen):
        _children(gen, node, flow.with_key(f"key_{i}"), descend)


def _side_effect(gen: Generator, node: Stateless, flow: RecordVariables, descend: Descend) -> None:
    with attempt(gen, node, flow):
        gen.writer.line(_call(gen, node, flow))
    with otherwise(gen):
        _children(gen, node, flow, descend)


def _print(gen: Generator, node: Stateless, flow: RecordVariables, descend: Descend) -> None:
    text = f'f"[{{label_{gen.ordinal(node)}}}]: {{{flow.key_object}}}, {{{flow.value_object}}}"'
    gen.constant(f"label_{gen.ordinal(node)}", node.label or node.name)
    with attempt(gen, node, flow):
        gen.writer.line(f"write_line({text})")
    with otherwise(gen):
        _children(gen, node, flow, descend)


def _pass(gen: Generator, node: Stateless, flow: RecordVariables, descend: Descend) -> None:
    _children(gen, node, flow, descend)


def _null_key_filter(
    gen: Generator, node: Stateless, flow: RecordVariables, descend: Descend
) -> None:
    guard_key(gen, node, flow, lambda keyed: _children(gen, node, keyed, descend))


def guard_key(
    gen: Generator,
    node: Node,
    flow: RecordVariables,
    rest: Callable[[RecordVariables], None],
    store: str | None = None,
) -> None:
    w = gen.writer
    if flow.key_is_set:
        rest(flow)
        return
    keyed = replace(flow, key_is_set=True)
    fails = gen.options.null_key_policy == "fail"
    if fails and not gen.options.handles_errors:
        with w.block(f"if {flow.key_or_bytes} is None:"):
            w.line(f"raise NullKeyError({node.name!r}, {store!r})")
        rest(keyed)
        return
    with w.block(f"if {flow.key_or_bytes} is None:"):
        if fails:
            emit_handler_call(gen, node, flow, f"NullKeyError({node.name!r}, {store!r})")
        else:
            w.line(f"dropped({node.name!r}, 'null key')")
    with w.block("else:"):
        rest(keyed)


def _call(gen: Generator, node: Stateless, flow: RecordVariables) -> str:
    is_checked = node.op in ("filter", "filter_not", "peek", "for_each")
    name = f"function_{gen.ordinal(node)}"
    function = gen.function(name, node.function, looked_at=is_checked)
    if node.with_key:
        return f"{function}({flow.key_object}, {flow.value_object})"
    return f"{function}({flow.value_object})"


def _children(gen: Generator, node: Node, flow: RecordVariables, descend: Descend) -> None:
    for child in gen.sub.children(node.name):
        descend(child, flow)


_EMITTERS: dict[str, Callable[[Generator, Stateless, RecordVariables, Descend], None]] = {
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
