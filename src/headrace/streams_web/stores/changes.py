"""Changes of stores over HTTP, as server-sent events, for as long as the client listens.

    event: position   where it begins; to go on from there is to ask with this id
    event: row        with snapshot=true: a row as it is, before any change
    event: change     a committed change; its id is where one is behind it
    event: compacted  some changes are not there any more: compaction took them away
    event: closed     the last, with the reason

A connection waits in the server's loop and takes no thread. What it is told comes from one reader
for each store, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from headrace.state.events.log import get_logger
from headrace.streams.errors import StreamsError
from headrace.streams.feeds.feeds import Feeds, Start
from headrace.streams.feeds.positions import positions_of
from headrace.streams.feeds.rows_first import Rows
from headrace.streams.feeds.subscription import Event, Subscription
from headrace.streams.queries.errors import WrongQueryError
from headrace.streams.queries.queries import Queries
from headrace.streams_web.stores import parameters
from headrace.streams_web.stores.asked import Asked
from headrace.streams_web.stores.lasting import LASTS
from headrace.streams_web.stores.parameters import require_known
from headrace.topology.errors import TopologyError

ALIVE_EVERY_S = 10.0
"""So often something is sent, that proxies and clients know that it goes on."""
PIECE_BYTES = 64 << 10
"""About so much is sent before others in the loop have their turn."""
AGAIN_MS = 1_000
"""How long a browser waits before it asks again."""
_KIND = "text/event-stream"
_LAST_ID = "last-event-id"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

MakeFeeds = Callable[[Queries], Feeds]


class ChangePages:
    """See the module.

    Args:
        queries: gives the stores; raises a StreamsError where the application cannot be loaded.
        refused: says what a question was refused with.
        rows: gives those of all hosts to begin with; None where all are on this one.
        make_feeds: makes what reads changes.
    """

    def __init__(
        self,
        queries: Callable[[], object],
        refused: Callable[[Exception], Response],
        rows: Callable[[Queries, Asked, bytes | None], Rows | None],
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
        """Answer with the changes of a store or of a key."""
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
        # Other requests are answered at once, or not at all.
        request.scope[LASTS] = True
        return _Changes(feeds, follower, woken, request.path_params["name"])

    def close(self) -> None:
        """Tell all who listen that it ends."""
        with self._lock:
            if self._feeds is not None:
                self._feeds.close()

    def _follow(self, request: Request, wake: Callable[[], None]) -> tuple[Feeds, Subscription]:
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
        read = Asked.of(request).read_key
        key = None if text is None else read(text, reader.key_serde, name)
        start = _start(request)
        rows = None
        if start.kind == "rows":
            rows = self._rows(queries, replace(Asked.of(request), given=(), path_key=None), key)
        return feeds, feeds.follow(name, key=key, start=start, wake=wake, rows=rows)


def _start(request: Request) -> Start:
    """Where to begin: where a client was that comes back, or as it is asked for."""
    given = request.query_params
    snapshot = given.get("snapshot", "false")
    begin = given.get("from", "end")
    if snapshot not in ("true", "false"):
        raise WrongQueryError(f"snapshot is true or false, and not {snapshot[:40]!r}")
    if begin not in ("beginning", "end"):
        raise WrongQueryError(f"from is beginning or end, and not {begin[:40]!r}")
    if (snapshot == "true") + ("from" in given) + ("position" in given) > 1:
        raise WrongQueryError("say one of snapshot=true, from= and position=")
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
    """The events of one follower."""

    def __init__(
        self, feeds: Feeds, follower: Subscription, woken: asyncio.Event, store: str
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
            # However it ends: the client has gone, or the server stops.
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
                # A client that reads fast is waited for nowhere: others have their turn here.
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
    """A comment, and where one is by now, which a client keeps without being told of an event."""
    where = b"" if position is None else b"id: %b\n" % position.encode()
    return b"%b: alive\n\n" % where
