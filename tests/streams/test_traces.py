"""The W3C header goes from inputs to outputs, and commits become spans where there is an SDK."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from headrace import (
    KStream,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    TopologyTestDriver,
    serdes,
)
from headrace.streams.metrics.otel_tracer import LINKS_MAX, OtelTracer, tracer_of
from headrace.streams.testing import memory_worker
from headrace.streams.worker.protocols import WorkerDependencies

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = [("traceparent", PARENT), ("tracestate", b"a=1")]
MINUTE = timedelta(minutes=1)


def counted(stream: KStream[str, str]) -> KStream[Any, Any]:
    return stream.group_by_key().count(store="counts").to_stream()


def regrouped(stream: KStream[str, str]) -> KStream[Any, Any]:
    by_value = stream.group_by(lambda _, value: value, key=serdes.string, name="by-value")
    return by_value.count(store="counts").to_stream()


def windowed(stream: KStream[str, str]) -> KStream[Any, Any]:
    windows = stream.group_by_key().windowed_by(TimeWindows(size=MINUTE))
    return windows.count(store="counts").to_stream().map(lambda window, n: (window.key, n))


def in_sessions(stream: KStream[str, str]) -> KStream[Any, Any]:
    windows = stream.group_by_key().windowed_by(SessionWindows(inactivity_gap=MINUTE))
    return windows.count(store="counts").to_stream().map(lambda window, n: (window.key, n))


STEPS: dict[str, Callable[[KStream[str, str]], KStream[Any, Any]]] = {
    "stateless": lambda s: s.map_values(str.upper).filter(lambda *_: True).peek(lambda *_: None),
    "flat_map": lambda s: s.flat_map_values(list),
    "repartition": lambda s: s.select_key(lambda _, v: v).repartition(name="by", key=serdes.string),
    "count": counted,
    "count behind a repartition": regrouped,
    "windows": windowed,
    "sessions": in_sessions,
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_the_headers_of_a_record_are_those_of_its_results(step: Any) -> None:
    builder = StreamsBuilder()
    step(builder.stream("in", key=serdes.string, value=serdes.string)).to("out", key=serdes.string)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in").send("k", "v", headers=HEADERS)
        found = driver.output("out").read_all()
    assert found
    assert [list(record.headers) for record in found] == [HEADERS] * len(found)


def test_a_record_without_headers_makes_results_without() -> None:
    builder = StreamsBuilder()
    regrouped(builder.stream("in", key=serdes.string, value=serdes.string)).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in").send("k", "v")
        (found,) = driver.output("out").read_all()
    assert list(found.headers or ()) == []


def test_a_result_of_two_records_has_the_headers_of_the_one_that_made_it() -> None:
    builder = StreamsBuilder()
    table = builder.table("rows", key=serdes.string, value=serdes.string)
    stream = builder.stream("in", key=serdes.string, value=serdes.string)
    stream.join(table, lambda a, b: a + b).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("rows").send("k", "row", headers=[("traceparent", b"of the row")])
        driver.input("in").send("k", "v", headers=HEADERS)
        (found,) = driver.output("out").read_all()
    assert list(found.headers) == HEADERS


def test_a_held_back_result_has_those_of_the_last_record_that_went_into_it() -> None:
    builder = StreamsBuilder()
    regrouped(builder.stream("in", key=serdes.string, value=serdes.string)).to("out")
    with TopologyTestDriver(builder.build(), commit="manual") as driver:
        driver.input("in").send("k", "v", headers=[("traceparent", b"the first")])
        driver.input("in").send("k", "v", headers=HEADERS)
        driver.commit()
        (found,) = driver.output("out").read_all()
    assert (found.value, list(found.headers)) == (2, HEADERS)


# -- spans -----------------------------------------------------------------------------------------


class Spans:
    """A worker of the test driver whose spans are kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sampler: Any = None) -> None:
        sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs opentelemetry-sdk")
        export = pytest.importorskip("opentelemetry.sdk.trace.export")
        memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
        trace = pytest.importorskip("opentelemetry.trace")
        self._exporter = memory.InMemorySpanExporter()
        provider = sdk.TracerProvider(sampler=sampler)
        provider.add_span_processor(export.SimpleSpanProcessor(self._exporter))
        monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
        tracer = tracer_of("shop", "pod-7")
        assert isinstance(tracer, OtelTracer)
        monkeypatch.setattr(
            memory_worker, "WorkerDependencies", partial(WorkerDependencies, tracer=tracer)
        )
        builder = StreamsBuilder()
        stream = builder.stream("in", key=serdes.string, value=serdes.string)
        stream.map_values(_checked).to("out")
        self.driver = TopologyTestDriver(builder.build(), commit="manual")
        self.driver.commit()
        self._exporter.clear()

    def send(self, *parents: bytes | None) -> None:
        for parent in parents:
            headers = [] if parent is None else [("traceparent", parent)]
            self.driver.input("in").send("k", "v", headers=headers)

    def commit(self) -> Any:
        self.driver.commit()
        (span,) = self.all()
        return span

    def all(self) -> list[Any]:
        spans = self._exporter.get_finished_spans()
        self._exporter.clear()
        return list(spans)


def _checked(value: str) -> str:
    return value


def parent(number: int) -> bytes:
    return b"00-%032x-%016x-01" % (number, number)


def links(span: Any) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def test_a_commit_is_a_span_with_its_tasks_and_links_to_what_it_is_made_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans = Spans(monkeypatch)
    spans.send(parent(1), parent(2), None)
    span = spans.commit()
    assert span.name == "headrace.commit"
    assert dict(span.attributes) == {
        "headrace.application": "shop",
        "headrace.worker": "pod-7",
        "headrace.tasks": ("0_0",),
        "headrace.records": 3,
    }
    assert links(span) == [(1, 1), (2, 2)]
    assert all(link.context.is_remote and link.context.trace_flags == 1 for link in span.links)
    spans.send(None)
    assert links(spans.commit()) == []


def test_links_are_bounded_and_each_trace_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = Spans(monkeypatch)
    spans.send(*[parent(n) for n in (1, 1, *range(2, 60))])
    assert links(spans.commit()) == [(n, n) for n in range(1, LINKS_MAX + 1)]


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\xff\xfe",
        b"00-0-0-01",
        parent(0),
        b"ff" + parent(1)[2:],
        parent(1)[:-1],
        b"x" * 9_999,
    ],
)
def test_a_header_that_is_no_traceparent_links_nothing(
    monkeypatch: pytest.MonkeyPatch, wrong: bytes
) -> None:
    spans = Spans(monkeypatch)
    spans.send(wrong)
    assert links(spans.commit()) == []


def test_a_sampler_that_drops_a_span_drops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")
    spans = Spans(monkeypatch, sampling.ALWAYS_OFF)
    spans.send(parent(1))
    spans.driver.commit()
    assert spans.all() == []


def test_what_was_aborted_links_nothing_and_a_commit_that_failed_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans = Spans(monkeypatch)
    spans.send(parent(1))
    spans.driver.crash(at="offsets_sent")
    spans.driver.commit()
    failed, done = spans.all()
    assert failed.status.status_code.name == "ERROR"
    assert "v" not in (failed.status.description or "").split()
    assert failed.events == ()
    assert links(done) == [(1, 1)], "it is processed again, and seen again"
    spans.send(parent(2))
    spans.driver.abort()
    spans.driver.commit()
    assert links(spans.all()[-1]) == [(2, 2)]


def test_nothing_of_opentelemetry_is_imported_for_who_has_not() -> None:
    code = (
        "import sys\n"
        "import headrace.streams.app, headrace.streams.worker.runtime\n"
        "from headrace.streams.metrics.otel_tracer import tracer_of\n"
        "print(type(tracer_of('a', 'b')).__name__, 'opentelemetry' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("NoTracer False\n", 0), done.stderr
