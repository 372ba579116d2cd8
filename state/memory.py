"""A task's state in this process alone: the same promises, gone with the process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from headrace.state.errors import UnknownStoreError
from headrace.state.spec import StoreSpec
from headrace.state.store import Delta, Position

_SAMPLE = 16


class MemoryStore:
    """Rows in a dictionary; the order of their keys is made good when a scan asks for it."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        # Every key once: those of the last scan in order, then new ones as they came.
        self._order: list[bytes] = []
        self._sorted = True
        self._gone: set[bytes] = set()  # deleted, and still in the order

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None when it has none."""
        return self._rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None for each that has none."""
        return [self._rows.get(key) for key in keys]

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with `start` <= key < `end` in key order, as they are now."""
        order = self._ordered()
        low = 0 if start is None else bisect_left(order, start)
        high = len(order) if end is None else bisect_left(order, end)
        keys = order[low:high]
        rows = [(key, self._rows[key]) for key in (reversed(keys) if reverse else keys)]
        return iter(rows)

    def approximate_count(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def approximate_bytes(self) -> int:
        """Return what the rows take, roughly: as much as the first of them do."""
        sample = [(key, row) for key, row in islice(self._rows.items(), _SAMPLE)]
        total = sum(len(key) + len(row) for key, row in sample)
        return len(self._rows) * total // len(sample) if sample else 0

    def apply(self, delta: Delta) -> None:
        """Put and delete rows; nothing here can fail half way."""
        rows, order, gone = self._rows, self._order, self._gone
        before = len(order)
        for key, value in delta:
            if value is None:
                if rows.pop(key, None) is not None:
                    gone.add(key)
                continue
            if key not in rows:
                if key in gone:
                    gone.remove(key)
                else:
                    order.append(key)
            rows[key] = value
        self._sorted = self._sorted and len(order) == before

    def clear(self) -> None:
        """Forget all rows."""
        self._rows.clear()
        self._order = []
        self._sorted = True
        self._gone.clear()

    def _ordered(self) -> list[bytes]:
        if self._gone:
            self._order = [key for key in self._order if key in self._rows]
            self._gone.clear()
        if not self._sorted:
            # Cheap for few new keys: the sort merges what is in order already.
            self._order.sort()
            self._sorted = True
        return self._order


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
        self._restored: set[str] | None = None  # by the bulk restore under way

    def store(self, name: str) -> MemoryStore:
        """Return a store's committed rows."""
        return self._known(name)

    def write(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        """Apply all deltas and positions, together or not at all."""
        if self._restored is not None:
            raise ValueError("a bulk restore is under way; end it before writing")
        self._apply(deltas, positions)

    def position(self, store_name: str) -> Position | None:
        """Return the position of a store, or None when its rows may not be built upon."""
        self._known(store_name)
        return self._positions.get(store_name)

    def begin_restore(self) -> None:
        """Start a bulk restore: stores without a position are emptied, `write` is refused."""
        for name, store in self._stores.items():
            if name not in self._positions:
                store.clear()
        self._restored = set()

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        """Apply changelog records in their order."""
        restored = self._require_restore()
        self._apply(deltas, {})
        restored.update(deltas)

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        """Take the positions and allow `write` again."""
        unplaced = self._require_restore() - positions.keys()
        if unplaced:
            raise ValueError(f"stores {sorted(unplaced)} were restored and have no position")
        self._apply({}, positions)
        self._restored = None

    def drop_store(self, name: str) -> None:
        """Empty one store and forget its position."""
        self._known(name).clear()
        self._positions.pop(name, None)

    def close(self) -> None:
        """Forget everything."""
        for store in self._stores.values():
            store.clear()
        self._positions.clear()

    def _apply(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        stores = [(self._known(name), delta) for name, delta in deltas.items()]
        for name in positions:
            self._known(name)
        for store, delta in stores:
            store.apply(delta)
        self._positions.update(positions)

    def _require_restore(self) -> set[str]:
        if self._restored is None:
            raise ValueError("no bulk restore is under way; begin one first")
        return self._restored

    def _known(self, name: str) -> MemoryStore:
        try:
            return self._stores[name]
        except KeyError:
            raise UnknownStoreError(
                f"this task has no in-memory store {name!r}; it has {sorted(self._stores)}"
            ) from None
