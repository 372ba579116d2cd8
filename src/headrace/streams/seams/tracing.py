"""The seam to traces: what a worker tells of its commits, and of the records that go into them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from headrace.streams.seams.clients import ReceivedMessage


class Tracer(Protocol):
    """Hears of commits; a live one is `headrace.streams.otel_tracer.OtelTracer`."""

    @property
    def samples(self) -> bool:
        """Whether it wants to see records before the next commit."""

    def sample(self, records: Iterable[ReceivedMessage]) -> None:
        """See some of the records that go into the next commit."""

    def committing(self, tasks: Sequence[str], records: int) -> AbstractContextManager[object]:
        """The context of a commit of tasks, after so many records."""

    def forget(self) -> None:
        """The records that were seen go into no commit."""


class NoTracer:
    """Where nobody traces."""

    samples = False

    def sample(self, records: Iterable[ReceivedMessage]) -> None:
        """Do nothing."""

    def committing(self, tasks: Sequence[str], records: int) -> AbstractContextManager[object]:  # noqa: ARG002
        """Do nothing."""
        return nullcontext()

    def forget(self) -> None:
        """Do nothing."""
