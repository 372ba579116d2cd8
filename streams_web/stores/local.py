"""What this host answers of its stores, from its own files.

A question reads at most `PAGE_MAX` rows, so that any range takes little memory; what is longer
comes in pages.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.streams.facts.wire import to_plain
from headrace.streams.queries.answers import Page, Place
from headrace.streams.queries.asked import (
    key_of_document,
    key_of_text,
    row_document,
    scan_of,
    time_of,
)
from headrace.streams.queries.errors import NotReadableError, WrongQueryError
from headrace.streams.queries.queries import Queries
from headrace.streams.queries.readers import (
    LAST_MS,
    KeyValueReader,
    SessionReader,
    StoreReader,
    VersionedReader,
    WindowReader,
)
from headrace.streams.queries.walk import Scan
from headrace.streams_web.stores.asked import Asked

WAITING_MAX = 16
"""So many may wait at once: each takes one of the threads that answer the others."""

Answer = tuple[dict[str, Any], int]
"""What is said, and the status code."""


class LocalStores:
    """See the module. Any thread may ask."""

    def __init__(self) -> None:
        self._waiting = threading.Semaphore(WAITING_MAX)
        self._counting = threading.Semaphore()

    def stores(self, queries: Queries, _: Asked) -> Answer:
        """The stores."""
        return {"stores": [_described(queries, name) for name in sorted(queries.stores)]}, 200

    def store(self, queries: Queries, asked: Asked) -> Answer:
        """A store, and how far its partitions are."""
        reader = self._reader(queries, asked)
        found = _described(queries, reader.name)
        if not reader.store.in_memory:
            found["places"] = _places(reader.places())
        return found, 200

    def get(self, queries: Queries, asked: Asked) -> Answer:
        """The row of a key, or its windows."""
        reader = self._reader(queries, asked)
        key = key_of_text(asked.key, reader.key_serde, reader.name)
        if isinstance(reader, WindowReader | SessionReader):
            begin, end = asked.time("from", 0), asked.time("to", LAST_MS)
            return self._rows(reader, reader.of_key(key, begin, end), asked)
        as_of = asked.text("as_of")
        if isinstance(reader, VersionedReader) and as_of is not None:
            found = reader.find_as_of(key, time_of(as_of, "as_of"), is_encoded=True)
        elif as_of is not None:
            raise WrongQueryError(f"store {reader.name!r} keeps no versions; leave out as_of")
        else:
            assert isinstance(reader, KeyValueReader)
            found = reader.find(key, is_encoded=True)
        asked.require_young(found.places)
        places = {"places": _places(found.places)}
        if found.row is None:
            return {"error": f"store {reader.name!r} has no row of this key", **places}, 404
        return {**row_document(found.row), **places}, 200

    def get_many(self, queries: Queries, asked: Asked) -> Answer:
        """The rows of many keys."""
        reader = self._reader(queries, asked)
        if not isinstance(reader, KeyValueReader):
            raise WrongQueryError(
                f"store {reader.name!r} has windows; ask for them key by key, with from= and to="
            )
        documents = asked.keys()
        keys = [key_of_document(one, reader.key_serde, reader.name) for one in documents]
        rows, places = reader.find_many(keys)
        asked.require_young(places)
        found = [None if row is None else row_document(row) for row in rows]
        return {"rows": found, "places": _places(places)}, 200

    def between(self, queries: Queries, asked: Asked) -> Answer:
        """Rows from one key to another, or of windows by time."""
        reader = self._reader(queries, asked)
        begin, end = asked.text("from"), asked.text("to")
        scan = scan_of(reader, begin=begin, end=end, reverse=asked.flag("reverse"))
        return self._rows(reader, scan, asked)

    def beginning(self, queries: Queries, asked: Asked) -> Answer:
        """Rows whose keys begin so."""
        reader = self._reader(queries, asked)
        prefix = asked.text("prefix")
        if prefix is None:
            raise WrongQueryError("say which prefix: ?prefix=")
        return self._rows(reader, scan_of(reader, prefix=prefix), asked)

    def count(self, queries: Queries, asked: Asked) -> Answer:
        """How many rows there are."""
        reader = self._reader(queries, asked)
        if asked.flag("exact"):
            with room(self._counting, "another count looks at all rows"):
                return {"count": reader.count(), "exact": True}, 200
        return {"count": reader.approximate_num_entries(), "exact": False}, 200

    def _rows(self, reader: StoreReader[Any, Any], scan: Scan, asked: Asked) -> Answer:
        page: Page[Any, Any] = reader.page(scan, limit=asked.limit(), after=asked.text("after"))
        asked.require_young(page.places)
        rows = [row_document(row) for row in page.rows]
        return {"rows": rows, "after": page.after, "places": _places(page.places)}, 200

    def _reader(self, queries: Queries, asked: Asked) -> StoreReader[Any, Any]:
        """The store that is meant, once it is as far as is asked for."""
        reader = queries.reader(asked.name)
        for wanted in asked.min_positions():
            with room(self._waiting, f"{WAITING_MAX} others wait for positions"):
                queries.wait(
                    asked.name,
                    wanted.is_reached,
                    partition=wanted.partition,
                    timeout_s=asked.wait_s(),
                )
        return reader


@contextmanager
def room(places: threading.Semaphore, taken: str) -> Iterator[None]:
    """Take one of a few places: what takes long is not to take the threads of all others."""
    if not places.acquire(blocking=False):
        raise NotReadableError(f"{taken}; ask again later")
    try:
        yield
    finally:
        places.release()


def _described(queries: Queries, name: str) -> dict[str, Any]:
    store = queries.stores[name]
    return {
        "name": name,
        "kind": store.kind,
        "global": store.is_global,
        "in_memory": store.in_memory,
        "key": store.key.name,
        "value": store.value.name,
    }


def _places(places: tuple[Place, ...]) -> Any:
    return to_plain(places)
