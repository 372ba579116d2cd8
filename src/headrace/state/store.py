"""The seams of the state package: a store's committed rows, and a task's state as a whole.

Who owns what: a task's worker thread alone writes a `TaskState`. Rows and positions change in
three ways only, `write` (the commit), a bulk restore, and `drop_store`. Positions and rows
never part: whatever moves a position has made the rows under it durable first, or does both
in one atomic batch.

A restart finds, whatever moment the process was killed at:

- within `write`: the rows and positions from before it, or those from after it.
- within a bulk restore: the old position, or none, and perhaps rows newer than it. Replaying
  the changelog from the old position is right nevertheless: rows are whole values, not
  increments; each newer row has its record, or a later one of the same key, after the old
  position; so the replay overwrites it and ends in the changelog's own state. The one record
  that compaction takes away without a successor is a tombstone, and only after
  delete.retention.ms: a position older than that is not to be replayed from, but dropped.
- within a bulk restore of a store that had no position: rows, and still no position. They
  may be of another topic, or of keys whose tombstones have gone meanwhile, so nothing may be
  built on them: `begin_restore` empties every store without a position.
- within `drop_store`: the position goes first. What is left has no position, as above.

Surviving the process is enough. A machine that loses power may lose the rows and positions of
its last seconds, in order and together: the changelog replays from the older position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

# Encoded rows by key, at most one entry per key; None deletes.
Delta: TypeAlias = Sequence[tuple[bytes, bytes | None]]

NO_COMMIT = -1


class LastRecord(NamedTuple):
    """The last changelog record that is in a store's rows.

    Args:
        offset: Its offset; below that of the position, which may follow control records.
        digest: Of what it says, and of the commit that wrote it.
    """

    offset: int
    digest: int


@dataclass(frozen=True, slots=True)
class Position:
    """How far a store's rows follow its changelog.

    Args:
        topic_id: The changelog topic's id; "" for a store without a changelog.
        offset: The next changelog offset to apply.
        commit_id: The commit that wrote the rows; `NO_COMMIT` while a restore from the beginning
            has not come to its end, so that some rows are older than the others.
        wall_ms: Wall-clock time of that commit in milliseconds.
        last: The last changelog record in the rows, by which a later reader finds out whether the
            changelog is still the one that they follow; None if it is not known, as in files of
            older releases.
    """

    topic_id: str
    offset: int
    commit_id: int
    wall_ms: int
    last: LastRecord | None = None


class CommittedStore(Protocol):
    """The committed rows of one store, in unsigned byte order of their keys."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None when it has none."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None for each that has none."""
        ...

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with `start` <= key < `end` in key order.

        A scan shows the rows of the moment it began; the task's own later writes may be
        missing from it.

        Args:
            start: First key, inclusive; None for the store's first.
            end: Last key, exclusive; None for beyond the store's last.
            reverse: Whether to yield from the last key to the first.
        """
        ...

    def approximate_count(self) -> int:
        """Return the number of rows, roughly; overwritten and deleted rows may be counted."""
        ...

    def approximate_bytes(self) -> int:
        """Return what the rows take on disk or in memory, roughly."""
        ...


class TaskState(Protocol):
    """All stores of one task, with one atomic write over them and their positions."""

    def store(self, name: str) -> CommittedStore:
        """Return a store's committed rows; the handle stays valid until `close`.

        Raises:
            UnknownStoreError: The task has no store of this name.
        """
        ...

    def write(self, deltas: Mapping[str, Delta], positions: Mapping[str, Position]) -> None:
        """Apply all deltas and positions, together or not at all.

        Args:
            positions: New positions by store name; others stay as they are.

        Raises:
            UnknownStoreError: The task has no store of one of the names; nothing is written.
            StoreCorruptedError: The local files are broken; rebuild the task's state.
            ValueError: A bulk restore is under way.
        """
        ...

    def position(self, store_name: str) -> Position | None:
        """Return the position of a store, or None when its rows may not be built upon.

        Raises:
            UnknownStoreError: The task has no store of this name.
        """
        ...

    def begin_restore(self) -> None:
        """Start a bulk restore: stores without a position are emptied, `write` is refused.

        Done while one is under way, it gives that one up, as a crash would.
        """
        ...

    def restore(self, deltas: Mapping[str, Delta]) -> None:
        """Apply changelog records in their order; durable only after `end_restore`.

        A key may occur several times in one delta here: the last one counts.

        Raises:
            UnknownStoreError: The task has no store of one of the names.
            ValueError: No bulk restore is under way.
        """
        ...

    def end_restore(self, positions: Mapping[str, Position]) -> None:
        """Make the restored rows durable, then their positions, then allow `write` again.

        A long restore may do this now and then to keep its progress, and begin again.

        Args:
            positions: New positions by store name; every store restored into has one.

        Raises:
            ValueError: No bulk restore is under way, or a restored store has no position.
        """
        ...

    def drop_store(self, name: str) -> None:
        """Empty one store and forget its position.

        Raises:
            UnknownStoreError: The task has no store of this name.
        """
        ...

    def close(self) -> None:
        """Release the files; an unfinished bulk restore is left as a crash would leave it."""
        ...
