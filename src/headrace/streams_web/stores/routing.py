"""What is answered from all hosts: a question goes to whoever has what it is about.

    one key      to the host that has its partition, or the client is sent there
    many keys    divided by host, asked side by side, joined in their order
    ranges       some rows of each host, put in the order of their keys
    counts       the sum

A key that is not where the partitioner puts it is looked for everywhere, unless the application
itself has written all that the store follows: others may partition in another way.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from headrace.state.codec import partition_for_key
from headrace.streams.queries.errors import NotHereError, NotReadableError, WrongQueryError
from headrace.streams.queries.queries import Queries
from headrace.streams.queries.readers import StoreReader
from headrace.streams.queries.walk import Cursor
from headrace.streams_web.stores.asked import Asked
from headrace.streams_web.stores.hosts import COUNT_S, Hosts, Missing, Part, Word
from headrace.streams_web.stores.local import Answer, LocalStores, keys_of, require_read
from headrace.streams_web.stores.rows import RowsOfHosts

PIECE_MIN = 50
"""So many rows are asked of each host at once at least."""


class SentElsewhereError(Exception):
    """Whoever asks is to ask another host himself.

    Args:
        url: where.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


@dataclass(frozen=True, slots=True)
class _Spread:
    """A store whose rows are on several hosts."""

    reader: StoreReader[Any, Any]
    partitions: int
    """How many it has."""

    def partition_of(self, key: bytes) -> int:
        return partition_for_key(key, self.partitions)

    def others(self, known: Iterable[int]) -> frozenset[int]:
        """The partitions but for some."""
        return frozenset(range(self.partitions)).difference(known)


class RoutedStores:
    """See the module. Any thread may ask.

    Args:
        local: answers what is here.
    """

    def __init__(self, local: LocalStores) -> None:
        self._local = local
        self._hosts = Hosts()
        self._store = Word("", local.store)
        self._get = Word("get", local.of_key)
        self._many = Word("get", local.of_keys)
        self._range = Word("range", local.between)
        self._prefix = Word("prefix", local.beginning)
        self._count = Word("count", local.count)
        self._exactly = Word("count", local.count, COUNT_S)

    def store(self, queries: Queries, asked: Asked) -> Answer:
        """A store, and how far its partitions are."""
        spread = self._spread(queries, asked)
        if spread is None:
            return self._anywhere(queries, self._store, asked)
        parts, missing = self._everywhere(queries, self._store, asked, spread)
        return {**parts[0].found, **_whole(parts, missing)}, 200

    def of_key(self, queries: Queries, asked: Asked) -> Answer:
        """The row of a key, or its windows."""
        if asked.route == "none" and asked.asker is None:
            return self._of_key_here(queries, asked)
        spread = self._spread(queries, asked)
        if spread is None:
            return self._anywhere(queries, self._get, asked)
        reader = spread.reader
        at = spread.partition_of(asked.read_key(asked.key, reader.key_serde, reader.name))
        if asked.route == "redirect":
            self._send(queries, asked, spread, at)
        found = self._of_key_at(queries, asked, spread, [at])
        if (_is_none(found[0]) and not reader.store.is_placed) and spread.partitions > 1:
            others = self._of_key_at(queries, asked, spread, spread.others([at]))
            if not _is_none(others[0]):
                return others
            found[0]["places"] += others[0]["places"]
        return found

    def _of_key_at(
        self, queries: Queries, asked: Asked, spread: _Spread, partitions: Iterable[int]
    ) -> Answer:
        parts, missing = self._hosts.ask(
            queries, self._get, asked, partitions, partial(_sent, asked, spread)
        )
        some = [part for part in parts if not _is_none(part.found)]
        if some:
            return _without_cursors(some[0].found), some[0].code
        return {**_without_cursors(parts[0].found), **_whole(parts, missing)}, parts[0].code

    def _of_key_here(self, queries: Queries, asked: Asked) -> Answer:
        """The same where nobody else is to be asked; refused where another host has it."""
        store = queries.reader(asked.name).store
        if queries.host is None or store.is_global:
            return self._local.of_key(queries, asked)
        reader = queries.reader(asked.name)
        key = asked.read_key(asked.key, reader.key_serde, reader.name)
        try:
            heard = queries.whereabouts.heard()
        except NotReadableError:
            return self._local.of_key(queries, asked)
        assert store.sub_topology is not None, store.name
        at = partition_for_key(key, heard.partitions.get(store.sub_topology, 1))
        owner = heard.owners.get((store.sub_topology, at))
        if owner is not None and owner != queries.host and store.is_placed:
            raise NotHereError(
                f"partition {at} of store {store.name!r} is on host {owner}; ask that one, or "
                "leave out route=none",
                partition=at,
                host=owner,
            )
        return self._local.of_key(queries, asked)

    def _send(self, queries: Queries, asked: Asked, spread: _Spread, at: int) -> None:
        """Send whoever asks to the host that has a partition, unless that is this one."""
        heard = queries.whereabouts.heard()
        sub = spread.reader.store.sub_topology
        assert sub is not None, spread.reader.name
        owner = heard.owners.get((sub, at))
        if owner is not None and owner != queries.host:
            there = asked.sent_on([at], spread.partitions, route="none")
            raise SentElsewhereError(f"http://{owner}{there.target('get')}")

    def of_keys(self, queries: Queries, asked: Asked) -> Answer:
        """The rows of many keys."""
        spread = self._spread(queries, asked)
        if spread is None:
            return self._anywhere(queries, self._many, asked)
        documents = asked.keys()
        at = [spread.partition_of(key) for key in keys_of(spread.reader, documents)]
        rows: list[Any] = [None] * len(documents)
        parts, missing = self._rows_of(queries, asked, spread, documents, rows, at)
        left = [index for index, row in enumerate(rows) if row is None]
        gone = frozenset[int]().union(*(one.only for one in missing))
        if left and not spread.reader.store.is_placed and spread.partitions > 1:
            places = [place for part in parts if not part.left for place in part.found["places"]]
            later = asked.behind(places)  # a task may have moved to who is not as far yet
            more, others = self._rows_of_anywhere(queries, later, spread, documents, rows)
            parts, missing = parts + more, missing + others
        answer = {"rows": rows, **_whole(parts, missing)}
        if missing:
            answer["unanswered"] = [
                index for index in left if rows[index] is None and at[index] in gone
            ]
        return answer, 200

    def _rows_of(
        self,
        queries: Queries,
        asked: Asked,
        spread: _Spread,
        documents: list[Any],
        rows: list[Any],
        at: list[int],
    ) -> tuple[list[Part], list[Missing]]:
        """Ask for rows where the partitioner puts them, and put them into their places."""

        def meant(only: frozenset[int]) -> list[int]:
            return [index for index, one in enumerate(at) if one in only]

        def make(only: frozenset[int], left: bool) -> Asked:
            body = _body(documents[index] for index in meant(only))
            return asked.sent_on(only, spread.partitions, left=left, body=body)

        parts, missing = self._hosts.ask(queries, self._many, asked, set(at), make)
        for part in parts:
            for index, row in zip(meant(part.only), part.found["rows"], strict=True):
                rows[index] = row
        return parts, missing

    def _rows_of_anywhere(
        self,
        queries: Queries,
        asked: Asked,
        spread: _Spread,
        documents: list[Any],
        rows: list[Any],
    ) -> tuple[list[Part], list[Missing]]:
        """Ask for the rows that are not found yet everywhere."""
        left = [index for index, row in enumerate(rows) if row is None]
        body = _body(documents[index] for index in left)

        def make(only: frozenset[int], is_left: bool) -> Asked:
            return asked.sent_on(only, spread.partitions, left=is_left, body=body)

        every = spread.others(())
        parts, missing = self._hosts.ask(queries, self._many, asked, every, make)
        for part in parts:
            for index, row in zip(left, part.found["rows"], strict=True):
                rows[index] = rows[index] if row is None else row
        return parts, missing

    def between(self, queries: Queries, asked: Asked) -> Answer:
        """Rows from one key to another, or of windows by time."""
        return self._gathered(queries, self._range, asked, reverse=asked.flag("reverse"))

    def beginning(self, queries: Queries, asked: Asked) -> Answer:
        """Rows whose keys begin so."""
        return self._gathered(queries, self._prefix, asked)

    def count(self, queries: Queries, asked: Asked) -> Answer:
        """How many rows there are."""
        is_exact = asked.flag("exact")
        word = self._exactly if is_exact else self._count
        spread = self._spread(queries, asked)
        if spread is None:
            return self._anywhere(queries, word, asked)
        parts, missing = self._everywhere(queries, word, asked, spread)
        count = sum(part.found["count"] for part in parts)
        return {"count": count, "exact": is_exact, **_whole(parts, missing)}, 200

    def _gathered(
        self, queries: Queries, word: Word, asked: Asked, *, reverse: bool = False
    ) -> Answer:
        """A page of all hosts' rows in the order of their keys."""
        spread = self._spread(queries, asked)
        if spread is None:
            return self._anywhere(queries, word, asked)
        limit = asked.limit()
        owners = queries.whereabouts.heard().endpoints
        # As many as are likely to be of one host; what is missing is asked for as it is needed.
        piece = str(min(limit + 1, max(PIECE_MIN, 2 * limit // max(1, len(owners)))))

        def make(only: frozenset[int], left: bool, after: str | None = None) -> Asked:
            going_on = asked.text("after") if after is None else after
            return asked.sent_on(only, spread.partitions, left=left, limit=piece, after=going_on)

        parts, missing = self._hosts.ask(queries, word, asked, spread.others(()), make)

        def rows_of(part: Part) -> Iterator[tuple[bytes, int, dict[str, Any]]]:
            while True:
                for row in part.found["rows"]:
                    cursor = Cursor.of(row["after"])
                    yield cursor.sort, cursor.partition, row
                after = part.found["after"]
                if after is None:
                    return
                question = make(part.only, part.left, after)
                part = self._hosts.at(queries, word, part.host, question, part.only, left=part.left)
                parts.append(part)

        merged = heapq.merge(*map(rows_of, [*parts]), key=lambda one: one[:2], reverse=reverse)
        rows = [row for _, _, row in islice(merged, limit + 1)]
        after = rows[limit - 1]["after"] if len(rows) > limit else None
        page = {"rows": rows[:limit], "after": after, **_whole(parts, missing)}
        return _without_cursors(page), 200

    def rows(self, queries: Queries, asked: Asked, key: bytes | None) -> RowsOfHosts | None:
        """The rows to begin with of one who follows changes; None where all are here.

        Args:
            asked: the question, of the store alone.
            key: the one that is followed; None for all.

        Raises:
            NotReadableError: who has what is not known.
        """
        spread = self._spread(queries, asked)
        if spread is None:
            return None
        return RowsOfHosts(
            self._hosts,
            queries,
            asked,
            spread.partitions,
            key=key,
            counts=self._count,
            pieces=self._range,
        )

    # -- what they have in common ----------------------------------------------------------------

    def _spread(self, queries: Queries, asked: Asked) -> _Spread | None:
        """The store, where other hosts may have some of its rows and are to be asked."""
        reader, route = queries.reader(asked.name), asked.route
        store = reader.store
        if queries.host is None or asked.asker is not None or route == "none":
            return None
        if store.is_global:
            return None
        assert store.sub_topology is not None, store.name
        if asked.only is not None:
            raise WrongQueryError("partitions go with route=none: all hosts are asked without it")
        heard = queries.whereabouts.heard()
        partitions = heard.partitions.get(store.sub_topology)
        require_read(queries, asked, partitions)
        # What is in memory has gone with its worker, and no file here says that there was a task.
        if heard.are_all_at(queries.host) and not store.in_memory:
            return None
        if partitions is None:
            raise NotReadableError(
                f"topics that store {store.name!r} follows do not exist now; ask again later"
            )
        return _Spread(reader, partitions)

    def _anywhere(self, queries: Queries, word: Word, asked: Asked) -> Answer:
        """What one host has: this one, or of a global table any."""
        is_global = queries.stores[asked.name].is_global
        if queries.host is None or asked.asker is not None or not is_global:
            return word.here(queries, asked)
        if asked.route == "none":
            return word.here(queries, asked)
        return self._hosts.ask_any(queries, word, asked)

    def _everywhere(
        self, queries: Queries, word: Word, asked: Asked, spread: _Spread
    ) -> tuple[list[Part], list[Missing]]:
        make = partial(_sent, asked, spread)
        return self._hosts.ask(queries, word, asked, spread.others(()), make)

    def close(self) -> None:
        """End the connections to other hosts."""
        self._hosts.close()


def _sent(asked: Asked, spread: _Spread, only: frozenset[int], left: bool) -> Asked:
    return asked.sent_on(only, spread.partitions, left=left)


def _body(documents: Iterable[Any]) -> bytes:
    return msgspec.json.encode({"keys": list(documents)})


def _is_none(found: dict[str, Any]) -> bool:
    """Whether a key has nothing there."""
    return not found["rows"] if "rows" in found else "error" in found


def _without_cursors(found: dict[str, Any]) -> dict[str, Any]:
    for row in found.get("rows", ()):
        row.pop("after", None)
    return found


def _whole(parts: list[Part], missing: list[Missing]) -> dict[str, Any]:
    """The places of all parts, one of each partition, and what is missing."""
    places: dict[int, dict[str, Any]] = {}
    for part in parts:
        for place in part.found.get("places", ()):
            # Of one that was asked twice, of another host perhaps as its task moved: all rows
            # follow as far as the earlier, and none further than the later.
            partition = place["partition"]
            some = [places[partition], place] if partition in places else [place]
            furthest = max(one["max_offset"] for one in some)
            earliest = min(some, key=lambda one: one["offset"])
            places[partition] = {**earliest, "max_offset": furthest}
    found: dict[str, Any] = {"places": [places[partition] for partition in sorted(places)]}
    if missing:
        found["missing"] = [one.document for one in missing]
    return found
