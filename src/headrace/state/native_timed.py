"""Buffer of a store's uncommitted rows with times, over rows in Rust (`headrace_native.TimedRows`).

It has the interface of `TimedBuffer`, which is the reference: both return the same for the same
calls. `dirty` is a mapping in Rust. It has the committed rows in memory, too, so `clean` stays
empty. Only the order in which cached rows are evicted differs, and the number of reads from disk: a
row that is later than all rows on disk needs none.

Hot path: operators of windows and joins call it for each record.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from headrace.state.buffer import ABSENT, ATOMS, Coding, Entry
from headrace.state.codec import KEPT, TIMESTAMP, decode_timestamped, memory_of, timestamped_rows
from headrace.state.layout import Layout
from headrace.state.store import CommittedStore, Delta
from headrace.state.timed import TimedBuffer, joined

_SAMPLE = 16
_ENTRY_BYTES = 80
"""Measured memory of a row or of a key, without the bytes of the key and without the value."""


class NativeTimedBuffer(TimedBuffer):
    """`TimedBuffer` over rows in Rust.

    Args:
        module: The module `headrace_native`.
    """

    __slots__ = ("_is_floor_known", "_native")

    def __init__(
        self,
        name: str,
        committed: CommittedStore,
        coding: Coding,
        *,
        layout: Layout,
        module: Any,
    ) -> None:
        super().__init__(name, committed, coding, layout=layout)
        self._native: Any = module.TimedRows(layout.times_bytes - TIMESTAMP.size)
        """The rows of `dirty`, with the methods that a dictionary has not."""
        self.dirty = self._native
        self._is_floor_known = False
        """Whether the latest time on disk was read."""

    def get(self, key: bytes) -> Entry:
        if self._time_of(key) < self.horizon:
            return ABSENT
        entry: Entry = self._native.known(key) or self.load(key)
        return entry if self.holds_objects else self._decoded(entry)

    def committed_row(self, key: bytes) -> Entry:
        entry: Entry = self._native.known(key) or self.load(key)
        return entry

    def load(self, key: bytes) -> Entry:
        if not self._is_floor_known:
            self._load_floor()
            return self.committed_row(key)
        self._misses += 1
        stored = self._committed.get(key)
        entry = ABSENT
        if stored is not None:
            timestamp, data = decode_timestamped(stored)
            entry = (self._decode(data) if self.holds_objects else data, timestamp)
        self._native.add_read(key, entry[1], entry[0])
        return entry

    def _load_floor(self) -> None:
        # Not before the first record: until then the store may be under restore.
        self._is_floor_known = True
        latest = self._committed.latest()
        self._native.lower_floor(0 if latest is None else latest + 1)

    # Rows of a key by time.

    def add(self, key: bytes, time: int, number: int, value: Any, timestamp: int) -> Any:
        if value.__class__ not in self.exact:
            value = self._to_stored_form(value)
        if not self._is_floor_known:
            self._load_floor()
        self._native.add(key, time, number, timestamp, value)
        return value

    def between(self, key: bytes, start_ms: int, end_ms: int) -> list[tuple[int, Any]]:
        rows: list[tuple[int, Any]] | None = self._native.between(key, start_ms, end_ms)
        if rows is None:
            self._read(key, start_ms)
            rows = self._native.between(key, start_ms, end_ms)
            assert rows is not None
        return rows

    def latest_first(self, key: bytes, start_ms: int, end_ms: int) -> list[tuple[int, int, Any]]:
        rows: list[tuple[int, int, Any]] | None = self._native.latest_first(key, start_ms, end_ms)
        if rows is None:
            self._read(key, start_ms)
            rows = self._native.latest_first(key, start_ms, end_ms)
            assert rows is not None
        return rows

    def remove_last(self, key: bytes, time: int, count: int) -> None:
        self._read(key, time)
        self._native.delete_last(key, time, count)

    def _dirty_row_keys(self, key: bytes) -> Sequence[bytes]:
        size = len(key) + self._layout.times_bytes
        return [row for row in self.dirty if len(row) == size and row.startswith(key)]

    def _read(self, key: bytes, start_ms: int) -> None:
        """Read the rows of a key from disk that are not in memory, from a time on."""
        if not self._is_floor_known:
            self._load_floor()
        rows, start_ms = self._native, max(start_ms, 0)
        floor = rows.floor_after(key, start_ms)
        if floor is None:
            return
        end = KEPT.pack(floor, 0)
        for row_key, row in self._committed_rows_of(key, KEPT.pack(start_ms, 0), end):
            rows.add_read(row_key, *row)
        rows.finish_read(key, start_ms, floor)

    # The commit.

    def oldest_written(self) -> int | None:
        oldest: int | None = self._native.oldest_dirty(self.horizon)
        return oldest

    def delta(self) -> list[tuple[bytes, bytes | None, int]]:
        try:
            changes: list[tuple[bytes, bytes | None, int]] = self._native.delta(
                self._encode, not self.holds_objects
            )
        except Exception as error:
            raise self._encoding_error(error) from error
        return changes

    def local_rows(self, changes: list[tuple[bytes, bytes | None, int]]) -> Delta:
        expired = self.take_expired()
        rows = self.not_yet_swept(timestamped_rows(changes))
        return joined(self._layout.local(rows, self._native.stored_keys()), expired)

    def committed(self) -> None:
        self._count_changes(len(self.dirty))
        self._native.committed(self.horizon)
        self._order.clear()
        self._clear_indexes()

    def discard(self) -> None:
        super().discard()
        self._is_floor_known = False

    # Memory.

    def cached_bytes(self) -> int:
        return self._estimated(self._native.clean_count, self._entry_bytes)

    def shrink_cache(self, limit_bytes: int) -> None:
        self._native.shrink(limit_bytes // self._sampled[1], self.horizon)

    def uncommitted_bytes(self, copies: int = 0) -> int:
        count = len(self.dirty)
        latest = [(key, self.dirty[key][0]) for key in islice(reversed(self.dirty), _SAMPLE)]
        return count * self._sample_bytes(latest, copies) if count else 0

    def _entry_bytes(self) -> int:
        """Return the memory of a cached row or key."""
        sample: list[tuple[bytes, Any]] = self._native.sample(_SAMPLE)
        if not sample:
            return _ENTRY_BYTES
        values = [value for _, value in sample if value.__class__ not in ATOMS - {str}]
        total = memory_of(values) + sum(len(key) for key, _ in sample)
        return _ENTRY_BYTES + total // len(sample)
