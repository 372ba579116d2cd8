"""The rows of a store on all hosts, for one who is told its changes behind them.

Each piece is asked of the host that has the partition at that moment, and says where in the
changelog it is from: a partition that moves between two pieces goes on at the next host.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from headrace.streams.feeds.rows_first import ToldPiece
from headrace.streams.queries.errors import NotReadableError
from headrace.streams.queries.queries import Queries
from headrace.streams.queries.walk import Cursor
from headrace.streams_web.stores.asked import Asked
from headrace.streams_web.stores.hosts import Hosts, Part, Word

PATIENCE_S = 15.0
"""So long a piece is asked for again, while its task moves."""
_AGAIN_S = 0.1


class RowsOfHosts:
    """See the module.

    Args:
        asked: the question, of the store alone.
        of: how many partitions there are.
        key: the bytes of the one key that is meant; None for all rows.
        counts: the question that all partitions answer which can be read.
        pieces: the question for a piece.
    """

    def __init__(
        self,
        hosts: Hosts,
        queries: Queries,
        asked: Asked,
        of: int,
        *,
        key: bytes | None,
        counts: Word,
        pieces: Word,
    ) -> None:
        self._hosts = hosts
        self._queries = queries
        self._asked = asked
        self._of = of
        self._key = key
        self._counts = counts
        self._pieces = pieces

    def document(self, row: Any) -> Mapping[str, Any]:
        """As the host sent it."""
        found: Mapping[str, Any] = row
        return found

    def require_all(self, partitions: frozenset[int]) -> None:
        """See that all partitions can be read, wherever they are."""

        def make(only: frozenset[int], left: bool) -> Asked:
            return self._asked.sent_on(only, self._of, left=left)

        self._hosts.ask(self._queries, self._counts, self._asked, partitions, make)

    def pieces(self, partitions: frozenset[int]) -> Iterator[ToldPiece]:
        """From whichever host has them, one partition after the other."""
        for partition in sorted(partitions):
            after: str | None = None
            while True:
                found = self._piece(partition, after).found
                after = found["after"]
                last = None if after is None else Cursor.of(after).sort
                yield ToldPiece(partition, found["offset"], found["rows"], last)
                if after is None:
                    break

    def _piece(self, partition: int, after: str | None) -> Part:
        of = None if self._key is None else self._key.hex()

        def make(only: frozenset[int], left: bool) -> Asked:
            return self._asked.sent_on(
                only, self._of, left=left, piece="true", piece_of=of, after=after
            )

        ask = partial(self._hosts.ask, self._queries, self._pieces, self._asked, [partition], make)
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                ((part,), _) = ask()
            except NotReadableError:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(_AGAIN_S)
            else:
                return part
