"""The same for programs that await: what `headrace.connect_async` gives.

Questions are asked in a few threads of the connection's own, so that no other HTTP client is
needed, and the loop goes on meanwhile.
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
from headrace.streams.queries.answers import Row
from headrace.streams.queries.errors import ClosedConnectionError

K = TypeVar("K")
V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")

AT_ONCE = 16
"""So many questions are asked at once; more wait for their turn."""


def connect_async(
    url: str | Sequence[str],
    *,
    token: str | Secret | None = None,
    timeout: timedelta = timedelta(seconds=10),
    never_back: bool = True,
    context: ssl.SSLContext | None = None,
) -> AsyncConnection:
    """Ask an application that runs elsewhere, and await the answers; see `connect`.

    Args:
        url: of any host of it, or several.
        token: what the hosts want to be sent.
        timeout: for how long a question is asked again whose rows cannot be read now.
        never_back: whether answers are never earlier than those before.
        context: of https.

    Raises:
        ConfigError: it is no such address.

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
        self, begin: Callable[[], Iterator[list[Row[K, V]]]]
    ) -> AsyncIterator[Row[K, V]]:
        pages = await self.call(begin)
        while (page := await self.call(next, pages, None)) is not None:
            for row in page:
                yield row

    def close(self) -> None:
        # What waits for its turn is not cancelled, as its task was not: it is refused like others.
        self._is_closed = True
        self._pool.shutdown(wait=False)


class AsyncConnection:
    """An application that runs elsewhere. See `connect_async`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._threads = _Threads()

    def store(
        self, name: str, *, key_type: type[K] = ANY, value_type: type[V] = ANY
    ) -> AsyncRemoteStore[K, V]:
        """A store to be read; see `Connection.store`."""
        inner = self._connection.store(name, key_type=key_type, value_type=value_type)
        return AsyncRemoteStore(inner, self._threads)

    async def stores(self) -> tuple[Mapping[str, Any], ...]:
        """The stores: their names, kinds and serdes."""
        return await self._threads.call(self._connection.stores)

    async def close(self) -> None:
        """End the connections, and whatever waits for an answer or for changes."""
        self._connection.close()
        self._threads.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncRemoteStore(Generic[K, V]):
    """A store of an application that runs elsewhere, in the words of `RemoteStore`."""

    def __init__(self, store: RemoteStore[K, V], threads: _Threads) -> None:
        self._store = store
        self._threads = threads

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store.name!r}>"

    async def describe(self) -> Mapping[str, Any]:
        """What it is, and how far each partition is."""
        return await self._threads.call(self._store.describe)

    async def find(self, key: K, *, as_of: Time | None = None) -> Row[K, V] | None:
        """The row of a key, or None."""
        return await self._threads.call(self._store.find, key, as_of=as_of)

    async def get(self, key: K, *, as_of: Time | None = None) -> V | None:
        """The value of a key, or None."""
        return await self._threads.call(self._store.get, key, as_of=as_of)

    async def get_many(self, keys: Iterable[K]) -> list[V | None]:
        """The values of keys in their order, None for each that has none."""
        return await self._threads.call(self._store.get_many, keys)

    def range(
        self, start: K | None, end: K | None, *, reverse: bool = False, limit: int | None = None
    ) -> AsyncIterator[Row[K, V]]:
        """The rows from one key to another, both inclusive."""
        return self._threads.rows(
            partial(self._store.range_pages, start, end, reverse=reverse, limit=limit)
        )

    def prefix_scan(self, prefix: Any, *, limit: int | None = None) -> AsyncIterator[Row[K, V]]:
        """The rows whose key's bytes begin with those of a prefix, such as the first letters."""
        return self._threads.rows(partial(self._store.prefix_pages, prefix, limit=limit))

    def fetch(
        self, key: Any, start: Time | None = None, end: Time | None = None
    ) -> AsyncIterator[Row[Any, V]]:
        """The key's windows that begin between two times, or its sessions."""
        return self._threads.rows(partial(self._store.fetch_pages, key, start, end))

    def find_sessions(
        self, key: Any, earliest_end: Time, latest_start: Time
    ) -> AsyncIterator[Row[Any, V]]:
        """The sessions of a key that end and begin within bounds, both inclusive."""
        return self._threads.rows(
            partial(self._store.session_pages, key, earliest_end, latest_start)
        )

    def find_sessions_by_end(
        self, earliest_end: Time | None, latest_end: Time | None, *, limit: int | None = None
    ) -> AsyncIterator[Row[Any, V]]:
        """The sessions of all keys that end between two times, both inclusive, by end."""
        return self._threads.rows(
            partial(self._store.session_pages_by_end, earliest_end, latest_end, limit=limit)
        )

    def fetch_all(
        self, start: Time | None = None, end: Time | None = None, *, limit: int | None = None
    ) -> AsyncIterator[Row[Any, V]]:
        """All windows that begin, or sessions that end, between two times."""
        return self._threads.rows(partial(self._store.fetch_all_pages, start, end, limit=limit))

    def all(self, *, limit: int | None = None) -> AsyncIterator[Row[K, V]]:
        """All rows, in the order of the keys' bytes."""
        return self._threads.rows(partial(self._store.all_pages, limit=limit))

    async def count(self) -> int:
        """How many rows there are; all are looked at."""
        return await self._threads.call(self._store.count)

    async def approximate_num_entries(self) -> int:
        """How many rows there are, roughly."""
        return await self._threads.call(self._store.approximate_num_entries)

    def changes(
        self,
        key: Any = None,
        *,
        start: Literal["end", "beginning"] = "end",
        position: str | None = None,
        snapshot: bool = False,
    ) -> AsyncChanges[Any, V]:
        """Follow what is committed; see `RemoteStore.changes`."""
        return AsyncChanges(
            self._store.changes(key, start=start, position=position, snapshot=snapshot)
        )


class AsyncChanges(Generic[K, V]):
    """Changes that are awaited; each that is followed has a thread of its own.

    ``async with store.changes() as following`` ends it with the block; so does the end of the
    connection, and it does not outlive this object.
    """

    def __init__(self, changes: Changes[K, V]) -> None:
        self._batches = changes.batches()
        self._ready: deque[Change[K, V]] = deque()
        self._coming: asyncio.Future[list[Change[K, V]] | None] | None = None
        self._thread = ThreadPoolExecutor(1, "headrace-client-changes")
        # Whoever waits is often cancelled, and nothing else says that nobody comes back.
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
            # Whoever waits no more, and then again, is given what came meanwhile.
            batch = await asyncio.shield(self._coming)
            self._coming = None
            if batch is None:
                raise StopAsyncIteration
            self._ready.extend(batch)
        return self._ready.popleft()

    async def close(self) -> None:
        """End it."""
        self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _end(changes: Changes[Any, Any], thread: ThreadPoolExecutor) -> None:
    changes.close()
    thread.shutdown(wait=False)
