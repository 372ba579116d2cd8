"""Wrapper of a versioned store for processors: the value of each key as of a time.

A version is valid from its time until the time of the next version; a deletion is a version, too.
Versions older than the largest time that was put minus the history expire, except the last version
of each key, and can no longer be written. That time survives restarts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace.state.versioned import IS_LATEST, NOT_PUT, VersionedBuffer
from headrace.topology.processors.store_wrappers import ValueAndTimestamp, WrappedStore

__all__ = ["IS_LATEST", "NOT_PUT", "VersionedStore", "VersionedStoreFactory"]

K = TypeVar("K")
V = TypeVar("V")


class VersionedStore(Generic[K, V]):
    """Store of values by key and time. Times are milliseconds since 1970.

    Examples:
        >>> from datetime import timedelta
        >>> from headrace import serdes
        >>> from headrace.topology.processors.stores import Stores, in_memory
        >>> day = timedelta(days=1)
        >>> builder = Stores.versioned("prices", history=day, key=serdes.string, value=serdes.long)
        >>> prices = in_memory(builder)
        >>> prices.put("tea", 3, 1_000), prices.put("tea", 2, 500)
        (-1, 1000)
        >>> prices.get("tea"), prices.get("tea", as_of=700)
        (ValueAndTimestamp(value=3, timestamp=1000), ValueAndTimestamp(value=2, timestamp=500))
        >>> prices.replace("tea", 4, 2_000), prices.delete("tea", 3_000), prices.get("tea")
        ((-1, 3), ValueAndTimestamp(value=4, timestamp=2000), None)
    """

    __slots__ = ("_buffer", "_history_ms", "_latest", "_rows")

    def __init__(self, rows: WrappedStore, history_ms: int) -> None:
        assert isinstance(rows.buffer, VersionedBuffer), rows.name
        self._rows = rows
        self._buffer: VersionedBuffer = rows.buffer
        self._history_ms = history_ms
        self._latest = rows.number("time")
        self._buffer.expire(self._latest.value - history_ms)

    @property
    def name(self) -> str:
        """The store's name."""
        return self._rows.name

    def put(self, key: K, value: V | None, timestamp: int) -> int:
        """Write a version.

        Args:
            key: the key, not None.
            value: the value that is valid from then on; None is a deletion.
            timestamp: time from which the value is valid.

        Returns:
            The end of its validity: the time of the next version, or `IS_LATEST` (-1) if it is the
            last version. `NOT_PUT` if the time is before the history and no version was written.
        """
        return self.replace(key, value, timestamp)[0]

    def replace(self, key: K, value: V | None, timestamp: int) -> tuple[int, V | None]:
        """Write a version like `put`; return also the value that was valid at that time."""
        row = self._rows.encoded(key)
        self._rows.time(timestamp)
        if timestamp < self._latest.value - self._history_ms:
            self._rows.dropped("older than the history of the store")
            return NOT_PUT, None
        if timestamp > self._latest.value:
            self._latest.value = max(self._latest.value, min(timestamp, self._rows.watermark()))
            self._buffer.expire(self._latest.value - self._history_ms)
        before = self._buffer.get_as_of(row, timestamp)[0]
        return self._buffer.put_version(row, value, timestamp), before

    def delete(self, key: K, timestamp: int) -> ValueAndTimestamp[V] | None:
        """Write a deletion; return the version that was valid at that time.

        Args:
            key: the key, not None.
            timestamp: time from which the key has no value; before the history the call has no
                effect.
        """
        if timestamp < self._latest.value - self._history_ms:
            self._rows.dropped("older than the history of the store")
            return None
        version = self.get(key, as_of=timestamp)
        self.put(key, None, timestamp)
        return version

    def get(self, key: K, *, as_of: int | None = None) -> ValueAndTimestamp[V] | None:
        """Return the version of a key that is valid now, or was valid at a time.

        Args:
            key: the key, not None.
            as_of: the time; None for now. Before the history only a last version is returned.

        Returns:
            The value and the start of its validity, or None if no version was valid.
        """
        row = self._rows.encoded(key)
        version = self._buffer.get(row) if as_of is None else self._buffer.get_as_of(row, as_of)
        return None if version[0] is None else ValueAndTimestamp(*version)


@dataclass(frozen=True, slots=True)
class VersionedStoreFactory:
    """Factory of versioned store wrappers."""

    history_ms: int

    def __call__(self, rows: WrappedStore) -> VersionedStore[Any, Any]:
        return VersionedStore(rows, self.history_ms)
