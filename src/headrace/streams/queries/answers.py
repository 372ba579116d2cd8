"""What queries give: rows, and from where they are. Times are milliseconds since 1970."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Generic[K, V]):
    """A committed row.

    Args:
        key: of a window or session store a `Windowed`.
        timestamp: that of the record which the value comes from; of a version, since when it holds.
        partition: of the task that keeps it; None in a global table.
    """

    key: K
    value: V
    timestamp: int
    partition: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One partition of a store on this host, and how far its rows are.

    Args:
        partition: of the task that keeps it; None for a global table.
        offset: of the changelog, or of the topic that takes its place: what is before is in the
            rows. 0 for a store without a changelog.
        max_offset: no row has a change at this offset or a later one. It is above `offset` if the
            rows were read at several moments, with commits between them.
        commit_id: of the task's last commit.
        committed_ms: when the store was written last.
        age_ms: for how long a change may be missing here. Where no worker of this host has the
            task, or nobody told, that is the time since the last commit.
        state: of the task here: "running", "restoring" or "waiting"; None where no worker of this
            host has it, or nobody told.
        inputs: up to where the task's inputs are committed, as the worker told last.
        host: where that is, as other hosts reach it; None where the setting application.server does
            not say.
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
class Page(Generic[K, V]):
    """Some rows of a range.

    Args:
        after: to be given for the next page; None where this is the last.
        cursors: to be given to go on behind each of the rows.
        places: where the rows are from.
    """

    rows: tuple[Row[K, V], ...]
    after: str | None
    places: tuple[Place, ...]
    cursors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Generic[K, V]):
    """What a key has.

    Args:
        row: None where there is none.
        places: where it is from, or all that were looked at.
    """

    row: Row[K, V] | None
    places: tuple[Place, ...]
