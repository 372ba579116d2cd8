"""A task's state in this process alone: the same promises, gone with the process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from state.errors import UnknownStoreError
from state.spec import StoreSpec
from state.store import Delta, Position

__all__ = ["MemoryStore", "MemoryTaskState"]


class MemoryStore:
    """Rows in a dictionary; their order is made when a scan asks for it."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._order: list[bytes] | None = []

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None when it has none."""
        return self._rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None for each that has none."""
        return [self._rows.get(key) for key in keys]

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with `start` <= key < `end` in key order."""
        if self._order is None:
            self._order = sorted(self._rows)
        order = self._order
        low = 0 if start is None else bisect_left(order, start)
        high = len(order) if end is None else bisect_left(order, end)
        keys = order[low:high]
        rows = [(key, self._rows[key]) for key in (reversed(keys) if reverse else keys)]
        return iter(rows)

    def approximate_count(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def apply(self, delta: Delta) -> None:
        """Put and delete rows; nothing here can fail half way."""
        rows = self._rows
        before = len(rows)
        for key, value in delta:
            if value is None:
                if rows.pop(key, None) is not None:
                    self._order = None
            else:
                rows[key] = value
        if len(rows) != before:
            self._order = None

    def clear(self) -> None:
        """Forget all rows."""
        self._rows.clear()
        self._order = []


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
        self._restoring = False

    def store(self, name: str) -> MemoryStore:
        """Return a store's committed rows."""
        return self._known(name)

    def write(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        """Apply all deltas and positions, together or not at all."""
        if self._restoring:
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
        self._restoring = True

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        """Apply changelog records in their order."""
        self._require_restore()
        self._apply(deltas, {})

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        """Take the positions and allow `write` again."""
        self._require_restore()
        self._restoring = False
        self._apply({}, positions)

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

    def _require_restore(self) -> None:
        if not self._restoring:
            raise ValueError("no bulk restore is under way; begin one first")

    def _known(self, name: str) -> MemoryStore:
        try:
            return self._stores[name]
        except KeyError:
            raise UnknownStoreError(
                f"this task has no in-memory store {name!r}; it has {sorted(self._stores)}"
            ) from None
