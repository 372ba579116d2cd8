"""The step that keeps records for a sink outside of Kafka until the worker writes them.

Hot path: `process` runs for each record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.external_sink import ExternalSink, SinkBatching, SinkRow
from headrace.topology.sinks.snapshot import snapshot

ROW_BYTES = 1_000
"""About what a row takes besides its record's bytes; measured with dicts of five fields."""


@dataclass(frozen=True, slots=True)
class WriteOutside(OperatorSpec):
    """Keeps records for an external sink; it is all that its sub-topology is for.

    `direct` is one that reads a source topic itself, with steps without state in between.
    """

    needs_record: ClassVar[bool] = True
    """Rows know which records they are."""

    is_timed: ClassVar[bool] = False

    sink: ExternalSink
    direct: bool = False

    @property
    def writes_outside(self) -> ExternalSink:
        """Where to."""
        return self.sink

    @property
    def reads_directly(self) -> bool:
        """As it was given."""
        return self.direct

    def make(self, context: OperatorContext, /) -> Outbox:
        """Make what keeps the rows of one task."""
        return Outbox(self, context)


class Outbox:
    """The rows of one task that the sink does not have yet.

    Who owns what: the step adds rows, and who writes them moves `position` and takes them away.
    The number ``written`` is committed beside the input's offset: a sink whose position is before
    it has gone back.
    """

    __slots__ = ("_bytes", "_copies", "_counted", "_facts", "_is_first", "_written", "batching",
                 "messages", "node", "pending", "position", "rows", "since_s",
                 "source")  # fmt: skip

    def __init__(self, spec: WriteOutside, context: OperatorContext) -> None:
        del spec
        # Who made an object that goes on may change it later; rows are written then.
        self._copies = not context.has_its_own
        self._is_first = False
        self.node = context.node
        self.pending: dict[Any, Any] = {}
        self.source = ""
        self.position: int | None = None
        """Where the sink is; None where it has not begun."""
        self.batching: SinkBatching | None = None
        """How long rows are collected; None where they are written with each commit."""
        self.since_s: float | None = None
        """When the first of them was seen, by the clock of who writes them."""
        self.rows: list[SinkRow] = []
        self.messages: list[Any] = []
        """The records that the rows are of."""
        self._bytes = self._counted = 0
        self._facts = context.task
        self._written = context.number("written")
        context.task.outbox = self

    def process(self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        """Keep one record."""
        del old, headers
        message = self._facts.record
        if self._copies:
            key, value = snapshot(key), snapshot(value)
        self.rows.append(SinkRow(key, value, timestamp, message.offset()))
        self.messages.append(message)

    @property
    def bytes(self) -> int:
        """About what the rows take; those of one record share what it has."""
        messages = self.messages
        before = messages[self._counted - 1] if self._counted else None
        for message in islice(messages, self._counted, None):
            self._bytes += ROW_BYTES
            if message is not before:
                self._bytes += len(message.key() or b"") + len(message.value() or b"")
            before = message
        self._counted = len(messages)
        return self._bytes

    @property
    def is_held(self) -> bool:
        """Whether there are rows that the sink wants to be collected."""
        return self.batching is not None and bool(self.rows) and not self._is_first

    def flush(self) -> None:
        """What is kept goes nowhere downstream."""

    def begin(
        self,
        source: str,
        position: int | None,
        batching: SinkBatching | None = None,
        *,
        is_first: bool = False,
    ) -> None:
        """The sink was asked where it is.

        Args:
            source: what its positions are of.
            batching: how long it wants rows to be collected.
            is_first: whether nobody says yet where to begin: the first rows are not collected.
        """
        self.source, self.position, self.batching = source, position, batching
        self._is_first = is_first

    def wrote(self, next_offset: int) -> None:
        """The sink has everything before an offset."""
        self.position = self._written.value = next_offset
        self._is_first = False

    def take(self) -> tuple[Sequence[SinkRow], Sequence[Any]]:
        """Take the rows, and the records that they are of."""
        taken = self.rows, self.messages
        self.rows, self.messages, self.since_s = [], [], None
        self._bytes = self._counted = 0
        return taken
