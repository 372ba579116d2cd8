"""Remote application and its stores: the result of `headrace.connect`."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Any, Generic, Literal, Self, TypeVar, cast

import msgspec

from headrace.streams.client.changes import Changes
from headrace.streams.client.query_client import Parameters, QueryClient
from headrace.streams.config.secrets import Secret
from headrace.streams.errors import ConfigError
from headrace.streams.queries.answers import StoreRow
from headrace.streams.queries.errors import QueryError, WrongQueryError
from headrace.streams.queries.kinds import wrong_kind
from headrace.topology.errors import require_timedelta
from headrace.topology.serdes._json_of import prepare_type
from headrace.topology.serdes.documents import to_document
from headrace.topology.windows import Window, Windowed

K = TypeVar("K")
V = TypeVar("V")

PAGE_ROWS = 1_000
KEYS_MAX = 10_000
"""Maximum number of keys per request."""
Time = int | datetime
"""Milliseconds since 1970, or a datetime, in UTC unless it has a zone."""
KEY_IN_ADDRESS_MAX = 4_000
"""Maximum length of a key in the URL; longer keys are sent in the request body."""
ANY: Any = Any
"""Type of keys and values that are not converted from JSON."""


def connect(
    url: str | Sequence[str],
    *,
    token: str | Secret | None = None,
    timeout: timedelta = timedelta(seconds=10),
    never_back: bool = True,
    context: ssl.SSLContext | None = None,
) -> Connection:
    """Connect to the stores of an application that runs in other processes.

    Args:
        url: URL of any host of the application, such as ``http://host:9464``, which `headrace run
            --http ... --queries` serves; or several URLs, of which the next is used if a host does
            not respond. Each gets a part of `timeout`, and an unresponsive host is tried last for a
            minute.
        token: token that the hosts require (``--http-token-file``); surrounding whitespace, such as
            the line end of a file, is removed.
        timeout: time for which a query is repeated if its rows cannot be read now.
        never_back: whether answers through this connection are never older than previous answers,
            for each partition of a store.
        context: TLS context; None uses the system's trusted certificates.

    Returns:
        The connection, which returns stores. No request is sent before a store is read.

    Raises:
        ConfigError: a URL is invalid, or the token is not a valid header value.

    Examples:
        >>> from headrace import connect
        >>> application = connect("http://localhost:9464")
        >>> application
        <Connection to http://localhost:9464>
        >>> application.store("counts", value_type=int)
        <RemoteStore 'counts' of http://localhost:9464>
        >>> application.close()
    """
    require_timedelta("timeout", timeout)
    urls = [url] if isinstance(url, str) else [*url]
    if not urls:
        raise ConfigError("the URL of the application is missing. Give it as http://HOST:PORT")
    client = QueryClient(
        urls,
        token=Secret(token) if isinstance(token, str) else token,
        timeout_s=timeout.total_seconds(),
        never_back=never_back,
        context=context,
    )
    return Connection(client)


class Connection:
    """Connection to a remote application. Thread-safe. See `connect`."""

    def __init__(self, client: QueryClient) -> None:
        self._client = client

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self._client}>"

    def store(
        self, name: str, *, key_type: type[K] = ANY, value_type: type[V] = ANY
    ) -> RemoteStore[K, V]:
        """Return a reader of a store, with the methods of the readers of `KafkaStreams.store`.

        Args:
            key_type: type to convert keys to, such as a dataclass; by default keys are JSON values.
            value_type: type to convert values to, likewise.
        """
        return RemoteStore(self._client, name, key_type, value_type)

    def stores(self) -> tuple[Mapping[str, Any], ...]:
        """Return name, kind and serdes of each store.

        Raises:
            QueryError: no host answers.
        """
        document = self._client.ask(None, "", {})
        return tuple((document or {}).get("stores", ()))

    def forget(self) -> None:
        """Accept older answers again, as after `headrace reset`."""
        self._client.forget()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RowIterator(Iterator[StoreRow[K, V]]):
    """Iterator over rows, which are requested page by page; `pages` yields whole pages instead."""

    def __init__(self, pages: Iterator[list[StoreRow[K, V]]]) -> None:
        self.pages = pages
        self._rows = chain.from_iterable(pages)

    def __next__(self) -> StoreRow[K, V]:
        return next(self._rows)


class RemoteStore(Generic[K, V]):
    """Store of a remote application: its committed rows. Thread-safe.

    Methods that the store's kind lacks raise `WrongQueryError`. Rows that cannot be read in time
    raise `NotReadableError`, and any other rejection a `QueryError`. Times are milliseconds since
    1970 or datetimes; a datetime without a zone is in UTC.
    """

    def __init__(
        self, client: QueryClient, name: str, key_type: type[K] = ANY, value_type: type[V] = ANY
    ) -> None:
        self.name = name
        self._client = client
        self._key_type = key_type
        self._value_type = value_type
        prepare_type(key_type)
        prepare_type(value_type)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._client}>"

    def describe(self) -> Mapping[str, Any]:
        """Return its description, and the position of each partition."""
        return self._client.ask(self.name, "", {}) or {}

    # -- key-value -------------------------------------------------------------------------------

    def find(self, key: K, *, as_of: Time | None = None) -> StoreRow[K, V] | None:
        """Return the row of a key, with value, timestamp and partition; None without a row.

        Args:
            as_of: in a versioned store, the time of the version; a datetime without a zone is in
                UTC.
        """
        given = {**_key(key), "as_of": _time(as_of)}
        if as_of is None and len(given["key"] or "") > KEY_IN_ADDRESS_MAX:
            return next(self._rows_of([to_document(key)]))
        document = self._client.ask(self.name, "get", given)
        if document is not None and "rows" in document:
            raise self._wrong_kind("get")
        return None if document is None else self._row(document)

    def get(self, key: K, *, as_of: Time | None = None) -> V | None:
        """Return the value of a key, or None."""
        row = self.find(key, as_of=as_of)
        return None if row is None else row.value

    def __getitem__(self, key: K) -> V:
        row = self.find(key)
        if row is None:
            raise KeyError(key)
        return row.value

    def __contains__(self, key: K) -> bool:
        return self.find(key) is not None

    def get_many(self, keys: Iterable[K]) -> list[V | None]:
        """Return the values of keys in order, with None for each missing key."""
        values: list[V | None] = []
        given = iter(keys)
        while some := [to_document(key) for key in islice(given, KEYS_MAX)]:
            values += [None if row is None else row.value for row in self._rows_of(some)]
        return values

    def _rows_of(self, documents: list[Any]) -> Iterator[StoreRow[K, V] | None]:
        body = msgspec.json.encode({"keys": documents})
        try:
            answer = self._client.ask(self.name, "get", {}, body) or {}
        except WrongQueryError as error:
            raise self._refusal("get") or error from error
        return (None if row is None else self._row(row) for row in answer["rows"])

    def range(
        self, start: K | None, end: K | None, *, reverse: bool = False, limit: int | None = None
    ) -> RowIterator[K, V]:
        """Yield the rows between two keys, both inclusive, in the order of the keys' bytes.

        Args:
            start: first key; None for no bound.
            end: last key; None for no bound.
            reverse: whether to iterate in descending order.
            limit: maximum number of rows; None for all.
        """
        given = {"json_keys": "true", "from": _json(start), "to": _json(end)}
        return self._rows(
            "range", "range", {**given, "reverse": "true" if reverse else None}, limit
        )

    def prefix_scan(self, prefix: Any, *, limit: int | None = None) -> RowIterator[K, V]:
        """Yield the rows whose serialized key starts with the prefix's bytes.

        `serdes.list_of` writes a count first, and JSON a quote last: a shorter list or text is not
        a prefix of their keys.
        """
        given = {"json_keys": "true", "prefix": _json(prefix)}
        return self._rows("prefix_scan", "prefix", given, limit)

    # -- windows and sessions --------------------------------------------------------------------

    def fetch(
        self, key: Any, start: Time | None = None, end: Time | None = None
    ) -> RowIterator[Any, V]:
        """Yield the key's windows that start between two times, both inclusive; or its sessions.

        Keys of rows are `Windowed`. For sessions, `start` is the earliest end. Datetimes without a
        zone are in UTC.
        """
        return self._rows("fetch", "get", {**_key(key), **_times(start, end)})

    def find_sessions(
        self, key: Any, earliest_end: Time, latest_start: Time
    ) -> RowIterator[Any, V]:
        """Yield the sessions of a key by earliest end and latest start, both inclusive."""
        given = {**_key(key), **_times(earliest_end, latest_start)}
        return self._rows("find_sessions", "get", given)

    def find_sessions_by_end(
        self, earliest_end: Time | None, latest_end: Time | None, *, limit: int | None = None
    ) -> RowIterator[Any, V]:
        """Yield the sessions of all keys that end between two times, both inclusive, by end."""
        times = _times(earliest_end, latest_end)
        return self._rows("find_sessions_by_end", "range", times, limit)

    def fetch_all(
        self, start: Time | None = None, end: Time | None = None, *, limit: int | None = None
    ) -> RowIterator[Any, V]:
        """Yield all windows that start, or sessions that end, between two times, in that order."""
        return self._rows("fetch_all", "range", _times(start, end), limit)

    # -- all kinds -------------------------------------------------------------------------------

    def all(self, *, limit: int | None = None) -> RowIterator[K, V]:
        """Yield all rows, in the order of the keys' bytes."""
        return self._rows("all", "range", {}, limit)

    def count(self) -> int:
        """Return the number of rows, which scans all of them."""
        return self._counted(exact=True)

    def approximate_num_entries(self) -> int:
        """Return the approximate number of rows."""
        return self._counted(exact=False)

    def _counted(self, *, exact: bool) -> int:
        document = self._client.ask(self.name, "count", {"exact": "true" if exact else None})
        return int((document or {})["count"])

    def changes(
        self,
        key: Any = None,
        *,
        start: Literal["end", "beginning"] = "end",
        position: str | None = None,
        snapshot: bool = False,
    ) -> Changes[Any, V]:
        """Follow the committed changes: each change once, in the order of its partition.

        After a lost connection it continues at the last position, at any host that answers.

        Args:
            key: the key to follow; None follows all keys.
            start: whether to start with new changes, or at the beginning of the changelog.
            position: position to continue after: a change's position, or the positions of an
                answer: ``0:1500,1:1498``.
            snapshot: whether to start with all rows, and continue with later changes.

        Returns:
            An iterator that waits for further changes, until it is closed.

        Raises:
            QueryError: during the iteration, if the query is rejected; see `Changes.batches`.

        Examples:
            >>> from headrace import connect
            >>> counts = connect("http://localhost:9464").store("counts", value_type=int)
            >>> following = counts.changes("the", snapshot=True)  # for change in following: ...
            >>> following.close()
        """
        return Changes(
            self._client,
            self.name,
            of={} if key is None else _key(key),
            start=start,
            position=position,
            snapshot=snapshot,
            read=lambda document: self._converted(
                document, has_windows=self._has_windows(), is_deleted=document.get("deleted")
            ),
        )

    # -- common parts ----------------------------------------------------------------------------

    def _rows(
        self, method: str, path: str, given: Parameters, limit: int | None = None
    ) -> RowIterator[Any, V]:
        """Return the rows of a method; it is refused when the first of them is requested."""
        return RowIterator(self._pages(method, path, given, limit))

    def _pages(
        self, method: str, path: str, given: Parameters, limit: int | None
    ) -> Iterator[list[StoreRow[Any, V]]]:
        if limit is not None and limit < 0:
            raise WrongQueryError(f"limit must be a maximum number of rows or None, not {limit}")
        if (refusal := self._refusal(method)) is not None:
            raise refusal
        has_windows = self._has_windows()
        after: str | None = None
        left = limit
        while left is None or left > 0:
            size = str(PAGE_ROWS if left is None else min(left, PAGE_ROWS))
            document = self._client.ask(self.name, path, {**given, "limit": size, "after": after})
            if document is None or "rows" not in document:
                raise self._wrong_kind(method)
            yield [self._row(row, has_windows=has_windows) for row in document["rows"]]
            after = document["after"]
            if after is None:
                return
            left = None if left is None else left - len(document["rows"])

    def _has_windows(self) -> bool:
        return self._client.kind_of(self.name) in ("window", "session")

    def _refusal(self, method: str) -> WrongQueryError | None:
        """Return the error of a method that the kind of the store lacks."""
        kind = self._client.kind_of(self.name)
        return None if kind is None else wrong_kind(self.name, kind, method)

    def _wrong_kind(self, method: str) -> WrongQueryError:
        return self._refusal(method) or WrongQueryError(f"store {self.name!r} has no {method}")

    def _row(self, document: Mapping[str, Any], *, has_windows: bool = False) -> StoreRow[K, V]:
        key, value = self._converted(document, has_windows=has_windows)
        return StoreRow(
            key=cast(K, key),
            value=cast(V, value),
            timestamp=document["timestamp"],
            partition=document["partition"],
        )

    def _converted(
        self, document: Mapping[str, Any], *, has_windows: bool, is_deleted: bool | None = False
    ) -> tuple[Any, V | None]:
        key, value = document["key"], document["value"]
        try:
            if has_windows:
                window = Window(key["window"]["start_ms"], key["window"]["end_ms"])
                key = Windowed(msgspec.convert(key["key"], self._key_type), window)
            else:
                key = msgspec.convert(key, self._key_type)
            return key, None if is_deleted else msgspec.convert(value, self._value_type)
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise QueryError(
                f"a row of store {self.name!r} does not match the types given for it: {error}"
            ) from error


def _json(key: object) -> str | None:
    return None if key is None else msgspec.json.encode(to_document(key)).decode()


def _key(key: object) -> dict[str, str | None]:
    if key is None:
        raise WrongQueryError("a key must not be None")
    return {"json_keys": "true", "key": _json(key)}


def _times(start: Time | None, end: Time | None) -> dict[str, str | None]:
    return {"from": _time(start), "to": _time(end)}


def _time(time: Time | None) -> str | None:
    return time.isoformat() if isinstance(time, datetime) else None if time is None else str(time)
