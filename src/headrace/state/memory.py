"""Task state in memory, with the guarantees of `TaskState` until the process ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice

from headrace.state.errors import UnknownStoreError
from headrace.state.spec import StoreSpec
from headrace.state.store import Delta, Position, RangeDelta

_SAMPLE = 16
_RUN_KEYS = 16_384
"""Maximum number of new keys sorted for a page: a few milliseconds."""
_MERGED_KEYS = 65_536
"""Maximum number of keys of a run that a page merges with the next run."""
_READ_KEYS_MAX = 4_096
"""Maximum number of keys that a page reads, deleted keys included."""


@dataclass(frozen=True, slots=True)
class MemoryPage:
    """Page of a store's rows, in key order.

    Args:
        after: The last key read, after which the next page starts; None at the end.
    """

    rows: list[tuple[bytes, bytes]]
    after: bytes | None


class MemoryStore:
    """Rows in a dictionary, whose keys are sorted only when a scan needs their order."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        # Every key once: in sorted runs, then new keys in the order of their arrival.
        self._runs: list[list[bytes]] = []
        self._fresh: list[bytes] = []
        self._deleted: set[bytes] = set()  # deleted, and still in a run or in `_fresh`

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._rows.get(key) for key in keys]

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        order = self._ordered()
        low, high = _bounds(order, start, end)
        keys = order[low:high]
        rows = [(key, self._rows[key]) for key in (reversed(keys) if reverse else keys)]
        return iter(rows)

    def page(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        reverse: bool = False,
        most: int = 500,
        most_bytes: int = 512 << 10,
    ) -> MemoryPage | None:
        """Return a page of the rows of `scan`, in time that does not depend on the store's size.

        None means that more keys must be sorted first; call it again then.
        """
        self._arrange()
        if self._fresh:
            return None
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        for count, key in enumerate(self._merged(start, end, reverse=reverse), 1):
            row = self._rows.get(key)
            if row is not None:
                rows.append((key, row))
                size += len(key) + len(row)
            if len(rows) == most or size >= most_bytes or count == _READ_KEYS_MAX:
                return MemoryPage(rows, key)
        return MemoryPage(rows, None)

    def approximate_count(self) -> int:
        return len(self._rows)

    def approximate_bytes(self) -> int:
        sample = [(key, row) for key, row in islice(self._rows.items(), _SAMPLE)]
        total = sum(len(key) + len(row) for key, row in sample)
        return len(self._rows) * total // len(sample) if sample else 0

    def apply(self, delta: Delta) -> None:
        """Put and delete rows; it cannot fail halfway."""
        if isinstance(delta, RangeDelta):
            self._delete_range(delta.start, delta.end)
        rows, fresh, deleted = self._rows, self._fresh, self._deleted
        for key, value in delta:
            if value is None:
                if rows.pop(key, None) is not None:
                    deleted.add(key)
                continue
            if key not in rows:
                if key in deleted:
                    deleted.remove(key)
                else:
                    fresh.append(key)
            rows[key] = value

    def _delete_range(self, start: bytes, end: bytes) -> None:
        order = self._ordered()
        low, high = _bounds(order, start, end)
        for key in order[low:high]:
            del self._rows[key]
        del order[low:high]

    def clear(self) -> None:
        self._rows.clear()
        self._runs, self._fresh = [], []
        self._deleted.clear()

    def _ordered(self) -> list[bytes]:
        if self._deleted or self._fresh or len(self._runs) != 1:
            order = [key for run in self._runs for key in run]
            order += self._fresh
            if self._deleted:
                order = [key for key in order if key in self._rows]
                self._deleted.clear()
            # Cheap for a few new keys: the sort merges sorted runs.
            order.sort()
            self._runs, self._fresh = [order], []
        return self._runs[0]

    def _arrange(self) -> None:
        if not self._fresh:
            return
        self._runs.append(sorted(self._fresh[:_RUN_KEYS]))
        del self._fresh[:_RUN_KEYS]
        runs = self._runs
        while len(runs) > 1 and len(runs[-2]) <= min(2 * len(runs[-1]), _MERGED_KEYS):
            last = runs.pop()
            runs[-1] += last
            runs[-1].sort()

    def _merged(self, start: bytes | None, end: bytes | None, *, reverse: bool) -> Iterator[bytes]:
        """Yield keys in order, including deleted keys."""
        parts = []
        for run in self._runs:
            low, high = _bounds(run, start, end)
            indexes = range(high - 1, low - 1, -1) if reverse else range(low, high)
            if indexes:
                parts.append(map(run.__getitem__, indexes))
        return parts[0] if len(parts) == 1 else merge(*parts, reverse=reverse)


def _bounds(order: list[bytes], start: bytes | None, end: bytes | None) -> tuple[int, int]:
    low = 0 if start is None else bisect_left(order, start)
    return low, len(order) if end is None else bisect_left(order, end)


class MemoryTaskState:
    """A `TaskState` of in-memory stores.

    >>> state = MemoryTaskState([StoreSpec("counts", kind="memory")])
    >>> state.write({"counts": [(b"a", b"1")]}, {"counts": Position("id", 1, 1, 0)})
    >>> list(state.store("counts").scan()), state.position("counts").offset
    ([(b'a', b'1')], 1)
    """

    def __init__(self, specs: Iterable[StoreSpec]) -> None:
        self._stores = {spec.name: MemoryStore() for spec in specs}
        self._positions: dict[str, Position] = {}
        self._restored: set[str] | None = None  # stores, by the bulk restore in progress

    def store(self, name: str) -> MemoryStore:
        return self._require_store(name)

    def write(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        if self._restored is not None:
            raise ValueError("a bulk restore is in progress; end it before writing")
        self._apply(deltas, positions)

    def position(self, store_name: str) -> Position | None:
        self._require_store(store_name)
        return self._positions.get(store_name)

    def begin_restore(self) -> None:
        for name, store in self._stores.items():
            if name not in self._positions:
                store.clear()
        self._restored = set()

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        restored = self._require_restore()
        self._apply(deltas, {})
        restored.update(deltas)

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        without_position = self._require_restore() - positions.keys()
        if without_position:
            raise ValueError(
                f"stores {sorted(without_position)} were restored and have no position"
            )
        self._apply({}, positions)
        self._restored = None

    def cancel_restore(self) -> None:
        """Abandon a bulk restore; stores without a position keep rows until the next restore."""
        self._restored = None

    def drop_store(self, name: str) -> None:
        self._require_store(name).clear()
        self._positions.pop(name, None)

    def close(self) -> None:
        for store in self._stores.values():
            store.clear()
        self._positions.clear()

    def _apply(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        stores = [(self._require_store(name), delta) for name, delta in deltas.items()]
        for name in positions:
            self._require_store(name)
        for store, delta in stores:
            store.apply(delta)
        self._positions.update(positions)

    def _require_restore(self) -> set[str]:
        if self._restored is None:
            raise ValueError("no bulk restore is in progress; call begin_restore first")
        return self._restored

    def _require_store(self, name: str) -> MemoryStore:
        try:
            return self._stores[name]
        except KeyError:
            raise UnknownStoreError(
                f"this task has no in-memory store {name!r}; it has {sorted(self._stores)}"
            ) from None
