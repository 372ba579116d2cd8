"""An application that runs elsewhere, and its stores: what `headrace.connect` gives."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Generic, Literal, Self, TypeVar, cast

import msgspec

from headrace.streams.client.asker import Asker
from headrace.streams.client.changes import Changes
from headrace.streams.config.secrets import Secret
from headrace.streams.errors import ConfigError
from headrace.streams.queries.answers import Row
from headrace.streams.queries.errors import QueryError, WrongQueryError
from headrace.streams.queries.kinds import wrong_kind
from headrace.topology.serdes.documents import to_document
from headrace.topology.windows import Window, Windowed

K = TypeVar("K")
V = TypeVar("V")

PAGE_ROWS = 1_000
KEYS_MAX = 10_000
"""So many keys are asked for in one request."""
Time = int | datetime
"""Milliseconds since 1970, or a time, which is in UTC unless it has a zone."""
KEY_IN_ADDRESS_MAX = 4_000
"""Longer keys are asked for as many keys are: in what is sent, and not in the address."""
ANY: Any = Any
"""What JSON has, as it is."""
_TIMED = frozenset({"window", "session"})


def connect(
    url: str | Sequence[str],
    *,
    token: str | Secret | None = None,
    timeout: timedelta = timedelta(seconds=10),
    never_back: bool = True,
    context: ssl.SSLContext | None = None,
) -> Connection:
    """Ask an application that runs elsewhere for what is in its stores.

    Args:
        url: of any host of it, such as ``http://host:9464``, which `headrace run --http ...
            --queries` serves; or several, of which the next is asked where one is silent.
            Each of them has a part of `timeout`, and one that was silent comes last for a minute.
        token: what the hosts want to be sent (``--http-token-file``); the space around it, such as
            the line end of a file, is no part of it.
        timeout: for how long a question is asked again whose rows cannot be read now.
        never_back: whether answers through this connection are never earlier than those before
            it, for each partition of a store.
        context: of https; None trusts what the system trusts.

    Returns:
        What gives stores. Nothing is asked before one of them is.

    Raises:
        ConfigError: it is no such address, or no header can hold the token.

    Example:
        >>> from headrace import connect
        >>> application = connect("http://localhost:9464")
        >>> application.store("counts", value_type=int)
        <RemoteStore 'counts' of http://localhost:9464>
        >>> application.close()
    """
    return Connection(
        _asker(url, token=token, timeout=timeout, never_back=never_back, context=context)
    )


def _asker(
    url: str | Sequence[str],
    *,
    token: str | Secret | None,
    timeout: timedelta,
    never_back: bool,
    context: ssl.SSLContext | None,
) -> Asker:
    urls = [url] if isinstance(url, str) else [*url]
    if not urls:
        raise ConfigError("an application is asked at http://HOST:PORT, and no address was given")
    return Asker(
        urls,
        token=Secret(token) if isinstance(token, str) else token,
        timeout_s=timeout.total_seconds(),
        never_back=never_back,
        context=context,
    )


class Connection:
    """An application that runs elsewhere; any thread may use it. See `connect`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self._asker}>"

    def store(
        self, name: str, *, key_type: type[K] = ANY, value_type: type[V] = ANY
    ) -> RemoteStore[K, V]:
        """A store to be read, in the words of `KafkaStreams.store`.

        Args:
            key_type: what keys become, such as a dataclass; by default what JSON has.
            value_type: likewise of values.
        """
        return RemoteStore(self._asker, name, key_type, value_type)

    def stores(self) -> tuple[Mapping[str, Any], ...]:
        """The stores: their names, kinds and serdes.

        Raises:
            QueryError: nobody says so.
        """
        found = self._asker.ask(None, "", {})
        return tuple((found or {}).get("stores", ()))

    def forget(self) -> None:
        """Take answers from before those that there were, as after `headrace reset`."""
        self._asker.forget()

    def close(self) -> None:
        """End the connections."""
        self._asker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteStore(Generic[K, V]):
    """A store of an application that runs elsewhere: its committed rows; any thread may ask.

    Methods that its kind does not have raise `WrongQueryError`. What cannot be read in time raises
    `NotReadableError`, and any refusal is a `QueryError`.
    """

    def __init__(
        self, asker: Asker, name: str, key_type: type[K] = ANY, value_type: type[V] = ANY
    ) -> None:
        self.name = name
        self._asker = asker
        self._key_type = key_type
        self._value_type = value_type

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._asker}>"

    def describe(self) -> Mapping[str, Any]:
        """What it is, and how far each partition is."""
        return self._asker.ask(self.name, "", {}) or {}

    # -- key-value -------------------------------------------------------------------------------

    def find(self, key: K, *, as_of: Time | None = None) -> Row[K, V] | None:
        """The row of a key: with the value its timestamp and its partition; None without one.

        Args:
            as_of: of a versioned store, the version that was valid then; a datetime without a zone
                is in UTC.
        """
        when = None if as_of is None else _time(as_of)
        given = _key(key)
        if when is None and len(given["key"] or "") > KEY_IN_ADDRESS_MAX:
            return next(self._rows_of([to_document(key)]))
        found = self._asker.ask(self.name, "get", {**given, "as_of": when})
        if found is not None and "rows" in found:
            raise self._wrong_kind("get")
        return None if found is None else self._row(found)

    def get(self, key: K, *, as_of: Time | None = None) -> V | None:
        """The value of a key, or None."""
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
        """The values of keys in their order, None for each that has none."""
        found: list[V | None] = []
        given = iter(keys)
        while some := [to_document(key) for key in islice(given, KEYS_MAX)]:
            found += [None if row is None else row.value for row in self._rows_of(some)]
        return found

    def _rows_of(self, documents: list[Any]) -> Iterator[Row[K, V] | None]:
        """The rows of some keys in their order, which are not put into the address."""
        body = msgspec.json.encode({"keys": documents})
        try:
            answer = self._asker.ask(self.name, "get", {}, body) or {}
        except WrongQueryError as error:
            if self._has_windows():
                raise self._wrong_kind("get") from error
            raise
        return (None if row is None else self._row(row) for row in answer["rows"])

    def range(
        self, start: K | None, end: K | None, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[Row[K, V]]:
        """The rows from one key to another, both inclusive, in the order of the keys' bytes.

        Args:
            start: None for the first.
            end: None for the last.
            reverse: whether to begin with the last.
            limit: how many at most; None for all.
        """
        return self._flat(self.range_pages(start, end, reverse=reverse, limit=limit))

    def range_pages(
        self, start: K | None, end: K | None, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[list[Row[K, V]]]:
        """The same, page by page."""
        given = {
            "json_keys": "true",
            "from": None if start is None else _json(start),
            "to": None if end is None else _json(end),
            "reverse": "true" if reverse else None,
        }
        return self._keyed("range", given, limit)

    def prefix_scan(self, prefix: Any, *, limit: int | None = None) -> Iterator[Row[K, V]]:
        """The rows whose key's bytes begin with those of a prefix, such as the first letters.

        `serdes.list_of` writes a count first, and JSON a quote last: no shorter list or text begins
        their keys.
        """
        return self._flat(self.prefix_pages(prefix, limit=limit))

    def prefix_pages(self, prefix: Any, *, limit: int | None = None) -> Iterator[list[Row[K, V]]]:
        """The same, page by page."""
        given = {"json_keys": "true", "prefix": _json(prefix)}
        return self._keyed("prefix", given, limit)

    # -- windows and sessions --------------------------------------------------------------------

    def fetch(
        self, key: Any, start: Time | None = None, end: Time | None = None
    ) -> Iterator[Row[Any, V]]:
        """The key's windows that begin between two times, both inclusive; or its sessions.

        Keys of rows are `Windowed`. Of sessions the first time is that of the earliest end.
        Datetimes without a zone are in UTC.
        """
        return self._flat(self.fetch_pages(key, start, end))

    def fetch_pages(
        self, key: Any, start: Time | None = None, end: Time | None = None
    ) -> Iterator[list[Row[Any, V]]]:
        """The same, page by page."""
        if self._asker.kind_of(self.name) not in _TIMED | {None}:
            raise WrongQueryError(f"store {self.name!r} has no windows; ask with get(key)")
        yield from self._pages("get", {**_key(key), **_times(start, end)}, None, is_timed=True)

    def find_sessions(
        self, key: Any, earliest_end: Time, latest_start: Time
    ) -> Iterator[Row[Any, V]]:
        """The sessions of a key that end and begin within bounds, both inclusive."""
        return self._flat(self.session_pages(key, earliest_end, latest_start))

    def session_pages(
        self, key: Any, earliest_end: Time, latest_start: Time
    ) -> Iterator[list[Row[Any, V]]]:
        """The same, page by page."""
        if self._asker.kind_of(self.name) == "window":
            raise self._wrong_kind("find_sessions")
        yield from self.fetch_pages(key, earliest_end, latest_start)

    def find_sessions_by_end(
        self, earliest_end: Time | None, latest_end: Time | None, *, limit: int | None = None
    ) -> Iterator[Row[Any, V]]:
        """The sessions of all keys that end between two times, both inclusive, by end."""
        return self._flat(self.session_pages_by_end(earliest_end, latest_end, limit=limit))

    def session_pages_by_end(
        self, earliest_end: Time | None, latest_end: Time | None, *, limit: int | None = None
    ) -> Iterator[list[Row[Any, V]]]:
        """The same, page by page."""
        if self._asker.kind_of(self.name) != "session":
            raise self._wrong_kind("find_sessions_by_end")
        yield from self.fetch_all_pages(earliest_end, latest_end, limit=limit)

    def fetch_all(
        self, start: Time | None = None, end: Time | None = None, *, limit: int | None = None
    ) -> Iterator[Row[Any, V]]:
        """All windows that begin, or sessions that end, between two times, in that order."""
        return self._flat(self.fetch_all_pages(start, end, limit=limit))

    def fetch_all_pages(
        self, start: Time | None = None, end: Time | None = None, *, limit: int | None = None
    ) -> Iterator[list[Row[Any, V]]]:
        """The same, page by page."""
        if self._asker.kind_of(self.name) not in _TIMED | {None}:
            raise self._wrong_kind("fetch_all")
        yield from self._pages("range", _times(start, end), limit, is_timed=True)

    # -- all kinds -------------------------------------------------------------------------------

    def all(self, *, limit: int | None = None) -> Iterator[Row[K, V]]:
        """All rows, in the order of the keys' bytes."""
        return self._flat(self.all_pages(limit=limit))

    def all_pages(self, *, limit: int | None = None) -> Iterator[list[Row[K, V]]]:
        """The same, page by page."""
        yield from self._pages("range", {}, limit, is_timed=self._has_windows())

    def count(self) -> int:
        """How many rows there are; all are looked at."""
        return self._counted(exact=True)

    def approximate_num_entries(self) -> int:
        """How many rows there are, roughly."""
        return self._counted(exact=False)

    def _counted(self, *, exact: bool) -> int:
        found = self._asker.ask(self.name, "count", {"exact": "true" if exact else None})
        return int((found or {})["count"])

    def changes(
        self,
        key: Any = None,
        *,
        start: Literal["end", "beginning"] = "end",
        position: str | None = None,
        snapshot: bool = False,
    ) -> Changes[Any, V]:
        """Follow what is committed: each change once, in the order of its partition.

        Where the connection is cut it goes on at the last position, at whichever host answers.

        Args:
            key: the one that is followed; None follows all of them.
            start: with what is committed from now on, or with what the changelog has.
            position: that of a change, to go on behind it; as an answer's places have it, too:
                ``0:1500,1:1498``.
            snapshot: whether to begin with the rows, and go on with the changes that are not in
                them.

        Returns:
            An iterator that waits for what comes next, until it is closed.

        Raises:
            QueryError: once it is gone through, whatever it is refused with; see
                `Changes.batches`.

        Example:
            >>> from headrace import connect
            >>> counts = connect("http://localhost:9464").store("counts", value_type=int)
            >>> following = counts.changes("the", snapshot=True)  # for change in following: ...
            >>> following.close()
        """
        return Changes(
            self._asker,
            self.name,
            of={} if key is None else _key(key),
            start=start,
            position=position,
            snapshot=snapshot,
            read=self._key_and_value,
        )

    # -- what they have in common ----------------------------------------------------------------

    def _pages(
        self,
        path: str,
        given: Mapping[str, str | None],
        limit: int | None,
        *,
        is_timed: bool = False,
    ) -> Iterator[list[Row[K, V]]]:
        if limit is not None and limit < 0:
            raise WrongQueryError(f"limit is how many rows at most, or None, and not {limit}")
        after: str | None = None
        left = limit
        while left is None or left > 0:
            size = str(PAGE_ROWS if left is None else min(left, PAGE_ROWS))
            found = self._asker.ask(self.name, path, {**given, "limit": size, "after": after})
            if found is None or "rows" not in found:
                raise self._wrong_kind("fetch")
            yield [self._row(row, is_timed=is_timed) for row in found["rows"]]
            after = found["after"]
            if after is None:
                return
            if left is not None:
                left -= len(found["rows"])

    @staticmethod
    def _flat(pages: Iterator[list[Row[K, V]]]) -> Iterator[Row[K, V]]:
        return (row for page in pages for row in page)

    def _key_and_value(self, found: Mapping[str, Any]) -> tuple[Any, V | None]:
        is_timed = self._has_windows()
        return self._converted(found, is_timed=is_timed, is_deleted=found.get("deleted"))

    def _has_windows(self) -> bool:
        return self._asker.kind_of(self.name) in _TIMED

    def _keyed(
        self, path: str, given: Mapping[str, str | None], limit: int | None
    ) -> Iterator[list[Row[K, V]]]:
        """Pages of a store that has a row of each key."""
        if self._has_windows():
            raise self._wrong_kind("range")
        yield from self._pages(path, given, limit)

    def _wrong_kind(self, word: str) -> WrongQueryError:
        kind = self._asker.kind_of(self.name) or "key-value"
        refused = wrong_kind(self.name, kind, word)
        return refused or WrongQueryError(f"store {self.name!r} of kind {kind} has no {word}")

    def _row(self, found: Mapping[str, Any], *, is_timed: bool = False) -> Row[K, V]:
        key, value = self._converted(found, is_timed=is_timed)
        return Row(
            key=cast(K, key),
            value=cast(V, value),
            timestamp=found["timestamp"],
            partition=found["partition"],
        )

    def _converted(
        self, found: Mapping[str, Any], *, is_timed: bool, is_deleted: bool | None = False
    ) -> tuple[Any, V | None]:
        key, value = found["key"], found["value"]
        try:
            if is_timed:
                window = Window(key["window"]["start_ms"], key["window"]["end_ms"])
                key = Windowed(msgspec.convert(key["key"], self._key_type), window)
            else:
                key = msgspec.convert(key, self._key_type)
            return key, None if is_deleted else msgspec.convert(value, self._value_type)
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise QueryError(
                f"a row of store {self.name!r} is not of the types that were given for it: {error}"
            ) from error


def _json(key: object) -> str:
    return msgspec.json.encode(to_document(key)).decode()


def _key(key: object) -> dict[str, str | None]:
    if key is None:
        raise WrongQueryError("no store has a key None")
    return {"json_keys": "true", "key": _json(key)}


def _times(start: Time | None, end: Time | None) -> dict[str, str | None]:
    return {
        "from": None if start is None else _time(start),
        "to": None if end is None else _time(end),
    }


def _time(time: Time) -> str:
    return str(time) if isinstance(time, int) else time.isoformat()
