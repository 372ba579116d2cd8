"""Wrappers of window and session stores for processors.

See `headrace.topology.processors.store_wrappers` for the rules of iteration and order. Both kinds
expire rows by the store's own time, the largest time that was put: rows that are a retention or
more older are immediately invisible to every reader, and a put of such a row is dropped and
counted. That time survives restarts. The rows of a DSL table's store are expired by the table's
operator instead.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace.state.codec import TIMESTAMP
from headrace.state.layout import session_end, window_start
from headrace.state.timed import TimedBuffer
from headrace.topology.processors.store_wrappers import ValueAndTimestamp, WrappedStore
from headrace.topology.serdes.windows_serde import SessionWindowedSerde, WindowStoreSerde
from headrace.topology.windows import Windowed

K = TypeVar("K")
V = TypeVar("V")

_SEQUENCE_BYTES = 4
_SEQUENCE_MASK = 0x7FFFFFFF
_LAST_MS = 2**63 - 1


class _TimedStore(Generic[K]):
    """Base class of window and session stores, whose rows have a time index and expire by time."""

    __slots__ = ("_buffer", "_inner", "_latest", "_retention_ms", "_rows")

    def __init__(self, rows: WrappedStore, inner: Any, retention_ms: int | None) -> None:
        assert isinstance(rows.buffer, TimedBuffer), rows.name
        self._rows = rows
        self._buffer = rows.buffer
        self._inner = inner
        self._retention_ms = retention_ms
        self._latest = rows.number("time")
        self._expire()

    @property
    def name(self) -> str:
        """The store's name."""
        return self._rows.name

    def _expire(self) -> None:
        if self._retention_ms is not None and self._latest.value >= 0:
            self._buffer.expire(self._latest.value - self._retention_ms + 1)

    def _advance(self, time: int) -> bool:
        """Advance the store's time to a time that is put; return whether it is retained."""
        self._rows.time(time)
        if time > self._latest.value:
            self._latest.value = max(self._latest.value, min(time, self._rows.watermark()))
            self._expire()
        if time >= self._buffer.horizon:
            return True
        self._rows.dropped("later than the retention of the store")
        return False

    def _by_time(self, start: int, end: int, *, backward: bool) -> Iterator[tuple[bytes, Any, int]]:
        """Yield the rows of all keys by their times, `end` inclusive, then by their keys."""
        entries: Any = self._buffer.by_time(start, min(end, _LAST_MS - 1) + 1)
        if backward:
            entries = reversed(builtins.list(entries))
        for _, row_key in entries:
            value, timestamp = self._buffer.get(row_key)
            if value is not None:
                yield row_key, value, timestamp

    def _of_key(
        self, key: bytes, low: int, high: int, *, tail: int, backward: bool
    ) -> Iterator[tuple[bytes, Any, int]]:
        """Yield the rows of a key between two times; rows of longer keys are skipped."""
        if low > high:
            return
        start = TIMESTAMP.pack(max(low, 0))
        end = TIMESTAMP.pack(min(high, _LAST_MS)) + b"\xff" * (tail + 1)
        rows = self._buffer.scan_key(key, start, end, reverse=backward)
        yield from self._rows.current(rows)

    def _of_keys(
        self, low: bytes | None, high: bytes | None, start: int, end: int, *, backward: bool
    ) -> Iterator[tuple[bytes, Any, int]]:
        """Yield the rows of a range of keys, both inclusive, by their times."""
        head = self._head_bytes
        for row in self._by_time(start, end, backward=backward):
            key = row[0][:-head]
            if (low is None or key >= low) and (high is None or key <= high):
                yield row

    @property
    def _head_bytes(self) -> int:
        """Number of bytes that the layout appends to the key of a row."""
        raise NotImplementedError

    def _bound(self, key: K | None) -> bytes | None:
        return None if key is None else self._rows.encoded(key, self._inner)


class _WindowRows(_TimedStore[K], Generic[K, V]):
    """Base class of window stores; `V` is the type that `put` accepts and `get` returns."""

    __slots__ = ("_sequence", "_size_ms")

    def __init__(
        self, rows: WrappedStore, retention_ms: int | None, *, duplicates: bool = False
    ) -> None:
        assert isinstance(rows.key, WindowStoreSerde), rows.name
        super().__init__(rows, rows.key.windowed.inner, retention_ms)
        self._size_ms = rows.key.windowed.size_ms
        self._sequence = rows.number("sequence") if duplicates else None

    @property
    def _head_bytes(self) -> int:
        return TIMESTAMP.size + _SEQUENCE_BYTES

    def put(self, key: K, value: V | None, start: int) -> None:
        """Write the row of a key's window; a value of None deletes it.

        Args:
            key: the key.
            value: the value. With `retain_duplicates` each put adds a row, and None has no effect.
            start: start of the window.
        """
        if not self._advance(start):
            return
        row_key = self._rows.encoded(key, self._inner) + TIMESTAMP.pack(start)
        if self._sequence is not None:
            if value is None:
                return
            self._sequence.value = (self._sequence.value + 1) & _SEQUENCE_MASK
            row_key += self._sequence.value.to_bytes(_SEQUENCE_BYTES, "big")
        else:
            row_key += bytes(_SEQUENCE_BYTES)
        if value is not None:
            self._buffer.put(row_key, *self._to_stored(value))
        elif self._buffer.get(row_key)[0] is not None:
            self._buffer.put(row_key, None, self._rows.timestamp())

    def get(self, key: K, start: int) -> V | None:
        """Return the value of the key's window with the given start, or None.

        With `retain_duplicates` it is the first value that was put.
        """
        row = next(self.fetch(key, start, start), None)
        return None if row is None else row[1]

    def fetch(self, key: K, start: int, end: int) -> Iterator[tuple[int, V]]:
        """Yield start and value of the key's windows whose start is between two times, both
        inclusive.
        """
        return self._fetch(key, start, end, backward=False)

    def backward_fetch(self, key: K, start: int, end: int) -> Iterator[tuple[int, V]]:
        """Yield the rows of `fetch` from the last to the first."""
        return self._fetch(key, start, end, backward=True)

    def fetch_range(
        self, key_from: K | None, key_to: K | None, start: int, end: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Yield the windows of a range of keys, both inclusive, by start, then by the keys' bytes.

        Args:
            key_from: first key; None for the store's first.
            key_to: last key; None for the store's last.
            start: the earliest start.
            end: the latest start.
        """
        return self._fetch_range(key_from, key_to, start, end, backward=False)

    def backward_fetch_range(
        self, key_from: K | None, key_to: K | None, start: int, end: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Yield the rows of `fetch_range` from the last to the first."""
        return self._fetch_range(key_from, key_to, start, end, backward=True)

    def fetch_all(self, start: int, end: int) -> Iterator[tuple[Windowed[K], V]]:
        """Yield all windows whose start is between two times, both inclusive, by start, then by
        key.
        """
        return self._shown_all(self._by_time(start, end, backward=False))

    def backward_fetch_all(self, start: int, end: int) -> Iterator[tuple[Windowed[K], V]]:
        """Yield the rows of `fetch_all` from the last to the first."""
        return self._shown_all(self._by_time(start, end, backward=True))

    def all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Yield all windows, by start, then by the keys' bytes."""
        return self.fetch_all(0, _LAST_MS)

    def backward_all(self) -> Iterator[tuple[Windowed[K], V]]:
        """Yield all windows, from the last to the first."""
        return self.backward_fetch_all(0, _LAST_MS)

    def _fetch(self, key: K, start: int, end: int, *, backward: bool) -> Iterator[tuple[int, V]]:
        encoded = self._rows.encoded(key, self._inner)
        rows = self._of_key(encoded, start, end, tail=_SEQUENCE_BYTES, backward=backward)
        for row_key, value, timestamp in rows:
            yield window_start(row_key), self._shown(value, timestamp)

    def _fetch_range(
        self, key_from: K | None, key_to: K | None, start: int, end: int, *, backward: bool
    ) -> Iterator[tuple[Windowed[K], V]]:
        low, high = self._bound(key_from), self._bound(key_to)
        return self._shown_all(self._of_keys(low, high, start, end, backward=backward))

    def _shown_all(self, rows: Iterator[tuple[bytes, Any, int]]) -> Iterator[tuple[Windowed[K], V]]:
        decode = self._rows.key.deserialize
        for row_key, value, timestamp in rows:
            yield decode(row_key), self._shown(value, timestamp)

    def _shown(self, value: Any, timestamp: int) -> V:  # noqa: ARG002
        shown: V = value
        return shown

    def _to_stored(self, value: V) -> tuple[Any, int]:
        return value, self._rows.timestamp()


class WindowStore(_WindowRows[K, V]):
    """Store of values by key and window start. Times are milliseconds since 1970.

    Examples:
        >>> from datetime import timedelta
        >>> from headrace import serdes
        >>> from headrace.topology.processors.stores import Stores, in_memory
        >>> ms = timedelta(milliseconds=1)
        >>> sums = in_memory(
        ...     Stores.window(
        ...         "sums", key=serdes.string, value=serdes.long, size=10 * ms, retention=100 * ms
        ...     )
        ... )
        >>> for key, start, value in (("a", 0, 1), ("a", 10, 2), ("b", 10, 3)):
        ...     sums.put(key, value, start)
        >>> sums.get("a", 10), list(sums.fetch("a", 0, 20))
        (2, [(0, 1), (10, 2)])
        >>> [(key, window.start_ms, value) for (key, window), value in sums.fetch_all(5, 10)]
        [('a', 10, 2), ('b', 10, 3)]
        >>> sums.put("a", 4, 100)
        >>> list(sums.fetch("a", 0, 100))
        [(10, 2), (100, 4)]
        >>> list(sums.backward_fetch("a", 0, 100))
        [(100, 4), (10, 2)]
        >>> def shown(rows):
        ...     return [(key, window.start_ms, value) for (key, window), value in rows]
        >>> shown(sums.all()), shown(sums.backward_all())
        ([('a', 10, 2), ('b', 10, 3), ('a', 100, 4)], [('a', 100, 4), ('b', 10, 3), ('a', 10, 2)])
        >>> shown(sums.fetch_range("a", "b", 0, 50))
        [('a', 10, 2), ('b', 10, 3)]
        >>> shown(sums.backward_fetch_range("a", None, 0, 50))
        [('b', 10, 3), ('a', 10, 2)]
        >>> shown(sums.backward_fetch_all(10, 100))
        [('a', 100, 4), ('b', 10, 3), ('a', 10, 2)]
    """

    __slots__ = ()


class TimestampedWindowStore(_WindowRows[K, ValueAndTimestamp[V]]):
    """Store of values with timestamps by key and window start, as used by the DSL's windowed
    tables. Times are milliseconds since 1970.

    Examples:
        >>> from datetime import timedelta
        >>> from headrace import serdes
        >>> from headrace.topology.processors.stores import Stores, in_memory
        >>> hour = timedelta(hours=1)
        >>> texts = {"key": serdes.string, "value": serdes.string}
        >>> builder = Stores.timestamped_window("last", size=hour, retention=4 * hour, **texts)
        >>> last = in_memory(builder)
        >>> isinstance(last, TimestampedWindowStore)
        True
        >>> last.put("a", ValueAndTimestamp("tea", 90), 0)
        >>> list(last.fetch("a", 0, 0))
        [(0, ValueAndTimestamp(value='tea', timestamp=90))]
    """

    __slots__ = ()

    def _shown(self, value: Any, timestamp: int) -> ValueAndTimestamp[V]:
        return ValueAndTimestamp(value, timestamp)

    def _to_stored(self, value: ValueAndTimestamp[V]) -> tuple[Any, int]:
        plain_value, timestamp = value
        return plain_value, self._rows.time(timestamp)


class SessionStore(_TimedStore[K], Generic[K, V]):
    """Store of values by key and by the start and end of a session, both inclusive. Times are
    milliseconds since 1970.

    Examples:
        >>> from datetime import timedelta
        >>> from headrace import serdes
        >>> from headrace.topology.processors.stores import Stores, in_memory
        >>> from headrace import Window, Windowed
        >>> visits = in_memory(
        ...     Stores.session(
        ...         "visits", key=serdes.string, value=serdes.long, retention=timedelta(hours=1)
        ...     )
        ... )
        >>> visits.put(Windowed("a", Window(0, 5)), 1)
        >>> visits.put(Windowed("a", Window(20, 30)), 2)
        >>> [(window, value) for (_, window), value in visits.find_sessions("a", 4, 10)]
        [(Window(start_ms=0, end_ms=5), 1)]
        >>> visits.fetch_session("a", 20, 30)
        2
        >>> visits.remove(Windowed("a", Window(0, 5)))
        >>> [window.start_ms for (_, window), _ in visits.fetch("a")]
        [20]
        >>> visits.put(Windowed("b", Window(40, 60)), 3)
        >>> def shown(rows):
        ...     return [(key, window.start_ms, value) for (key, window), value in rows]
        >>> shown(visits.backward_fetch("a")), shown(visits.backward_find_sessions("a", 0, 50))
        ([('a', 20, 2)], [('a', 20, 2)])
        >>> shown(visits.find_sessions_of_range("a", "b", 30, 50))
        [('a', 20, 2), ('b', 40, 3)]
        >>> shown(visits.find_sessions_by_end(50, 90))
        [('b', 40, 3)]
    """

    __slots__ = ()

    def __init__(self, rows: WrappedStore, retention_ms: int | None) -> None:
        assert isinstance(rows.key, SessionWindowedSerde), rows.name
        super().__init__(rows, rows.key.inner, retention_ms)

    @property
    def _head_bytes(self) -> int:
        return 2 * TIMESTAMP.size

    def put(self, session: Windowed[K], value: V | None) -> None:
        """Write the row of a session; a value of None removes it."""
        if value is None:
            self.remove(session)
            return
        row_key = self._rows.key.serialize(session)
        if self._advance(session.window.end_ms):
            self._buffer.put(row_key, value, self._rows.timestamp())

    def remove(self, session: Windowed[K]) -> None:
        """Remove the row of a session if it exists."""
        row_key = self._rows.key.serialize(session)
        if self._buffer.get(row_key)[0] is not None:
            self._buffer.put(row_key, None, self._rows.timestamp())

    def fetch_session(self, key: K, start: int, end: int) -> V | None:
        """Return the value of the session with exactly this start and end, or None."""
        row_key = self._rows.encoded(key, self._inner) + TIMESTAMP.pack(end) + TIMESTAMP.pack(start)
        value: V | None = self._buffer.get(row_key)[0]
        return value

    def fetch(self, key: K) -> Iterator[tuple[Windowed[K], V]]:
        """Yield the sessions of a key, by end, then by start."""
        return self.find_sessions(key, 0, _LAST_MS)

    def backward_fetch(self, key: K) -> Iterator[tuple[Windowed[K], V]]:
        """Yield the sessions of a key, from the last to the first."""
        return self.backward_find_sessions(key, 0, _LAST_MS)

    def find_sessions(
        self, key: K, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Yield the sessions of a key within bounds, by end, then by start.

        With ``earliest_end = t - gap`` and ``latest_start = t + gap`` these are the sessions that a
        record with timestamp ``t`` belongs to.

        Args:
            key: the key.
            earliest_end: the earliest end, inclusive.
            latest_start: the latest start, inclusive.
        """
        return self._find(key, earliest_end, latest_start, backward=False)

    def backward_find_sessions(
        self, key: K, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Yield the rows of `find_sessions` from the last to the first."""
        return self._find(key, earliest_end, latest_start, backward=True)

    def find_sessions_of_range(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Yield the sessions of a range of keys, both inclusive, by end, then by row bytes."""
        low, high = self._bound(key_from), self._bound(key_to)
        rows = self._of_keys(low, high, earliest_end, _LAST_MS, backward=False)
        return self._begun_by(latest_start, rows)

    def find_sessions_by_end(
        self, earliest_end: int, latest_end: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        """Yield the sessions of all keys whose end is between two times, both inclusive, by end."""
        rows = self._by_time(earliest_end, latest_end, backward=False)
        return self._begun_by(_LAST_MS, rows)

    def _find(
        self, key: K, earliest_end: int, latest_start: int, *, backward: bool
    ) -> Iterator[tuple[Windowed[K], V]]:
        encoded = self._rows.encoded(key, self._inner)
        tail = TIMESTAMP.size
        rows = self._of_key(encoded, earliest_end, _LAST_MS, tail=tail, backward=backward)
        return self._begun_by(latest_start, rows)

    def _begun_by(
        self, latest_start: int, rows: Iterator[tuple[bytes, Any, int]]
    ) -> Iterator[tuple[Windowed[K], V]]:
        decode = self._rows.key.deserialize
        for row_key, value, _ in rows:
            start = TIMESTAMP.unpack_from(row_key, len(row_key) - TIMESTAMP.size)[0]
            assert session_end(row_key) >= start, self.name
            if start <= latest_start:
                yield decode(row_key), value


@dataclass(frozen=True, slots=True)
class WindowStoreFactory:
    """Factory of window store wrappers that expire their rows."""

    retention_ms: int | None = None
    duplicates: bool = False
    timestamped: bool = False

    def __call__(
        self, rows: WrappedStore
    ) -> WindowStore[Any, Any] | TimestampedWindowStore[Any, Any]:
        kind = TimestampedWindowStore if self.timestamped else WindowStore
        return kind(rows, self.retention_ms, duplicates=self.duplicates)


@dataclass(frozen=True, slots=True)
class SessionStoreFactory:
    """Factory of session store wrappers that expire their rows."""

    retention_ms: int | None = None

    def __call__(self, rows: WrappedStore) -> SessionStore[Any, Any]:
        return SessionStore(rows, self.retention_ms)
