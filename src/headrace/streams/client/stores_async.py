"""Asynchronous client of a remote application: the result of `headrace.connect_async`.

Queries run in a few threads of the connection, so that no further HTTP client is required and the
event loop is not blocked.
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar

from headrace.streams.client.changes import Change, Changes
from headrace.streams.client.stores import ANY, Connection, RemoteStore, RowIterator, connect
from headrace.streams.config.secrets import Secret
from headrace.streams.queries.answers import StoreRow
from headrace.streams.queries.errors import ClosedConnectionError

K = TypeVar("K")
V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

AT_ONCE = 16
"""Maximum number of concurrent queries; further queries are queued."""


def connect_async(
    url: str | Sequence[str],
    *,
    token: str | Secret | None = None,
    timeout: timedelta = timedelta(seconds=10),
    never_back: bool = True,
    context: ssl.SSLContext | None = None,
) -> AsyncConnection:
    """Connect to the stores of a remote application, for asynchronous programs; see `connect`.

    Args:
        url: URL of any host of the application, or several URLs.
        token: token that the hosts require.
        timeout: time for which a query is repeated if its rows cannot be read now.
        never_back: whether answers are never older than previous answers.
        context: TLS context.

    Raises:
        ConfigError: a URL is invalid, or the token is not a valid header value.

    Examples:
        >>> import asyncio
        >>> from headrace import connect_async
        >>> async def ask():
        ...     async with connect_async("http://localhost:9464") as application:
        ...         return application.store("counts")  # and: await store.get("the")
        >>> asyncio.run(ask())
        <AsyncRemoteStore 'counts'>
    """
    return AsyncConnection(
        connect(url, token=token, timeout=timeout, never_back=never_back, context=context)
    )


class _Threads:
    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, "headrace-client")
        self._is_closed = False

    async def call(self, function: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        if self._is_closed:
            raise ClosedConnectionError(
                "the connection is closed. Open a new connection to query again"
            )
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(function, *given, **named))

    def close(self) -> None:
        # Queued queries are not cancelled, because their tasks are not: the closed client rejects
        # them.
        self._is_closed = True
        self._pool.shutdown(wait=False)


class AsyncConnection:
    """Connection to a remote application. See `connect_async`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._threads = _Threads()

    def store(
        self, name: str, *, key_type: type[K] = ANY, value_type: type[V] = ANY
    ) -> AsyncRemoteStore[K, V]:
        """Return a reader of a store; see `Connection.store`."""
        inner = self._connection.store(name, key_type=key_type, value_type=value_type)
        return AsyncRemoteStore(inner, self._threads)

    async def stores(self) -> tuple[Mapping[str, Any], ...]:
        """Return name, kind and serdes of each store."""
        return await self._threads.call(self._connection.stores)

    async def close(self) -> None:
        """Close all connections, and end waiting queries and change feeds."""
        self._connection.close()
        self._threads.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _awaited(
    method: Callable[Concatenate[RemoteStore[K, V], P], R],
) -> Callable[Concatenate[AsyncRemoteStore[K, V], P], Coroutine[Any, Any, R]]:
    """Return the asynchronous form of a method of `RemoteStore`."""

    @wraps(method)
    async def call(self: AsyncRemoteStore[K, V], /, *args: P.args, **options: P.kwargs) -> R:
        return await self._threads.call(method, self._store, *args, **options)

    return call


def _iterated(
    method: Callable[Concatenate[RemoteStore[K, V], P], RowIterator[S, V]],
) -> Callable[Concatenate[AsyncRemoteStore[K, V], P], AsyncIterator[StoreRow[S, V]]]:
    """Return the asynchronous form of a method of `RemoteStore` that yields rows."""

    @wraps(method)
    async def rows(
        self: AsyncRemoteStore[K, V], /, *args: P.args, **options: P.kwargs
    ) -> AsyncIterator[StoreRow[S, V]]:
        call = self._threads.call
        pages = (await call(method, self._store, *args, **options)).pages
        while (page := await call(next, pages, None)) is not None:
            for row in page:
                yield row

    return rows


class AsyncRemoteStore(Generic[K, V]):
    """Store of a remote application, with asynchronous methods of `RemoteStore`.

    Times are milliseconds since 1970 or datetimes; a datetime without a zone is in UTC.
    """

    def __init__(self, store: RemoteStore[K, V], threads: _Threads) -> None:
        self._store = store
        self._threads = threads

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store.name!r}>"

    describe = _awaited(RemoteStore.describe)
    find = _awaited(RemoteStore.find)
    get = _awaited(RemoteStore.get)
    get_many = _awaited(RemoteStore.get_many)
    count = _awaited(RemoteStore.count)
    approximate_num_entries = _awaited(RemoteStore.approximate_num_entries)
    range = _iterated(RemoteStore.range)
    prefix_scan = _iterated(RemoteStore.prefix_scan)
    fetch = _iterated(RemoteStore.fetch)
    find_sessions = _iterated(RemoteStore.find_sessions)
    find_sessions_by_end = _iterated(RemoteStore.find_sessions_by_end)
    fetch_all = _iterated(RemoteStore.fetch_all)
    all = _iterated(RemoteStore.all)

    def changes(
        self,
        key: Any = None,
        *,
        start: Literal["end", "beginning"] = "end",
        position: str | None = None,
        snapshot: bool = False,
    ) -> AsyncChanges[Any, V]:
        """Follow the committed changes; see `RemoteStore.changes`."""
        return AsyncChanges(
            self._store.changes(key, start=start, position=position, snapshot=snapshot)
        )


class AsyncChanges(Generic[K, V]):
    """Asynchronous iterator over changes, with a thread for each feed.

    ``async with store.changes() as following`` closes the feed at the end of the block. It is also
    closed with the connection, and when this object is garbage collected.
    """

    def __init__(self, changes: Changes[K, V]) -> None:
        self._batches = changes.batches()
        self._ready: deque[Change[K, V]] = deque()
        self._coming: asyncio.Future[list[Change[K, V]] | None] | None = None
        self._thread = ThreadPoolExecutor(1, "headrace-client-changes")
        # A waiting task is often cancelled; only garbage collection shows that it is not resumed.
        self._end = weakref.finalize(self, _end, changes, self._thread)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change[K, V]:
        while not self._ready:
            if self._coming is None:
                if not self._end.alive:
                    raise StopAsyncIteration
                loop = asyncio.get_running_loop()
                self._coming = loop.run_in_executor(self._thread, next, self._batches, None)
            # A later call gets the batch that arrives after a cancelled call.
            batch = await asyncio.shield(self._coming)
            self._coming = None
            if batch is None:
                raise StopAsyncIteration
            self._ready.extend(batch)
        return self._ready.popleft()

    async def close(self) -> None:
        """Close the feed."""
        self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _end(changes: Changes[Any, Any], thread: ThreadPoolExecutor) -> None:
    changes.close()
    thread.shutdown(wait=False)
