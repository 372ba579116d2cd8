"""Interactive queries over all hosts: each query goes to the hosts that have its rows.

    one key      to the host of its partition, or the client is redirected there
    many keys    divided by host, queried in parallel, joined in their order
    ranges       some rows of each host, merged in the order of their keys
    counts       the sum

If a key is not in the partition that the partitioner selects, all partitions are queried, unless
the application itself writes all topics that the store reads: other producers may partition in
another way.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import msgspec

from headrace.state.codec import partition_for_key
from headrace.streams.client.http import HttpHost, Reply
from headrace.streams.queries.descriptors import StoreDescriptor
from headrace.streams.queries.errors import (
    ClosedConnectionError,
    NoSuchStoreError,
    NotHereError,
    NotReadableError,
    QueryError,
    StoppingError,
    StoreInMemoryError,
    UnreachedHostError,
    WrongQueryError,
)
from headrace.streams.queries.locator import PAUSE_S, GroupDescription
from headrace.streams.queries.queries import Queries
from headrace.streams.queries.readers import Piece, StoreReader
from headrace.streams.queries.scan import Cursor
from headrace.streams_web.stores.local import Answer, LocalStores, keys_of, require_read
from headrace.streams_web.stores.store_query import StoreQuery

# Parallel queries to the hosts that have the partitions of a query.
#
#     partitions ─► owners, from the group ─► one query each ─► answers
#                         ▲                        │ "not here", or unreachable
#                         └─ refresh from brokers ─┘ once
#
# Partitions that still have no answer are an error. If the client sets max_age, they are answered
# from rows that a task has left on some host.


ANSWER_S = 5.0
"""Time limit for the answer of another host, without its wait for positions."""
COUNT_S = 50.0
"""Time limit for an exact count, which reads all rows: a connection lasts a minute."""
THREADS = 32
_T = TypeVar("_T")

Make = Callable[[frozenset[int], bool], StoreQuery]
"""Creates the query for some partitions; the flag accepts rows that a task has left."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A kind of query, with its path after the store's name.

    `here` answers it from the files of this host.
    """

    path: str
    here: Callable[[Queries, StoreQuery], Answer]
    timeout_s: float = ANSWER_S


@dataclass(frozen=True, slots=True)
class PartialAnswer:
    """An answer of a host for some of the partitions.

    `left` is whether its rows were left there by a task that has moved.
    """

    only: frozenset[int]
    host: str
    left: bool
    document: dict[str, Any]
    code: int


@dataclass(frozen=True, slots=True)
class Missing:
    """Partitions without an answer."""

    only: frozenset[int]
    host: str | None
    error: QueryError

    @property
    def document(self) -> dict[str, Any]:
        return {
            "partitions": sorted(self.only),
            "host": self.host,
            "error": str(self.error),
        }


class Hosts:
    """Connections to other hosts, and threads for parallel queries. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosts: dict[str, HttpHost] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False

    def in_parallel(self, calls: Sequence[Callable[[], _T]]) -> list[_T]:
        if len(calls) == 1:
            return [calls[0]()]
        with self._lock:
            if self._is_closed:
                raise StoppingError
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, "headrace-hosts")
            futures = [self._pool.submit(call) for call in calls]
        return [future.result() for future in futures]

    def connection(self, endpoint: str) -> HttpHost:
        with self._lock:
            if self._is_closed:
                raise StoppingError
            found = self._hosts.get(endpoint)
            if found is None:
                found = self._hosts[endpoint] = HttpHost(f"http://{endpoint}")
            return found

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            hosts, self._hosts = self._hosts, {}
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)
        for host in hosts.values():
            host.close()


@dataclass(frozen=True, slots=True)
class FanOut:
    """A query of a store, sent to the hosts that have its partitions.

    `make` creates the query of some partitions.
    """

    hosts: Hosts
    queries: Queries
    operation: Operation
    query: StoreQuery
    make: Make

    def ask(self, partitions: Iterable[int]) -> tuple[list[PartialAnswer], list[Missing]]:
        """Query partitions on the hosts that have them.

        QueryError is raised if partitions have no answer, unless ``partial=true`` accepts the rest.
        """
        store = self.queries.stores[self.query.name]
        group = self.queries.locator.description()
        parts, missing = self._round(group, store, partitions)
        if any(isinstance(one.error, NotHereError | UnreachedHostError) for one in missing):
            group = self.queries.locator.description(at_most_s=PAUSE_S)
            still = [one for one in missing if _is_silent_still(group, store, one)]
            again = frozenset[int]().union(*(one.only for one in missing if one not in still))
            more, missing = self._round(group, store, again)
            parts += more
            missing += still
        if missing and self.query.text("max_age") is not None:
            missing = self._query_left(group, missing, parts)
        if missing and not (parts and self.query.flag("partial")):
            raise missing[0].error
        return parts, missing

    def query_any(self) -> Answer:
        """Query this host, or else other hosts in sequence, until a host answers."""
        try:
            return self.operation.here(self.queries, self.query)
        except NotReadableError as error:
            others = self.queries.locator.description().endpoints - {self.queries.host}
            for host in sorted(others):
                try:
                    part = self.at(host, self.query, frozenset(), left=False)
                except QueryError:
                    continue
                return part.document, part.code
            raise error

    def _round(
        self, group: GroupDescription, store: StoreDescriptor, partitions: Iterable[int]
    ) -> tuple[list[PartialAnswer], list[Missing]]:
        by_owner: dict[str | None, set[int]] = {}
        for one in partitions:
            by_owner.setdefault(group.host_of(store, one), set()).add(one)
        calls = [
            partial(self._try, group, owner, frozenset(some)) for owner, some in by_owner.items()
        ]
        found = self.hosts.in_parallel(calls)
        return (
            [one for one in found if isinstance(one, PartialAnswer)],
            [one for one in found if isinstance(one, Missing)],
        )

    def _try(
        self,
        group: GroupDescription,
        owner: str | None,
        only: frozenset[int],
        *,
        left: bool = False,
    ) -> PartialAnswer | Missing:
        try:
            if owner is None:
                raise _no_owner(self.queries, group, only)
            return self.at(owner, self.make(only, left), only, left=left)
        except (NotReadableError, StoreInMemoryError) as error:
            return Missing(only, owner, error)

    def _query_left(
        self, group: GroupDescription, missing: list[Missing], parts: list[PartialAnswer]
    ) -> list[Missing]:
        """Query rows that tasks have left on any host, and return the partitions without any."""
        here = self.queries.host
        hosts = sorted(group.endpoints | ({here} if here else set()))
        still = []
        for one in missing:
            for partition in sorted(one.only):
                only = frozenset([partition])
                calls = [partial(self._try, group, host, only, left=True) for host in hosts]
                found = [
                    part
                    for part in self.hosts.in_parallel(calls)
                    if isinstance(part, PartialAnswer)
                ]
                if found:
                    parts.append(max(found, key=_offset))
                else:
                    still.append(Missing(only, one.host, one.error))
        return still

    def at(
        self, host: str, query: StoreQuery, only: frozenset[int], *, left: bool
    ) -> PartialAnswer:
        """Query a single host; raise QueryError if it returns an error, or does not answer."""
        if host == self.queries.host:
            found, code = self.operation.here(self.queries, query)
            return PartialAnswer(only, host, left, found, code)
        assert self.queries.host is not None
        wait_s = query.wait_s() if query.min_positions() else 0.0
        try:
            reply = self.hosts.connection(host).ask(
                query.target(self.operation.path),
                query.body or None,
                headers=query.headers(self.queries.host),
                timeout_s=query.within_s(self.operation.timeout_s + wait_s),
            )
        except ClosedConnectionError as error:
            raise StoppingError from error
        except UnreachedHostError as error:
            of = f"partition {_partition_list(only)} of " if only else ""
            raise UnreachedHostError(
                f"{of}store {query.name!r} cannot be read: {error}",
                host=host,
                is_silent=error.is_silent,
            ) from error
        _require_answer(reply, query.name, host, only)
        return PartialAnswer(only, host, left, reply.document, reply.code)


def _no_owner(queries: Queries, group: GroupDescription, only: frozenset[int]) -> NotReadableError:
    which = f"partition {_partition_list(only)}"
    if not group.endpoints:
        return NotReadableError(
            f"no worker of the group {queries.application}, which is {group.state}, serves its "
            f"stores, so {which} cannot be queried. Run it with --queries"
        )
    return NotReadableError(
        f"no host that serves stores has {which} now, while the group is {group.state}. Retry later"
    )


def _require_answer(reply: Reply, store: str, host: str, only: frozenset[int]) -> None:
    found = reply.document if isinstance(reply.document, dict) else {}
    message = str(found.get("error", f"status {reply.code}"))
    if reply.code == 200 or (reply.code == 404 and "positions" in found):
        return
    if reply.code == 421 and "partition" in found:
        raise NotHereError(message, partition=found["partition"], host=found.get("host"))
    if reply.code in (401, 421):
        raise UnreachedHostError(
            f"host {host}, which has partition {_partition_list(only)} of store {store!r}, rejects "
            f"the query: {message}. Give all hosts the same token",
            host=host,
        )
    if reply.code == 400:
        raise WrongQueryError(message)
    if reply.code == 501:
        raise StoreInMemoryError(message)
    if reply.code == 404:
        raise NoSuchStoreError(f"host {host} does not serve store {store!r}: {message}")
    raise NotReadableError(f"host {host}: {message}", remaining=found.get("restore_remaining"))


def _is_silent_still(group: GroupDescription, store: StoreDescriptor, one: Missing) -> bool:
    """Return whether an unresponsive host still has all the partitions, so as not to wait twice."""
    owners = {group.host_of(store, partition) for partition in one.only}
    is_silent = isinstance(one.error, UnreachedHostError) and one.error.is_silent
    return is_silent and owners == {one.host}


def _offset(part: PartialAnswer) -> int:
    return sum(position["offset"] for position in part.document.get("positions", ()))


def _partition_list(only: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(only)))


# Mark of event streams.


LASTS = "headrace.lasts"
"""Key in the ASGI scope of a request with an event stream: its connection stays open."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A query of a store whose rows are on several hosts."""

    hosts: Hosts
    queries: Queries
    query: StoreQuery
    reader: StoreReader[Any, Any]
    partitions: int

    def partition_of(self, key: bytes) -> int:
        return partition_for_key(key, self.partitions)

    def others(self, known: Iterable[int] = ()) -> frozenset[int]:
        return frozenset(range(self.partitions)).difference(known)

    def ask(
        self, operation: Operation, partitions: Iterable[int], make: Make | None = None
    ) -> tuple[list[PartialAnswer], list[Missing]]:
        return self.fan_out(operation, make or self.sent).ask(partitions)

    def fan_out(self, operation: Operation, make: Make) -> FanOut:
        return FanOut(self.hosts, self.queries, operation, self.query, make)

    def sent(
        self,
        only: frozenset[int],
        left: bool,
        *,
        body: bytes | None = None,
        **changed: str | None,
    ) -> StoreQuery:
        return self.query.forwarded(only, self.partitions, left=left, body=body, **changed)


# Rows of a store on all hosts, for a subscription that continues with the changes.
#
# Each page is requested from the host that currently has the partition, and contains its changelog
# offset: if a partition moves between two pages, the next host continues.


PATIENCE_S = 15.0
"""Time limit for retries of a page while its task moves."""
_AGAIN_S = 0.1


class RowsOfHosts:
    """Rows of a store on all hosts, for a follower of its changes.

    Args:
        spread: the store; its query has no other parameters.
        key: encoded key if only its rows are requested; None for all rows.
        counts: query that every readable partition answers.
        pieces: query for a page.
    """

    def __init__(
        self, spread: Spread, key: bytes | None, *, counts: Operation, pieces: Operation
    ) -> None:
        self._spread = spread
        self._key = key
        self._counts = counts
        self._pieces = pieces

    def document(self, row: Any) -> Mapping[str, Any]:
        found: Mapping[str, Any] = row
        return found

    def require_all(self, partitions: frozenset[int]) -> None:
        self._spread.ask(self._counts, partitions)

    def pieces(self, partitions: frozenset[int]) -> Iterator[Piece[Any]]:
        for partition in sorted(partitions):
            after: str | None = None
            while True:
                found = self._piece(partition, after).document
                after = found["after"]
                last = None if after is None else Cursor.of(after).sort
                yield Piece(partition, found["offset"], found["rows"], last)
                if after is None:
                    break

    def _piece(self, partition: int, after: str | None) -> PartialAnswer:
        of = None if self._key is None else self._key.hex()
        make = partial(self._spread.sent, piece="true", piece_of=of, after=after)
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                ((part,), _) = self._spread.ask(self._pieces, [partition], make)
            except NotReadableError:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(_AGAIN_S)
            else:
                return part


PIECE_MIN = 50
"""Minimum number of rows per request to a host."""


class SentElsewhereError(Exception):
    """Redirect of the client to a URL of another host."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


class RoutedStores:
    """Stores of all hosts, each query routed to the host of its partition. Thread-safe."""

    def __init__(self, local: LocalStores) -> None:
        self._local = local
        self._hosts = Hosts()
        self._store = Operation("", local.store)
        self._get = Operation("get", local.of_key)
        self._many = Operation("get", local.of_keys)
        self._range = Operation("range", local.between)
        self._prefix = Operation("prefix", local.beginning)
        self._count = Operation("count", local.count)
        self._exactly = Operation("count", local.count, COUNT_S)

    def store(self, queries: Queries, query: StoreQuery) -> Answer:
        spread = self._spread(queries, query)
        if spread is None:
            return self._anywhere(queries, self._store, query)
        parts, missing = spread.ask(self._store, spread.others())
        return {**parts[0].document, **_completeness(parts, missing)}, 200

    def of_key(self, queries: Queries, query: StoreQuery) -> Answer:
        if query.route == "none" and query.sender is None:
            return self._of_key_here(queries, query)
        spread = self._spread(queries, query)
        if spread is None:
            return self._anywhere(queries, self._get, query)
        reader = spread.reader
        at = spread.partition_of(query.read_key(query.key, reader.key_serde, reader.name))
        if query.route == "redirect":
            self._redirect(spread, at)
        found = self._of_key_at(spread, [at])
        if (_is_none(found[0]) and not reader.store.is_placed) and spread.partitions > 1:
            others = self._of_key_at(spread, spread.others([at]))
            if not _is_none(others[0]):
                return others
            found[0]["positions"] += others[0]["positions"]
        return found

    def _of_key_at(self, spread: Spread, partitions: Iterable[int]) -> Answer:
        parts, missing = spread.ask(self._get, partitions)
        some = [part for part in parts if not _is_none(part.document)]
        if some:
            return _without_cursors(some[0].document), some[0].code
        return {**_without_cursors(parts[0].document), **_completeness(parts, missing)}, parts[
            0
        ].code

    def _of_key_here(self, queries: Queries, query: StoreQuery) -> Answer:
        """Raise NotHereError if another host has the partition of the key."""
        reader = queries.reader(query.name)
        store = reader.store
        if queries.host is None or store.is_global:
            return self._local.of_key(queries, query)
        key = query.read_key(query.key, reader.key_serde, reader.name)
        try:
            group = queries.locator.description()
        except NotReadableError:
            return self._local.of_key(queries, query)
        assert store.sub_topology is not None, store.name
        at = partition_for_key(key, group.partitions.get(store.sub_topology, 1))
        owner = group.host_of(store, at)
        if owner is not None and owner != queries.host and store.is_placed:
            raise NotHereError(
                f"partition {at} of store {store.name!r} is on host {owner}. Query that host, or "
                "leave out route=none",
                partition=at,
                host=owner,
            )
        return self._local.of_key(queries, query)

    def _redirect(self, spread: Spread, at: int) -> None:
        """Redirect the client to the host of a partition, unless it is this host."""
        owner = spread.queries.locator.description().host_of(spread.reader.store, at)
        if owner is not None and owner != spread.queries.host:
            there = spread.sent(frozenset([at]), left=False, route="none")
            raise SentElsewhereError(f"http://{owner}{there.target('get')}")

    def of_keys(self, queries: Queries, query: StoreQuery) -> Answer:
        spread = self._spread(queries, query)
        if spread is None:
            return self._anywhere(queries, self._many, query)
        documents = query.keys()
        at = [spread.partition_of(key) for key in keys_of(spread.reader, documents)]
        rows: list[Any] = [None] * len(documents)
        wanted: dict[int, list[int]] = {}
        for index, partition in enumerate(at):
            wanted.setdefault(partition, []).append(index)
        parts, missing = self._rows_of(spread, documents, rows, wanted)
        left = [index for index, row in enumerate(rows) if row is None]
        gone = frozenset[int]().union(*(one.only for one in missing))
        if left and not spread.reader.store.is_placed and spread.partitions > 1:
            answered = [part for part in parts if not part.left]
            positions = [one for part in answered for one in part.document["positions"]]
            # A task may have moved to a host that is behind.
            later = replace(spread, query=query.not_before(positions))
            more, others = self._rows_of(
                later, documents, rows, dict.fromkeys(spread.others(), left)
            )
            parts, missing = parts + more, missing + others
        answer = {"rows": rows, **_completeness(parts, missing)}
        if missing:
            answer["unanswered"] = [
                index for index in left if rows[index] is None and at[index] in gone
            ]
        return answer, 200

    def _rows_of(
        self,
        spread: Spread,
        documents: list[Any],
        rows: list[Any],
        wanted: Mapping[int, list[int]],
    ) -> tuple[list[PartialAnswer], list[Missing]]:
        """Insert the rows that are found; `wanted` has the indexes to query in each partition."""

        def indexes_of(only: frozenset[int]) -> list[int]:
            return sorted({index for partition in only for index in wanted[partition]})

        def make(only: frozenset[int], left: bool) -> StoreQuery:
            keys = [documents[index] for index in indexes_of(only)]
            return spread.sent(only, left, body=msgspec.json.encode({"keys": keys}))

        parts, missing = spread.fan_out(self._many, make).ask(wanted)
        for part in parts:
            for index, row in zip(indexes_of(part.only), part.document["rows"], strict=True):
                rows[index] = rows[index] if row is None else row
        return parts, missing

    def between(self, queries: Queries, query: StoreQuery) -> Answer:
        return self._merged(queries, self._range, query, reverse=query.flag("reverse"))

    def beginning(self, queries: Queries, query: StoreQuery) -> Answer:
        return self._merged(queries, self._prefix, query)

    def count(self, queries: Queries, query: StoreQuery) -> Answer:
        is_exact = query.flag("exact")
        operation = self._exactly if is_exact else self._count
        spread = self._spread(queries, query)
        if spread is None:
            return self._anywhere(queries, operation, query)
        parts, missing = spread.ask(operation, spread.others())
        count = sum(part.document["count"] for part in parts)
        return {"count": count, "exact": is_exact, **_completeness(parts, missing)}, 200

    def _merged(
        self, queries: Queries, operation: Operation, query: StoreQuery, *, reverse: bool = False
    ) -> Answer:
        """Merge a page of rows of all hosts in the order of their keys."""
        spread = self._spread(queries, query)
        if spread is None:
            return self._anywhere(queries, operation, query)
        limit = query.limit()
        owners = queries.locator.description().endpoints
        # The likely share of a host; further rows are requested as needed.
        piece = str(min(limit + 1, max(PIECE_MIN, 2 * limit // max(1, len(owners)))))
        fan_out = spread.fan_out(
            operation, partial(spread.sent, limit=piece, after=query.text("after"))
        )
        parts, missing = fan_out.ask(spread.others())

        def rows_of(part: PartialAnswer) -> Iterator[tuple[bytes, int, dict[str, Any]]]:
            while True:
                for row in part.document["rows"]:
                    cursor = Cursor.of(row["after"])
                    yield cursor.sort, cursor.partition, row
                after = part.document["after"]
                if after is None:
                    return
                rest = spread.sent(part.only, part.left, limit=piece, after=after)
                part = fan_out.at(part.host, rest, part.only, left=part.left)
                parts.append(part)

        merged = heapq.merge(*map(rows_of, [*parts]), key=lambda one: one[:2], reverse=reverse)
        rows = [row for _, _, row in islice(merged, limit + 1)]
        after = rows[limit - 1]["after"] if len(rows) > limit else None
        page = {"rows": rows[:limit], "after": after, **_completeness(parts, missing)}
        return _without_cursors(page), 200

    def rows(self, queries: Queries, query: StoreQuery, key: bytes | None) -> RowsOfHosts | None:
        """Return the rows of all hosts for a change feed; None if all rows are on this host."""
        spread = self._spread(queries, query)
        if spread is None:
            return None
        return RowsOfHosts(spread, key, counts=self._count, pieces=self._range)

    # -- shared ----------------------------------------------------------------------------------

    def _spread(self, queries: Queries, query: StoreQuery) -> Spread | None:
        """Return None if this host alone can answer."""
        reader, route = queries.reader(query.name), query.route
        store = reader.store
        if queries.host is None or query.sender is not None or route == "none" or store.is_global:
            return None
        assert store.sub_topology is not None, store.name
        if query.only is not None:
            raise WrongQueryError(
                "partitions= requires route=none. Leave it out to query all hosts"
            )
        group = queries.locator.description()
        partitions = group.partitions.get(store.sub_topology)
        require_read(queries, query, partitions)
        # State in memory is lost with its worker, and no file here shows that a task existed.
        if group.are_all_at(queries.host) and not store.in_memory:
            return None
        if partitions is None:
            raise NotReadableError(
                f"input topics of store {store.name!r} do not exist now. Retry later"
            )
        return Spread(self._hosts, queries, query, reader, partitions)

    def _anywhere(self, queries: Queries, operation: Operation, query: StoreQuery) -> Answer:
        """Answer from a single host: this host, or any host for a global table."""
        is_of_client = query.sender is None and query.route != "none"
        if queries.host is None or not is_of_client or not queries.stores[query.name].is_global:
            return operation.here(queries, query)
        return FanOut(self._hosts, queries, operation, query, lambda *_: query).query_any()

    def close(self) -> None:
        self._hosts.close()


def _is_none(found: dict[str, Any]) -> bool:
    return not found["rows"] if "rows" in found else "error" in found


def _without_cursors(found: dict[str, Any]) -> dict[str, Any]:
    for row in found.get("rows", ()):
        row.pop("after", None)
    return found


def _completeness(parts: list[PartialAnswer], missing: list[Missing]) -> dict[str, Any]:
    """Return the positions of all parts, merged by partition, and the missing partitions."""
    positions: dict[int, dict[str, Any]] = {}
    for part in parts:
        for position in part.document.get("positions", ()):
            # A partition may be queried twice, even on two hosts if its task moved: all rows are
            # at least as recent as the earlier position, and none is newer than the later.
            partition = position["partition"]
            some = [positions[partition], position] if partition in positions else [position]
            furthest = max(one["max_offset"] for one in some)
            earliest = min(some, key=lambda one: one["offset"])
            positions[partition] = {**earliest, "max_offset": furthest}
    found: dict[str, Any] = {"positions": [positions[partition] for partition in sorted(positions)]}
    if missing:
        found["missing"] = [one.document for one in missing]
    return found
