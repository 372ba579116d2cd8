"""A store of a topology under test, read from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from headrace.topology.serdes import Serde

K = TypeVar("K")
V = TypeVar("V")

Rows = Callable[[bytes | None, bytes | None], Iterable[tuple[bytes, Any, int]]]
"""Yields ``(key bytes, value, timestamp)`` of all partitions, from a key on and before another."""


class StoreView(Mapping[K, V], Generic[K, V]):
    """The rows of a store over all partitions, as they are when it is asked, by the key's bytes."""

    def __init__(self, key: Serde[K], value: Serde[V], rows: Rows) -> None:
        self._key = key
        self._value = value
        self._rows = rows

    def rows(self) -> Iterator[tuple[K, V, int]]:
        """Yield key, value and timestamp in milliseconds, in the order of the keys' bytes."""
        for key, value, timestamp in sorted(self._rows(None, None), key=lambda row: row[0]):
            yield self._key.deserialize(key), self._private(value), timestamp

    def __getitem__(self, key: K) -> V:
        wanted = self._key.serialize(key)
        for _, value, _ in self._rows(wanted, wanted + b"\0"):
            return self._private(value)
        raise KeyError(key)

    def __iter__(self) -> Iterator[K]:
        return (key for key, _, _ in self.rows())

    def __len__(self) -> int:
        return sum(1 for _ in self._rows(None, None))

    def __repr__(self) -> str:
        inside = ", ".join(f"{key!r}: {value!r}" for key, value, _ in self.rows())
        return f"StoreView({{{inside}}})"

    def _private(self, value: Any) -> V:
        # A test that changes what it got must not change the store.
        if self._value.immutable:
            kept: V = value
            return kept
        return self._value.deserialize(self._value.serialize(value))
