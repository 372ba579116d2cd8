"""Where the rows of one store are on this host, and how far they are."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.state.codec import partition_for_key
from headrace.state.store import CommittedStore, Position
from headrace.streams.queries.ages import AgeLimit
from headrace.streams.queries.answers import Place
from headrace.streams.queries.errors import NotReadableError, StoreInMemoryError, TooOldError
from headrace.streams.queries.followers import Follower, Followers
from headrace.streams.queries.kept import KeptStore
from headrace.streams.queries.partitions import likely_count
from headrace.streams.queries.told import Told
from headrace.streams.queries.walk import Cursor, Scan, Step

_NO_PARTITION = -1
"""Stands for the partition of a global table, which has all."""


@dataclass(frozen=True, slots=True)
class Part:
    """One partition of a store, as far as it is known here."""

    partition: int
    follower: Follower | None
    told: Told | None

    @property
    def shown_partition(self) -> int | None:
        """The partition for others; a global table has none."""
        return None if self.partition == _NO_PARTITION else self.partition


@dataclass(frozen=True, slots=True)
class Source:
    """See the module.

    Args:
        told: the tasks of this host by their ids; empty where nobody tells.
        now_ms: the wall clock.
        host: where this is, as other hosts reach it.
        only: the partitions that are meant; None for all that are here.
        partitions: how many the store has, where that is known.
        age: how old rows may be; None leaves that to whoever asks.
    """

    store: KeptStore
    followers: Followers
    told: Callable[[], Mapping[str, Told]]
    now_ms: Callable[[], int]
    host: str | None = None
    only: frozenset[int] | None = None
    partitions: int | None = None
    age: AgeLimit | None = None
    places: dict[int, Place] = field(default_factory=dict, init=False)
    """Where what was read was from, by partition."""

    def parts(self, first: bytes | None = None) -> list[Part]:
        """The partitions that are here.

        Args:
            first: have that in front which this key is likely to be in.

        Raises:
            QueryError: none is, or the rows are in memory alone.
        """
        if self.store.in_memory:
            raise StoreInMemoryError(
                f"store {self.store.name!r} is kept in the memory of the workers, where it cannot "
                'be read from outside; keep it in RocksDB (kind="rocksdb") to ask for it'
            )
        if self.store.is_global:
            return [self._newest_table()]
        sub = self.store.sub_topology
        assert sub is not None, self.store.name
        here = self.followers.of_tasks(sub, self.store.together)
        told = {
            one.task.partition: one for one in self.told().values() if one.task.sub_topology == sub
        }
        wanted = {*here, *told} if self.only is None else self.only
        found = [Part(n, here.get(n), told.get(n)) for n in sorted(wanted)]
        if not found:
            raise NotReadableError(
                f"this host has no rows of store {self.store.name!r}: no worker has begun here "
                f"with a task that keeps it, below {self.followers.base}"
            )
        if first is not None and len(found) > 1:
            guess = partition_for_key(first, self._spread(found))
            found.sort(key=lambda part: part.partition != guess)
        return found

    def _spread(self, parts: Sequence[Part]) -> int:
        return likely_count((part.partition for part in parts), self.partitions)

    def _newest_table(self) -> Part:
        newest: tuple[int, Part] | None = None
        for follower in self.followers.of_tables(self.store.together):
            try:
                with follower.read(self.store.family) as (_, position, _):
                    if newest is None or position.wall_ms > newest[0]:
                        newest = position.wall_ms, Part(_NO_PARTITION, follower, None)
            except NotReadableError:
                continue
        if newest is None:
            raise NotReadableError(
                f"this host has no rows of the global table {self.store.name!r} yet; ask again "
                "later"
            )
        return newest[1]

    @contextmanager
    def read(
        self, part: Part, *, fresh: bool = False, any_age: bool = False
    ) -> Iterator[tuple[CommittedStore, Place]]:
        """Read a partition: its rows as they are on disk, and how far they are.

        Raises:
            NotReadableError: it cannot be read now.
            TooOldError: it is older than it may be.
        """
        try:
            if part.follower is None:
                raise NotReadableError("its worker has not begun with it; ask again later")
            with part.follower.read(self.store.family, fresh=fresh) as (rows, position, age_s):
                place = self._place(part, position, age_s)
                if self.age is not None and not any_age:
                    follower = part.follower
                    self.age.require(
                        self.store.name, place, lambda: self.followers.is_left(follower)
                    )
                # Of a range that takes several looks the first: all rows follow as far as that.
                self.places.setdefault(part.partition, place)
                yield rows, place
        except TooOldError:
            raise
        except NotReadableError as error:
            remaining = None if part.told is None else part.told.remaining
            more = f", {remaining:,} records of changelogs are left" if remaining else ""
            task = f"{self.store.sub_topology}_{part.partition}"
            raise NotReadableError(
                f"task {task} of store {self.store.name!r} cannot be read now{more}: {error}",
                remaining=remaining,
            ) from error

    def _place(self, part: Part, position: Position, age_s: float) -> Place:
        told = part.told
        state = None if told is None else told.task.state
        age_ms = max(0, self.now_ms() - position.wall_ms)
        if told is not None and state == "running":
            age_ms = round(1000 * max(age_s, told.age_s))
        return Place(
            partition=part.shown_partition,
            offset=position.offset,
            commit_id=position.commit_id,
            committed_ms=position.wall_ms,
            age_ms=age_ms,
            state=state,
            inputs={} if told is None else told.inputs,
            host=self.host,
        )

    def walk(self, scan: Scan, cursor: Cursor | None = None) -> Iterator[Step]:
        """Go through the rows of all partitions in one order; see `headrace.streams.queries.walk`.

        Raises:
            NotReadableError: a partition cannot be read now.
        """
        walks = [
            self._walk_part(part, scan if cursor is None else scan.behind(cursor, part.partition))
            for part in self.parts()
        ]
        if len(walks) == 1:
            return walks[0]
        return heapq.merge(*walks, reverse=scan.reverse)

    def _walk_part(self, part: Part, scan: Scan) -> Iterator[Step]:
        for _, steps, _ in self.pieces(part, scan):
            yield from steps

    def pieces(self, part: Part, scan: Scan) -> Iterator[tuple[Place, list[Step], bytes | None]]:
        """The rows of a partition, some at a time.

        Returns:
            Where the rows of a piece are from, the rows, and its last key; None for the last piece.
        """
        left: Scan | None = scan
        while left is not None:
            with self.read(part) as (rows, place):
                steps, last = left.piece(self._view(rows), part.partition)
            yield place, steps, last
            left = None if last is None else left.after(last)

    def _view(self, rows: CommittedStore) -> CommittedStore:
        return self.store.layout.view(rows)

    def shown_places(self) -> tuple[Place, ...]:
        """Where everything was from that was read through this."""
        return tuple(place for _, place in sorted(self.places.items()))

    def get(self, key: bytes) -> tuple[int, bytes] | None:
        """The row of a key and its partition, wherever it is here.

        Raises:
            NotReadableError: it is in none that can be read, and not all can be.
        """
        return self.first(key, lambda rows: self._view(rows).get(key))

    def first(
        self, key: bytes, read: Callable[[CommittedStore], bytes | None]
    ) -> tuple[int, bytes] | None:
        """What is found of a key in the first partition that has something."""
        unread: NotReadableError | None = None
        for part in self.parts(key):
            try:
                with self.read(part) as (rows, place):
                    found = read(rows)
            except NotReadableError as error:
                unread = unread or error
                continue
            if found is not None:
                self.places.clear()
                self.places[part.partition] = place
                return part.partition, found
        if unread is not None:
            raise unread
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[tuple[int, bytes] | None]:
        """The rows of keys and their partitions, in the order of the keys."""
        found: list[tuple[int, bytes] | None] = [None] * len(keys)
        parts = self.parts()
        spread = self._spread(parts)
        likely: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            likely.setdefault(partition_for_key(key, spread), []).append(index)
        unread: NotReadableError | None = None
        for is_first in (True, False):
            for part in parts:
                if is_first:
                    wanted = likely.get(part.partition, [])
                else:
                    looked = set(likely.get(part.partition, ()))
                    wanted = [i for i, row in enumerate(found) if row is None and i not in looked]
                if not wanted:
                    continue
                try:
                    with self.read(part) as (rows, _):
                        held = self._view(rows).get_many([keys[index] for index in wanted])
                except NotReadableError as error:
                    unread = unread or error
                    continue
                for index, row in zip(wanted, held, strict=True):
                    if row is not None:
                        found[index] = part.partition, row
        if unread is not None and None in found:
            raise unread
        return found
