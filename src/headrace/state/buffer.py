"""The uncommitted writes of one store of one task, over what is committed.

Hot path: generated code works on `dirty` and `clean` directly; benchmarks/micro/buffer.py times it.

Who owns what: `dirty` holds the writes since the last commit, and nothing else knows them. `clean`
is a cache of committed rows; whoever knows all buffers bounds their caches. The committed store is
written only by the commit, after the transaction, from `delta`. An abort throws the whole buffer
away: with mutable values even `clean` may have been changed in place by a user function.

An entry is ``(value, timestamp)``; a missing row is `ABSENT`. With `hold="objects"` the value is
the decoded object and is encoded once at the commit, however often it changed. With `hold="bytes"`
all but the values of some exact classes are encoded at each write and decoded at each read, so no
one else can hold the stored object: for mutable values that others may see.

What is read is always what the value's bytes give back, whether or not a commit came between: with
``hold="objects"`` a value of any but an exact class is replaced by that when it is written.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Literal

from headrace.state.codec import decode_timestamped, memory_of, timestamped_rows
from headrace.state.errors import ValueEncodingError
from headrace.state.store import CommittedStore, Delta

Entry = tuple[Any, int]
ABSENT: Entry = (None, -1)
ATOMS: frozenset[type] = frozenset({int, float, str, bool, type(None)})
"""Types whose values nobody can change, and which JSON gives back as they were."""

ENTRY_OVERHEAD_BYTES = 200
"""What a key, a value and their tuple cost in dictionaries besides their payload, measured."""

_SAMPLE = 16
_FEW = 16
"""So many new keys are put in order one by one; more of them are sorted with the others."""


class Buffer:
    """Read-your-writes over a committed store; keys are encoded, values are not."""

    __slots__ = (
        "_changed",
        "_committed",
        "_decode",
        "_encode",
        "_entry_bytes",
        "_exact",
        "_keep",
        "_missed",
        "_objects",
        "_order",
        "_sampled",
        "clean",
        "dirty",
        "hits",
        "misses",
        "name",
    )

    def __init__(
        self,
        name: str,
        committed: CommittedStore,
        *,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        hold: Literal["objects", "bytes"] = "objects",
        exact: frozenset[type] = ATOMS,
        keep: Callable[[Any], Any] | None = None,
    ) -> None:
        self.name = name
        self.dirty: dict[bytes, Entry] = {}
        self.clean: dict[bytes, Entry] = {}
        self.misses = self._missed = 0
        """Rows that were asked for and in neither of them."""
        self.hits = 0
        """Rows that commits changed without reading the store; never too many."""
        self._committed = committed
        self._encode = encode
        self._decode = decode
        self._objects = hold == "objects"
        self._exact = exact
        self._keep = keep or (lambda value: decode(encode(value)))
        self._sampled = (0, ENTRY_OVERHEAD_BYTES)
        """How many rows the cache had when some were measured, and what one took."""
        self._changed = 0  # rows that were written since then
        self._order: list[bytes] = []
        """The dirty keys that a scan has seen, in their order."""

    @property
    def exact(self) -> frozenset[type]:
        """The classes whose values may be written to `dirty` as they are, without `put`."""
        return self._exact

    @property
    def holds_objects(self) -> bool:
        """Whether values are held as they are, and not as bytes."""
        return self._objects

    def load(self, key: bytes) -> Entry:
        """Read a row that is neither dirty nor clean; remembers it, also when it is missing."""
        self.misses += 1
        stored = self._committed.get(key)
        if stored is None:
            entry = ABSENT
        else:
            timestamp, data = decode_timestamped(stored)
            entry = (self._decode(data) if self._objects else data, timestamp)
        self.clean[key] = entry
        return entry

    def get(self, key: bytes) -> Entry:
        """Read a row: its decoded value and timestamp, or `ABSENT`."""
        entry = self.dirty.get(key) or self.clean.get(key) or self.load(key)
        return entry if self._objects else self._decoded(entry)

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        """Write a row; a value of None deletes it."""
        if value.__class__ not in self._exact:
            value = self._held(value)
        self.dirty[key] = (value, timestamp)

    def _held(self, value: Any) -> Any:
        if value is None:
            return None
        if self._objects:
            return self._keep(value)
        is_plain = value.__class__ in ATOMS and self._keep(value) is value
        return value if is_plain else self._encode(value)

    def forget(self, key: bytes) -> None:
        """Take back the writes of a row that is not in the committed store: it came and went.

        Neither the disk nor the changelog hears of it, unlike of a row that is deleted.
        """
        del self.dirty[key]
        order = self._order
        place = bisect_left(order, key)
        if place < len(order) and order[place] == key:
            del order[place]

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any, int]]:
        """Yield ``(key, value, timestamp)`` in the order of the key bytes, own writes included.

        Args:
            start: the first key, inclusive; None for the beginning.
            end: the key to stop before; None for the end.
            reverse: from the last key to the first.
        """
        mine = self._dirty_keys(start, end)
        if reverse:
            mine.reverse()
        return self._merged(mine, self._committed.scan(start, end, reverse=reverse), reverse)

    def _merged(
        self, mine: list[bytes], committed: Iterable[tuple[bytes, bytes]], reverse: bool
    ) -> Iterator[tuple[bytes, Any, int]]:
        """The rows of keys that were written, and the committed ones of the others."""
        position = 0
        for key, stored in committed:
            while position < len(mine) and (
                mine[position] > key if reverse else mine[position] < key
            ):
                yield from self._row(mine[position])
                position += 1
            if position < len(mine) and mine[position] == key:
                yield from self._row(key)
                position += 1
                continue
            timestamp, data = decode_timestamped(stored)
            yield key, self._decode(data), timestamp
        for key in mine[position:]:
            yield from self._row(key)

    def _dirty_keys(self, start: bytes | None, end: bytes | None) -> list[bytes]:
        """Those of a range in order; the whole order is kept from scan to scan."""
        order = self._order
        new = len(self.dirty) - len(order)
        if new:
            # A dictionary has its new keys at the end, and none goes before all of them do.
            latest = islice(reversed(self.dirty), new)
            if new <= _FEW:
                for key in latest:
                    insort(order, key)
            else:
                order.extend(latest)
                order.sort()
        low = 0 if start is None else bisect_left(order, start)
        high = len(order) if end is None else bisect_left(order, end)
        return order[low:high]

    def delta(self) -> list[tuple[bytes, bytes | None, int]]:
        """Encode each dirty row once, in the order of first writes: key, value or None, timestamp.

        Raises:
            ValueEncodingError: naming the store and the key whose value its serde refuses.
        """
        encode = self._encode
        items = self.dirty.items()
        try:
            if self._objects:
                return [(k, None if v is None else encode(v), t) for k, (v, t) in items]
            return [
                (k, v if v is None or v.__class__ is bytes else encode(v), t) for k, (v, t) in items
            ]
        except Exception as error:
            raise self._encoding_error(error) from error

    def local_rows(self, changes: list[tuple[bytes, bytes | None, int]]) -> Delta:
        """The rows to write to disk for what `delta` has told, which may be nothing."""
        return timestamped_rows(changes)

    def committed(self) -> None:
        """The dirty rows are in the committed store now: keep them as clean ones."""
        self._count_changes()
        self.clean.update(self.dirty)
        self.dirty.clear()
        self._order.clear()

    def _count_changes(self) -> None:
        self._changed += len(self.dirty)
        self.hits += max(0, len(self.dirty) - self.misses + self._missed)
        self._missed = self.misses

    def discard(self) -> None:
        """Forget everything that is not committed, and the cache with it."""
        self.dirty.clear()
        self._order.clear()
        self.clean.clear()

    def approximate_count(self) -> int:
        """Return the number of rows, roughly: rewritten and deleted rows may be counted."""
        return self._committed.approximate_count() + len(self.dirty)

    def uncommitted_bytes(self, copies: int = 0) -> int:
        """Estimate the memory of dirty rows, and of copies, from a sample of the latest ones."""
        count = len(self.dirty)
        return count * self._sample_bytes(self.dirty, copies) if count else 0

    def cached_bytes(self) -> int:
        """Estimate the memory of the cache of committed rows from a sample of the latest ones."""
        return self._estimated(len(self._cache), lambda: self._cache)

    def _estimated(self, count: int, sample: Callable[[], dict[bytes, Entry]]) -> int:
        then, entry_bytes = self._sampled
        # Where as many rows are others now, they are measured again.
        if max(abs(count - then), self._changed) > then // 8:
            self._sampled = (count, entry_bytes := self._kept_bytes(sample()))
            self._changed = 0
        return count * entry_bytes

    def shrink_cache(self, limit_bytes: int) -> None:
        """Let go of the rows that have been in the cache for longest, until the others fit."""
        cache = self._cache
        surplus = len(cache) - limit_bytes // self._sampled[1]
        if surplus > 0:
            for key in list(islice(cache, surplus)):
                del cache[key]

    @property
    def _cache(self) -> dict[bytes, Entry]:
        return self.clean

    def _sample_bytes(self, rows: dict[bytes, Entry], copies: int = 0) -> int:
        """What one of some rows takes with copies of it, from the latest of them."""
        sample = list(islice(reversed(rows.items()), _SAMPLE))
        total = sum(map(len, dict(sample)))
        total += sum(self._size(value) for _, (value, _) in sample if value is not None)
        return ENTRY_OVERHEAD_BYTES + (1 + copies) * total // max(1, len(sample))

    def _kept_bytes(self, rows: dict[bytes, Entry]) -> int:
        """The same of rows that are kept: documents take some times more than their bytes."""
        latest = [value for value, _ in islice(reversed(rows.values()), _SAMPLE)]
        documents = [one for one in latest if one.__class__ not in ATOMS | {bytes}]
        more = memory_of(documents) - sum(map(self._size, documents))
        return self._sample_bytes(rows) + max(0, more) // max(1, len(latest))

    def _size(self, value: Any) -> int:
        try:
            return len(self._bytes(value))
        except Exception:
            return 0  # the commit refuses it, unless it has changed by then

    def _row(self, key: bytes) -> Iterator[tuple[bytes, Any, int]]:
        value, timestamp = self.dirty[key]
        if value is not None:
            yield key, self.opened(value), timestamp

    def _bytes(self, value: Any) -> bytes:
        held = not self._objects and value.__class__ is bytes
        encoded: bytes = value if held else self._encode(value)
        return encoded

    def opened(self, value: Any) -> Any:
        """The value that is held so, its own object where others could change it."""
        held = not self._objects and value.__class__ is bytes
        return self._decode(value) if held else value

    def _decoded(self, entry: Entry) -> Entry:
        return self.opened(entry[0]), entry[1]

    def _encoding_error(self, cause: Exception) -> ValueEncodingError:
        for key, (value, _) in self.dirty.items():
            try:
                if value is not None:
                    self._bytes(value)
            except Exception as error:  # the one that failed above, found again
                return ValueEncodingError(self.name, key, error)
        return ValueEncodingError(self.name, b"", cause)
