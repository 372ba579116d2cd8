"""Asking the hosts that have the partitions which a question is about, side by side.

    partitions ─► owners, as the group has them ─► one question each ─► answers
                        ▲                              │ "not mine", or nobody there
                        └── the brokers are asked anew ┘ once

What is left over then is refused, or given from what a task has left behind on some host where
whoever asks said how old it may be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

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
from headrace.streams.queries.kept import KeptStore
from headrace.streams.queries.queries import Queries
from headrace.streams.queries.whereabouts import AGAIN_S, Heard
from headrace.streams.remote.http import HttpHost, Reply
from headrace.streams_web.stores.asked import Asked
from headrace.streams_web.stores.local import Answer

ANSWER_S = 5.0
"""So long another host may take for its answer, beside what it is to wait for positions."""
COUNT_S = 50.0
"""And where it is to look at all rows: a connection lasts a minute."""
THREADS = 32
_T = TypeVar("_T")

Make = Callable[[frozenset[int], bool], Asked]
"""Makes the question for some partitions; and whether what was left behind will do."""


@dataclass(frozen=True, slots=True)
class Word:
    """One kind of question.

    Args:
        path: what stands behind the store's name.
        here: answers it from the files of this host.
    """

    path: str
    here: Callable[[Queries, Asked], Answer]
    timeout_s: float = ANSWER_S


@dataclass(frozen=True, slots=True)
class Part:
    """An answer for some of the partitions.

    Args:
        host: who gave it.
        left: whether it is what a task has left behind there.
    """

    only: frozenset[int]
    host: str
    left: bool
    found: dict[str, Any]
    code: int


@dataclass(frozen=True, slots=True)
class Missing:
    """Partitions for which there is no answer."""

    only: frozenset[int]
    host: str | None
    error: QueryError

    @property
    def document(self) -> dict[str, Any]:
        """It as JSON has it."""
        return {
            "partitions": sorted(self.only),
            "host": self.host,
            "error": str(self.error),
        }


class Hosts:
    """See the module. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosts: dict[str, HttpHost] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False

    def ask(
        self,
        queries: Queries,
        word: Word,
        asked: Asked,
        partitions: Iterable[int],
        make: Make,
    ) -> tuple[list[Part], list[Missing]]:
        """Ask about partitions of a store, whoever has them.

        Args:
            asked: the question as it came.
            partitions: which it is about.
            make: makes it for some of them.

        Raises:
            QueryError: some have no answer, and not ``partial=true`` was said.
        """
        store = queries.stores[asked.name]
        heard = queries.whereabouts.heard()
        parts, missing = self._round(queries, word, heard, store, partitions, make)
        if any(isinstance(one.error, NotHereError | UnreachedHostError) for one in missing):
            heard = queries.whereabouts.heard(at_most_s=AGAIN_S)
            still = [one for one in missing if _is_silent_still(heard, store, one)]
            again = frozenset[int]().union(*(one.only for one in missing if one not in still))
            more, missing = self._round(queries, word, heard, store, again, make)
            parts += more
            missing += still
        if missing and asked.text("max_age") is not None:
            missing = self._left(queries, word, heard, missing, make, parts)
        if missing and not (parts and asked.flag("partial")):
            raise missing[0].error
        return parts, missing

    def ask_any(self, queries: Queries, word: Word, asked: Asked) -> Answer:
        """Ask about what each host has: this one, or else the others one after the other."""
        try:
            return word.here(queries, asked)
        except NotReadableError as error:
            others = queries.whereabouts.heard().endpoints - {queries.host}
            for host in sorted(others):
                try:
                    part = self.at(queries, word, host, asked, frozenset(), left=False)
                except QueryError:
                    continue
                return part.found, part.code
            raise error

    def side_by_side(self, calls: Sequence[Callable[[], _T]]) -> list[_T]:
        """Call all of them, and wait for what they return."""
        if len(calls) == 1:
            return [calls[0]()]
        with self._lock:
            if self._is_closed:
                raise StoppingError
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, "headrace-hosts")
            under_way = [self._pool.submit(call) for call in calls]
        return [one.result() for one in under_way]

    def _round(
        self,
        queries: Queries,
        word: Word,
        heard: Heard,
        store: KeptStore,
        partitions: Iterable[int],
        make: Make,
    ) -> tuple[list[Part], list[Missing]]:
        by_owner: dict[str | None, set[int]] = {}
        for one in partitions:
            assert store.sub_topology is not None, store.name
            by_owner.setdefault(heard.owners.get((store.sub_topology, one)), set()).add(one)
        calls = [
            partial(self._tried, queries, word, heard, owner, frozenset(some), make)
            for owner, some in by_owner.items()
        ]
        found = self.side_by_side(calls)
        return (
            [one for one in found if isinstance(one, Part)],
            [one for one in found if isinstance(one, Missing)],
        )

    def _tried(
        self,
        queries: Queries,
        word: Word,
        heard: Heard,
        owner: str | None,
        only: frozenset[int],
        make: Make,
        *,
        left: bool = False,
    ) -> Part | Missing:
        try:
            if owner is None:
                raise _nobody(queries, heard, only)
            return self.at(queries, word, owner, make(only, left), only, left=left)
        except (NotReadableError, StoreInMemoryError) as error:
            return Missing(only, owner, error)

    def _left(
        self,
        queries: Queries,
        word: Word,
        heard: Heard,
        missing: list[Missing],
        make: Make,
        parts: list[Part],
    ) -> list[Missing]:
        """Look what tasks have left behind; returns what there is nothing of."""
        hosts = sorted(heard.endpoints | ({queries.host} if queries.host else set()))
        still = []
        for one in missing:
            for partition in sorted(one.only):
                only = frozenset([partition])
                found = self.side_by_side(
                    [
                        partial(self._tried, queries, word, heard, host, only, make, left=True)
                        for host in hosts
                    ]
                )
                given = [part for part in found if isinstance(part, Part)]
                if given:
                    parts.append(max(given, key=_offset))
                else:
                    still.append(Missing(only, one.host, one.error))
        return still

    def at(
        self,
        queries: Queries,
        word: Word,
        host: str,
        asked: Asked,
        only: frozenset[int],
        *,
        left: bool,
    ) -> Part:
        """Ask one host.

        Args:
            asked: the question as it is asked there.

        Raises:
            QueryError: it refuses, or does not answer.
        """
        if host == queries.host:
            found, code = word.here(queries, asked)
            return Part(only, host, left, found, code)
        assert queries.host is not None
        waits_s = asked.wait_s() if asked.min_positions() else 0.0
        try:
            reply = self._host(host).ask(
                asked.target(word.path),
                asked.body or None,
                headers=asked.headers(queries.host),
                timeout_s=asked.within_s(word.timeout_s + waits_s),
            )
        except ClosedConnectionError as error:
            raise StoppingError from error
        except UnreachedHostError as error:
            of = f"partition {_listed(only)} of " if only else ""
            raise UnreachedHostError(
                f"{error}; {of}store {asked.name!r} is there",
                host=host,
                is_silent=error.is_silent,
            ) from error
        _require_answer(reply, asked.name, host, only)
        return Part(only, host, left, reply.document, reply.code)

    def _host(self, endpoint: str) -> HttpHost:
        with self._lock:
            if self._is_closed:
                raise StoppingError
            found = self._hosts.get(endpoint)
            if found is None:
                found = self._hosts[endpoint] = HttpHost(f"http://{endpoint}")
            return found

    def close(self) -> None:
        """End the connections."""
        with self._lock:
            self._is_closed = True
            hosts, self._hosts = self._hosts, {}
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)
        for host in hosts.values():
            host.close()


def _nobody(queries: Queries, heard: Heard, only: frozenset[int]) -> NotReadableError:
    which = f"partition {_listed(only)}"
    if not heard.endpoints:
        return NotReadableError(
            f"no worker of the group {queries.application} says where its stores can be asked for, "
            f"so {which} cannot be; the group is {heard.state}: run it with --queries"
        )
    return NotReadableError(
        f"no host that can be asked has {which} now; the group is {heard.state}: ask again later"
    )


def _require_answer(reply: Reply, store: str, host: str, only: frozenset[int]) -> None:
    """See that a host answered, and raise as it did if not.

    Raises:
        QueryError: it did not.
    """
    found = reply.document if isinstance(reply.document, dict) else {}
    said = str(found.get("error", f"status {reply.code}"))
    if reply.code == 200 or (reply.code == 404 and "places" in found):
        return
    if reply.code == 421 and "partition" in found:
        raise NotHereError(said, partition=found["partition"], host=found.get("host"))
    if reply.code in (401, 421):
        raise UnreachedHostError(
            f"host {host}, which has partition {_listed(only)} of store {store!r}, does not take "
            f"what it is asked with: {said}; give all hosts the same token",
            host=host,
        )
    if reply.code == 400:
        raise WrongQueryError(said)
    if reply.code == 501:
        raise StoreInMemoryError(said)
    if reply.code == 404:
        raise NoSuchStoreError(f"host {host} does not serve store {store!r}: {said}")
    raise NotReadableError(f"host {host}: {said}", remaining=found.get("restore_remaining"))


def _is_silent_still(heard: Heard, store: KeptStore, one: Missing) -> bool:
    """Whether a host that was waited for in vain has all of it still, so as not to wait twice."""
    assert store.sub_topology is not None, store.name
    owners = {heard.owners.get((store.sub_topology, partition)) for partition in one.only}
    is_silent = isinstance(one.error, UnreachedHostError) and one.error.is_silent
    return is_silent and owners == {one.host}


def _offset(part: Part) -> int:
    return sum(place["offset"] for place in part.found.get("places", ()))


def _listed(only: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(only)))
