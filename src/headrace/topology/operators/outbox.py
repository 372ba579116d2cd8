"""Operator that collects records for an external sink until the worker writes them.

Hot path: `process` runs for each record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, Operator, OperatorContext
from headrace.topology.context.operator_spec import OperatorSpec
from headrace.topology.external_sink import (
    ExternalSink,
    SinkBatch,
    SinkBatching,
    SinkFencedError,
    SinkRow,
)


class MemorySink:
    """External sink in memory, for tests. It keeps rows and positions across connections.

    Args:
        keyed: whether rows have keys, so that a null value deletes a row.
        batching: how long rows are collected; None writes them with each commit.

    Examples:
        >>> sink = MemorySink()
        >>> connection = sink.open("app/orders")
        >>> connection.write(SinkBatch("orders", 0, None, 8, [SinkRow("a", 1, 0, 7)]))
        >>> connection.positions("orders", [0, 1]), [row.value for row in sink.rows]
        ({0: 8}, [1])
        >>> connection.write(SinkBatch("orders", 0, None, 8, [SinkRow("a", 1, 0, 7)]))
        Traceback (most recent call last):
            ...
        headrace.topology.external_sink.SinkFencedError: orders-0 is at position 8, not None
        >>> sink.as_dict()
        {'a': 1}
    """

    def __init__(self, *, keyed: bool = False, batching: SinkBatching | None = None) -> None:
        self.keyed = keyed
        self.batching = batching
        self.rows: list[SinkRow] = []
        """All written rows, in order."""
        self._positions: dict[tuple[str, str, int], int] = {}

    def open(self, name: str, /) -> _MemoryConnection:
        """Return a connection with the sink."""
        return _MemoryConnection(self, name)

    def as_dict(self) -> dict[Any, Any]:
        """Return the last value of each key, without deleted keys."""
        last = {row.key: row.value for row in self.rows}
        return {key: value for key, value in last.items() if value is not None}


class _MemoryConnection:
    def __init__(self, sink: MemorySink, name: str) -> None:
        self._sink = sink
        self._name = name
        self.batching = sink.batching

    def positions(self, source: str, partitions: Sequence[int], /) -> Mapping[int, int]:
        stored = self._sink._positions
        positions = {p: stored.get((self._name, source, p)) for p in partitions}
        return {p: position for p, position in positions.items() if position is not None}

    def keepers(self) -> Sequence[str]:
        if not self._sink.rows:
            return []
        return list(dict.fromkeys(name for name, _, _ in self._sink._positions))

    def write(self, batch: SinkBatch, /) -> None:
        source = (self._name, batch.source, batch.partition)
        present = self._sink._positions.get(source)
        if present != batch.expected:
            raise SinkFencedError(
                f"{batch.source}-{batch.partition} is at position {present}, not {batch.expected}"
            )
        self._sink._positions[source] = batch.next
        self._sink.rows.extend(batch.rows)

    def close(self) -> None: ...


_IMMUTABLE = frozenset({str, int, float, bool, bytes, type(None)})


def snapshot(given: Any) -> Any:
    """Return a deep copy of a mutable value; return an immutable value itself.

    Hot path: it runs for each record that a function has returned.

    >>> row = {"id": 7, "tags": ["new"]}
    >>> kept = snapshot(row)
    >>> row["tags"].append("sold")
    >>> kept
    {'id': 7, 'tags': ['new']}
    """
    kind = type(given)
    if kind in _IMMUTABLE:
        return given
    if kind is dict:
        return {
            key: value if type(value) in _IMMUTABLE else snapshot(value)
            for key, value in given.items()
        }
    if kind is list:
        return [snapshot(value) for value in given]
    return deepcopy(given)


ROW_BYTES = 1_000
"""Approximate memory of a row besides its record's bytes, measured with dicts of five fields."""

Kept = tuple[Any, Any, int, Any]
"""Key, value and timestamp of a row, and its input message."""
_ROW = partial(tuple.__new__, SinkRow)
"""Constructor of a row from a tuple, three times as fast as a call of the class."""


@dataclass(frozen=True, slots=True)
class WriteOutside(OperatorSpec):
    """Spec of the operator that collects records for an external sink, in its own sub-topology.

    If `direct` is true, it reads a source topic, with only stateless operators in between.
    """

    needs_record: ClassVar[bool] = True
    """Rows have the offsets of their records."""

    is_timed: ClassVar[bool] = False

    sink: ExternalSink
    direct: bool = False

    @property
    def external_sink(self) -> ExternalSink:
        return self.sink

    @property
    def reads_directly(self) -> bool:
        return self.direct

    def make(self, context: OperatorContext, /) -> Outbox:
        return Outbox(self, context)


class Outbox(Operator):
    """Rows of a task that are not in the sink yet.

    The operator adds rows. The worker writes them, advances `position` and removes them. The number
    ``written`` is committed in the offset metadata: if the sink's position is less, the sink has
    lost rows.
    """

    __slots__ = (
        "_bytes",
        "_copies",
        "_counted",
        "_is_first",
        "_task",
        "_written",
        "batching",
        "kept",
        "node",
        "pending",
        "position",
        "since_s",
        "source",
    )  # fmt: skip

    def __init__(self, spec: WriteOutside, context: OperatorContext) -> None:
        del spec
        # Objects that other code can change before the write must be copied.
        self._copies = not context.owns_records
        self._is_first = False
        self.node = context.node
        self.pending: dict[Any, Any] = {}
        self.source = ""
        self.position: int | None = None
        """Position of the sink; None before its first write."""
        self.batching: SinkBatching | None = None
        """How long rows are collected; None writes them with each commit."""
        self.since_s: float | None = None
        """Time of the first row, by the clock of the worker."""
        self.kept: list[Kept] = []
        """Records that are not written yet; always the same list."""
        self._bytes = self._counted = 0
        self._task = context.task
        self._written = context.number("written")
        context.task.outbox = self

    def process(self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        del old, headers
        if self._copies:
            key, value = snapshot(key), snapshot(value)
        self.kept.append((key, value, timestamp, self._task.record))

    @property
    def bytes(self) -> int:
        """Approximate size of the rows; rows of the same record share its size."""
        if not self._copies:  # each record makes a single row
            sizes = [len(row[3].value() or b"") for row in self.kept[self._counted :]]
            self._bytes += sum(sizes) + ROW_BYTES * len(sizes)
            self._counted = len(self.kept)
            return self._bytes
        before = self.kept[self._counted - 1][3] if self._counted else None
        for _, _, _, message in islice(self.kept, self._counted, None):
            self._bytes += ROW_BYTES
            if message is not before:
                self._bytes += len(message.key() or b"") + len(message.value() or b"")
            before = message
        self._counted = len(self.kept)
        return self._bytes

    @property
    def has_collected_rows(self) -> bool:
        """Whether rows are being collected for a larger batch."""
        return self.batching is not None and bool(self.kept) and not self._is_first

    def begin(
        self,
        source: str,
        position: int | None,
        batching: SinkBatching | None = None,
        *,
        is_first: bool = False,
    ) -> None:
        """Set the sink's position; `is_first` if it is undefined: the first rows do not wait."""
        self.source, self.position, self.batching = source, position, batching
        self._is_first = is_first
        if position is not None:
            # Commit the position even if nothing is written afterwards.
            self._written.value = position

    def wrote(self, next_offset: int) -> None:
        """Record that the sink contains all rows before an offset."""
        self.position = self._written.value = next_offset
        self._is_first = False

    def take(self) -> tuple[Sequence[SinkRow], Sequence[Kept]]:
        kept = self.kept[:]
        self.kept.clear()
        self.since_s = None
        self._bytes = self._counted = 0
        return [_ROW((k, v, timestamp, m.offset())) for k, v, timestamp, m in kept], kept
