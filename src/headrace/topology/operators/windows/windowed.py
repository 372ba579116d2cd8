"""Aggregation of time windows: the common effects of stream time, and aligned windows.

Each operator has its own stream time: the largest timestamp that it has received, limited by the
task's watermark. When a record or the watermark advances it, these steps are done in order, before
the record itself is processed:

1. Closed windows are emitted, if windows are emitted on close. Their rows are still stored, however
   far stream time jumps. If there are more than fit into a commit, the rest follows after it.
2. Rows expire that no record can change any more: rows whose window started longer ago than the
   store's retention.

A window is closed when stream time has passed its end by the grace period. How far windows were
emitted is committed with the input offsets (see `EmissionProgress`), so neither an abort nor a
restart emits a window again, or loses a window. All windows of a store have the same size, so the
order of their starts is that of their ends.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.state.buffer import ABSENT, Entry
from headrace.state.codec import TIMESTAMP
from headrace.state.timed import TimedBuffer
from headrace.topology.context.context import Headers, Operator, OperatorContext, Receive
from headrace.topology.context.operator_spec import RowKind
from headrace.topology.context.task_context import EmissionBudget
from headrace.topology.graph.fold import Fold
from headrace.topology.operators.record_cache import FoldedTable, RecordCache
from headrace.topology.operators.windows.emission import NEVER, EmissionProgress, Emit
from headrace.topology.operators.windows.lateness import split_late
from headrace.topology.serdes.normalise import normaliser
from headrace.topology.serdes.windows_serde import UNLIMITED_MS, WindowStoreSerde
from headrace.topology.windows import Window, Windowed

# Rows of a window aggregation: the update of a row, and the forwarding of changes.
#
# Hot path: `fold` runs for each record and window; benchmarks/micro/windows.py times it.
#
# Changes are forwarded immediately, or at the next flush if they are cached. If windows are emitted
# on close, only `emit` forwards them.


_SEQUENCE = bytes(4)
_CACHED_STARTS = 4096


class WindowRows(RecordCache):
    """Rows of a task.

    Args:
        results: receives results; None if the node has no children.
        emits_closed: whether only `emit` forwards results.
    """

    __slots__ = (
        "_cached",
        "_decode",
        "_dirty",
        "_encoded",
        "_exact",
        "_fold",
        "_forwards_nothing",
        "_immutable",
        "_keep",
        "_old_is_read",
        "_reads_keys",
        "_row_key",
        "_size_ms",
        "_starts",
        "buffer",
        "earliest",
        "encode_key",
        "from_stored_form",
    )

    def __init__(
        self,
        context: OperatorContext,
        store: str,
        fold: Fold,
        *,
        size_ms: int,
        results: Receive | None,
        emits_closed: bool,
    ) -> None:
        buffer = context.buffers[store]
        assert isinstance(buffer, TimedBuffer), store
        self.buffer = buffer
        self.from_stored_form = buffer.from_stored_form
        row_key, self._encoded = context.serdes(store)
        assert isinstance(row_key, WindowStoreSerde), store
        assert row_key.windowed.inner is not None, store
        self._row_key = row_key
        self.encode_key: Callable[[Any], bytes] = row_key.windowed.inner.serialize
        self._immutable = self._encoded.immutable and buffer.holds_objects
        self._decode = None if buffer.holds_objects else self._encoded.deserialize
        self._exact = buffer.exact
        self._keep = normaliser(self._encoded)
        self._reads_keys = False
        """Whether all rows of a key are read; aligned windows read only single rows."""
        self._old_is_read = context.old_is_read
        self._dirty = buffer.dirty
        self._fold = fold.step
        self._size_ms = size_ms
        self._cached = context.caching and not emits_closed
        self._starts: dict[int, tuple[bytes, Window]] = {}
        """Suffix of the row key, and window, by start; a cache."""
        self.earliest = NEVER
        """Earliest start of the rows that were added here; the owner may increase it."""
        # A row that has expired in the meantime is still among the uncommitted rows.
        read = self._dirty.__getitem__ if self._immutable else self._uncommitted
        super().__init__(results, read)
        self._forwards_nothing = results is None or emits_closed

    def _add_start(self, start: int) -> tuple[bytes, Window]:
        if len(self._starts) >= _CACHED_STARTS:
            self._starts.clear()
        window = Window(start, min(start + self._size_ms, UNLIMITED_MS))
        self._starts[start] = entry = TIMESTAMP.pack(start) + _SEQUENCE, window
        return entry

    def fold(
        self,
        key: Any,
        key_bytes: bytes,
        start: int,
        value: Any,
        timestamp: int,
        headers: Headers,
        entry: Entry | None = None,
    ) -> None:
        """Aggregate a record into a row; `entry` is the row in stored form, if known."""
        row_key = key_bytes + (self._starts.get(start) or self._add_start(start))[0]
        if entry is None:
            entry = self._dirty.get(row_key)
        if entry is None:
            buffer = self.buffer
            if start < buffer.horizon:
                entry = ABSENT
            else:
                entry = buffer.clean.get(row_key) or buffer.load(row_key)
        old, row_time = entry
        if old.__class__ is bytes and self._decode is not None:
            # A separate object for each user that could change it in place.
            stored, old = old, self._decode(old)
            new = self._fold(key, value, old)
            if self._old_is_read:
                old = self._decode(stored)
        else:
            new = self._fold(key, value, old)
        if old is None:
            if new is None:
                return
        elif row_time > timestamp:
            timestamp = row_time
        if self._reads_keys:
            stored = self.buffer.add(row_key, key_bytes, start, 0, new, timestamp)
            if self._immutable:
                new = stored
            elif not (self._forwards_nothing or self._cached):
                new = self._keep(new)
        elif new.__class__ in self._exact:
            self._dirty[row_key] = (new, timestamp)  # as `put` does it, without the calls
        elif self._immutable:
            new = self._keep(new)
            self._dirty[row_key] = (new, timestamp)
        else:
            self.buffer.put_unexpired(row_key, new, timestamp)
            if not (self._forwards_nothing or self._cached):
                new = self._keep(new)
        self._changed(key, row_key, start, old, new, timestamp, headers)

    def fold_onto(
        self,
        base: Any,
        key: Any,
        key_bytes: bytes,
        start: int,
        value: Any,
        timestamp: int,
        headers: Headers,
    ) -> None:
        """Add a row from a record and the value of another window, which lacks the record."""
        self.add(key, key_bytes, start, self._fold(key, value, base), timestamp, headers)

    def add(
        self, key: Any, key_bytes: bytes, start: int, value: Any, timestamp: int, headers: Headers
    ) -> None:
        """Add a row that does not exist yet, unless the value is None."""
        if value is not None:
            row_key = key_bytes + (self._starts.get(start) or self._add_start(start))[0]
            value = self._keep(value)
            self.buffer.add(row_key, key_bytes, start, 0, value, timestamp)
            self._changed(key, row_key, start, None, value, timestamp, headers)

    def _changed(
        self,
        key: Any,
        row_key: bytes,
        start: int,
        old: Any,
        new: Any,
        timestamp: int,
        headers: Headers,
    ) -> None:
        if old is None and start < self.earliest:
            self.earliest = start
        if self._forwards_nothing:
            return
        if not self._cached:
            window = (self._starts.get(start) or self._add_start(start))[1]
            self._forward(Windowed(key, window), new, old, timestamp, headers)
            return
        update = self.pending.get(row_key)
        if update is None:
            window = (self._starts.get(start) or self._add_start(start))[1]
            self.pending[row_key] = [Windowed(key, window), old, headers]
        else:
            update[2] = headers

    def _uncommitted(self, row_key: bytes) -> tuple[Any, int]:
        value, timestamp = self._dirty[row_key]
        if value.__class__ is bytes:
            value = self._encoded.deserialize(value)
        return value, timestamp

    def rows_of_key(self, key_bytes: bytes, first: int, last: int) -> list[tuple[int, int, Any]]:
        """Return start, timestamp and stored value of a key's rows, the latest first.

        From the first call on, rows are also cached in memory.
        """
        self._reads_keys = True
        return self.buffer.latest_first(key_bytes, max(first, self.buffer.horizon), last)

    def emit(
        self, results: Receive, progress: EmissionProgress, last: int, budget: EmissionBudget
    ) -> bool:
        """Forward rows that start up to `last`; return False if the rest waits for the next commit.

        They are ordered by start, then by key, and have no headers: the store has none, and the
        current record has another key.
        """
        buffer, decode = self.buffer, self._row_key.deserialize
        for start, row_key in progress.rows_up_to(buffer, last):
            if budget.is_spent:
                progress.stop_at(start)
                return False
            value, timestamp = buffer.get(row_key)
            results(decode(row_key), value, None, timestamp, None)
            progress.on_emitted(start, row_key)
            budget.spend()
        progress.finish(last)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedFold(FoldedTable):
    """Base of the specs of window aggregations.

    Args:
        closes_after_ms: how far stream time is past a window's start when the window is closed.
        keep_ms: how far stream time may be past a window's start while its row is stored; None
            stores it forever.
    """

    size_ms: int
    closes_after_ms: int
    keep_ms: int | None
    emit: Emit = "on_window_update"

    makes_windows: ClassVar[bool] = True
    rows_have_its_keys: ClassVar[bool] = True

    @property
    def close_wait_ms(self) -> int | None:
        return None if self.keep_ms is None else self.closes_after_ms - self.size_ms


class WindowedOperator(Operator):
    """Base of the operators of windows."""

    delays_results: ClassVar[bool] = True

    __slots__ = (
        "_closed_to",
        "_closes_after_ms",
        "_dropped",
        "_is_earliest_known",
        "_keep_ms",
        "_late",
        "_now",
        "_progress",
        "_results",
        "_rows",
        "_task",
        "_time",
        "pending",
    )

    def __init__(self, context: OperatorContext, spec: WindowedFold) -> None:
        results, self._late = split_late(context.node, context.children)
        emits_closed = spec.emit == "on_window_close"
        self._rows = WindowRows(
            context,
            spec.store,
            spec.fold,
            size_ms=spec.size_ms,
            results=results,
            emits_closed=emits_closed,
        )
        self.pending: MutableMapping[Any, Any] = self._rows.pending
        self._dropped = context.dropped
        self._task = context.task
        self._closes_after_ms = spec.closes_after_ms
        self._keep_ms = spec.keep_ms
        self._results = results if emits_closed else None
        self._progress: EmissionProgress | None = None
        if self._results is not None:
            self._progress = EmissionProgress(
                context.number("emitted"), context.number("emitted_rows")
            )
        self._is_earliest_known = False
        """Whether the earliest window that was not emitted has been read from disk."""
        self._time = context.number("time")
        self._now = self._time.value
        self._closed_to = self._now - self._closes_after_ms if self._now >= 0 else -1
        """Latest start of a closed window."""
        if self._progress is not None:
            # If the grace period was extended, emitted windows remain closed.
            self._closed_to = max(self._closed_to, self._progress.closed_to)
        self._expire()

    def flush(self) -> None:
        self._rows.flush()

    def close_idle(self) -> None:
        if self._keep_ms is None:
            return  # an unlimited window is never closed
        first = max(self._closed_to + 1, 0)
        last = self._rows.buffer.last_time(first)
        if last is not None:
            self._pass_time(max(self._now, last + self._closes_after_ms))

    def is_due(self, time: int, /) -> bool:
        if self._results is None:
            return False
        return time > self._now and not (
            self._is_earliest_known and self._rows.earliest > time - self._closes_after_ms
        )

    def earliest_waiting(self) -> int | None:
        if self._progress is None:
            return None
        self._find_earliest(self._progress)
        return None if self._rows.earliest == NEVER else self._rows.earliest

    def advance(self, time: int, /) -> None:
        if time > self._now:
            self._pass_time(time)

    @property
    def stream_time(self) -> int:
        return self._now

    def _pass_time(self, timestamp: int) -> None:
        """Advance stream time: emit closed windows, then expire old rows."""
        self._now = self._time.value = timestamp
        closed_to = timestamp - self._closes_after_ms
        if closed_to > self._closed_to:
            self._closed_to = closed_to
            if self._results is not None:
                self._emit_closed(self._results)
        if self._progress is not None:
            self._expire()
        elif self._keep_ms is not None and timestamp > self._keep_ms:
            self._rows.buffer.expire(timestamp - self._keep_ms)

    @property
    def emits_earlier(self) -> bool:
        return self._progress is not None

    def has_remaining_results(self) -> bool:
        return self._progress is not None and self._progress.is_incomplete

    def emit_remaining(self) -> None:
        if self._results is not None:
            self._emit_closed(self._results)
            self._expire()

    def _emit_closed(self, emit_to: Receive) -> None:
        rows, progress, closed_to = self._rows, self._progress, self._closed_to
        assert progress is not None
        self._find_earliest(progress)
        if rows.earliest > closed_to:
            if (
                progress.is_incomplete
            ):  # with a longer grace period than before, they are open again
                progress.finish(progress.first - 1)
            return
        is_complete = rows.emit(emit_to, progress, closed_to, self._task.emission)
        rows.earliest = self._earliest(progress.first)
        assert is_complete or progress.is_incomplete

    def _find_earliest(self, progress: EmissionProgress) -> None:
        """Find the earliest window that was not emitted; read from disk only once."""
        if not self._is_earliest_known:
            self._is_earliest_known = True
            self._rows.earliest = self._earliest(progress.first)

    def _earliest(self, start: int) -> int:
        earliest = self._rows.buffer.earliest(start)
        return NEVER if earliest is None else earliest

    def _expire(self) -> None:
        if self._keep_ms is not None and self._now > self._keep_ms:
            horizon = self._now - self._keep_ms
            if self._progress is not None and (
                self._progress.is_incomplete or not self._is_earliest_known
            ):
                # While results wait for the next commit, and if the grace period was reduced,
                # closed windows may not have been emitted yet.
                horizon = min(horizon, self._progress.first)
            self._rows.buffer.expire(horizon)

    def _report_late(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self._dropped("late")
        if self._late is not None:
            self._late(key, value, None, timestamp, headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedFold(WindowedFold):
    """Spec of an aggregation of tumbling, hopping or unlimited windows.

    Args:
        advance_ms: time from a start to the next; None for a single window.
        start_ms: the start of the single window.
    """

    advance_ms: int | None
    start_ms: int = 0

    @property
    def row_kind(self) -> RowKind:
        op = self.fold.word
        if self.advance_ms is None:
            spans = {"start": self.start_ms}
            return RowKind(f"{op} in an unlimited window", spans, frozenset(spans))
        grace = self.closes_after_ms - self.size_ms
        spans = {"size": self.size_ms, "advance": self.advance_ms}
        return RowKind(f"{op} in windows", {**spans, "grace": grace}, frozenset(spans))

    def make(self, context: OperatorContext) -> AlignedOperator:
        return AlignedOperator(context, self)

    def starts_of(self) -> Callable[[int], Sequence[int]]:
        """Return a function that returns the starts of a timestamp's windows, in order."""
        size, advance, only = self.size_ms, self.advance_ms, self.start_ms
        if advance is None:
            return lambda time: (only,) if time >= only else ()
        if advance == size:
            return lambda time: (time - time % advance,)
        overlap = size - advance

        def starts(time: int) -> range:
            first = time - overlap
            return range(first - first % advance if first > 0 else 0, time + 1, advance)

        return starts


class AlignedOperator(WindowedOperator):
    """Operator that aggregates each record into the row of its key in each window of its timestamp.

    A null value is aggregated, too. A row's timestamp is the largest timestamp of its records.
    """

    __slots__ = ("_encode_key", "_fold", "_starts")

    def __init__(self, context: OperatorContext, spec: AlignedFold) -> None:
        super().__init__(context, spec)
        self._starts = spec.starts_of()
        self._encode_key = self._rows.encode_key
        self._fold = self._rows.fold

    def process(self, key: Any, value: Any, _: Any, timestamp: int, headers: Headers, /) -> None:
        if timestamp > self._now < self._task.watermark:
            self._pass_time(min(timestamp, self._task.watermark))
        starts = self._starts(timestamp)
        if not starts or starts[0] <= self._closed_to:
            starts = self._open_starts(starts, key, value, timestamp, headers)
            if not starts:
                return
        key_bytes = self._encode_key(key)
        for start in starts:
            self._fold(key, key_bytes, start, value, timestamp, headers)

    def _open_starts(
        self, starts: Sequence[int], key: Any, value: Any, timestamp: int, headers: Headers
    ) -> Sequence[int]:
        """Return the open windows; report the record as late for closed windows."""
        if not starts:
            self._dropped("before the first window")
            return ()
        open_starts = [start for start in starts if start > self._closed_to]
        if open_starts:
            self._dropped("late for some of its windows")
        else:
            self._report_late(key, value, timestamp, headers)
        return open_starts
