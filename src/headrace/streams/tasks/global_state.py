"""Local state of the global tables of a process: rows, and positions in their topics.

Each table has two stores, written in one batch: its rows, and the next offset of each partition. A
table is used only if both have a position of the same topic. A bulk load bypasses RocksDB's log, so
offsets are written only after the rows are durable. If the process is killed, records may be
applied again, which has no effect, but none is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from headrace.state.codec import decode_timestamped, encode_timestamped
from headrace.state.errors import StoreCorruptedError
from headrace.state.spec import StoreSpec
from headrace.state.store import CommittedStore, Delta, LastRecord, Position
from headrace.streams.errors import GlobalTableLostError
from headrace.streams.kafka.protocols import ReceivedMessage, TopicPartition
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.tasks.tasks import TaskHome
from headrace.topology.errors import about
from headrace.topology.processors.store import Store

# Rows of a global table: conversion of records, and lookup by tasks.


Row = tuple[bytes, "bytes | None"]
Entry = tuple[Any, int]

_MISSING: Entry = (None, -1)
_ENTRY_BYTES = 200
"""Memory of a dictionary entry besides its payload, in bytes."""


class GlobalRows:
    """Lookup of rows by key object (a `headrace.topology.context.context.TableView`).

    Only the worker's thread reads and writes, so the result of a lookup does not change while a
    batch of records is processed.

    Args:
        cache_bytes: approximate limit of the decoded rows in bytes; it holds until caches of
            several stores are limited together.
    """

    __slots__ = (
        "_cache",
        "_cache_bytes",
        "_decode",
        "_encode_key",
        "_immutable",
        "_loaded",
        "_loaded_bytes",
        "_plan",
        "_store",
        "is_broken",
    )

    def __init__(self, plan: GlobalPlan, cache_bytes: int) -> None:
        self._plan = plan
        self._encode_key = plan.key.serialize
        self._decode = plan.value.deserialize
        self._immutable = plan.value.immutable
        self._store: CommittedStore | None = None
        self._cache: dict[bytes, Entry] = {}
        self._cache_bytes = cache_bytes
        self._loaded = self._loaded_bytes = 0
        """Number and total size of the rows loaded since the cache was empty."""
        self.is_broken = False
        """Whether the local files are corrupted."""

    def use(self, store: CommittedStore) -> None:
        """Use the rows of a store for all following lookups."""
        self._store = store
        self._cache.clear()
        self._loaded = self._loaded_bytes = 0

    def get(self, key: Any, /) -> Entry:
        encoded = self._encode_key(key)
        return self._cache.get(encoded) or self._load(encoded)

    def rows(self, start: Any, end: Any, /) -> Iterator[tuple[Any, Any, int]]:
        """Yield key, value and timestamp of a key range, both ends inclusive; None is no bound."""
        assert self._store is not None, "before the rows were read"
        low = None if start is None else self._encode_key(start)
        # The first key after the end key, because the range is inclusive.
        high = None if end is None else self._encode_key(end) + b"\x00"
        decode_key = self._plan.key.deserialize
        try:
            for key, row in self._store.scan(low, high):
                timestamp, data = decode_timestamped(row)
                yield decode_key(key), self._decode(data), timestamp
        except StoreCorruptedError as error:
            raise self._broken(error) from error

    def evict(self, rows: Iterable[Row]) -> None:
        for key, _ in rows:
            self._cache.pop(key, None)

    def cached_bytes(self) -> int:
        return len(self._cache) * self._entry_bytes()

    def shrink_cache(self, limit_bytes: int) -> None:
        cache = self._cache
        surplus = len(cache) - limit_bytes // self._entry_bytes()
        if surplus > 0:
            for key in list(islice(cache, surplus)):
                del cache[key]

    def _entry_bytes(self) -> int:
        return self._loaded_bytes // self._loaded if self._loaded else _ENTRY_BYTES

    def _load(self, key: bytes) -> Entry:
        assert self._store is not None, "before the rows were read"
        try:
            row = self._store.get(key)
        except StoreCorruptedError as error:
            raise self._broken(error) from error
        entry = _MISSING
        if row is not None:
            timestamp, data = decode_timestamped(row)
            entry = (self._decode(data), timestamp)
        # A user function may modify a mutable value, so mutable values are not shared.
        if self._immutable or row is None:
            self._cache_entry(key, entry, _ENTRY_BYTES + len(key) + len(row or b""))
        return entry

    def _broken(self, error: StoreCorruptedError) -> GlobalTableLostError:
        self.is_broken = True
        return GlobalTableLostError(self._plan.store.name, str(error))

    def _cache_entry(self, key: bytes, entry: Entry, size: int) -> None:
        if size > self._cache_bytes:
            return
        self._cache[key] = entry
        self._loaded += 1
        self._loaded_bytes += size
        if self.cached_bytes() > self._cache_bytes:
            self.shrink_cache(self._cache_bytes * 7 // 8)


def row_of(plan: GlobalPlan, record: ReceivedMessage) -> Row | None:
    """Encode a record as a row with a canonical key; return None without a key.

    Decodes key and value, so that an error names the record and is not raised by a later lookup.
    """
    key, value = record.key(), record.value()
    if key is None:
        return None
    # The writer may have formatted JSON differently from the serde that is used for lookups.
    with about("key"):
        encoded = plan.key.serialize(plan.key.deserialize(key))
    with about("value"):
        if value is None or plan.value.deserialize(value) is None:
            return encoded, None
    return encoded, encode_timestamped(max(record.timestamp()[1], -1), value)


@dataclass(frozen=True, slots=True)
class TableProgress:
    """Positions of the rows of a table in its topic.

    Args:
        offsets: the next offset of each partition.
        wall_ms: when the rows were last known to be complete; later deletions may be missing.
        last: the last record of each partition that is in the rows, if known.
    """

    topic_id: str
    offsets: Mapping[TopicPartition, int]
    wall_ms: int
    last: Mapping[TopicPartition, LastRecord] = field(default_factory=dict)


def stores_of_tables(plans: Iterable[GlobalPlan]) -> list[Store]:
    return [
        Store(StoreSpec(name, kind=plan.store.kind, logged=False, cached=False))
        for plan in plans
        for name in _names(plan)
    ]


def _names(plan: GlobalPlan) -> tuple[str, str]:
    return f"r-{plan.store.name}", f"o-{plan.store.name}"


class GlobalState:
    """State of a process for all global tables."""

    def __init__(self, home: TaskHome) -> None:
        self._home = home

    def rows(self, plan: GlobalPlan) -> CommittedStore:
        return self._home.state.store(_names(plan)[0])

    def position(self, plan: GlobalPlan) -> Position | None:
        return self._home.state.position(_names(plan)[0])

    def progress(self, plan: GlobalPlan) -> TableProgress | None:
        """Return None if the rows are not usable."""
        rows, offsets = (self._home.state.position(name) for name in _names(plan))
        if rows is None or offsets is None or rows.topic_id != offsets.topic_id:
            return None
        tps, last = {}, {}
        for key, value in self._home.state.store(_names(plan)[1]).scan():
            tp = TopicPartition(plan.topic, int(key))
            # Older releases write the offset alone.
            tps[tp], *record = map(int, value.split())
            if record:
                last[tp] = LastRecord(*record)
        return TableProgress(rows.topic_id, tps, min(rows.wall_ms, offsets.wall_ms), last)

    def drop(self, plan: GlobalPlan) -> None:
        for name in _names(plan):
            self._home.state.drop_store(name)

    def write(self, plan: GlobalPlan, rows: Delta, progress: TableProgress) -> None:
        """Write rows, with unique keys, and their offsets atomically."""
        self._home.state.write(*_written(plan, rows, progress))

    def begin_load(self) -> None:
        """Start a bulk load of rows without offsets; empties new tables."""
        self._home.state.begin_restore()

    def load(self, plan: GlobalPlan, rows: Delta) -> None:
        """Write rows in the order of their records."""
        self._home.state.restore({_names(plan)[0]: rows})

    def end_load(self, progress: Sequence[tuple[GlobalPlan, TableProgress]]) -> None:
        """Make the loaded rows durable, and then write their offsets."""
        positions = {_names(plan)[0]: _position(reached) for plan, reached in progress}
        self._home.state.end_restore(positions)
        for plan, reached in progress:
            self.write(plan, [], reached)

    def close(self, *, wipe: bool = False) -> None:
        if wipe:
            self._home.wipe()
        self._home.close()


def _written(
    plan: GlobalPlan, rows: Delta, progress: TableProgress
) -> tuple[dict[str, Delta], dict[str, Position]]:
    row_store, offset_store = _names(plan)
    offsets = [
        (b"%d" % tp.partition, b" ".join(b"%d" % n for n in (at, *progress.last.get(tp, ()))))
        for tp, at in progress.offsets.items()
    ]
    position = _position(progress)
    return {row_store: rows, offset_store: offsets}, dict.fromkeys(_names(plan), position)


def _position(progress: TableProgress) -> Position:
    return Position(progress.topic_id, sum(progress.offsets.values()), 0, progress.wall_ms)
