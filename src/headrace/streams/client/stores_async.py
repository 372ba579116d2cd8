"""Asynchronous client of a remote application: the result of `headrace.connect_async`.

Queries run in a few threads of the connection, so that no further HTTP client is required and the
event loop is not blocked.
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar

from headrace.streams.client.changes import Change, Changes
from headrace.streams.client.stores import ANY, Connection, RemoteStore, Time, connect
from headrace.streams.config.secrets import Secret
from headrace.streams.queries.answers import StoreRow
from headrace.streams.queries.errors import ClosedConnectionError

K = TypeVar("K")
V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")

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

    Example:
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

    async def call(self, asks: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        if self._is_closed:
            raise ClosedConnectionError("the connection was closed; make another one to ask again")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(asks, *given, **named))

    async def rows(
        self, begin: Callable[[], Iterator[list[StoreRow[K, V]]]]
    ) -> AsyncIterator[StoreRow[K, V]]:
        pages = await self.call(begin)
        while (page := await self.call(next, pages, None)) is not None:
            for row in page:
                yield row

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


class AsyncRemoteStore(Generic[K, V]):
    """Store of a remote application, with asynchronous methods of `RemoteStore`."""

    def __init__(self, store: RemoteStore[K, V], threads: _Threads) -> None:
        self._store = store
        self._threads = threads

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store.name!r}>"

    async def describe(self) -> Mapping[str, Any]:
        """Return its description, and the position of each partition."""
        return await self._threads.call(self._store.describe)

    async def find(self, key: K, *, as_of: Time | None = None) -> StoreRow[K, V] | None:
        """Return the row of a key, or None."""
        return await self._threads.call(self._store.find, key, as_of=as_of)

    async def get(self, key: K, *, as_of: Time | None = None) -> V | None:
        """Return the value of a key, or None."""
        return await self._threads.call(self._store.get, key, as_of=as_of)

    async def get_many(self, keys: Iterable[K]) -> list[V | None]:
        """Return the values of keys in order, with None for each missing key."""
        return await self._threads.call(self._store.get_many, keys)

    def range(
        self, start: K | None, end: K | None, *, reverse: bool = False, limit: int | None = None
    ) -> AsyncIterator[StoreRow[K, V]]:
        """Yield the rows between two keys, both inclusive."""
        return self._threads.rows(
            partial(self._store.range_pages, start, end, reverse=reverse, limit=limit)
        )

    def prefix_scan(
        self, prefix: Any, *, limit: int | None = None
    ) -> AsyncIterator[StoreRow[K, V]]:
        """Yield the rows whose serialized key starts with the prefix's bytes."""
        return self._threads.rows(partial(self._store.prefix_pages, prefix, limit=limit))

    def fetch(
        self, key: Any, start: Time | None = None, end: Time | None = None
    ) -> AsyncIterator[StoreRow[Any, V]]:
        """Yield the key's windows that start between two times, or its sessions."""
        return self._threads.rows(partial(self._store.fetch_pages, key, start, end))

    def find_sessions(
        self, key: Any, earliest_end: Time, latest_start: Time
    ) -> AsyncIterator[StoreRow[Any, V]]:
        """Yield the sessions of a key by earliest end and latest start, both inclusive."""
        return self._threads.rows(
            partial(self._store.session_pages, key, earliest_end, latest_start)
        )

    def find_sessions_by_end(
        self, earliest_end: Time | None, latest_end: Time | None, *, limit: int | None = None
    ) -> AsyncIterator[StoreRow[Any, V]]:
        """Yield the sessions of all keys that end between two times, both inclusive, by end."""
        return self._threads.rows(
            partial(self._store.session_pages_by_end, earliest_end, latest_end, limit=limit)
        )

    def fetch_all(
        self, start: Time | None = None, end: Time | None = None, *, limit: int | None = None
    ) -> AsyncIterator[StoreRow[Any, V]]:
        """Yield all windows that start, or sessions that end, between two times."""
        return self._threads.rows(partial(self._store.fetch_all_pages, start, end, limit=limit))

    def all(self, *, limit: int | None = None) -> AsyncIterator[StoreRow[K, V]]:
        """Yield all rows, in the order of the keys' bytes."""
        return self._threads.rows(partial(self._store.all_pages, limit=limit))

    async def count(self) -> int:
        """Return the number of rows, which scans all of them."""
        return await self._threads.call(self._store.count)

    async def approximate_num_entries(self) -> int:
        """Return the approximate number of rows."""
        return await self._threads.call(self._store.approximate_num_entries)

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
