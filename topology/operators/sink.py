"""Writing a record to a topic, under its own timestamp and headers."""

from __future__ import annotations

from topology.codegen import Flow, Generator
from topology.graph import Sink


def emit(gen: Generator, node: Sink, flow: Flow) -> None:
    """Write the send; the partition is left to the producer, which hashes the key's bytes."""
    w, i = gen.writer, gen.ordinal(node)
    options = gen.options
    key = gen.encoded_key(flow, node.key or options.default_key, node)
    value = gen.encoded_value(flow, node.value or options.default_value, node)
    if callable(node.topic):
        function = gen.constant(f"topic_{i}", node.topic)
        topic = f"{function}({flow.key_object}, {flow.value_object})"
    else:
        name = f"{options.application_id}-{node.topic}" if node.internal else node.topic
        topic = gen.constant(f"topic_{i}", name)
    w.line(f"send({topic}, {value}, {key}, -1, {flow.timestamp}, {flow.headers})")
