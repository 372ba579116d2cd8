"""Change feed of a remote store: each committed change once, over reconnects and host changes.

request ─► events ─► disconnect ─► request with the last position ─► events
                          └── before the snapshot is complete no position exists: the caller
                              must start again
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Self, TypeVar

import msgspec

from headrace.streams.client.http import EventStream, ServerSentEvent
from headrace.streams.client.query_client import RETRY_MAX_S, RETRY_MIN_S, QueryClient
from headrace.streams.queries.errors import (
    ClosedConnectionError,
    NotReadableError,
    UnreachedHostError,
    WrongQueryError,
)

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Generic[K, V]):
    """Committed change of a row, or a row of the initial snapshot.

    Args:
        key: the key; a `Windowed` for window and session stores.
        value: None if the row was deleted.
        timestamp: timestamp of the record that the value comes from, in milliseconds since 1970.
        partition: partition of the task that owns the row.
        offset: its changelog offset; for a snapshot row, the offset of the snapshot.
        is_row: whether it is a row of the snapshot (``snapshot=True``).
        position: position after the change, to continue from; None before the snapshot is complete.
    """

    key: K
    value: V | None
    timestamp: int
    partition: int
    offset: int
    is_row: bool
    position: str | None


Read = Callable[[Mapping[str, Any]], tuple[K, V | None]]
"""Converter from JSON to key and value."""


class Changes(Generic[K, V]):
    """Iterator over the committed changes of a remote store, until it is closed.

    Args:
        store: name of the store.
        of: parameters that select the key; empty for all keys.
        start: start of the feed without a position.
        read: converts JSON to key and value, see `Read`.
    """

    def __init__(
        self,
        client: QueryClient,
        store: str,
        *,
        of: Mapping[str, str | None],
        start: Literal["end", "beginning"],
        position: str | None,
        snapshot: bool,
        read: Read[K, V],
    ) -> None:
        if snapshot + (start != "end") + (position is not None) > 1:
            raise WrongQueryError(
                "snapshot=True, start= and position= exclude each other. Keep a single one"
            )
        self._client = client
        self._store = store
        self._of = of
        self._start = start
        self._snapshot = snapshot
        self._read = read
        self._ending = client.part()
        self._stream: EventStream | None = None
        self._is_closed = False
        self._has_begun = False
        self._has_received = False
        self._batches = self.batches()
        self._ready: deque[Change[K, V]] = deque()
        self._position = self._reached = position
        self._compacted: list[Mapping[str, Any]] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change[K, V]:
        while not self._ready:
            self._ready.extend(next(self._batches))
        change = self._ready.popleft()
        self._reached = change.position if self._ready else self._position
        return change

    @property
    def compacted(self) -> list[Mapping[str, Any]]:
        """Gaps of changes that compaction has removed.

        Each gap has its `partition`, and the offsets `from` and `to`.
        """
        return self._compacted

    @property
    def position(self) -> str | None:
        """Position after all returned changes; None if the feed cannot continue from here."""
        return self._reached if self._ready else self._position

    @property
    def has_received(self) -> bool:
        """Whether a host has started to send changes."""
        return self._has_received

    def batches(self) -> Iterator[list[Change[K, V]]]:
        """Yield the changes in batches, as they arrive.

        Raises:
            PositionGoneError: changes after the position do not exist any more.
            NotReadableError: no host has sent data within the time-out, or the connection was lost
                before the snapshot was complete: start again.
            QueryError: the store has no changes.
            ClosedConnectionError: the connection was already closed; closing it later ends the
                iterator.
        """
        if not self._is_closed:
            self._ending.require()
        try:
            yield from self._until_closed()
        except ClosedConnectionError:
            return

    def _until_closed(self) -> Iterator[list[Change[K, V]]]:
        give_up_s, pause_s = self._until(), RETRY_MIN_S
        while (stream := self._opened()) is not None:
            has_received = False
            try:
                for events in stream.batches():
                    found = self._take(events)
                    has_received = has_received or any(event.name != "closed" for event in events)
                    self._has_received = self._has_received or has_received
                    if found:
                        yield found
                    closed = next((event for event in events if event.name == "closed"), None)
                    if closed is not None:
                        reason = msgspec.json.decode(closed.data)["reason"]
                        raise NotReadableError(f"changes of store {self._store!r}: {reason}")
            except NotReadableError as error:
                self._ending.require()
                if self._snapshot and self._position is None and self._has_begun:
                    raise NotReadableError(
                        f"the rows of store {self._store!r} are incomplete and have no position to "
                        f"continue from. Start again: {error}"
                    ) from error
                if has_received:  # the time-out starts after the last received data
                    give_up_s, pause_s = self._until(), RETRY_MIN_S
                if time.monotonic() + pause_s >= give_up_s:
                    raise
                if isinstance(error, UnreachedHostError) and error.is_silent:
                    self._client.leave(error.host)
                else:
                    self._client.next_host()
            finally:
                stream.close()
            self._ending.pause(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def close(self) -> None:
        """Close the feed, even while another thread waits for a change."""
        self._is_closed = True
        self._ending.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _until(self) -> float:
        return time.monotonic() + self._client.timeout_s

    def _opened(self) -> EventStream | None:
        if self._is_closed:
            return None
        begin: dict[str, str | None] = {"from": self._start}
        if self._position is not None:
            begin = {"position": self._position}
        elif self._snapshot:
            begin = {"snapshot": "true"}
        given = {**self._of, **begin}
        self._stream = self._client.listen(self._store, "changes", given, self._ending)
        return self._stream

    def _take(self, events: list[ServerSentEvent]) -> list[Change[K, V]]:
        found = []
        for event in events:
            self._has_begun = self._has_begun or event.name == "row"
            if event.position is not None:
                self._position = event.position
            if event.name == "compacted":
                self._compacted.append(msgspec.json.decode(event.data))
            elif event.name in ("row", "change"):
                found.append(self._change(event))
        return found

    def _change(self, event: ServerSentEvent) -> Change[K, V]:
        document = msgspec.json.decode(event.data)
        key, value = self._read(document)
        return Change(
            key=key,
            value=value,
            timestamp=document["timestamp"],
            partition=document["partition"],
            offset=document["offset"],
            is_row=event.name == "row",
            position=event.position,
        )
