"""The rows of a global table as a processor sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from headrace.topology.processors.store_faces import ValueAndTimestamp

K = TypeVar("K")
V = TypeVar("V")


@runtime_checkable
class GlobalView(Protocol):
    """The present rows of a global table."""

    def get(self, key: Any, /) -> tuple[Any, int]:
        """The value and timestamp of a key, or (None, -1)."""

    def rows(self, start: Any, end: Any, /) -> Iterator[tuple[Any, Any, int]]:
        """Key, value and timestamp from one key to another, both inclusive; None is no bound."""


def store_key(store: str) -> str:
    """Under what the rows of a store are found among views, which go by the names of nodes."""
    return f"store:{store}"


class ReadOnlyStore(Generic[K, V]):
    """What ``context.store(name)`` is for the store of a global table: its rows, to be read.

    No processor need be connected with it, and none can write to it. The rows stay as they are
    while a record is processed.

    Args:
        name: the store's.
        view: its rows.

    >>> from headrace import ProcessorContext, Record, StreamsBuilder, TopologyTestDriver, serdes
    >>> def look(record: Record[str, str], context: ProcessorContext[str, str]) -> None:
    ...     rates: ReadOnlyStore[str, float] = context.store("rates")
    ...     print(rates.get(record.value), rates.get_with_timestamp("SEK"))
    ...     print(list(rates.range("A", "F")))
    >>> builder = StreamsBuilder()
    >>> _ = builder.global_table("rates", key=serdes.string, value=serdes.double, store="rates")
    >>> _ = builder.stream("in", value=serdes.string).process(look)
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input("rates").send("EUR", 1.0, timestamp=5)
    ...     driver.input("rates").send("SEK", 11.0, timestamp=6)
    ...     driver.input("in").send(None, "EUR")
    1.0 ValueAndTimestamp(value=11.0, timestamp=6)
    [('EUR', 1.0)]
    """

    __slots__ = ("_view", "name")

    def __init__(self, name: str, view: GlobalView) -> None:
        self._view = view
        self.name = name

    def get(self, key: K) -> V | None:
        """The value of a key, or None."""
        value: V | None = self._view.get(key)[0]
        return value

    def get_with_timestamp(self, key: K) -> ValueAndTimestamp[V] | None:
        """The value of a key with the time of its record in milliseconds since 1970, or None."""
        value, timestamp = self._view.get(key)
        return None if value is None else ValueAndTimestamp(value, timestamp)

    def range(self, start: K | None, end: K | None) -> Iterator[tuple[K, V]]:
        """The rows from one key to another, both inclusive, in the order of the keys' bytes.

        Args:
            start: None for the first.
            end: None for the last.
        """
        return ((key, value) for key, value, _ in self._view.rows(start, end))

    def all(self) -> Iterator[tuple[K, V]]:
        """All rows, in the order of the keys' bytes."""
        return self.range(None, None)
