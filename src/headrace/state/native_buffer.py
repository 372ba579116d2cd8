"""Buffer of a store's uncommitted rows, with its rows in Rust (`headrace_native.Rows`).

It has the interface of `Buffer`, which is the reference: both return the same for the same calls.
Only the order in which cached rows are evicted differs: rows that were not used for long come
first.

Hot path: generated code calls the methods of `rows` directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

from headrace.state.buffer import SAMPLE, Buffer, Coding, Entry, Sample
from headrace.state.store import CommittedStore, Delta


class NativeBuffer(Buffer):
    """`Buffer` over rows in Rust.

    Args:
        module: The module `headrace_native`.
    """

    __slots__ = ("_timestamped_rows", "rows")

    def __init__(
        self, name: str, committed: CommittedStore, coding: Coding, *, module: Any
    ) -> None:
        super().__init__(name, committed, coding)
        del self.dirty, self.clean  # the rows are not there
        decode = coding.decode if self.holds_objects else None
        self.rows = module.Rows(committed.get, decode, coding.integers)
        """The rows, by their keys' bytes, with values in stored form."""
        self._timestamped_rows = module.timestamped_rows

    @property
    def misses(self) -> int:
        misses: int = self.rows.misses
        return misses

    def detect_empty_store(self) -> None:
        self.rows.has_all_rows = next(iter(self._committed.scan()), None) is None

    def get(self, key: bytes) -> Entry:
        entry: Entry = self.rows.read(key)
        return entry if self.holds_objects else self._decoded(entry)

    @property
    def has_writes(self) -> bool:
        written: int = self.rows.written()
        return written > 0

    def is_written(self, key: bytes) -> bool:
        is_written: bool = self.rows.is_written(key)
        return is_written

    def is_new(self, key: bytes) -> bool:
        is_new: bool = self.rows.is_new(key)
        return is_new

    def exists(self, key: bytes) -> bool:
        return self.rows.get(key) is not None

    def put(self, key: bytes, value: Any, timestamp: int) -> None:
        if value.__class__ not in self.exact:
            value = self._to_stored_form(value)
        self.rows.write(key, value, timestamp)

    def drop_write(self, key: bytes) -> None:
        self.rows.drop_write(key)

    def _dirty_keys(self, start: bytes | None, end: bytes | None) -> list[bytes]:
        keys: list[bytes] = self.rows.written_keys(start, end)
        return keys

    def _row(self, key: bytes) -> Iterator[tuple[bytes, Any, int]]:
        value, timestamp = self.rows.read(key)
        if value is not None:
            yield key, self.from_stored_form(value), timestamp

    # -- the commit --------------------------------------------------------------------------

    def delta(self) -> list[tuple[bytes, bytes | None, int]]:
        try:
            changes: list[tuple[bytes, bytes | None, int]] = self.rows.delta(
                self._encode, not self.holds_objects
            )
        except Exception as error:
            raise self._encoding_error(error) from error
        return changes

    def local_rows(self, changes: list[tuple[bytes, bytes | None, int]]) -> Delta:
        rows: Delta = self._timestamped_rows(changes)
        return rows

    def committed(self) -> None:
        self._count_changes(self.rows.written())
        self.rows.committed()

    def discard(self) -> None:
        self.rows.discard()

    def _written_values(self) -> Iterable[tuple[bytes, Any]]:
        return ((key, value) for key, value, _ in self.rows.changes())

    # -- the memory --------------------------------------------------------------------------

    def approximate_count(self) -> int:
        count: int = self._committed.approximate_count() + self.rows.written()
        return count

    def uncommitted_bytes(self, copies: int = 0) -> int:
        count: int = self.rows.written()
        sample = self.rows.written_sample(SAMPLE)
        return count * self._sample_bytes(sample, copies) if count else 0

    def cached_bytes(self) -> int:
        return self._estimated(self.rows.cached(), self._cached_row_bytes)

    def shrink_cache(self, limit_bytes: int) -> None:
        self.rows.evict(limit_bytes // self._sampled[1])

    def _cached_sample(self) -> Sample:
        sample: Sample = self.rows.cached_sample(SAMPLE)
        return sample


class PendingUpdates(Sized):
    """Number of the pending updates of a table's rows."""

    __slots__ = ("_rows",)

    def __init__(self, buffer: Any) -> None:
        self._rows = buffer.rows

    def __len__(self) -> int:
        count: int = self._rows.pending()
        return count
