"""Lines that read a record: decode the parts that are needed, and reject invalid records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.topology.compile.codegen import (
    CompileOptions,
    Generator,
    RecordVariables,
    needs_key,
    needs_value,
)
from headrace.topology.errors import LAST_TIME_MS, Part, SerdeError
from headrace.topology.graph.graph import AnySerde, SourceNode, SubTopology
from headrace.topology.serdes.partials import Take, refuse_partial, refuse_unread, take_count, taker
from headrace.topology.timestamps import TimestampAssigner, TimestampExtractor, needed

CALLED = {"refuse_partial": refuse_partial, "refuse_unread": refuse_unread}
"""Functions that the generated lines use, by name."""


def emit(gen: Generator, node: SourceNode) -> RecordVariables:
    """Write the reading of a message `m`; return the flow of its record."""
    w, options = gen.writer, gen.options
    key_serde = node.key or options.default_key
    value_serde = node.value or options.default_value
    flow = RecordVariables(
        key=None,
        key_bytes="key_bytes",
        key_serde=key_serde,
        value=None,
        value_bytes="value_bytes",
        value_serde=value_serde,
        key_is_own=node.internal,
    )
    w.line("key_bytes = m.key()")
    w.line("value_bytes = m.value()")
    if extractor_of(node, options) is not None:
        w.line("headers = m.headers()")
        with _decoding(gen, node):
            w.line("key, value = m.objects()")
            w.line("timestamp = m.time()")
        _emit_time_check(gen, node)
        return replace(flow, key="key", value="value")
    w.line("timestamp = m.timestamp()[1]")
    w.line("headers = m.headers()")
    with _decoding(gen, node):
        flow = _decode(gen, node, _emit_partial(gen, node, flow) if node.internal else flow)
    # After the decoding: a record that a handler drops there does not advance stream time.
    _emit_time_check(gen, node)
    return flow


def extractor_of(node: SourceNode, options: CompileOptions) -> TimestampExtractor | None:
    """Return the timestamp extractor of a source, or None if it uses the records' timestamps."""
    # Records of internal topics keep their timestamps, as in Kafka Streams.
    return None if node.internal else needed(node.timestamps, options.timestamps)


def stampers(
    sub: SubTopology, options: CompileOptions, now_ms: Callable[[], int]
) -> dict[str, Callable[[int], TimestampAssigner]]:
    """Return, by topic, the factory of a partition's timestamp assigner, given its time so far."""
    factories: dict[str, Callable[[int], TimestampAssigner]] = {}
    for node in sub.sources:
        extractor = extractor_of(node, options)
        if extractor is not None:
            key = decoder_of(node.key or options.default_key)
            value = decoder_of(node.value or options.default_value)
            make = partial(TimestampAssigner, extractor, key, value, now_ms)
            factories.update(dict.fromkeys(node.topics, make))
    return factories


def _emit_time_check(gen: Generator, node: SourceNode) -> None:
    w = gen.writer
    with w.block("if timestamp > stream_time:"):
        with w.block(f"if timestamp > {LAST_TIME_MS}:"):
            w.line("raise FutureTimestampError(timestamp)")
        w.line("stream_time = timestamp")
    with w.block("elif timestamp < 0:"):
        if extractor_of(node, gen.options) is None:
            w.line("raise NegativeTimestampError(timestamp)")
        else:
            w.line(f"dropped({node.name!r}, 'negative timestamp')")
            w.line("continue")


@contextmanager
def _decoding(gen: Generator, node: SourceNode) -> Iterator[None]:
    """Write the decoding, and the call of the handler if it fails."""
    w = gen.writer
    has_reaction = getattr(extractor_of(node, gen.options), "failure_reaction", None) is not None
    if not gen.options.skips_undecodable and not has_reaction:
        yield
        return
    with w.block("try:"):
        yield
    with w.block("except Exception as error:"):
        if node.internal:
            w.line("refuse_unread(error, m.headers())")
        w.line(f"undecodable({node.name!r}, error, m)")
        w.line("continue")


def _emit_partial(gen: Generator, node: SourceNode, flow: RecordVariables) -> RecordVariables:
    """Write the handling of a partial aggregate, which sources without a taker reject."""
    w, i = gen.writer, gen.ordinal(node)
    take = partial_taker(gen.sub, node, gen.options.default_value)
    if take is None:
        with w.block("if headers:"):
            w.line("refuse_partial(headers)")
        return flow
    w.line(f"partial_{i} = None")
    with w.block("if headers:"):
        call = gen.constant(f"take_partial_{i}", take)
        w.line(f"partial_{i}, headers = {call}(headers, value_bytes)")
    return replace(flow, partial=f"partial_{i}")


def partial_taker(sub: SubTopology, source: SourceNode, default_value: AnySerde) -> Take | None:
    """Return the reader of partial aggregates, if the single child is a mergeable aggregation."""
    children = sub.children(source.name)
    fold = children[0].combinable if source.internal and len(children) == 1 else None
    if fold is None:
        return None
    if not fold.asks_user:
        return take_count
    store = next(store for store in sub.stores if store.name == children[0].stores[0])
    return taker(fold.word, (store.value or default_value).deserialize)


def _decode(gen: Generator, node: SourceNode, flow: RecordVariables) -> RecordVariables:
    w, i = gen.writer, gen.ordinal(node)
    key_serde, value_serde = flow.key_serde, flow.value_serde
    assert key_serde is not None
    assert value_serde is not None
    # Parts of records of internal topics are decoded only if a node reads them.
    if not node.internal or needs_key(gen, node, key_serde):
        decode = gen.constant(f"decode_key_{i}", decoder_of(key_serde))
        w.line(f"key = None if key_bytes is None else {decode}(key_bytes)")
        flow = replace(flow, key="key")
    if not node.internal or needs_value(gen, node, value_serde):
        decode = gen.constant(f"decode_value_{i}", decoder_of(value_serde))
        decoded = f"None if value_bytes is None else {decode}(value_bytes)"
        if flow.partial is not None:
            decoded = f"{flow.partial} if {flow.partial} is not None else {decoded}"
        w.line(f"value = {decoded}")
        flow = replace(flow, value="value")
    return flow


def decoder_of(serde: AnySerde) -> Callable[[bytes], Any]:
    decoder: Callable[[bytes], Any] = getattr(serde, "decoder", None) or serde.deserialize
    return decoder


def decoding_error(
    node: SourceNode, defaults: tuple[AnySerde, AnySerde], message: Any
) -> Exception | None:
    """Decode a message again with the checked methods; return the error."""
    parts: tuple[tuple[Part, AnySerde, bytes | None], ...] = (
        ("key", node.key or defaults[0], message.key()),
        ("value", node.value or defaults[1], message.value()),
    )
    for part, serde, data in parts:
        try:
            if data is not None:
                serde.deserialize(data)
        except SerdeError as error:
            error.part = part
            return error
        except Exception:  # from a custom serde: report the first error
            return None
    return None
