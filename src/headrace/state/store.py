"""Protocols of the state package: a store's committed rows, and a task's state as a whole.

Ownership: only a task's worker thread writes its `TaskState`. Rows and positions change in three
ways only: `write` (the commit), a bulk restore, and `drop_store`. Positions and rows stay
consistent: each change of a position first makes its rows durable, or writes both in one atomic
batch.

Whenever the process is killed, a restart finds:

- within `write`: the rows and positions from before the call, or from after it.
- within a bulk restore: the old position or none, and perhaps rows newer than it. Replaying the
  changelog from the old position is correct nevertheless. Rows are whole values, not increments;
  each newer row has its record, or a later record of the same key, after the old position. So the
  replay overwrites it and ends in the changelog's own state. Only a tombstone can be compacted
  away without a successor, and only after delete.retention.ms: a position older than that must not
  be replayed from, but dropped.
- within a bulk restore of a store without a position: rows, and still no position. The rows may
  be from another topic, or of keys whose tombstones were compacted away meanwhile, so they must
  not be used: `begin_restore` empties every store without a position.
- within `drop_store`: no position, as above, because the position is deleted first.

State survives the death of the process. A machine that loses power may lose the rows and positions
of its last seconds, in order and together: the changelog is replayed from the older position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

# Encoded rows by key, at most one entry per key; None deletes.
Delta: TypeAlias = Sequence[tuple[bytes, bytes | None]]


class RangeDelta(list[tuple[bytes, "bytes | None"]]):
    """Delta that first deletes the keys from `start` to `end`, which is exclusive."""

    __slots__ = ("end", "start")

    def __init__(
        self, start: bytes, end: bytes, rows: Iterable[tuple[bytes, bytes | None]] = ()
    ) -> None:
        super().__init__(rows)
        self.start = start
        self.end = end

    def __bool__(self) -> bool:
        return True


NO_COMMIT = -1


class LastRecord(NamedTuple):
    """The last changelog record that was applied to a store's rows.

    Args:
        offset: Its offset; less than the position's, which may follow control records.
        digest: Digest of its content and of the commit that wrote it.
    """

    offset: int
    digest: int


@dataclass(frozen=True, slots=True)
class Position:
    """Changelog position up to which a store's rows are complete.

    Args:
        topic_id: The changelog topic's id; "" for a store without a changelog.
        offset: The next changelog offset to apply.
        commit_id: The commit that wrote the rows; `NO_COMMIT` until a restore from the beginning is
            complete, because some rows are older than others until then.
        wall_ms: Wall-clock time of that commit in milliseconds.
        last: The last changelog record in the rows, by which a later restore detects that the
            changelog was replaced; None if unknown, as in files of older releases.
    """

    topic_id: str
    offset: int
    commit_id: int
    wall_ms: int
    last: LastRecord | None = None


class CommittedStore(Protocol):
    """Committed rows of a store, in unsigned byte order of their keys."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None if it has none."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None for each that has none."""

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with `start` <= key < `end` in key order.

        A scan shows the rows at the time of the call; later writes of the task may be missing.

        Args:
            start: First key, inclusive; None for the store's first.
            end: Last key, exclusive; None for beyond the store's last.
            reverse: Whether to yield from the last key to the first.
        """

    def approximate_count(self) -> int:
        """Return the approximate number of rows; overwritten and deleted rows may be counted."""

    def approximate_bytes(self) -> int:
        """Return the approximate size of the rows on disk or in memory."""


class TaskState(Protocol):
    """All stores of a task, with an atomic write of rows and positions."""

    def store(self, name: str) -> CommittedStore:
        """Return a store's committed rows; the object stays valid until `close`.

        Raises:
            UnknownStoreError: The task has no store of this name.
        """

    def write(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        """Apply all deltas and positions atomically.

        Args:
            positions: New positions by store name; other positions do not change.

        Raises:
            UnknownStoreError: The task has no store with one of the names; nothing is written.
            StoreCorruptedError: The local files are corrupt; restore the task's state.
            ValueError: A bulk restore is in progress.
        """

    def position(self, store_name: str) -> Position | None:
        """Return the position of a store, or None if its rows must not be used.

        Raises:
            UnknownStoreError: The task has no store of this name.
        """

    def begin_restore(self) -> None:
        """Start a bulk restore: empty the stores without a position, and reject `write`.

        A call during a bulk restore abandons that restore, as a crash would.
        """

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        """Apply changelog records in their order; they are durable only after `end_restore`.

        A key may occur several times in a delta here: its last entry counts.

        Raises:
            UnknownStoreError: The task has no store with one of the names.
            ValueError: No bulk restore is in progress.
        """

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        """Make the restored rows durable, then their positions, then allow `write` again.

        A long restore may call this and `begin_restore` repeatedly to persist its progress.

        Args:
            positions: New positions by store name; every restored store requires a position.

        Raises:
            ValueError: No bulk restore is in progress, or a restored store has no position.
        """

    def drop_store(self, name: str) -> None:
        """Empty a store and delete its position.

        Raises:
            UnknownStoreError: The task has no store of this name.
        """

    def close(self) -> None:
        """Release the files; an unfinished bulk restore remains as after a crash."""
