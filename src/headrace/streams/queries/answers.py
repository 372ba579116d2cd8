"""Results of queries: rows and their partitions. Times are milliseconds since 1970."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRow(Generic[K, V]):
    """Committed row of a store.

    Args:
        key: the key; a `Windowed` in a window or session store.
        timestamp: the timestamp of the record that the value comes from; in a versioned store the
            time from which the version is valid.
        partition: the partition of the task that owns the row; None in a global table.
    """

    key: K
    value: V
    timestamp: int
    partition: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPosition:
    """Partition of a store on this host, with the position of its rows.

    Args:
        partition: the partition of the task that owns the store; None for a global table.
        offset: offset of the changelog, or of the source topic that replaces it: the rows contain
            all changes before it. 0 for a store without a changelog.
        max_offset: no row contains a change at this offset or a later offset. It is larger than
            `offset` if the rows were read in several steps, with commits between them.
        commit_id: the id of the task's last commit.
        committed_ms: the time of the last write to the store.
        age_ms: the time for which changes may be missing. If no worker of this host has the task,
            or no worker reports, it is the time since the last commit.
        state: the state of the task on this host: "running", "restoring" or "waiting"; None if no
            worker of this host has it, or no worker reports.
        inputs: the committed offsets of the task's inputs, as last reported by the worker.
        host: the address of this host for other hosts; None without the setting application.server.
    """

    partition: int | None
    offset: int
    commit_id: int
    committed_ms: int
    age_ms: int
    state: str | None
    inputs: Mapping[str, int]
    host: str | None = None
    max_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPage(Generic[K, V]):
    """Page of the rows of a range.

    Args:
        after: the cursor of the next page; None on the last page.
        cursors: the cursor after each row, to continue from that row.
        positions: the partitions that the rows were read from.
    """

    rows: tuple[StoreRow[K, V], ...]
    after: str | None
    positions: tuple[PartitionPosition, ...]
    cursors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyResult(Generic[K, V]):
    """Result of a query for a key.

    Args:
        row: the row of the key, or None.
        positions: the partition of the row, or all partitions that were searched.
    """

    row: StoreRow[K, V] | None
    positions: tuple[PartitionPosition, ...]
