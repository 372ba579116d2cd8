"""Store wrappers for processors: key and value objects over the rows of a task.

Every store shows the task's own writes immediately; an abort rolls back uncommitted writes. Times
are milliseconds since 1970.

Iterating is safe while the same store is written. The keys are those at the start of the iteration
(when the first row is read), each value is the current value when the row is reached, and a row
that has been deleted by then is skipped. Use an iterator only within the call that created it.

Rows are ordered by the bytes of their encoded keys: strings by UTF-8, integers from 0 on by value,
followed by negative integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from headrace.state.buffer import Buffer
from headrace.state.codec import prefix_end
from headrace.topology.context.number import Number
from headrace.topology.context.punctuation import NEVER_MS
from headrace.topology.errors import LAST_TIME_MS, MisuseTypeError, MisuseValueError, type_of
from headrace.topology.serdes._serde import Serde

K = TypeVar("K")
V = TypeVar("V")
P = TypeVar("P")

AnySerde = Serde[Any]


class ValueAndTimestamp(NamedTuple, Generic[V]):
    """Value with the timestamp of its record, in milliseconds since 1970.

    Examples:
        >>> price = ValueAndTimestamp(3, 1_000)
        >>> price.value, price.timestamp
        (3, 1000)
    """

    value: V
    timestamp: int


@dataclass(frozen=True, slots=True)
class WrappedStore:
    """Rows of a store, and the services that its wrapper uses.

    Args:
        buffer: the rows, by their keys' bytes.
        key: serde of the rows' keys; for a window or session store, of its windowed keys.
        timestamp: returns the timestamp of the current record or punctuation.
        number: returns a committed number of this store, by its name; its initial value is -1.
        dropped: called with the reason for each write that is dropped.
        watermark: returns the task's watermark, an upper bound of the store's stream time.
    """

    name: str
    buffer: Buffer
    key: AnySerde
    value: AnySerde
    timestamp: Callable[[], int]
    number: Callable[[str], Number]
    dropped: Callable[[str], None]
    watermark: Callable[[], int] = lambda: NEVER_MS

    def encoded(self, key: Any, serde: AnySerde | None = None) -> bytes:
        if key is None:
            raise MisuseValueError(f"store {self.name!r} requires a key, not None")
        return (serde or self.key).serialize(key)

    def time(self, time: int) -> int:
        """Return a time that a processor passed, or raise if it is before 1970 or too large."""
        try:
            if 0 <= time <= LAST_TIME_MS:
                return time
        except TypeError:
            raise MisuseTypeError(
                f"store {self.name!r} was given {type_of(time)} as a time; times are ints of "
                "milliseconds since 1970"
            ) from None
        wrong = "before 1970" if time < 0 else f"larger than {LAST_TIME_MS}"
        raise MisuseValueError(
            f"store {self.name!r} was given the time {time}, {wrong}; times are milliseconds since "
            "1970"
        )

    def scan(
        self, start: bytes | None, end: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, Any, int]]:
        """Yield row key, value and timestamp of a range, with the values when they are reached."""
        return self.current(self.buffer.scan(start, end, reverse=reverse))

    def current(self, rows: Iterable[tuple[bytes, Any, int]]) -> Iterator[tuple[bytes, Any, int]]:
        """Yield scanned rows with the values when they are reached."""
        buffer = self.buffer
        for row_key, value, timestamp in rows:
            if row_key in buffer.dirty:
                value, timestamp = buffer.get(row_key)
                if value is None:
                    continue
            yield row_key, value, timestamp


StoreFactory = Callable[[WrappedStore], Any]


class _KeyValue(Generic[K, V]):
    """Base class of key-value stores; `V` is the type that `put` accepts and `get` returns."""

    __slots__ = ("_rows",)

    def __init__(self, rows: WrappedStore) -> None:
        self._rows = rows

    @property
    def name(self) -> str:
        """The store's name."""
        return self._rows.name

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        value, timestamp = self._rows.buffer.get(self._rows.encoded(key))
        return None if value is None else self._shown(value, timestamp)

    def put(self, key: K, value: V | None) -> None:
        """Write a row; a value of None deletes it."""
        if value is None:
            self.delete(key)
        else:
            self._rows.buffer.put(self._rows.encoded(key), *self._to_stored(value))

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Write a row unless the key has a value; return the existing value, or None."""
        old = self.get(key)
        if old is None:
            self.put(key, value)
        return old

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> None:
        """Write several rows."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: K) -> V | None:
        """Delete a row and return its value, or None if it does not exist."""
        row_key = self._rows.encoded(key)
        value, timestamp = self._rows.buffer.get(row_key)
        if value is None:
            return None  # no tombstone for a row that does not exist
        self._rows.buffer.put(row_key, None, self._rows.timestamp())
        return self._shown(value, timestamp)

    def range(self, start: K | None, end: K | None) -> Iterator[tuple[K, V]]:
        """Yield the rows between two keys, both inclusive, in the order of the keys' bytes.

        Args:
            start: first key; None for the store's first.
            end: last key; None for the store's last.
        """
        return self._range(start, end, reverse=False)

    def reverse_range(self, start: K | None, end: K | None) -> Iterator[tuple[K, V]]:
        """Yield the rows of `range` from the last to the first."""
        return self._range(start, end, reverse=True)

    def all(self) -> Iterator[tuple[K, V]]:
        """Yield all rows, in the order of the keys' bytes."""
        return self._range(None, None, reverse=False)

    def reverse_all(self) -> Iterator[tuple[K, V]]:
        """Yield all rows, from the last to the first."""
        return self._range(None, None, reverse=True)

    def prefix_scan(self, prefix: P, serde: Serde[P]) -> Iterator[tuple[K, V]]:
        """Yield the rows whose key bytes start with the bytes of a prefix.

        Args:
            prefix: such as the first letters, or a shorter list.
            serde: encodes the prefix.
        """
        start = self._rows.encoded(prefix, serde)
        return self._pairs(start, prefix_end(start), reverse=False)

    def approximate_num_entries(self) -> int:
        """Return the approximate number of rows; overwritten and deleted rows may be counted."""
        return self._rows.buffer.approximate_count()

    def _range(self, start: K | None, end: K | None, *, reverse: bool) -> Iterator[tuple[K, V]]:
        rows = self._rows
        low = None if start is None else rows.encoded(start)
        # The first key after `end`.
        high = None if end is None else rows.encoded(end) + b"\x00"
        return self._pairs(low, high, reverse=reverse)

    def _pairs(
        self, low: bytes | None, high: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[K, V]]:
        decode = self._rows.key.deserialize
        for row_key, value, timestamp in self._rows.scan(low, high, reverse=reverse):
            yield decode(row_key), self._shown(value, timestamp)

    def _shown(self, value: Any, timestamp: int) -> V:  # noqa: ARG002
        shown: V = value
        return shown

    def _to_stored(self, value: V) -> tuple[Any, int]:
        return value, self._rows.timestamp()


class KeyValueStore(_KeyValue[K, V]):
    """Store with a value for each key.

    Examples:
        >>> from headrace import serdes
        >>> from headrace.topology.processors.stores import Stores, in_memory
        >>> counts = in_memory(Stores.key_value("counts", key=serdes.string, value=serdes.long))
        >>> counts.put("b", 2)
        >>> counts.put_all([("a", 1), ("c", 3), ("ab", 5)])
        >>> counts.get("a"), counts.get("z"), counts.put_if_absent("a", 7), counts.delete("c")
        (1, None, 1, 3)
        >>> list(counts.range("a", "b")), list(counts.reverse_all())
        ([('a', 1), ('ab', 5), ('b', 2)], [('b', 2), ('ab', 5), ('a', 1)])
        >>> list(counts.prefix_scan("a", serdes.string))
        [('a', 1), ('ab', 5)]
        >>> list(counts.all()), list(counts.reverse_range("a", "ab"))
        ([('a', 1), ('ab', 5), ('b', 2)], [('ab', 5), ('a', 1)])
        >>> counts.approximate_num_entries()
        4
    """

    __slots__ = ("_encode", "_get", "_put", "_timestamp")

    def __init__(self, rows: WrappedStore) -> None:
        super().__init__(rows)
        self._encode = rows.key.serialize
        self._get = rows.buffer.get
        self._put = rows.buffer.put
        self._timestamp = rows.timestamp

    # Faster than in the base class, because these two are called for each record.

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        value: V | None = self._get(self._encode(key) if key is not None else self._no_key())[0]
        return value

    def put(self, key: K, value: V | None) -> None:
        """Write a row; a value of None deletes it."""
        if value is None:
            self.delete(key)
        else:
            row_key = self._encode(key) if key is not None else self._no_key()
            self._put(row_key, value, self._timestamp())

    def _no_key(self) -> bytes:
        return self._rows.encoded(None)


class ReadOnlyKeyValueStore(KeyValueStore[K, V]):
    """The last value of each key of a topic; see `Topology.add_read_only_state_store`."""

    __slots__ = ()

    def put(self, key: K, value: V | None) -> None:
        """Raise an error, because a restore from the topic would lose the write."""
        del key, value
        raise MisuseTypeError(
            f"store {self.name!r} is filled from a topic and is read-only; write to the topic"
        )

    def delete(self, key: K) -> V | None:
        self.put(key, None)
        return None


class TimestampedKeyValueStore(_KeyValue[K, ValueAndTimestamp[V]]):
    """Store with a value and a timestamp for each key, as used by the DSL's tables.

    Examples:
        >>> from headrace import serdes
        >>> from headrace.topology.processors.stores import Stores, in_memory
        >>> last = in_memory(
        ...     Stores.timestamped_key_value("last", key=serdes.string, value=serdes.long)
        ... )
        >>> last.put("a", ValueAndTimestamp(1, 1_000))
        >>> last.get("a")
        ValueAndTimestamp(value=1, timestamp=1000)
    """

    __slots__ = ()

    def _shown(self, value: Any, timestamp: int) -> ValueAndTimestamp[V]:
        return ValueAndTimestamp(value, timestamp)

    def _to_stored(self, value: ValueAndTimestamp[V]) -> tuple[Any, int]:
        plain_value, timestamp = value
        return plain_value, self._rows.time(timestamp)


# Rows of a global table, for processors.


@runtime_checkable
class GlobalView(Protocol):
    """Current rows of a global table."""

    def get(self, key: Any, /) -> tuple[Any, int]:
        """Return the value and timestamp of a key, or (None, -1)."""

    def rows(self, start: Any, end: Any, /) -> Iterator[tuple[Any, Any, int]]:
        """Yield key, value and timestamp of the rows between two keys, both inclusive; None means
        unbounded.
        """


def store_key(store: str) -> str:
    """Return the key of a store's rows in the mapping of views, whose other keys are node names."""
    return f"store:{store}"


class ReadOnlyStore(Generic[K, V]):
    """Read-only store of a global table, returned by ``context.store(name)``.

    Processors need no connection to it, and cannot write to it. The rows do not change while a
    record is processed.

    Args:
        name: the store's name.
        view: its rows.

    Examples:
        >>> from headrace import ProcessorContext, Record, serdes
        >>> from headrace import StreamsBuilder, TopologyTestDriver
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
        """Return the value of a key, or None."""
        value: V | None = self._view.get(key)[0]
        return value

    def get_with_timestamp(self, key: K) -> ValueAndTimestamp[V] | None:
        """Return the value of a key with its record's timestamp in milliseconds since 1970, or
        None.
        """
        value, timestamp = self._view.get(key)
        return None if value is None else ValueAndTimestamp(value, timestamp)

    def range(self, start: K | None, end: K | None) -> Iterator[tuple[K, V]]:
        """Yield the rows between two keys, both inclusive, in the order of the keys' bytes.

        Args:
            start: first key; None for the store's first.
            end: last key; None for the store's last.
        """
        return ((key, value) for key, value, _ in self._view.rows(start, end))

    def all(self) -> Iterator[tuple[K, V]]:
        """Yield all rows, in the order of the keys' bytes."""
        return self.range(None, None)
