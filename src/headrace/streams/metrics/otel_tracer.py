"""OpenTelemetry span for each commit, if the program itself uses OpenTelemetry.

A span is linked to the traces of a sample of the commit's input records: the first records of each
batch that have a header ``traceparent``, at most 32 traces. The SDK and its sampler decide whether
spans are created and kept. This module imports nothing: a program that has not imported
`opentelemetry.trace` has no spans and no cost.

Called once per commit and once per batch, not per record.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.streams.kafka.protocols import NoTracer, ReceivedMessage, Tracer

LINKS_MAX = 32
HEADER = "traceparent"
_W3C = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def tracer_of(application_id: str, worker_id: str) -> Tracer:
    """Return the tracer of a worker; it does nothing unless OpenTelemetry was imported."""
    trace = sys.modules.get("opentelemetry.trace")
    return NoTracer() if trace is None else OtelTracer(trace, application_id, worker_id)


class OtelTracer:
    """Tracer with an OpenTelemetry span for each commit.

    Args:
        trace: the module `opentelemetry.trace`.
        worker_id: the worker's identity.
    """

    def __init__(self, trace: Any, application_id: str, worker_id: str) -> None:
        self._trace = trace
        self._tracer = trace.get_tracer("headrace")
        self._fields = {"headrace.application": application_id, "headrace.worker": worker_id}
        self._parents: dict[tuple[int, int], int] = {}
        """Trace flags, by trace id and span id."""

    @property
    def samples(self) -> bool:
        return len(self._parents) < LINKS_MAX

    def sample(self, records: Iterable[ReceivedMessage]) -> None:
        for record in records:
            for name, value in record.headers() or ():
                if name == HEADER and self.samples:
                    self._remember(value)

    def _remember(self, value: bytes | None) -> None:
        match = _W3C.fullmatch(value or b"")
        if match is not None:
            trace, span, flags = (int(part, 16) for part in match.groups()[:3])
            if trace and span:
                self._parents[trace, span] = flags

    @contextmanager
    def committing(self, tasks: Sequence[str], records: int) -> Iterator[None]:
        """Create a commit's span; an error is recorded by class, as its text may quote a record."""
        links = [
            self._trace.Link(
                self._trace.SpanContext(t, s, is_remote=True, trace_flags=self._trace.TraceFlags(f))
            )
            for (t, s), f in self._parents.items()
        ]
        self.discard()
        attributes = {**self._fields, "headrace.tasks": list(tasks), "headrace.records": records}
        with self._tracer.start_as_current_span(
            "headrace.commit",
            links=links,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                status = self._trace.Status(self._trace.StatusCode.ERROR, type(error).__name__)
                span.set_status(status)
                raise

    def discard(self) -> None:
        self._parents.clear()
