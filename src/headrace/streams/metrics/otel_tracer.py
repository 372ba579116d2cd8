"""One span of OpenTelemetry for each commit, where the program itself has OpenTelemetry.

A span is linked to the traces of a sample of the commit's input records: those that come first in
a chunk of an input, as far as they have a header ``traceparent``, 32 traces at the most. Whether
spans are made, and kept, is the SDK's and its sampler's. Nothing is imported here: whoever has not
imported `opentelemetry.trace` has no spans, and pays for none.

Called once a commit and once a chunk, never for each record.
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
    """What traces a worker: nothing, unless the program has imported OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    return NoTracer() if trace is None else OtelTracer(trace, application_id, worker_id)


class OtelTracer:
    """Tracer with one OpenTelemetry span per commit.

    Args:
        trace: the module `opentelemetry.trace`.
        worker_id: the worker's identity.
    """

    def __init__(self, trace: Any, application_id: str, worker_id: str) -> None:
        self._trace = trace
        self._tracer = trace.get_tracer("headrace")
        self._fields = {"headrace.application": application_id, "headrace.worker": worker_id}
        self._parents: dict[tuple[int, int], int] = {}
        """The flags of spans, by trace and span."""

    @property
    def samples(self) -> bool:
        """Whether there is room for another link."""
        return len(self._parents) < LINKS_MAX

    def sample(self, records: Iterable[ReceivedMessage]) -> None:
        """Remember the traces of some records."""
        for record in records:
            for name, value in record.headers() or ():
                if name == HEADER and self.samples:
                    self._remember(value)

    def _remember(self, value: bytes | None) -> None:
        found = _W3C.fullmatch(value or b"")
        if found is not None:
            trace, span, flags = (int(part, 16) for part in found.groups()[:3])
            if trace and span:
                self._parents[trace, span] = flags

    @contextmanager
    def committing(self, tasks: Sequence[str], records: int) -> Iterator[None]:
        """Make a span of a commit. Of an error it has the name: its text may quote a record."""
        links = [
            self._trace.Link(
                self._trace.SpanContext(t, s, is_remote=True, trace_flags=self._trace.TraceFlags(f))
            )
            for (t, s), f in self._parents.items()
        ]
        self.forget()
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

    def forget(self) -> None:
        """Remember none."""
        self._parents.clear()
