"""Read-only access to the files of tasks on this host, while queries use them.

    query ─► open (about 10 ms) ─► update, at intervals of `UPDATE_EVERY_S` or more ─► idle ─► close

A task's files are read by one thread at a time, so that the rows and their position are consistent.
If a task's worker has re-created the files, they are opened again.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.state.directory import raise_open_files
from headrace.state.errors import StateError, UnknownStoreError
from headrace.state.rocks import RocksMemory
from headrace.state.secondary import RocksSecondary, global_files, held_locks, lock_of, task_files
from headrace.state.store import NO_COMMIT, CommittedStore, Position
from headrace.streams.queries.descriptors import KINDS, Kind
from headrace.streams.queries.errors import NotReadableError, UnfinishedError
from headrace.streams.queries.scan import TimeOrder

UPDATE_EVERY_S = 0.02
"""Minimum time between two updates in seconds, which adds to the age of the rows. It is longer if
updates are slow, so that queries take little CPU time from the workers."""
UPDATE_SHARE = 50
"""The time between updates as a multiple of an update's duration."""
UPDATE_ROWS_S = 0.1
"""Limit of the time between updates in seconds, because an update whose duration depends on the
number of new rows takes longer after a longer pause, and the next query waits for it."""
UPDATE_SHARE_MAX = 5
"""The limit is at least this multiple of an update's duration."""
UPDATE_EVERY_MAX_S = 1.0
LIST_EVERY_S = 0.25
"""Interval in seconds between checks which tasks have files on this host."""
IDLE_S = 60.0
"""Seconds for which files stay open after the last query; deleted files take space until then."""
_TRIES = 4
_CACHE_BYTES = 32 << 20
_WRITE_BUFFER_BYTES = 64 << 20


class ReplicaTracker:
    """Read-only view of the files of a task; `families` are the stores in them."""

    def __init__(
        self,
        path: Path,
        families: tuple[str, ...],
        *,
        memory: RocksMemory,
        monotonic_s: Callable[[], float],
    ) -> None:
        self.path = path
        self._families = families
        self._memory = memory
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._secondary: RocksSecondary | None = None
        self._updated_s = self._update_at_s = float("-inf")
        self._reached: dict[str, Position] = {}
        self._time_orders: dict[str, TimeOrder] = {}
        self._is_over = False
        self.used_s = monotonic_s()

    @contextmanager
    def read(
        self, family: str, kind: Kind, *, fresh: bool = False
    ) -> Iterator[tuple[CommittedStore, Position, float]]:
        """Read a store: its rows, its position, and the age of the view in seconds.

        `kind` is its kind in the application; `fresh` updates even a recent view. NotReadableError
        is raised if the rows cannot be read now.
        """
        with self._lock:
            self.used_s = self._monotonic_s()
            try:
                secondary = self._current(fresh=fresh)
                position = secondary.position(family)
                if position is None or secondary.is_restoring:
                    raise UnfinishedError("its rows are being restored from the changelog")
                if position.commit_id == NO_COMMIT:
                    raise UnfinishedError(
                        "a restore of its rows was interrupted, so some rows are old"
                    )
                _require_kind(kind, secondary.layout(family))
                self._require_reached(family, position)
                age_s = self._monotonic_s() - self._updated_s
                yield secondary.store(family), position, age_s
            except (StateError, UnknownStoreError) as error:
                self._close()
                raise NotReadableError(f"its files cannot be read: {error}") from error

    def time_order(self, family: str) -> TimeOrder:
        """Return the keys of a store by time, for `Scan.piece` during `read`."""
        return self._time_orders.setdefault(family, TimeOrder())

    def _require_reached(self, family: str, position: Position) -> None:
        """Raise if rows are older than rows read before, because they are being restored."""
        before = self._reached.get(family)
        if (
            before is not None
            and before.topic_id == position.topic_id
            and position.offset < before.offset
        ):
            self._update_at_s = float("-inf")
            raise NotReadableError("it has not caught up with an earlier answer. Retry later")
        self._reached[family] = position

    def _current(self, *, fresh: bool) -> RocksSecondary:
        if self._is_over:
            raise NotReadableError("it is moving away from this host. Retry")
        now_s = self._monotonic_s()
        if not fresh and now_s < self._update_at_s and self._secondary is not None:
            return self._secondary
        if self._secondary is not None and not self._update():
            self._close()
        if self._secondary is None:
            self._secondary = self._open_files()
        self._updated_s = now_s
        took_s = self._monotonic_s() - now_s
        pause_s = _pause_s(took_s)
        self._update_at_s = now_s + took_s + pause_s
        return self._secondary

    def _update(self) -> bool:
        try:
            return self._secondary is not None and self._secondary.follow()
        except StateError:  # it was replaced during the update
            return False

    def _open_files(self) -> RocksSecondary:
        for _ in range(_TRIES - 1):
            with suppress(StateError):  # it was replaced, or written to files
                return RocksSecondary(self.path, self._families, memory=self._memory)
        return RocksSecondary(self.path, self._families, memory=self._memory)

    def close(self) -> None:
        with self._lock:
            self._is_over = True
            self._close()

    def _close(self) -> None:
        secondary, self._secondary = self._secondary, None
        if secondary is not None:
            secondary.close()


def _pause_s(took_s: float) -> float:
    """Return the minimum time until the next update, from the duration of the last update.

    >>> [round(_pause_s(took_s), 3) for took_s in (0.0001, 0.001, 0.01, 0.1, 1.0)]
    [0.02, 0.05, 0.1, 0.5, 1.0]
    """
    longest_s = max(UPDATE_ROWS_S, UPDATE_SHARE_MAX * took_s)
    return min(max(UPDATE_EVERY_S, min(UPDATE_SHARE * took_s, longest_s)), UPDATE_EVERY_MAX_S)


def _return_freed_memory() -> None:
    """Return freed memory to the operating system, if the C library is glibc.

    Each thread that opens files allocates from an arena of its own, which glibc does not shrink if
    the memory at its end is in use. A server of 20 threads kept 450 MB in this way after an hour.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _require_kind(kind: Kind, layout: str | None) -> None:
    """Raise if the files contain another kind of store, whose rows would be misread."""
    if layout is not None and KINDS.get(layout, layout) != kind:
        raise NotReadableError(
            f"its files contain a {KINDS.get(layout, layout)} store, and the given application has "
            f"it as a {kind} store. Give the application that has written them"
        )


class ReplicaTrackers:
    """Tasks and global tables of an application below ``<state.dir>/<application.id>``."""

    def __init__(self, base: Path, *, monotonic_s: Callable[[], float]) -> None:
        self.base = base
        self._monotonic_s = monotonic_s
        self._memory: RocksMemory | None = None
        self._lock = threading.Lock()
        self._open: dict[Path, ReplicaTracker] = {}
        self._files: dict[str, Path] = {}
        self._listed_s = float("-inf")
        self._held: tuple[float, frozenset[Path]] = (float("-inf"), frozenset())
        self._sweeper: threading.Timer | None = None
        self._is_closed = False

    def of_tasks(self, sub_topology: int, families: tuple[str, ...]) -> dict[int, ReplicaTracker]:
        """Return the tasks that have files on this host, by partition."""
        begin = f"{sub_topology}_"
        with self._lock:
            now_s = self._monotonic_s()
            # If nothing was found before, check immediately: a worker may have started since.
            known = any(task.startswith(begin) for task in self._files)
            if not known or now_s - self._listed_s >= LIST_EVERY_S:
                self._files, self._listed_s = task_files(self.base), now_s
                self._drop_others()
            here = {
                int(task.removeprefix(begin)): path
                for task, path in self._files.items()
                if task.startswith(begin)
            }
            return {n: self._replica(path, families) for n, path in sorted(here.items())}

    def of_tables(self, families: tuple[str, ...]) -> list[ReplicaTracker]:
        """Return the tables of all workers that have had files on this host."""
        with self._lock:
            return [self._replica(path, families) for path in global_files(self.base)]

    def is_left(self, replica: ReplicaTracker) -> bool:
        """Return whether workers run on this host, but none of them holds the files."""
        held = self._held_locks()
        return bool(held) and lock_of(replica.path) not in held

    def is_held(self, replica: ReplicaTracker) -> bool:
        return lock_of(replica.path) in self._held_locks()

    def are_at_work(self) -> bool:
        return bool(self._held_locks())

    def _held_locks(self) -> frozenset[Path]:
        now_s = self._monotonic_s()
        if now_s - self._held[0] >= LIST_EVERY_S:
            self._held = now_s, held_locks(self.base)
        return self._held[1]

    def _replica(self, path: Path, families: tuple[str, ...]) -> ReplicaTracker:
        replica = self._open.get(path)
        if replica is None:
            if self._memory is None:
                raise_open_files()
                self._memory = RocksMemory(
                    block_cache_bytes=_CACHE_BYTES, write_buffer_bytes=_WRITE_BUFFER_BYTES
                )
            replica = self._open[path] = ReplicaTracker(
                path, families, memory=self._memory, monotonic_s=self._monotonic_s
            )
            self._sweep_later()
        return replica

    def _drop_others(self) -> None:
        """Close tasks that have left this host, and directories that were replaced."""
        for path in self._open.keys() - set(self._files.values()):
            if path.parent.parent.name == "tasks":
                self._open.pop(path).close()

    def _sweep_later(self) -> None:
        if self._sweeper is None and not self._is_closed:
            self._sweeper = threading.Timer(IDLE_S / 2, self._sweep)
            self._sweeper.daemon = True
            self._sweeper.start()

    def _sweep(self) -> None:
        with self._lock:
            self._sweeper = None
            now_s = self._monotonic_s()
            for path, replica in list(self._open.items()):
                if now_s - replica.used_s > IDLE_S:
                    self._open.pop(path).close()
            if self._open:
                self._sweep_later()
        _return_freed_memory()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._sweeper is not None:
                self._sweeper.cancel()
            for replica in self._open.values():
                replica.close()
            self._open.clear()
