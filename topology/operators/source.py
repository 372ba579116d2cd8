"""Reading a record: decode what is needed, refuse what cannot be processed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from topology.codegen import Flow, Generator
from topology.errors import SerdeError
from topology.graph import AnySerde, Source
from topology.needs import needs_key, needs_value


def emit(gen: Generator, node: Source) -> Flow:
    """Write the reading of one message `m`; returns the flow of its record."""
    w, options = gen.writer, gen.options
    i = gen.ordinal(node)
    key_serde = node.key or options.default_key
    value_serde = node.value or options.default_value
    flow = Flow(
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
    w.line("timestamp = m.timestamp()[1]")
    w.line("headers = m.headers()")
    with w.block("if timestamp > stream_time:"):
        w.line("stream_time = timestamp")
    with w.block("elif timestamp < 0:"):
        w.line("raise NegativeTimestampError(timestamp)")
    # What this application wrote itself is decoded only where somebody reads it.
    if not node.internal or needs_key(gen, node, key_serde):
        decode = gen.constant(f"decode_key_{i}", decoder_of(key_serde))
        w.line(f"key = None if key_bytes is None else {decode}(key_bytes)")
        flow = replace(flow, key="key")
    if not node.internal or needs_value(gen, node, value_serde):
        decode = gen.constant(f"decode_value_{i}", decoder_of(value_serde))
        w.line(f"value = None if value_bytes is None else {decode}(value_bytes)")
        flow = replace(flow, value="value")
    return flow


def decoder_of(serde: AnySerde) -> Callable[[bytes], Any]:
    """The quickest way to decode: a serde's `decoder` where it has one (see `Serde`)."""
    decoder: Callable[[bytes], Any] = getattr(serde, "decoder", None) or serde.deserialize
    return decoder


def decoding_error(
    node: Source, defaults: tuple[AnySerde, AnySerde], message: Any
) -> Exception | None:
    """Decode a message again with the checked methods, to say what is wrong with it."""
    for serde, data in (
        (node.key or defaults[0], message.key()),
        (node.value or defaults[1], message.value()),
    ):
        try:
            if data is not None:
                serde.deserialize(data)
        except SerdeError as error:
            return error
    return None
