"""Reading a record: decode what is needed, refuse what cannot be processed."""

from __future__ import annotations

from dataclasses import replace

from topology.codegen import Flow, Generator
from topology.graph import Source
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
    with w.block("if timestamp < 0:"):
        w.line("raise NegativeTimestampError(timestamp)")
    with w.block("if timestamp > stream_time:"):
        w.line("stream_time = timestamp")
    # What this application wrote itself is decoded only where somebody reads it.
    if not node.internal or needs_key(gen, node, key_serde):
        decode = gen.constant(f"decode_key_{i}", key_serde.deserialize)
        w.line(f"key = None if key_bytes is None else {decode}(key_bytes)")
        flow = replace(flow, key="key")
    if not node.internal or needs_value(gen, node, value_serde):
        decode = gen.constant(f"decode_value_{i}", value_serde.deserialize)
        w.line(f"value = None if value_bytes is None else {decode}(value_bytes)")
        flow = replace(flow, value="value")
    return flow
