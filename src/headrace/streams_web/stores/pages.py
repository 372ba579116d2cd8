"""HTTP routes for interactive queries: paths, status codes of errors, and threads.

A query runs in a thread, never in a worker. Queries forwarded by other hosts have a thread pool of
their own: otherwise two hosts that wait for each other could have no thread left to answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import anyio
import anyio.to_thread
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace.state.log import get_logger
from headrace.streams.errors import StreamsError
from headrace.streams.queries.change import positions_of
from headrace.streams.queries.errors import (
    NoChangelogError,
    NoSuchStoreError,
    NotHereError,
    NotReadableError,
    PositionGoneError,
    QueryError,
    StoreInMemoryError,
    UnreachedHostError,
    WrongQueryError,
)
from headrace.streams.queries.feeds import Feeds, Start
from headrace.streams.queries.initial_rows import SnapshotRows
from headrace.streams.queries.queries import Queries
from headrace.streams.queries.subscription import ChangeSubscription, Event
from headrace.streams_web.stores import parameters
from headrace.streams_web.stores.local import Answer, LocalStores
from headrace.streams_web.stores.parameters import require_known
from headrace.streams_web.stores.routing import LASTS, RoutedStores, SentElsewhereError
from headrace.streams_web.stores.store_query import BODY_MAX_BYTES, StoreQuery
from headrace.topology.errors import SerdeError, TopologyError
from headrace.topology.serdes.documents import to_document

# Changes of stores over HTTP, as server-sent events, for as long as the client reads.
#
#     event: position   the start; a client that sends this id later continues here
#     event: row        with snapshot=true: a present row, sent before any change
#     event: change     a committed change; its id is the position after it
#     event: compacted  some changes were deleted by compaction
#     event: closed     the last event, with the reason
#
# A connection waits in the server's event loop and takes no thread. Its events come from a reader
# per store, in a thread of its own.


ALIVE_EVERY_S = 10.0
"""Interval of keep-alive comments, for proxies and clients."""
PIECE_BYTES = 64 << 10
"""Approximate bytes that are sent before other connections get their turn."""
AGAIN_MS = 1_000
"""Delay before a browser reconnects."""
_KIND = "text/event-stream"
_LAST_ID = "last-event-id"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

MakeFeeds = Callable[[Queries], Feeds]


class ChangePages:
    """HTTP routes for changes of stores as server-sent events.

    Args:
        queries: returns the stores; raises a StreamsError if the application cannot be loaded.
        rows: returns the rows of all hosts for the snapshot; None if all rows are on this host.
    """

    def __init__(
        self,
        queries: Callable[[], object],
        refused: Callable[[Exception], Response],
        rows: Callable[[Queries, StoreQuery, bytes | None], SnapshotRows | None],
        *,
        make_feeds: MakeFeeds = Feeds,
    ) -> None:
        self._queries = queries
        self._refused = refused
        self._rows = rows
        self._make_feeds = make_feeds
        self._lock = threading.Lock()
        self._feeds: Feeds | None = None

    async def changes(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type=_KIND)
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the server has stopped meanwhile
                loop.call_soon_threadsafe(woken.set)

        try:
            feeds, follower = await run_in_threadpool(self._follow, request, wake)
        except (StreamsError, TopologyError) as error:
            return self._refused(error)
        # Mark the response as an event stream, so that its connection stays open.
        request.scope[LASTS] = True
        return _Changes(feeds, follower, woken, request.path_params["name"])

    def close(self) -> None:
        with self._lock:
            if self._feeds is not None:
                self._feeds.close()

    def _follow(
        self, request: Request, wake: Callable[[], None]
    ) -> tuple[Feeds, ChangeSubscription]:
        of_one = "key" in request.path_params
        known = parameters.CHANGES if of_one else parameters.CHANGES_OF_ALL
        require_known((name for name, _ in request.query_params.multi_items()), known)
        queries = cast(Queries, self._queries())
        with self._lock:
            if self._feeds is None:
                self._feeds = self._make_feeds(queries)
            feeds = self._feeds
        name = request.path_params["name"]
        reader = queries.reader(name)
        text = request.path_params.get("key", request.query_params.get("key"))
        query = StoreQuery.of(request)
        key = None if text is None else query.read_key(text, reader.key_serde, name)
        start = _start(request)
        rows = None
        if start.kind == "rows":
            rows = self._rows(queries, replace(query, given=(), path_key=None), key)
        return feeds, feeds.follow(name, key=key, start=start, wake=wake, rows=rows)


def _start(request: Request) -> Start:
    """Return the start of a feed: the Last-Event-ID of a returning client, or the parameters."""
    given = request.query_params
    snapshot = given.get("snapshot", "false")
    begin = given.get("from", "end")
    if snapshot not in ("true", "false"):
        raise WrongQueryError(f"snapshot must be true or false, not {snapshot[:40]!r}")
    if begin not in ("beginning", "end"):
        raise WrongQueryError(f"from must be beginning or end, not {begin[:40]!r}")
    if (snapshot == "true") + ("from" in given) + ("position" in given) > 1:
        raise WrongQueryError(
            "snapshot=true, from= and position= exclude each other. Keep a single one"
        )
    position = positions_of(given["position"]) if "position" in given else None
    last = request.headers.get(_LAST_ID)
    if last:
        return Start("positions", positions_of(last))
    if snapshot == "true":
        return Start("rows")
    if position is not None:
        return Start("positions", position)
    return Start("beginning" if begin == "beginning" else "end")


class _Changes(StreamingResponse):
    """Event stream of a subscription."""

    def __init__(
        self, feeds: Feeds, follower: ChangeSubscription, woken: asyncio.Event, store: str
    ) -> None:
        self._feeds = feeds
        self._follower = follower
        self._woken = woken
        self._store = store
        super().__init__(self._events(), media_type=_KIND, headers=_HEADERS)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # In any case: the client has disconnected, or the server stops.
            self._feeds.leave(self._follower)
            reason = self._follower.reason
            get_logger().debug("changes_unfollowed", store=self._store, reason=reason)

    async def _events(self) -> AsyncIterator[bytes]:
        yield b"retry: %d\n\n" % AGAIN_MS
        while True:
            self._woken.clear()
            events, position = self._follower.take(PIECE_BYTES)
            if events:
                yield b"".join(map(_sent, events))
                if events[-1].name == "closed":
                    return
                # A fast client never blocks the loop, so give other connections their turn.
                await asyncio.sleep(0)
                continue
            try:
                await asyncio.wait_for(self._woken.wait(), ALIVE_EVERY_S)
            except TimeoutError:
                yield _alive(position)


def _sent(event: Event) -> bytes:
    name = event.name.encode()
    where = b"" if event.position is None else b"id: %b\n" % event.position.encode()
    return b"%bevent: %b\ndata: %b\n\n" % (where, name, event.data)


def _alive(position: str | None) -> bytes:
    """Return a keep-alive comment with the position, which updates the client's last id."""
    where = b"" if position is None else b"id: %b\n" % position.encode()
    return b"%b: alive\n\n" % where


# Further information for clients with access to rows: hot keys, and workers of all hosts.


KEYS_MAX = 100
"""Maximum number of hot keys of a store, over all tasks."""


def hot_keys(queries: Queries, _: StoreQuery) -> Answer:
    found = [_of_store(queries, name) for name in sorted(queries.stores)]
    return {
        "max_keys": queries.config.hot_keys_max,
        "stores": [one for one in found if one["keys"]],
    }, 200


def _of_store(queries: Queries, name: str) -> dict[str, Any]:
    reader = queries.reader(name)
    keys: list[dict[str, Any]] = []
    for partition, report in queries.reports_of(reader.store).items():
        hot = (key for store in report.task.stores if store.name == name for key in store.hot_keys)
        for one in hot:
            try:
                key = to_document(reader.key_serde.deserialize(one.key))
            except SerdeError:
                continue  # of another version of the application
            keys.append({"key": key, "partition": partition, "share": round(one.share, 4),
                         "max_error": round(one.max_error, 4)})  # fmt: skip
    keys.sort(key=lambda one: (-one["share"], one["partition"]))
    return {"store": name, "keys": keys[:KEYS_MAX]}


def group(queries: Queries, _: StoreQuery) -> Answer:
    description = queries.locator.description()
    return {
        "state": description.state,
        "host": queries.host,
        "members": [
            {
                "member": one.id,
                "client_id": one.client_id,
                "machine": one.machine,
                "host": one.endpoint,
                "tasks": list(one.tasks),
            }
            for one in description.members
        ],
    }, 200


THREADS = 32
"""Maximum number of concurrent queries; the limit for forwarded queries is separate."""

_CODES: tuple[tuple[type[StreamsError], int], ...] = (
    (NoSuchStoreError, 404),
    (WrongQueryError, 400),
    (NotHereError, 421),
    (NotReadableError, 503),
    (StoreInMemoryError, 501),
    (NoChangelogError, 501),
    (PositionGoneError, 410),
    (QueryError, 500),
    (StreamsError, 503),
)
_Ask = Callable[[Queries, StoreQuery], Answer]


class StorePages:
    """HTTP routes for stores.

    `queries` raises a StreamsError if the application cannot be loaded.
    """

    def __init__(self, queries: Callable[[], object]) -> None:
        self._queries = queries
        self._local = LocalStores()
        self._routed = RoutedStores(self._local)
        self._changes = ChangePages(queries, _refused, self._routed.rows)
        self._limits: tuple[anyio.CapacityLimiter, anyio.CapacityLimiter] | None = None

    def routes(self) -> list[Route]:
        one = "/api/stores/{name}"
        routed = self._routed
        return [
            Route("/api/hot-keys", self._page(hot_keys, parameters.STORES)),
            Route("/api/group", self._page(group, parameters.STORES)),
            Route("/api/stores", self._page(self._local.stores, parameters.STORES)),
            Route(one, self._page(routed.store, parameters.STORE)),
            Route(f"{one}/get", self._many, methods=["POST"]),
            Route(f"{one}/get", self._page(routed.of_key, parameters.GET)),
            Route(f"{one}/range", self._page(routed.between, parameters.RANGE)),
            Route(f"{one}/prefix", self._page(routed.beginning, parameters.PREFIX)),
            Route(f"{one}/count", self._page(routed.count, parameters.COUNT)),
            Route(f"{one}/changes", self._changes.changes),
            Route(f"{one}/{{key:path}}/changes", self._changes.changes),
            Route(f"{one}/{{key:path}}", self._page(routed.of_key, parameters.KEY)),
        ]

    def _page(self, ask: _Ask, known: Mapping[str, str]) -> Any:
        async def page(request: Request) -> Response:
            return await self._in_thread(ask, StoreQuery.of(request), known)

        return page

    async def _many(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BODY_MAX_BYTES:
                return _json(
                    {"error": f"a request must be at most {BODY_MAX_BYTES >> 20} MiB"}, 413
                )
        query = StoreQuery.of(request, bytes(body))
        return await self._in_thread(self._routed.of_keys, query, parameters.MANY)

    async def _in_thread(self, ask: _Ask, query: StoreQuery, known: Mapping[str, str]) -> Response:
        if self._limits is None:  # they belong to the running event loop
            self._limits = anyio.CapacityLimiter(THREADS), anyio.CapacityLimiter(THREADS)
        limiter = self._limits[query.sender is not None]
        return await anyio.to_thread.run_sync(self._answered, ask, query, known, limiter=limiter)

    def _answered(self, ask: _Ask, query: StoreQuery, known: Mapping[str, str]) -> Response:
        try:
            require_known((name for name, _ in query.given), known)
            query.require_valid()
            found, code = ask(cast(Queries, self._queries()), query)
        except SentElsewhereError as sent:
            return RedirectResponse(sent.url, 307)
        except (StreamsError, TopologyError) as error:
            return _refused(error)
        return _json(found, code)

    def close(self) -> None:
        self._local.close()
        self._changes.close()
        self._routed.close()


def _details(error: Exception) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(error, NotReadableError) and error.remaining is not None:
        found["restore_remaining"] = error.remaining
    if isinstance(error, NotHereError):
        found["partition"] = error.partition
    if isinstance(error, NotHereError | UnreachedHostError):
        found["host"] = error.host
    return found


def _refused(error: Exception) -> Response:
    code = next((code for kind, code in _CODES if isinstance(error, kind)), 503)
    return _json({"error": str(error), **_details(error)}, code)


def _json(document: dict[str, Any], code: int) -> Response:
    return Response(msgspec.json.encode(document), code, media_type="application/json")
