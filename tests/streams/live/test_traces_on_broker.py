"""A trace goes through a repartition topic and a count on a real cluster, and over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from headrace.topology import StreamsBuilder, serdes
from tests.support import kafka
from tests.support.live import live
from tests.support.processes import wait_until
from tests.support.topics import Topics

pytestmark = pytest.mark.slow

PARENT = b"00-%032x-%016x-01"


def test_a_traceparent_goes_through_a_repartition_topic_and_a_commit_links_it(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs opentelemetry-sdk")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    trace = pytest.importorskip("opentelemetry.trace")
    exporter, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    inputs, outputs = topics.create("in", partitions=2), topics.create("out", partitions=2)
    builder = StreamsBuilder()
    stream = builder.stream(inputs, key=serdes.string, value=serdes.string)
    grouped = stream.group_by(lambda _, value: value, key=serdes.string, name="by-value")
    grouped.count(store="counts").to_stream().to(outputs)
    settings: dict[str, Any] = {
        "application.id": topics.name("app"),
        "bootstrap.servers": topics.bootstrap,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": str(tmp_path),
        "commit.interval.ms": 20,
    }
    producer = confluent_kafka.Producer({"bootstrap.servers": topics.bootstrap})
    for number in range(1, 3):
        with live(builder.build(), settings) as app:
            app.wait_running()
            headers = [("traceparent", PARENT % (number, number))]
            producer.produce(inputs, b"v", b"k", headers=headers)
            producer.flush()
            wait_until(
                lambda number=number: len(kafka.read(topics.bootstrap, outputs)) == number,
                what="a count",
            )
    found = kafka.read(topics.bootstrap, outputs)
    assert [record.headers for record in found] == [
        [("traceparent", PARENT % (number, number))] for number in (1, 2)
    ]
    linked = [link.context.trace_id for s in exporter.get_finished_spans() for link in s.links]
    # Once by the task that splits, and once by the one that counts.
    assert linked == [1, 1, 2, 2]
