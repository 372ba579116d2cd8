"""Queries of stores over HTTP: where one is asked for, what it gives, and what it is refused with.

A question runs in a thread of the server's pool, never in a worker. It reads at most `PAGE_MAX`
rows, so that any range takes little memory; what is longer comes in pages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.streams.errors import StreamsError
from headrace.streams.facts.wire import to_plain
from headrace.streams.queries.answers import Page, Place
from headrace.streams.queries.asked import (
    MinPosition,
    key_of_document,
    key_of_text,
    row_document,
    scan_of,
    time_of,
)
from headrace.streams.queries.errors import (
    NoSuchStoreError,
    NotReadableError,
    QueryError,
    StoreInMemoryError,
    TooOldError,
    WrongQueryError,
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
from headrace.streams.queries.walk import Scan
from headrace.streams_web.health import span_of
from headrace.topology.errors import TopologyError

LIMIT = 100
"""Rows of a page, where nobody says how many."""
PAGE_MAX = 10_000
BODY_MAX_BYTES = 4 << 20
AGE_MAX_S = 60.0
"""Rows that may lack changes of a longer time are given to whoever asks for such: their task has
moved to another host, as a rule, and they are what it left."""
WAIT_S = 2.0
"""How long is waited for one's own writes, where nobody says for how long."""
WAIT_MAX_S = 30.0
WAITING_MAX = 16
"""So many may wait at once: each takes one of the threads that answer the others."""

_CODES: tuple[tuple[type[StreamsError], int], ...] = (
    (NoSuchStoreError, 404),
    (WrongQueryError, 400),
    (NotReadableError, 503),
    (StoreInMemoryError, 501),
    (QueryError, 500),
    (StreamsError, 503),
)
Answer = tuple[dict[str, Any], int]


class StorePages:
    """See the module.

    Args:
        queries: gives the stores; raises a StreamsError where the application cannot be loaded.
    """

    def __init__(self, queries: Callable[[], object]) -> None:
        self._queries = queries
        self._waiting = threading.Semaphore(WAITING_MAX)
        self._counting = threading.Semaphore()

    def routes(self) -> list[Route]:
        """Where what is asked for."""
        one = "/api/stores/{name}"
        return [
            Route("/api/stores", self._page(self._all)),
            Route(one, self._page(self._one)),
            Route(f"{one}/get", self._many, methods=["POST"]),
            Route(f"{one}/get", self._page(self._get)),
            Route(f"{one}/range", self._page(self._range)),
            Route(f"{one}/prefix", self._page(self._prefix)),
            Route(f"{one}/count", self._page(self._count)),
            Route(f"{one}/{{key:path}}", self._page(self._get)),
        ]

    def _page(self, ask: Callable[[Queries, _Asked], Answer]) -> Callable[[Request], Response]:
        def page(request: Request) -> Response:
            return self._answered(ask, _Asked(request))

        return page

    async def _many(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BODY_MAX_BYTES:
                return _said({"error": f"a request is {BODY_MAX_BYTES >> 20} MiB at most"}, 413)
        asked = _Asked(request, bytes(body))
        return await run_in_threadpool(lambda: self._answered(self._get_many, asked))

    def _answered(self, ask: Callable[[Queries, _Asked], Answer], asked: _Asked) -> Response:
        try:
            found, code = ask(cast(Queries, self._queries()), asked)
        except (StreamsError, TopologyError) as error:
            said: dict[str, Any] = {"error": str(error)}
            if isinstance(error, NotReadableError) and error.remaining is not None:
                said["restore_remaining"] = error.remaining
            code = next((code for kind, code in _CODES if isinstance(error, kind)), 503)
            return _said(said, code)
        return _said(found, code)

    # -- what is asked for ---------------------------------------------------------------------

    def _all(self, queries: Queries, _: _Asked) -> Answer:
        return {"stores": [_described(queries, name) for name in sorted(queries.stores)]}, 200

    def _one(self, queries: Queries, asked: _Asked) -> Answer:
        reader = self._reader(queries, asked)
        found = _described(queries, reader.name)
        if not reader.store.in_memory:
            found["places"] = _places(reader.places())
        return found, 200

    def _get(self, queries: Queries, asked: _Asked) -> Answer:
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

    def _get_many(self, queries: Queries, asked: _Asked) -> Answer:
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

    def _range(self, queries: Queries, asked: _Asked) -> Answer:
        reader = self._reader(queries, asked)
        begin, end = asked.text("from"), asked.text("to")
        scan = scan_of(reader, begin=begin, end=end, reverse=asked.flag("reverse"))
        return self._rows(reader, scan, asked)

    def _prefix(self, queries: Queries, asked: _Asked) -> Answer:
        reader = self._reader(queries, asked)
        prefix = asked.text("prefix")
        if prefix is None:
            raise WrongQueryError("say which prefix: ?prefix=")
        return self._rows(reader, scan_of(reader, prefix=prefix), asked)

    def _count(self, queries: Queries, asked: _Asked) -> Answer:
        reader = self._reader(queries, asked)
        if asked.flag("exact"):
            with _room(self._counting, "another count looks at all rows"):
                return {"count": reader.count(), "exact": True}, 200
        return {"count": reader.approximate_num_entries(), "exact": False}, 200

    def _rows(self, reader: StoreReader[Any, Any], scan: Scan, asked: _Asked) -> Answer:
        page: Page[Any, Any] = reader.page(scan, limit=asked.limit(), after=asked.text("after"))
        asked.require_young(page.places)
        rows = [row_document(row) for row in page.rows]
        return {"rows": rows, "after": page.after, "places": _places(page.places)}, 200

    def _reader(self, queries: Queries, asked: _Asked) -> StoreReader[Any, Any]:
        """The store that is meant, once it is as far as is asked for."""
        reader = queries.reader(asked.name)
        for wanted in asked.min_positions():
            with _room(self._waiting, f"{WAITING_MAX} others wait for positions"):
                queries.wait(
                    asked.name,
                    wanted.is_reached,
                    partition=wanted.partition,
                    timeout_s=asked.wait_s(),
                )
        return reader


@contextmanager
def _room(places: threading.Semaphore, taken: str) -> Iterator[None]:
    """Take one of a few places: what takes long is not to take the threads of all others."""
    if not places.acquire(blocking=False):
        raise NotReadableError(f"{taken}; ask again later")
    try:
        yield
    finally:
        places.release()


class _Asked:
    """A request, as far as it is a question."""

    def __init__(self, request: Request, body: bytes = b"") -> None:
        self._given = request.query_params
        self._body = body
        self._path_key: str | None = request.path_params.get("key")
        self.name: str = request.path_params.get("name", "")

    @property
    def key(self) -> str:
        """The key that is asked for."""
        found = self._path_key if self._path_key is not None else self.text("key")
        if found is None:
            raise WrongQueryError("say which key: ?key=")
        return found

    def text(self, name: str) -> str | None:
        """A parameter."""
        return self._given.get(name)

    def flag(self, name: str) -> bool:
        """A parameter that is yes or no."""
        text = self._given.get(name, "false")
        if text not in ("true", "false"):
            raise WrongQueryError(f"{name} is true or false, and not {text[:40]!r}")
        return text == "true"

    def time(self, name: str, otherwise: int) -> int:
        """A parameter that is a time."""
        text = self._given.get(name)
        return otherwise if text is None else time_of(text, name)

    def limit(self) -> int:
        """How many rows."""
        text = self._given.get("limit", str(LIMIT))
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= PAGE_MAX:
            raise WrongQueryError(f"limit is a number from 1 to {PAGE_MAX}, and not {text[:40]!r}")
        return int(text)

    def keys(self) -> list[Any]:
        """The keys of a body."""
        try:
            found = msgspec.json.decode(self._body)["keys"]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise WrongQueryError('the body is to be JSON: {"keys": [...]}') from error
        if not isinstance(found, list) or len(found) > PAGE_MAX:
            raise WrongQueryError(f"keys is to be a list of {PAGE_MAX} keys at most")
        return found

    def min_positions(self) -> list[MinPosition]:
        """How far the store is to be."""
        given = (text for one in self._given.getlist("min_position") for text in one.split(","))
        return [MinPosition.parse(text) for text in given]

    def wait_s(self) -> float:
        """How long to wait for that."""
        return min(WAIT_MAX_S, self._span("wait", WAIT_S))

    def require_young(self, places: tuple[Place, ...]) -> None:
        """Refuse what is older than `max_age`."""
        most_s = self._span("max_age", AGE_MAX_S)
        old = [place for place in places if place.age_ms / 1000 > most_s]
        if old:
            raise TooOldError(
                f"partition {old[0].partition} may lack changes of {old[0].age_ms / 1000:g} s: no "
                f"worker of this host has its task now, or it is silent; max_age= is {most_s:g} s "
                "here, and a longer one has the rows as they are"
            )

    def _span(self, name: str, otherwise: float) -> float:
        text = self._given.get(name)
        if text is None:
            return otherwise
        try:
            return span_of(text).total_seconds()
        except ValueError as error:
            raise WrongQueryError(
                f"{name} is a number and ms, s, m or h, such as 30s, and not {text[:40]!r}"
            ) from error


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


def _said(found: dict[str, Any], code: int) -> Response:
    return Response(msgspec.json.encode(found), code, media_type="application/json")
