"""Suppression of a table's changes: the last change of each row is emitted when it is due.

The buffer is a store, so no change is lost or emitted twice. The operator has only the order in
which rows are due in memory, which is read from the store at the first change. A row keeps its
position in that order from its first buffered change on (Kafka Streams:
`KTableSuppressProcessorSupplier`, `InMemoryTimeOrderedKeyValueChangeBuffer`).

If tables upstream are cached, rows are emitted at the end of the flush, because during the flush
stream time is ahead of updates that have not been forwarded yet.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar

from headrace.topology.context.context import Headers, Operator, OperatorContext, TableView
from headrace.topology.context.operator_spec import OperatorSpec, RowKind
from headrace.topology.errors import BufferFullError
from headrace.topology.operators.windows.buffered import Buffered, BufferedSerde
from headrace.topology.serdes import Serde


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppress(OperatorSpec):
    """Spec of the suppression of a table's changes.

    Args:
        table: the name of the node whose changes they are.
        wait_ms: how far stream time must be past a row's time before the row is emitted.
        final: whether a row's time is its window's end, and it is emitted only once.
        max_records: maximum number of buffered rows; None for any number.
        max_bytes: maximum size of the buffered rows; None for any size.
        shut_down: whether a full buffer is an error, instead of emitting the oldest rows early.
    """

    store: str
    table: str
    wait_ms: int
    final: bool
    max_records: int | None = None
    max_bytes: int | None = None
    shut_down: bool = False
    is_table: ClassVar[bool] = True
    needs_old: ClassVar[bool] = True

    @property
    def row_kind(self) -> RowKind:
        what = "final results" if self.final else "a time limit"
        return RowKind(f"suppress until {what}", {"wait": self.wait_ms})

    @property
    def follows_windows(self) -> bool:
        return self.final

    store_call: ClassVar[str] = 'suppress(name="...")'

    def make(self, context: OperatorContext, /) -> SuppressOperator:
        return SuppressOperator(self, context)

    def view(self, context: OperatorContext, /) -> TableView:
        return _ForwardedRows(context, self.store, context.view(self.table))


class _ForwardedRows:
    """View of the rows as forwarded: the prior value of a buffered row, else the table's row."""

    __slots__ = ("_buffer", "_encode", "_table")

    def __init__(self, context: OperatorContext, store: str, table: TableView) -> None:
        self._buffer = context.buffers[store]
        self._encode = context.serdes(store)[0].serialize
        self._table = table

    def get(self, key: Any, /) -> tuple[Any, int]:
        buffered: Buffered | None = self._buffer.get(self._encode(key))[0]
        if buffered is None:
            return self._table.get(key)
        return buffered.prior, -1 if buffered.prior is None else buffered.timestamp


class SuppressOperator(Operator):
    """Operator of a `Suppress`; see the module."""

    delays_results: ClassVar[bool] = True

    __slots__ = (
        "_bytes",
        "_due",
        "_emits_at_flush",
        "_entries",
        "_forward",
        "_has_overdue",
        "_key_serde",
        "_loaded",
        "_node",
        "_rows",
        "_serde",
        "_spec",
        "_task",
        "_time",
        "pending",
    )

    def __init__(self, spec: Suppress, context: OperatorContext) -> None:
        self._spec = spec
        self._node = context.node
        self._forward = context.forward
        self._rows = context.buffers[spec.store]
        self._key_serde: Serde[Any]
        self._key_serde, serde = context.serdes(spec.store)
        assert isinstance(serde, BufferedSerde), spec.store
        self._serde = serde
        self._task = context.task
        self._time = context.number("time")
        self._emits_at_flush = context.caching
        self._loaded = False
        self._due: list[tuple[int, bytes]] = []
        """Heap of time and row key; items that do not match `_entries` are obsolete."""
        self._entries: dict[bytes, tuple[int, int]] = {}
        """Time and size of each buffered row."""
        self._bytes = 0
        self._has_overdue = self._time.value >= 0
        """Whether rows may remain that were due before the last commit."""
        self.pending: MutableMapping[Any, Any] = {}

    def process(self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers, /) -> None:
        if not self._loaded:
            self._load()
        if timestamp > self._time.value < self._task.watermark:
            self._time.value = min(timestamp, self._task.watermark)
        self._buffer_change(key, value, old, timestamp, headers)
        if self._emits_at_flush:
            self.pending[None] = None
        else:
            self._emit_due()

    def follow(self, time: int, /) -> None:
        """Advance to the stream time of the windows, even without a change."""
        if time > self._time.value:
            self._time.value = time
            if self._emits_at_flush:
                self.pending[None] = None
            else:
                if not self._loaded:
                    self._load()
                self._emit_due()

    def flush(self) -> None:
        if self.pending:
            self.pending.clear()
            if not self._loaded:
                self._load()
            self._emit_due()

    def is_due(self, time: int, /) -> bool:
        if not self._loaded:
            self._load()
        return bool(self._due) and self._due[0][0] <= time - self._spec.wait_ms

    def earliest_waiting(self) -> int | None:
        if not self._loaded:
            self._load()
        while self._due and self._entries.get(self._due[0][1], (None,))[0] != self._due[0][0]:
            heappop(self._due)
        if not self._due:
            return None
        time, row_key = self._due[0]
        if self._spec.final:
            start: int = self._key_serde.deserialize(row_key).window.start_ms
            return start
        return time

    @property
    def emits_earlier(self) -> bool:
        return True

    def has_remaining_results(self) -> bool:
        return self._has_overdue

    def emit_remaining(self) -> None:
        if not self._loaded:
            self._load()
        self._emit_due()

    def advance(self, time: int, /) -> None:
        if time > self._time.value:
            self._time.value = time
            self._emit_due()

    def close_idle(self) -> None:
        if not self._spec.final:
            return
        if not self._loaded:
            self._load()
        if self._entries:
            last = max(time for time, _ in self._entries.values())
            self._time.value = max(self._time.value, last + self._spec.wait_ms)
            self._emit_due()

    # -- buffer --------------------------------------------------------------------------------

    def _load(self) -> None:
        self._loaded = True
        for row_key, row, _ in self._rows.scan():
            self._track(row_key, row)
        self._due = [(time, row_key) for row_key, (time, _) in self._entries.items()]
        heapify(self._due)

    def _buffer_change(
        self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers
    ) -> None:
        row_key = self._key_serde.serialize(key)
        buffered: Buffered | None = self._rows.get(row_key)[0]
        if buffered is not None:
            time, prior = buffered.time, buffered.prior
        elif self._spec.final:
            time, prior = key.window.end_ms, None
        else:
            time, prior = timestamp, old
        if value is None and prior is None:
            # The row was added and deleted while it was buffered, or never existed.
            if buffered is not None:
                self._remove(row_key, timestamp)
            return
        row = Buffered(value, prior, time, timestamp, headers)
        self._rows.put(row_key, row, timestamp)  # first, because its serde may reject the value
        self._track(row_key, row)
        if buffered is None:
            heappush(self._due, (time, row_key))

    def _track(self, row_key: bytes, row: Buffered) -> None:
        size = 0
        if self._spec.max_bytes is not None:
            size = len(row_key) + len(self._serde.serialize(row))
        previous = self._entries.get(row_key)
        self._entries[row_key] = row.time, size
        self._bytes += size - (previous[1] if previous is not None else 0)

    def _remove(self, row_key: bytes, timestamp: int) -> None:
        self._bytes -= self._entries.pop(row_key)[1]
        self._rows.put(row_key, None, timestamp)

    # -- results -------------------------------------------------------------------------------

    def _emit_due(self) -> None:
        self._has_overdue = not self._emit_until(self._time.value - self._spec.wait_ms)
        if self._has_overdue:
            return  # rows that are due do not fill the buffer
        if self._is_full() and self._spec.shut_down:
            raise BufferFullError(self._node, self._spec.store, len(self._entries), self._bytes)
        while self._is_full():
            self._emit_first()

    def _emit_until(self, time: int) -> bool:
        """Emit the rows that are due; return False if some have to wait for a commit."""
        budget = self._task.emission
        while self._due and self._due[0][0] <= time:
            if budget.is_spent:
                return False
            self._emit_first()
            budget.spend()
        return True

    def _is_full(self) -> bool:
        records, size = self._spec.max_records, self._spec.max_bytes
        return (records is not None and len(self._entries) > records) or (
            size is not None and self._bytes > size
        )

    def _emit_first(self) -> None:
        time, row_key = heappop(self._due)
        entry = self._entries.get(row_key)
        if entry is None or entry[0] != time:
            return
        row: Buffered = self._rows.get(row_key)[0]
        self._remove(row_key, row.timestamp)
        key = self._key_serde.deserialize(row_key)
        self._forward(key, row.value, row.prior, row.timestamp, row.headers)
