"""The rows of a windowed fold: how a record changes one, and what goes on to those that follow.

Hot path: `fold` runs for each record and window; benchmarks/micro/windows.py times it.

Changes go on at once, at the next flush where a cache holds them back, or, where windows are
emitted on close, only from `emit`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.state.buffer import ABSENT, Entry
from headrace.state.codec import TIMESTAMP
from headrace.state.timed import TimedBuffer
from headrace.topology.context.context import Headers, OperatorContext, Receive
from headrace.topology.graph.fold import Fold
from headrace.topology.operators.last_changes import LastChanges
from headrace.topology.operators.windows.recent_rows import RecentRows
from headrace.topology.serdes.kept import keeper
from headrace.topology.serdes.windows_serde import UNLIMITED_MS, WindowStoreSerde
from headrace.topology.windows import Window, Windowed

NEVER = 1 << 63
"""A start of windows that none has."""

_SEQUENCE = bytes(4)
_KEPT_STARTS = 4096


class WindowRows(LastChanges):
    """The rows of one task.

    Args:
        results: what takes results; None where nothing follows.
        emits_closed: whether results go on from `emit` alone.
    """

    __slots__ = (
        "_cached",
        "_decode",
        "_dirty",
        "_encoded",
        "_exact",
        "_fold",
        "_immutable",
        "_keep",
        "_old_is_read",
        "_recent",
        "_row_key",
        "_silent",
        "_size_ms",
        "_starts",
        "buffer",
        "earliest",
        "encode_key",
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
        row_key, self._encoded = context.serdes(store)
        assert isinstance(row_key, WindowStoreSerde), store
        assert row_key.windowed.inner is not None, store
        self._row_key = row_key
        self.encode_key: Callable[[Any], bytes] = row_key.windowed.inner.serialize
        self._immutable = self._encoded.immutable and buffer.holds_objects
        self._decode = None if buffer.holds_objects else self._encoded.deserialize
        self._exact = buffer.exact
        self._keep = keeper(self._encoded)
        self._recent: RecentRows | None = None
        """Where all rows of a key are asked for; aligned windows need one alone."""
        self._old_is_read = context.old_is_read
        self._dirty = buffer.dirty
        self._fold = fold.step
        self._size_ms = size_ms
        self._cached = context.caching and not emits_closed
        self._starts: dict[int, tuple[bytes, Window]] = {}
        """The end of the row key and the window of starts that were needed lately."""
        self.earliest = NEVER
        """No row that was added here has an earlier start; may be raised by the owner."""
        # A row that has expired meanwhile is still among the uncommitted ones.
        read = self._dirty.__getitem__ if self._immutable else self._uncommitted
        super().__init__(results, read)
        self._silent = results is None or emits_closed

    def _start(self, start: int) -> tuple[bytes, Window]:
        if len(self._starts) >= _KEPT_STARTS:
            self._starts.clear()
        window = Window(start, min(start + self._size_ms, UNLIMITED_MS))
        self._starts[start] = known = TIMESTAMP.pack(start) + _SEQUENCE, window
        return known

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
        """Let a record change the row of its key in the window that begins at `start`.

        Args:
            entry: the row as the buffer holds it, where the caller knows it.
        """
        row_key = key_bytes + (self._starts.get(start) or self._start(start))[0]
        if entry is None:
            entry = self._dirty.get(row_key)
        if entry is None:
            buffer = self.buffer
            if start < buffer.horizon:
                entry = ABSENT
            else:
                entry = buffer.clean.get(row_key) or buffer.load(row_key)
        old, before = entry
        if old.__class__ is bytes and self._decode is not None:
            # An object of its own for each who could change it in place.
            held, old = old, self._decode(old)
            new = self._fold(key, value, old)
            if self._old_is_read:
                old = self._decode(held)
        else:
            new = self._fold(key, value, old)
        if old is None:
            if new is None:
                return
        elif before > timestamp:
            timestamp = before
        if new.__class__ in self._exact:
            self._dirty[row_key] = (new, timestamp)  # as `put` does it, without the calls
        elif self._immutable:
            new = self._keep(new)
            self._dirty[row_key] = (new, timestamp)
        else:
            self.buffer.put_unexpired(row_key, new, timestamp)
            if not (self._silent or self._cached):
                new = self._keep(new)
        if self._recent is not None:
            self._remember(key_bytes, start, row_key)
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
        """Make a row of a record and of the value that another window has without it."""
        self.add(key, key_bytes, start, self._fold(key, value, base), timestamp, headers)

    def add(
        self, key: Any, key_bytes: bytes, start: int, value: Any, timestamp: int, headers: Headers
    ) -> None:
        """Write a row that is not there yet; a value of None is none."""
        if value is not None:
            row_key = key_bytes + (self._starts.get(start) or self._start(start))[0]
            value = self._keep(value)
            self.buffer.put_unexpired(row_key, value, timestamp)
            if self._recent is not None:
                self._remember(key_bytes, start, row_key)
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
        if self._silent:
            return
        if not self._cached:
            window = (self._starts.get(start) or self._start(start))[1]
            self._forward(Windowed(key, window), new, old, timestamp, headers)
            return
        held = self.pending.get(row_key)
        if held is None:
            window = (self._starts.get(start) or self._start(start))[1]
            self.pending[row_key] = [Windowed(key, window), old, headers]
        else:
            held[2] = headers

    def _uncommitted(self, row_key: bytes) -> tuple[Any, int]:
        value, timestamp = self._dirty[row_key]
        if value.__class__ is bytes:
            value = self._encoded.deserialize(value)
        return value, timestamp

    def of_key(self, key_bytes: bytes, first: int, last: int) -> list[tuple[int, int, Any]]:
        """Start, timestamp and value of a key's rows, the latest first; values as they are held.

        From the first call on they are kept in memory, too.

        Args:
            first: the earliest start of their windows.
            last: the latest start.
        """
        # Not before the first record: until then the store may be under restore.
        recent = self._recent = self._recent or RecentRows(self.buffer)
        return recent.latest_first(key_bytes, max(first, self.buffer.horizon), last)

    def opened(self, held: Any) -> Any:
        """A value that is held so: an object of its own where it could be changed in place."""
        if held.__class__ is bytes and self._decode is not None:
            return self._decode(held)
        return held

    def _remember(self, key_bytes: bytes, start: int, row_key: bytes) -> None:
        assert self._recent is not None
        value, timestamp = self._dirty[row_key]
        if value is None:
            self._recent.remove_last(key_bytes, start, 1)
        else:
            self._recent.add(key_bytes, start, 0, timestamp, value)

    def emit(self, results: Receive, first: int, last: int) -> None:
        """Forward the rows of all windows that begin from `first` to `last`, both inclusive.

        They go by their start, which is the order of their ends too, then by the key's bytes. They
        have no headers: the store keeps none, and the record at hand is of any other key.
        """
        buffer, decode = self.buffer, self._row_key.deserialize
        for _, row_key in buffer.by_time(first, last + 1):
            value, timestamp = buffer.get(row_key)
            results(decode(row_key), value, None, timestamp, None)
