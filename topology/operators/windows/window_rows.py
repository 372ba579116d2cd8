"""The rows of a windowed fold: how a record changes one, and what goes on to those that follow.

Hot path: `fold` runs for each record and window; benchmarks/micro/windows.py times it.

Changes go on at once, at the next flush where a cache holds them back, or, where windows are
emitted on close, only from `emit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace.state.codec import TIMESTAMP
from headrace.state.layout import window_start
from headrace.state.timed import TimedBuffer
from headrace.topology.context.context import Headers, OperatorContext, Receive
from headrace.topology.graph.fold import Fold
from headrace.topology.operators.last_changes import LastChanges
from headrace.topology.serdes.kept import exact_types, keeper
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
        "_dirty",
        "_encoded",
        "_exact",
        "_fold",
        "_immutable",
        "_keep",
        "_old_is_read",
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
        self._exact = exact_types(self._encoded)
        self._keep = keeper(self._encoded)
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
        self, key: Any, key_bytes: bytes, start: int, value: Any, timestamp: int, headers: Headers
    ) -> None:
        """Let a record change the row of its key in the window that begins at `start`."""
        row_key = key_bytes + (self._starts.get(start) or self._start(start))[0]
        if not self._immutable:
            self._fold_private(key, row_key, start, value, timestamp, headers)
            return
        dirty = self._dirty
        row = dirty.get(row_key)
        if row is None:
            old, before = self.buffer.get(row_key)
            new = self._fold(key, value, old)
            if new.__class__ not in self._exact:
                new = self._keep(new)
            if old is None:
                if new is None:
                    return
            elif before > timestamp:
                timestamp = before
            self.buffer.put(row_key, new, timestamp)
        else:
            old, before = row
            new = self._fold(key, value, old)
            if new.__class__ not in self._exact:
                new = self._keep(new)
            if old is None:
                if new is None:
                    return
            elif before > timestamp:
                timestamp = before
            dirty[row_key] = (new, timestamp)  # its time is in the buffer's index already
        self._changed(key, row_key, start, old, new, timestamp, headers)

    def _fold_private(
        self, key: Any, row_key: bytes, start: int, value: Any, timestamp: int, headers: Headers
    ) -> None:
        """The same where a function may change the value that it is given, in place."""
        old, before = self.buffer.get(row_key)
        forwarded = self.buffer.get(row_key)[0] if self._old_is_read else old
        new = self._fold(key, value, old)
        if old is None:
            if new is None:
                return
        elif before > timestamp:
            timestamp = before
        self.buffer.put(row_key, new, timestamp)
        if not (self._silent or self._cached):
            new = self._keep(new)
        self._changed(key, row_key, start, forwarded, new, timestamp, headers)

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
            self.buffer.put(row_key, value, timestamp)
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

    def of_key(self, key_bytes: bytes, first: int, last: int) -> Iterator[tuple[int, Any, int]]:
        """Yield start, value and timestamp of a key's rows, the latest first.

        Args:
            first: the earliest start of their windows.
            last: the latest start.
        """
        begin, end = key_bytes + TIMESTAMP.pack(first), key_bytes + TIMESTAMP.pack(last + 1)
        # Rows of keys that begin with the same bytes lie between those of this one.
        length = len(begin) + len(_SEQUENCE)
        for row_key, value, timestamp in self.buffer.scan(begin, end, reverse=True):
            if len(row_key) == length:
                yield window_start(row_key), value, timestamp

    def emit(self, results: Receive, first: int, last: int, headers: Headers) -> None:
        """Forward the rows of all windows that begin from `first` to `last`, both inclusive.

        They go by their start, which is the order of their ends too, then by the key's bytes.
        """
        buffer, decode = self.buffer, self._row_key.deserialize
        for _, row_key in buffer.by_time(first, last + 1):
            value, timestamp = buffer.get(row_key)
            results(decode(row_key), value, None, timestamp, headers)
