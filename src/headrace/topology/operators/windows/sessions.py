"""Aggregation of a grouped stream into sessions, which grow and merge as records arrive.

A record joins each open session of its key within the gap. The former sessions are deleted before
the merged session is forwarded. A session is closed when stream time has passed its end by the gap
and the grace period: it accepts no more records, even if its row is still stored. A record that
joins no open session, and is too old to open a session, is late (Kafka Streams:
`KStreamSessionWindowAggregate`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from headrace.state.codec import TIMESTAMP
from headrace.state.timed import TimedBuffer
from headrace.topology.context.context import Headers, Operator, OperatorContext
from headrace.topology.context.number import Number
from headrace.topology.context.operator_spec import RowKind
from headrace.topology.operators.record_cache import FoldedTable, RecordCache
from headrace.topology.operators.windows.emission import NEVER, EmissionProgress, Emit
from headrace.topology.operators.windows.lateness import split_late
from headrace.topology.serdes.normalise import normaliser
from headrace.topology.serdes.windows_serde import SessionWindowedSerde
from headrace.topology.windows import SessionWindows, Window, Windowed

_CACHED_KEYS = 50_000
"""Maximum number of keys whose open sessions are cached; others are read from the store."""

_BOUNDS = struct.Struct(">qq")
"""End and start of a session, the suffix of its row key."""

_FAR_FUTURE_MS = 2**47
"""The year 6429: no stored session ends later than both this and stream time."""


@dataclass(frozen=True, slots=True)
class SessionFold(FoldedTable):
    """Spec of an aggregation of records into sessions.

    Args:
        store: a store of layout "session".
        retention_ms: how long sessions are stored, in stream time after their end.
        emit: "on_window_update" forwards each change, "on_window_close" only closed sessions.
    """

    windows: SessionWindows
    retention_ms: int
    emit: Emit = "on_window_update"
    makes_windows: ClassVar[bool] = True
    rows_have_its_keys: ClassVar[bool] = True

    @property
    def row_kind(self) -> RowKind:
        spans = {"gap": self.windows.gap_ms, "grace": self.windows.grace_ms}
        return RowKind(f"{self.fold.word} in sessions", spans, frozenset({"gap"}))

    @property
    def close_wait_ms(self) -> int:
        return self.windows.gap_ms + self.windows.grace_ms + 1

    def make(self, context: OperatorContext, /) -> Sessions:
        return Sessions(self, context)


_Session = tuple[int, int, bytes]
"""End of a session, its start, and its row key."""


class Sessions(RecordCache, Operator):
    """Operator of a `SessionFold`; see the module.

    The store has all sessions. `_open` caches the open sessions of some keys. Stream time belongs
    to the store, because the nodes of a cogroup share it.
    """

    delays_results: ClassVar[bool] = True

    __slots__ = (
        "_add",
        "_caching",
        "_closing_ms",
        "_context",
        "_dirty",
        "_earliest",
        "_encode",
        "_exact",
        "_from_stored_form",
        "_gap_ms",
        "_initial",
        "_keep",
        "_late",
        "_merge",
        "_open",
        "_progress",
        "_rows",
        "_serde",
        "_spec",
        "_time",
        "_unflushed",
    )

    def __init__(self, spec: SessionFold, context: OperatorContext) -> None:
        serde = cast("SessionWindowedSerde[Any]", context.serdes(spec.store)[0])
        assert serde.inner is not None, spec.store
        self._spec = spec
        self._context = context
        self._serde = serde
        self._encode = serde.inner.serialize
        self._rows = cast(TimedBuffer, context.buffers[spec.store])
        self._dirty = self._rows.dirty
        values = context.serdes(spec.store)[1]
        self._from_stored_form = self._rows.from_stored_form
        self._exact = self._rows.exact
        self._keep = normaliser(values)
        self._gap_ms = spec.windows.gap_ms
        self._closing_ms = self._gap_ms + spec.windows.grace_ms
        results, self._late = split_late(context.node, context.children)
        super().__init__(results, self._session_row)
        fold = spec.fold
        self._initial, self._add, self._merge = fold.initial, fold.add, fold.merge
        self._caching = context.caching and spec.emit == "on_window_update"
        self._time: Number = context.number("time", owner=spec.store)
        self._progress: EmissionProgress | None = None
        self._earliest: int | None = None
        """Earliest end of a session that is not emitted; None if unknown."""
        if spec.emit == "on_window_close":
            self._progress = EmissionProgress(
                context.number("emitted", owner=spec.store),
                context.number("emitted_rows", owner=spec.store),
                is_exclusive=True,
            )
        self._unflushed: set[bytes] = set()
        """Rows that were written since the last commit and are not on disk."""
        self._open: dict[bytes, list[_Session]] = {}
        self._expire()

    @property
    def stream_time(self) -> int:
        time: int = self._time.value
        return time

    def process(self, key: Any, value: Any, _old: Any, timestamp: int, headers: Headers, /) -> None:
        watermark = self._context.task.watermark
        if timestamp > self._time.value < watermark:
            self._time.value = min(timestamp, watermark)
            self._advance()
        key_bytes = self._encode(key)
        closed_before = self._closed_before
        sessions = self._sessions_to_join(key_bytes, timestamp, closed_before)
        if not sessions and timestamp < closed_before:
            self._context.dropped("late")
            if self._late is not None:
                self._late(key, value, None, timestamp, headers)
            return
        start = end = timestamp
        aggregate = self._initial()
        replaced = []
        for session in sessions:
            session_end, session_start, row_key = session
            start, end = min(start, session_start), max(end, session_end)
            stored = self._stored_value(row_key)
            replaced.append((session, stored))
            aggregate = self._merge(key, aggregate, self._from_stored_form(stored))
        aggregate = self._add(key, value, aggregate)
        if aggregate.__class__ not in self._exact:
            aggregate = self._keep(aggregate)
        merged = end, start, key_bytes + _BOUNDS.pack(end, start)
        self._write(key_bytes, merged, aggregate, sessions, closed_before)
        if self._progress is not None:
            return  # emitted when they close
        before = None
        for session, stored in replaced:
            if session == merged:
                before = stored
            else:
                self._change(key, session, None, stored, headers)
        self._change(key, merged, aggregate, before, headers)

    def _stored_value(self, row_key: bytes) -> Any:
        """Return the value of an open session, in the buffer's stored form."""
        rows = self._rows
        entry = self._dirty.get(row_key) or rows.clean.get(row_key) or rows.load(row_key)
        return entry[0]

    def _write(
        self,
        key_bytes: bytes,
        merged: _Session,
        aggregate: Any,
        replaced: list[_Session],
        closed_before: int,
    ) -> None:
        """Replace the rows of merged sessions; none has expired: a session closes before that."""
        dirty, unflushed = self._dirty, self._unflushed
        if not dirty:
            unflushed.clear()
        end, _, row_key = merged
        remaining = [
            s for s in self._open[key_bytes] if s[0] >= closed_before and s not in replaced
        ]
        if aggregate is not None:
            if row_key not in dirty:
                (unflushed.discard if merged in replaced else unflushed.add)(row_key)
            if aggregate.__class__ in self._exact:
                dirty[row_key] = (aggregate, end)  # as `put` does it, without the calls
            else:
                self._rows.put_unexpired(row_key, aggregate, end)
        # Only now, so that the merged sessions remain if the new session cannot be written.
        for session in replaced:
            if session != merged or aggregate is None:
                self._remove(session[2], end)
        if aggregate is not None:
            remaining.append(merged)
            if len(remaining) > 1:
                remaining.sort()
            if self._earliest is not None and end < self._earliest:
                self._earliest = end
        self._open[key_bytes] = remaining

    def _remove(self, row_key: bytes, timestamp: int) -> None:
        if row_key in self._unflushed and row_key in self._dirty:
            # It was added and deleted between two commits: nothing must be deleted on disk.
            self._unflushed.discard(row_key)
            self._rows.drop_write(row_key)
        else:
            # With the new session's timestamp, so that the changelog keeps it as long as the row.
            self._dirty[row_key] = (None, timestamp)

    # -- lookup of sessions --------------------------------------------------------------------

    def _sessions_to_join(
        self, key_bytes: bytes, timestamp: int, closed_before: int
    ) -> list[_Session]:
        """Return the open sessions of a key that a record joins, by their ends."""
        open_sessions = self._open.get(key_bytes)
        if open_sessions is None:
            if len(self._open) >= _CACHED_KEYS:
                self._open.clear()
            open_sessions = self._open[key_bytes] = self._load_sessions(key_bytes)
        earliest, latest = timestamp - self._gap_ms, timestamp + self._gap_ms
        if closed_before > earliest:
            earliest = closed_before
        return [s for s in open_sessions if s[0] >= earliest and s[1] <= latest]

    def _load_sessions(self, key_bytes: bytes) -> list[_Session]:
        start = TIMESTAMP.pack(max(self._closed_before, 0))
        # A higher bound would read the rows of all longer keys with this prefix.
        end = TIMESTAMP.pack(max(self._time.value + 1, _FAR_FUTURE_MS))
        rows = self._rows.scan_key(key_bytes, start, end)
        size = len(key_bytes)
        return [(*_BOUNDS.unpack_from(row_key, size), row_key) for row_key, _, _ in rows]

    # -- time ----------------------------------------------------------------------------------

    @property
    def _closed_before(self) -> int:
        """Sessions that end before this time are closed."""
        closed_before = self._time.value - self._closing_ms
        if self._progress is None:
            return closed_before
        # If the grace period was extended, emitted sessions remain closed.
        return max(closed_before, self._progress.closed_to + 1)

    def _advance(self) -> None:
        """Emit the sessions that stream time closes, and only then expire rows."""
        self._emit_closed()
        if not self.pending:
            self._expire()

    def _expire(self) -> None:
        horizon = self._time.value - self._spec.retention_ms
        if self._progress is not None:
            # While results wait for the next commit, and if the grace period was reduced, closed
            # sessions may not have been emitted yet.
            horizon = min(horizon, self._progress.first)
        self._rows.expire(horizon)

    def is_due(self, time: int, /) -> bool:
        if self._progress is None or time <= self._time.value:
            return False
        return self._earliest is None or self._earliest < time - self._closing_ms

    def earliest_waiting(self) -> int | None:
        if self._progress is None:
            return None
        if self._earliest is None:
            self._find_earliest(self._progress.first)
        return None if self._earliest == NEVER else self._earliest

    def advance(self, time: int, /) -> None:
        if time > self._time.value:
            self._time.value = time
            self._advance()

    def close_idle(self) -> None:
        first = max(self._closed_before, 0)
        last = self._rows.last_time(first)
        if last is not None:
            self._time.value = max(self._time.value, last + self._closing_ms + 1)
            self._advance()

    @property
    def emits_earlier(self) -> bool:
        return self._progress is not None

    def has_remaining_results(self) -> bool:
        return self._progress is not None and self._progress.is_incomplete

    def emit_remaining(self) -> None:
        self._advance()

    def _emit_closed(self) -> None:
        progress, last = self._progress, self._closed_before - 1
        if progress is None:
            return
        if last < progress.first:
            if (
                progress.is_incomplete
            ):  # with a longer grace period than before, they are open again
                progress.finish(progress.first - 1)
            return
        if self._earliest is None:
            self._find_earliest(progress.first)
        assert self._earliest is not None
        if self._earliest > last:
            progress.finish(last)
            return
        budget = self._context.task.emission
        for end, row_key in progress.rows_up_to(self._rows, last):
            if budget.is_spent:
                progress.stop_at(end)
                self._earliest = end
                return
            value = self._rows.get(row_key)[0]
            # Without headers: the store has none, and the current record has another key.
            self._send(self._serde.deserialize(row_key), value, None, end, None)
            progress.on_emitted(end, row_key)
            budget.spend()
        progress.finish(last)
        self._find_earliest(last + 1)

    def _find_earliest(self, start_ms: int) -> None:
        earliest = self._rows.earliest(max(start_ms, 0))
        self._earliest = NEVER if earliest is None else earliest

    # -- results -------------------------------------------------------------------------------

    def _change(self, key: Any, session: _Session, value: Any, old: Any, headers: Headers) -> None:
        """Forward or cache the change of a row; `old` is in the buffer's stored form."""
        end, start, row_key = session
        if not self._caching:
            windowed = Windowed(key, Window(start, end))
            self._send(windowed, value, self._from_stored_form(old), end, headers)
            return
        update = self.pending.get(row_key)
        if update is None:
            windowed = Windowed(key, Window(start, end))
            self.pending[row_key] = [windowed, self._from_stored_form(old), headers]
        elif value is None and update[1] is None:
            del self.pending[row_key]  # saves memory, because many sessions may merge
        else:
            update[2] = headers

    def flush(self) -> None:
        super().flush()
        self._expire()

    def _session_row(self, row_key: bytes) -> tuple[Any, int]:
        """Return the value of a session, and its end, which is also known for a deleted row."""
        end, _ = _BOUNDS.unpack_from(row_key, len(row_key) - _BOUNDS.size)
        return self._from_stored_form(self._stored_value(row_key)), end

    def _send(self, key: Any, value: Any, old: Any, timestamp: int, headers: Headers) -> None:
        # Do not forward the deletion of a session that was never forwarded.
        if value is not None or old is not None:
            self._forward(key, value, old, timestamp, headers)
