"""Buffer of a store's uncommitted rows, on top of its committed rows.

Hot path: generated code reads and writes `dirty` and `clean` directly; benchmarks/micro/buffer.py
times it.

Ownership: `dirty` holds the writes since the last commit and is their only copy. `clean` caches
committed rows; its size is bounded by `headrace.state.buffers.bound_caches`. Only the commit writes
the committed store: after the transaction, from `delta`. An abort discards the whole buffer,
because a user function may have changed mutable values in `clean` in place.

An entry is ``(value, timestamp)``; a missing row is `ABSENT`. With `stored_form="objects"` the
value is the decoded object, and it is encoded once, at the commit. With `stored_form="bytes"`
values are encoded at each write and decoded at each read, except values of a few immutable classes.
Use `"bytes"` for mutable values that user code may keep a reference to.

A read always returns the value as decoded from its bytes, before and after a commit. Therefore
``stored_form="objects"`` replaces a written value by its decoded form unless its class is in
`exact`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from headrace.state.codec import decode_timestamped, memory_of, timestamped_rows
from headrace.state.errors import ValueEncodingError
from headrace.state.store import CommittedStore, Delta

Entry = tuple[Any, int]
ABSENT: Entry = (None, -1)
ATOMS: frozenset[type] = frozenset({int, float, str, bool, type(None)})
"""Immutable types whose values JSON encodes and decodes without a change."""

ENTRY_OVERHEAD_BYTES = 200
"""Measured overhead of an entry: its key object, value object, tuple and dictionary slot."""

_SAMPLE = 16
_INSERTED_KEYS_MAX = 16
"""Maximum number of new keys that are inserted one by one; more are sorted in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """Encoding of the values of a buffer.

    Args:
        exact: Classes whose values survive encoding and decoding unchanged.
        keep: Converts a value to its decoded form; None encodes and decodes it.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    stored_form: Literal["objects", "bytes"] = "objects"
    exact: frozenset[type] = ATOMS
    keep: Callable[[Any], Any] | None = None


class Buffer:
    """Buffer of uncommitted rows with read-your-writes; keys are encoded, values are not."""

    __slots__ = (
        "_changed",
        "_committed",
        "_decode",
        "_encode",
        "_has_all_rows",
        "_keep",
        "_missed",
        "_order",
        "_sampled",
        "clean",
        "dirty",
        "exact",
        "hits",
        "holds_objects",
        "misses",
        "name",
    )

    def __init__(self, name: str, committed: CommittedStore, coding: Coding) -> None:
        encode, decode = coding.encode, coding.decode
        self.name = name
        self.dirty: dict[bytes, Entry] = {}
        self.clean: dict[bytes, Entry] = {}
        self.misses = self._missed = 0
        """Number of reads that neither `dirty` nor `clean` could serve."""
        self.hits = 0
        """Lower bound of the changed rows that needed no read of the committed store."""
        self._committed = committed
        self._has_all_rows = False
        """Whether `clean` has all committed rows, so a miss means that the row does not exist."""
        self._encode = encode
        self._decode = decode
        self.holds_objects = coding.stored_form == "objects"
        self.exact = coding.exact
        """Classes whose values can be written to `dirty` unchanged, without `put`."""
        self._keep = coding.keep or (lambda value: decode(encode(value)))
        self._sampled = (0, ENTRY_OVERHEAD_BYTES)
        """Number of cached rows at the last measurement, and the average bytes of a row."""
        self._changed = 0  # rows written since that measurement
        self._order: list[bytes] = []
        """The dirty keys that a scan has seen, sorted."""

    def detect_empty_store(self) -> None:
        """Check whether the restored store is empty; then a cache miss needs no read."""
        self._has_all_rows = next(iter(self._committed.scan()), None) is None

    def load(self, key: bytes) -> Entry:
        """Read a row from the committed store into `clean`; a missing row is cached as `ABSENT`."""
        if self._has_all_rows:
            self.clean[key] = ABSENT
            return ABSENT
        self.misses += 1
        stored = self._committed.get(key)
        if stored is None:
            entry = ABSENT
        else:
            timestamp, data = decode_timestamped(stored)
            entry = (self._decode(data) if self.holds_objects else data, timestamp)
        self.clean[key] = entry
        return entry

    def get(self, key: bytes) -> Entry:
        entry = self.dirty.get(key) or self.clean.get(key) or self.load(key)
        return entry if self.holds_objects else self._decoded(entry)

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        if value.__class__ not in self.exact:
            value = self._to_stored_form(value)
        self.dirty[key] = (value, timestamp)

    def _to_stored_form(self, value: Any) -> Any:
        if value is None:
            return None
        if self.holds_objects:
            return self._keep(value)
        is_plain = value.__class__ in ATOMS and self._keep(value) is value
        return value if is_plain else self._encode(value)

    def drop_write(self, key: bytes) -> None:
        """Undo the write of a row that is not on disk; a deletion would write a tombstone."""
        del self.dirty[key]
        order = self._order
        index = bisect_left(order, key)
        if index < len(order) and order[index] == key:
            del order[index]

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any, int]]:
        """Yield key, value and timestamp in the order of the key bytes; `end` is exclusive."""
        dirty_keys = self._dirty_keys(start, end)
        if reverse:
            dirty_keys.reverse()
        return self._merged(dirty_keys, self._committed.scan(start, end, reverse=reverse), reverse)

    def _merged(
        self, dirty_keys: list[bytes], committed: Iterable[tuple[bytes, bytes]], reverse: bool
    ) -> Iterator[tuple[bytes, Any, int]]:
        position = 0
        for key, stored in committed:
            while position < len(dirty_keys) and (
                dirty_keys[position] > key if reverse else dirty_keys[position] < key
            ):
                yield from self._row(dirty_keys[position])
                position += 1
            if position < len(dirty_keys) and dirty_keys[position] == key:
                yield from self._row(key)
                position += 1
                continue
            timestamp, data = decode_timestamped(stored)
            yield key, self._decode(data), timestamp
        for key in dirty_keys[position:]:
            yield from self._row(key)

    def _dirty_keys(self, start: bytes | None, end: bytes | None) -> list[bytes]:
        order = self._order
        new = len(self.dirty) - len(order)
        if new:
            # New keys are at the end of a dictionary, and `drop_write` removes a key from both.
            latest = islice(reversed(self.dirty), new)
            if new <= _INSERTED_KEYS_MAX:
                for key in latest:
                    insort(order, key)
            else:
                order.extend(latest)
                order.sort()
        low = 0 if start is None else bisect_left(order, start)
        high = len(order) if end is None else bisect_left(order, end)
        return order[low:high]

    def delta(self) -> list[tuple[bytes, bytes | None, int]]:
        """Encode the dirty rows in the order of their first writes.

        Raises:
            ValueEncodingError: A value cannot be encoded; the error has the store and the key.
        """
        encode = self._encode
        items = self.dirty.items()
        try:
            if self.holds_objects:
                return [(k, None if v is None else encode(v), t) for k, (v, t) in items]
            return [
                (k, v if v is None or v.__class__ is bytes else encode(v), t) for k, (v, t) in items
            ]
        except Exception as error:
            raise self._encoding_error(error) from error

    def local_rows(self, changes: list[tuple[bytes, bytes | None, int]]) -> Delta:
        """Return the rows to write to disk for the changes that `delta` returned."""
        return timestamped_rows(changes)

    def committed(self) -> None:
        """Move the dirty rows to `clean`; call it after the committed store has them."""
        self._count_changes()
        self.clean.update(self.dirty)
        self.dirty.clear()
        self._order.clear()

    def _count_changes(self) -> None:
        self._changed += len(self.dirty)
        self.hits += max(0, len(self.dirty) - self.misses + self._missed)
        self._missed = self.misses

    def discard(self) -> None:
        self.dirty.clear()
        self._order.clear()
        self.clean.clear()
        self._has_all_rows = False

    def approximate_count(self) -> int:
        return self._committed.approximate_count() + len(self.dirty)

    def uncommitted_bytes(self, copies: int = 0) -> int:
        """Estimate the memory of the dirty rows, with `copies` more copies of each."""
        count = len(self.dirty)
        return count * self._sample_bytes(self.dirty, copies) if count else 0

    def cached_bytes(self) -> int:
        return self._estimated(len(self._cache), self._cached_row_bytes)

    def _estimated(self, count: int, measure: Callable[[], int]) -> int:
        sampled_count, entry_bytes = self._sampled
        # Measure again if more than an eighth of the rows have changed since.
        if max(abs(count - sampled_count), self._changed) > sampled_count // 8:
            self._sampled = (count, entry_bytes := measure())
            self._changed = 0
        return count * entry_bytes

    def shrink_cache(self, limit_bytes: int) -> None:
        cache = self._cache
        surplus = len(cache) - limit_bytes // self._sampled[1]
        if surplus > 0:
            self._has_all_rows = False
            for key in list(islice(cache, surplus)):
                del cache[key]

    @property
    def _cache(self) -> dict[bytes, Entry]:
        return self.clean

    def _sample_bytes(self, rows: dict[bytes, Entry], copies: int = 0) -> int:
        sample = list(islice(reversed(rows.items()), _SAMPLE))
        total = sum(len(key) for key, _ in sample)
        total += sum(self._size(value) for _, (value, _) in sample if value is not None)
        return ENTRY_OVERHEAD_BYTES + (1 + copies) * total // max(1, len(sample))

    def _cached_row_bytes(self) -> int:
        """Return the memory of a cached row; decoded documents take several times their bytes."""
        rows = self._cache
        latest = [value for value, _ in islice(reversed(rows.values()), _SAMPLE)]
        documents = [value for value in latest if value.__class__ not in ATOMS | {bytes}]
        more = memory_of(documents) - sum(map(self._size, documents))
        return self._sample_bytes(rows) + max(0, more) // max(1, len(latest))

    def _size(self, value: Any) -> int:
        try:
            return len(self._bytes(value))
        except Exception:
            return 0  # the commit raises, unless the value has changed by then

    def _row(self, key: bytes) -> Iterator[tuple[bytes, Any, int]]:
        value, timestamp = self.dirty[key]
        if value is not None:
            yield key, self.from_stored_form(value), timestamp

    def _bytes(self, value: Any) -> bytes:
        is_encoded = not self.holds_objects and value.__class__ is bytes
        encoded: bytes = value if is_encoded else self._encode(value)
        return encoded

    def from_stored_form(self, value: Any) -> Any:
        """Decode a value as stored in `dirty` or `clean`; a mutable value is a new object."""
        is_encoded = not self.holds_objects and value.__class__ is bytes
        return self._decode(value) if is_encoded else value

    def _decoded(self, entry: Entry) -> Entry:
        return self.from_stored_form(entry[0]), entry[1]

    def _encoding_error(self, cause: Exception) -> ValueEncodingError:
        for key, (value, _) in self.dirty.items():
            try:
                if value is not None:
                    self._bytes(value)
            except Exception as error:  # the failure of `delta`, now with its key
                return ValueEncodingError(self.name, key, error)
        return ValueEncodingError(self.name, b"", cause)
