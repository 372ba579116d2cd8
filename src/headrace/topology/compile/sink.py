"""Lines that write a record to a topic, with its timestamp and headers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.state.buffer import ATOMS
from headrace.topology.compile.codegen import Generator, RecordVariables, Writer, attempt
from headrace.topology.compile.update import other_than
from headrace.topology.errors import NoPartitionError, NoTopicError, Part, type_of
from headrace.topology.graph.graph import AnySerde, Function, Node, Sink
from headrace.topology.operators.combining import Partials
from headrace.topology.serdes.normalise import exact_types, is_by_string, own_copy
from headrace.topology.serdes.partials import unmarked, write_count


def emit(gen: Generator, node: Sink, flow: RecordVariables) -> None:
    if node.combines is not None:
        _emit_pre_aggregated(gen, node, flow)
    else:
        _emit_single(gen, node, flow)


def _emit_single(gen: Generator, node: Sink, flow: RecordVariables) -> None:
    w, i = gen.writer, gen.ordinal(node)
    if node.internal:
        # Headers from another topic must not mark the record as a partial aggregate.
        flow = replace(flow, headers=f"{flow.headers} and unmarked({flow.headers})")
    options = gen.options
    key = gen.encoded_key(flow, node.key or options.default_key, node)
    value = gen.encoded_value(flow, node.value or options.default_value, node)
    if callable(node.topic):
        function = gen.function(f"topic_{i}", node.topic)
        topic = f"{function}({flow.key_object}, {flow.value_object})"
    else:
        name = f"{options.application_id}-{node.topic}" if node.internal else node.topic
        topic = gen.constant(f"topic_{i}", name)
    record = f"{flow.timestamp}, {flow.headers}"
    if gen.options.handles_errors:
        _emit_guarded(gen, node, flow, (key, value, topic))
        return
    if node.partitioner is not None:
        function = gen.function(f"partitioner_{i}", node.partitioner)
        arguments = f"{topic}, {flow.key_object}, {flow.value_object}, partitions_of"
        with w.block(f"for partition_{i} in chosen({function}, {arguments}):"):
            w.line(f"send({topic}, {value}, {key}, partition_{i}, {record})")
        return
    inner = getattr(node.key or options.default_key, "inner_bytes", None)
    if inner is None:
        w.line(f"send({topic}, {value}, {key}, -1, {record})")
        return
    # A windowed key has the partition of its inner key (`WindowedStreamPartitioner`).
    inner = gen.constant(f"inner_bytes_{i}", inner)
    w.line(f"sent_key_{i} = {key}")
    w.line(f"sent_topic_{i} = {topic}")
    w.line(f"partition_{i} = {_partition(inner, f'sent_key_{i}', f'sent_topic_{i}')}")
    w.line(f"send(sent_topic_{i}, {value}, sent_key_{i}, partition_{i}, {record})")


def _emit_guarded(
    gen: Generator, node: Sink, flow: RecordVariables, sent: tuple[str, str, str]
) -> None:
    """Write the send in separate lines, so that the failed part is known."""
    w, i = gen.writer, gen.ordinal(node)
    key, value, topic = sent
    inner = getattr(node.key or gen.options.default_key, "inner_bytes", None)
    with attempt(gen, node, flow, part=f"part_{i}"):
        w.line(f"part_{i} = None")
        w.line(f"sent_topic_{i} = {topic}")
        partitions = "(-1,)"
        if node.partitioner is not None:
            function = gen.function(f"partitioner_{i}", node.partitioner)
            arguments = f"sent_topic_{i}, {flow.key_object}, {flow.value_object}, partitions_of"
            w.line(f"partitions_{i} = chosen({function}, {arguments})")
            partitions = f"partitions_{i}"
        w.line(f"part_{i} = 'key'")
        w.line(f"sent_key_{i} = {key}")
        if node.partitioner is None and inner is not None:
            inner = gen.constant(f"inner_bytes_{i}", inner)
            partitions = f"({_partition(inner, f'sent_key_{i}', f'sent_topic_{i}')},)"
        w.line(f"part_{i} = 'value'")
        w.line(f"sent_value_{i} = {value}")
        w.line(f"part_{i} = 'record'")
        with w.block(f"for partition_{i} in {partitions}:"):
            record = f"partition_{i}, {flow.timestamp}, {flow.headers}"
            w.line(f"send(sent_topic_{i}, sent_value_{i}, sent_key_{i}, {record})")


def _emit_pre_aggregated(gen: Generator, node: Sink, flow: RecordVariables) -> None:
    """Write the aggregation into the key's partial aggregate; records with nulls are sent alone."""
    assert node.combines is not None
    if _is_keyed_by_string(gen, node, flow):
        _emit_count_by_string(gen, node, flow)
        return
    w, i = gen.writer, gen.ordinal(node)
    serde = node.key or gen.options.default_key
    key = f"partial_key_{i}"
    w.line(f"{key} = {gen.encoded_key(flow, serde, node)}")
    known_flow = replace(flow, key_bytes=key, key_serde=serde, key_is_own=True)
    with w.block(f"if {_unaggregated_condition(gen, node, flow, key)}:"):
        _emit_single(gen, node, known_flow)
    with w.block("else:"):
        known_flow = replace(known_flow, key_is_set=True, value_is_set=True)
        if not gen.options.skips_undecodable:
            _emit_step(gen, node, known_flow, key, _decoded_arguments(gen, node, known_flow, key))
            return
        # A record that the reader cannot decode is sent as it is: the reader calls the handler.
        with w.block("try:"):
            arguments = _decoded_arguments(gen, node, known_flow, key)
            _check_key(gen, node, known_flow, key)
        with w.block("except Exception:"):
            _emit_alone(gen, node, known_flow, key)
        with w.block("else:"):
            _emit_step(gen, node, known_flow, key, arguments)


def _unaggregated_condition(gen: Generator, node: Sink, flow: RecordVariables, key: str) -> str:
    """Return the condition under which a record is sent without pre-aggregation."""
    single = [f"partials_{gen.ordinal(node)}.rests"]
    single += [f"{key} is None"] if not flow.key_is_set else []
    single += [f"{flow.value_or_bytes} is None"] if not flow.value_is_set else []
    return " or ".join(single)


def _is_keyed_by_string(gen: Generator, node: Sink, flow: RecordVariables) -> bool:
    """Whether counts can be looked up by string keys without encoding them."""
    assert node.combines is not None
    serde = node.key or gen.options.default_key
    is_count = not node.combines.fold.asks_user
    has_object = flow.key is not None and flow.key_bytes is None
    return is_count and has_object and is_by_string(serde) and not gen.options.skips_undecodable


def _emit_count_by_string(gen: Generator, node: Sink, flow: RecordVariables) -> None:
    """Write the count of a record by its string key, which is encoded once per commit."""
    w, i = gen.writer, gen.ordinal(node)
    serde, key = node.key or gen.options.default_key, flow.key_object
    with w.block(f"if {_unaggregated_condition(gen, node, flow, key)}:"):
        _emit_single(gen, node, flow)
    with w.block("else:"):
        encoded = gen.encoded_key(replace(flow, key_is_set=True), serde, node)
        count_key = f"partial_key_{i}"
        # Keys of other classes may be equal and have other bytes.
        w.line(f"{count_key} = {key} if {key}.__class__ is str else {encoded}")
        _emit_count(gen, node, flow, count_key, encoded)


def _decoded_arguments(
    gen: Generator, node: Sink, flow: RecordVariables, key: str
) -> tuple[str, str]:
    """Write the arguments of the aggregation: key and value as the topic's reader decodes them."""
    assert node.combines is not None
    fold = node.combines.fold
    return (
        _decoded_part(gen, node, flow.key, "key", data=key) if fold.adds_with_key else "",
        _decoded_part(gen, node, flow.value_object, "value") if fold.reads_value else "",
    )


def _check_key(gen: Generator, node: Sink, flow: RecordVariables, key: str) -> None:
    """Write a check that the topic's reader can decode the key, unless it was decoded already."""
    assert node.combines is not None
    if flow.key is None:
        serde = node.key or gen.options.default_key
        decode = gen.constant(f"decode_key_{gen.ordinal(node)}", serde.deserialize)
        gen.writer.line(f"{decode}({key})")
    elif not node.combines.fold.adds_with_key:
        _decoded_part(gen, node, flow.key, "key", data=key)


def _emit_alone(gen: Generator, node: Sink, flow: RecordVariables, key: str) -> None:
    """Write the send of a record as it is, after the partial aggregate of its key."""
    gen.writer.line(f"partials_{gen.ordinal(node)}_send_one({key})")
    _emit_single(gen, node, flow)


def _emit_step(
    gen: Generator, node: Sink, flow: RecordVariables, key: str, arguments: tuple[str, str]
) -> None:
    """Write the aggregation of a record into the partial aggregate.

    If the user's functions return None, the record itself is sent, because a partial aggregate
    cannot express the deletion of an unknown row. The record is also sent if the functions fail on
    the first two records of a partial aggregate, so that the reader can identify the bad record.
    """
    combines = node.combines
    assert combines is not None
    w, i, fold = gen.writer, gen.ordinal(node), combines.fold
    if not fold.asks_user:
        _emit_count(gen, node, flow, key, key)
        return
    entry, old, new = f"partial_{i}", f"old_{i}", f"new_{i}"
    serde = combines.value or gen.options.default_value
    step = fold.source.format(
        key=arguments[0],
        value=arguments[1],
        old=old,
        **{name: gen.function(f"{name}_{i}", f) for name, f in fold.functions.items()},
    )
    w.line(f"{entry} = partials_{i}_get({key})")
    w.line(f"{old} = None if {entry} is None else {entry}[1]")
    if not serde.immutable:
        decode = gen.constant(f"read_partial_{i}", serde.deserialize)
        with w.block(f"if {old}.__class__ is bytes:"):
            w.line(f"{old} = {decode}({old})")
    with w.of(Node(combines.node)):  # attributes errors of the functions to their node
        if fold.first_is_value:
            with w.block("try:"):
                w.line(f"{new} = {step}")
            with w.block("except Exception:"):
                # The first value was not passed to a function: either record may be bad.
                with w.block(f"if {entry} is None or {entry}[4] > 1:"):
                    w.line("raise")
                w.line(f"{new} = None")
        else:
            w.line(f"{new} = {step}")
        _emit_conversion(gen, node, serde, new)
    with w.block(f"if {new} is None:"):
        _emit_alone(gen, node, flow, key)
    with w.block(f"elif {entry} is None:"):
        w.line(f"partials_{i}[{key}] = [{key}, {new}, {flow.timestamp}, {flow.headers}, 1]")
    with w.block("else:"):
        w.line(f"{entry}[1] = {new}")
        w.line(f"{entry}[4] += 1")
        _emit_latest(gen, flow, entry)


def _emit_count(
    gen: Generator, node: Sink, flow: RecordVariables, count_key: str, data: str
) -> None:
    """Write the count under the variable `count_key`; `data` is the code of the key's bytes."""
    w, i = gen.writer, gen.ordinal(node)
    entry = f"partial_{i}"
    w.line(f"{entry} = partials_{i}_get({count_key})")
    with w.block(f"if {entry} is None:"):
        w.line(f"partials_{i}[{count_key}] = [{data}, 1, {flow.timestamp}, {flow.headers}, 0]")
    with w.block("else:"):
        w.line(f"{entry}[1] += 1")
        _emit_latest(gen, flow, entry)


def _emit_latest(gen: Generator, flow: RecordVariables, entry: str) -> None:
    with gen.writer.block(f"if {flow.timestamp} > {entry}[2]:"):
        gen.writer.line(f"{entry}[2] = {flow.timestamp}")
    gen.writer.line(f"{entry}[3] = {flow.headers}")


def _decoded_part(
    gen: Generator, node: Sink, variable: str | None, part: Part, *, data: str | None = None
) -> str:
    """Write a copy of a part of the record, as its bytes decode; return its variable."""
    assert variable is not None
    w, i = gen.writer, gen.ordinal(node)
    is_key = part == "key"
    serde = node.key if is_key else node.value
    serde = serde or (gen.options.default_key if is_key else gen.options.default_value)
    decoded = f"given_{part}_{i}"
    w.line(f"{decoded} = {variable}")
    other = other_than(gen, decoded, exact_types(serde), f"exact_{part}_{i}")
    with w.block(f"if {other}:"):
        if data is None:
            own = gen.constant(f"keep_{part}_{i}", own_copy(serde))
            w.line(f"{decoded} = {own}({decoded})")
        else:
            decode = gen.constant(f"decode_{part}_{i}", serde.deserialize)
            w.line(f"{decoded} = {decode}({data})")
    return decoded


def _emit_conversion(gen: Generator, node: Sink, serde: AnySerde, new: str) -> None:
    """Write the conversion to the stored form: bytes if mutable, so later changes do not matter."""
    w, i = gen.writer, gen.ordinal(node)
    exact = exact_types(serde)
    if not serde.immutable and len(exact) > 1:
        exact |= ATOMS  # as in a store
    with w.block(f"if {other_than(gen, new, exact, f'exact_partial_{i}')}:"):
        if serde.immutable:
            keep = gen.constant(f"keep_partial_{i}", own_copy(serde))
        else:
            keep = gen.constant(f"write_partial_{i}", serde.serialize)
        w.line(f"{new} = {keep}({new})")


def emit_partials(gen: Generator, node: Sink, w: Writer) -> str:
    assert node.combines is not None
    i, fold = gen.ordinal(node), node.combines.fold
    name = f"partials_{i}"
    topic = gen.constant(f"topic_{i}", f"{gen.options.application_id}-{node.topic}")
    serde = node.combines.value or gen.options.default_value
    write = write_count if not fold.asks_user else _partial_encoder(serde)
    arguments = (
        f"{node.name!r}, send, {topic}, {fold.word!r}, {gen.constant(f'write_held_{i}', write)}"
    )
    inner = getattr(node.key or gen.options.default_key, "inner_bytes", None)
    if inner is not None:
        inner = gen.constant(f"inner_bytes_{i}", inner)
        arguments += f", lambda key: {_partition(inner, 'key', topic)}"
    if fold.first_is_value and serde is (node.value or gen.options.default_value):
        arguments += ", singles=True"
    w.line(f"{name} = Partials({arguments})")
    w.line(f"{name}_get = {name}.get")
    if fold.asks_user or gen.options.skips_undecodable:
        w.line(f"{name}_send_one = {name}.send_one")
    return name


def _partial_encoder(serde: AnySerde) -> Callable[[Any], bytes]:
    return serde.serialize if serde.immutable else partial(encoded, serde.serialize)


def encoded(serialize: Callable[[Any], bytes], value: Any) -> bytes:
    return value if value.__class__ is bytes else serialize(value)


def _partition(inner_bytes: str, key: str, topic: str) -> str:
    """Return the expression of a windowed key's partition, by its inner key; -1 for a null key."""
    return f"-1 if {key} is None else partition_of({inner_bytes}({key}), {topic})"


def chosen(
    partitioner: Function,
    topic: str,
    key: Any,
    value: Any,
    partitions_of: Callable[[str], int],
) -> Iterable[int]:
    """Return the partitions that a user's function chooses; its None is returned as (-1,).

    They are checked, because the client would take -1 for no choice, and fail on a large number.
    """
    if not isinstance(topic, str):
        raise NoTopicError(type_of(topic))
    count = partitions_of(topic)
    result = partitioner(topic, key, value, count)
    if result is None:
        return (-1,)
    if result.__class__ is int and 0 <= result < count:
        return (result,)
    if _is_number(result):
        return (_checked_partition(result, topic, count),)
    if isinstance(result, (str, bytes, Mapping)) or not isinstance(result, Iterable):
        raise NoPartitionError(type_of(result), topic, count)
    return tuple(_checked_partition(partition, topic, count) for partition in result)


def _checked_partition(partition: Any, topic: str, count: int) -> int:
    if not _is_number(partition):
        raise NoPartitionError(type_of(partition), topic, count)
    number = operator.index(partition)
    if not 0 <= number < count:
        raise NoPartitionError(str(number), topic, count)
    return number


def _is_number(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


CALLED = {"chosen": chosen, "unmarked": unmarked, "Partials": Partials}
"""Functions and classes that the generated lines use, by name."""
