"""The rows of one global table: how records become rows, and how tasks look rows up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from headrace.state.codec import decode_timestamped, encode_timestamped
from headrace.state.errors import StoreCorruptedError
from headrace.state.store import CommittedStore
from headrace.streams.errors import GlobalTableLostError
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.seams.clients import ReceivedMessage
from headrace.topology.errors import about

Row = tuple[bytes, "bytes | None"]
Entry = tuple[Any, int]

_MISSING: Entry = (None, -1)
_ENTRY_BYTES = 200
"""What a key, a value and their tuple cost in a dictionary besides their payload."""


class GlobalRows:
    """Looks rows up by their key objects (a `headrace.topology.context.context.TableView`).

    The worker's thread alone reads and writes, so what a look-up finds does not change while a
    batch of records is processed.

    Args:
        cache_bytes: how much of the rows to keep decoded, roughly, however many are looked up
            before somebody bounds them together with those of other stores.
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
        """How many rows came into the cache since it was empty, and their size together."""
        self.is_broken = False
        """Whether the local files turned out to be broken."""

    def show(self, store: CommittedStore) -> None:
        """Show the rows of a store from now on."""
        self._store = store
        self._cache.clear()
        self._loaded = self._loaded_bytes = 0

    def get(self, key: Any, /) -> Entry:
        """The value and timestamp of a key, or (None, -1).

        Raises:
            GlobalTableLostError: the local files are broken.
        """
        encoded = self._encode_key(key)
        return self._cache.get(encoded) or self._load(encoded)

    def rows(self, start: Any, end: Any, /) -> Iterator[tuple[Any, Any, int]]:
        """Key, value and timestamp from one key to another, both inclusive; None is no bound.

        Raises:
            GlobalTableLostError: the local files are broken.
        """
        assert self._store is not None, "before the rows were read"
        low = None if start is None else self._encode_key(start)
        # The first key behind the last one.
        high = None if end is None else self._encode_key(end) + b"\x00"
        decode_key = self._plan.key.deserialize
        try:
            for key, row in self._store.scan(low, high):
                timestamp, data = decode_timestamped(row)
                yield decode_key(key), self._decode(data), timestamp
        except StoreCorruptedError as error:
            raise self._broken(error) from error

    def forget(self, rows: Iterable[Row]) -> None:
        """Look these rows up in the store again, as they have changed there."""
        for key, _ in rows:
            self._cache.pop(key, None)

    def cached_bytes(self) -> int:
        """Estimate the memory of the rows that are decoded."""
        return len(self._cache) * self._entry_bytes()

    def shrink_cache(self, limit_bytes: int) -> None:
        """Let go of the rows that have been decoded for longest, until the others fit."""
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
        # A user function may change in place what it is given, so only its own copy of that.
        if self._immutable or row is None:
            self._remember(key, entry, _ENTRY_BYTES + len(key) + len(row or b""))
        return entry

    def _broken(self, error: StoreCorruptedError) -> GlobalTableLostError:
        self.is_broken = True
        return GlobalTableLostError(self._plan.store.name, str(error))

    def _remember(self, key: bytes, entry: Entry, size: int) -> None:
        if size > self._cache_bytes:
            return
        self._cache[key] = entry
        self._loaded += 1
        self._loaded_bytes += size
        if self.cached_bytes() > self._cache_bytes:
            self.shrink_cache(self._cache_bytes * 7 // 8)


def row_of(plan: GlobalPlan, record: ReceivedMessage) -> Row | None:
    """Make a row of a record, after the key's canonical bytes; None without a key.

    Everything is decoded, so that bytes which cannot be are found with their place, and not by a
    stream that happens to look the row up.

    Raises:
        Exception: a serde refuses key or value.
    """
    key, value = record.key(), record.value()
    if key is None:
        return None
    # Whoever wrote it may have spaced JSON otherwise than the serde that looks it up does.
    with about("key"):
        encoded = plan.key.serialize(plan.key.deserialize(key))
    with about("value"):
        if value is None or plan.value.deserialize(value) is None:
            return encoded, None
    return encoded, encode_timestamped(max(record.timestamp()[1], -1), value)
