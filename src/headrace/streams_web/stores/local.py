"""Queries of stores on this host, answered from its files.

A query reads at most `PAGE_MAX` rows, so that any range takes little memory; longer results come
in pages.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from headrace.streams.metrics.snapshots import to_plain
from headrace.streams.queries.answers import PartitionPosition, RowPage
from headrace.streams.queries.descriptors import StoreDescriptor
from headrace.streams.queries.errors import (
    NotHereError,
    NotReadableError,
    StoreInMemoryError,
    TooOldError,
    WrongQueryError,
)
from headrace.streams.queries.parsing import (
    MinPosition,
    key_of_document,
    row_document,
    scan_of,
    time_of,
)
from headrace.streams.queries.queries import Queries
from headrace.streams.queries.readers import (
    LAST_MS,
    KeyValueReader,
    SessionReader,
    StoreReader,
    VersionedReader,
    WindowReader,
)
from headrace.streams.queries.scan import Scan
from headrace.streams_web.stores.store_query import StoreQuery

WAITING_MAX = 16
"""Maximum number of waiting queries: each takes a thread from the pool of all queries."""
SURE_S = 0.25
"""Maximum age of the group's state if it assigns a task to this host that no worker here reports:
the task restarts here, or has just left."""

Answer = tuple[dict[str, Any], int]
"""Body and status code of a response."""


class LocalStores:
    """Stores of this host, read from its files. Thread-safe."""

    def __init__(self) -> None:
        self._waiting = threading.Semaphore(WAITING_MAX)
        self._counting = threading.Semaphore()
        self._ended = threading.Event()

    def stores(self, queries: Queries, _: StoreQuery) -> Answer:
        return {"stores": [described(queries, name) for name in sorted(queries.stores)]}, 200

    def store(self, queries: Queries, query: StoreQuery) -> Answer:
        reader = self._reader(queries, query)
        found = described(queries, reader.name)
        with suppress(StoreInMemoryError):  # no running worker has it
            found["positions"] = _positions(reader.positions())
        return found, 200

    def of_key(self, queries: Queries, query: StoreQuery) -> Answer:
        reader = self._reader(queries, query)
        key = query.read_key(query.key, reader.key_serde, reader.name)
        as_of = query.text("as_of")
        if isinstance(reader, WindowReader | SessionReader):
            if as_of is not None:
                raise _without_versions(reader)
            begin, end = query.time("from", 0), query.time("to", LAST_MS)
            return self._rows(reader, reader.of_key(key, begin, end), query)
        query.require_single_row()
        if isinstance(reader, VersionedReader) and as_of is not None:
            found = reader.find_as_of(key, time_of(as_of, "as_of"), is_encoded=True)
        elif as_of is not None:
            raise _without_versions(reader)
        else:
            assert isinstance(reader, KeyValueReader)
            found = reader.find(key, is_encoded=True)
        query.require_age(found.positions)
        positions = {"positions": _positions(found.positions)}
        if found.row is None:
            return {"error": f"store {reader.name!r} has no row of this key", **positions}, 404
        return {**row_document(found.row), **positions}, 200

    def of_keys(self, queries: Queries, query: StoreQuery) -> Answer:
        reader = self._reader(queries, query)
        keys = keys_of(reader, query.keys())
        assert isinstance(reader, KeyValueReader)
        rows, positions = reader.find_many(keys)
        query.require_age(positions)
        found = [None if row is None else row_document(row) for row in rows]
        return {"rows": found, "positions": _positions(positions)}, 200

    def between(self, queries: Queries, query: StoreQuery) -> Answer:
        reader = self._reader(queries, query)
        if query.flag("piece"):
            return self._piece(reader, query)
        begin, end = query.text("from"), query.text("to")
        reverse, read = query.flag("reverse"), query.read_key
        scan = scan_of(reader, begin=begin, end=end, reverse=reverse, read=read)
        return self._rows(reader, scan, query)

    def beginning(self, queries: Queries, query: StoreQuery) -> Answer:
        reader = self._reader(queries, query)
        prefix = query.text("prefix")
        if prefix is None:
            raise WrongQueryError("the prefix is missing. Give it as ?prefix=")
        scan = scan_of(
            reader,
            begin=query.text("from"),
            end=query.text("to"),
            prefix=prefix,
            reverse=query.flag("reverse"),
            read=query.read_key,
        )
        return self._rows(reader, scan, query)

    def count(self, queries: Queries, query: StoreQuery) -> Answer:
        reader = self._reader(queries, query)
        is_exact = query.flag("exact")
        with slot(self._counting, "another exact count is running") if is_exact else nullcontext():
            count, positions = reader.counted(exact=is_exact)
        query.require_age(positions)
        return {"count": count, "exact": is_exact, "positions": _positions(positions)}, 200

    def _piece(self, reader: StoreReader[Any, Any], query: StoreQuery) -> Answer:
        """Return a page of a partition's rows as of an offset, for a feed on another host."""
        of = query.text("piece_of")
        if query.only is None or len(query.only) != 1:
            raise WrongQueryError("piece requires a single partition. Give it as partitions=")
        try:
            scan = Scan() if of is None else reader.of_one(bytes.fromhex(of))
        except ValueError as error:
            raise WrongQueryError("piece_of must be the bytes of a key in hexadecimal") from error
        piece, after = reader.next_piece(scan, query.text("after"))
        rows = [row_document(row) for row in piece.rows]
        return {"rows": rows, "after": after, "offset": piece.offset}, 200

    def _rows(self, reader: StoreReader[Any, Any], scan: Scan, query: StoreQuery) -> Answer:
        is_part = query.only is not None  # another host merges the parts
        page: RowPage[Any, Any] = reader.page(
            scan, limit=query.limit(), after=query.text("after"), with_cursors=is_part
        )
        query.require_age(page.positions)
        rows = [row_document(row) for row in page.rows]
        for row, cursor in zip(rows, page.cursors, strict=False):
            row["after"] = cursor
        return {"rows": rows, "after": page.after, "positions": _positions(page.positions)}, 200

    def _reader(self, queries: Queries, query: StoreQuery) -> StoreReader[Any, Any]:
        """Wait until the store has reached the requested positions."""
        only = query.only
        reader = queries.reader(query.name, only=only, partitions=query.partitions)
        if only is not None and queries.host is not None and not query.flag("left"):
            _require_here(queries, reader.store, only)
        require_read(queries, query, query.partitions)
        for wanted in query.min_positions():
            self._wait(queries, query, wanted)
        return reader

    def _wait(self, queries: Queries, query: StoreQuery, wanted: MinPosition) -> None:
        def wait(timeout_s: float, *, fresh: bool) -> None:
            queries.wait(
                query.name,
                wanted.is_reached,
                partition=wanted.partition,
                timeout_s=timeout_s,
                fresh=fresh,
                is_earlier=query.is_earlier,
                ended=self._ended,
            )

        try:
            wait(0.0, fresh=wanted.topic is not None)
        except TooOldError:
            with slot(self._waiting, f"{WAITING_MAX} queries wait for positions already"):
                wait(query.wait_s(), fresh=True)

    def close(self) -> None:
        self._ended.set()


def require_read(queries: Queries, query: StoreQuery, partitions: int | None) -> None:
    """Raise WrongQueryError if the store can never reach a requested position."""
    for one in query.all_positions():
        queries.require_read(query.name, one.topic, one.partition, partitions)


def _require_here(queries: Queries, store: StoreDescriptor, only: frozenset[int]) -> None:
    """Raise NotHereError if neither a worker nor the group has the tasks on this host."""
    for partition in sorted(only - queries.reports_of(store).keys()):
        group = queries.locator.description(at_most_s=SURE_S)
        owner = group.host_of(store, partition)
        if owner is None or owner != queries.host:
            raise NotHereError(
                f"partition {partition} of store {store.name!r} is not on host {queries.host}, but "
                f"{'unassigned' if owner is None else f'on {owner}'}. Retry",
                partition=partition,
                host=owner,
            )


def _without_versions(reader: StoreReader[Any, Any]) -> WrongQueryError:
    return WrongQueryError(f"store {reader.name!r} has no versions. Leave out as_of")


def keys_of(reader: StoreReader[Any, Any], documents: list[Any]) -> list[bytes]:
    if not isinstance(reader, KeyValueReader):
        raise WrongQueryError(
            f"store {reader.name!r} has windows. Query them key by key, with from= and to="
        )
    return [key_of_document(one, reader.key_serde, reader.name) for one in documents]


@contextmanager
def slot(slots: threading.Semaphore, taken: str) -> Iterator[None]:
    """Take a slot of a semaphore, so that slow queries cannot occupy all threads."""
    if not slots.acquire(blocking=False):
        raise NotReadableError(f"{taken}. Retry later")
    try:
        yield
    finally:
        slots.release()


def described(queries: Queries, name: str) -> dict[str, Any]:
    store = queries.stores[name]
    return {
        "name": name,
        "kind": store.kind,
        "global": store.is_global,
        "in_memory": store.in_memory,
        "key": store.key_name,
        "value": store.value.name,
    }


def _positions(positions: tuple[PartitionPosition, ...]) -> Any:
    return to_plain(positions)
