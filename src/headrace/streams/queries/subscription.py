"""Bounded queue of events between the readers of changes and a follower.

    reader's thread ─► offer ─► [ … ] ─► take ─► the thread that writes to the follower

A follower that is too slow is closed with the reason, and can resume at its last position. Each
change has the follower's position after it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from headrace.streams.queries.change import DecodedChange, text_of

# Threads that catch up encode JSON one at a time, with pauses.
#
# They hold the GIL while they encode: eight of them would block the server's event loop, which
# acquires the GIL many times per response, for seconds.


T = TypeVar("T")

TURN_RECORDS = 100
"""Number of records in a turn, which takes a few milliseconds."""
PAUSE_S = 0.001
_pause = time.sleep


def shares(all_of_them: Sequence[T]) -> Iterator[Sequence[T]]:
    """Divide a sequence into the work of single turns.

    >>> [len(share) for share in shares(range(250))]
    [100, 100, 50]
    """
    for begin in range(0, len(all_of_them), TURN_RECORDS):
        yield all_of_them[begin : begin + TURN_RECORDS]


class Turns:
    """Lock by which followers that catch up take turns. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold the lock for a turn, which must not block."""
        with self._lock:
            yield
            # Let threads that do not catch up run before the next turn.
            _pause(PAUSE_S)


EVENTS_MAX = 10_000
BYTES_MAX = 8 << 20
_EVENT_BYTES = 100
"""Approximate size of an event without its data."""
Name = Literal["change", "row", "position", "compacted", "closed"]


@dataclass(frozen=True, slots=True)
class Event:
    """Event with JSON, and the position after it; None if a follower cannot resume there."""

    name: Name
    data: bytes
    position: str | None


class ChangeSubscription:
    """Follower of a change feed, with its buffer of changes. Thread-safe.

    Args:
        key: the encoded key to follow; None follows the whole store.
        wake: called from any thread when an event is available, and not again before `take`.
        max_wait_s: the maximum time in seconds that a reader waits for space in the queue.
    """

    def __init__(
        self,
        key: bytes | None,
        wake: Callable[[], None],
        *,
        events_max: int = EVENTS_MAX,
        bytes_max: int = BYTES_MAX,
        max_wait_s: float = 30.0,
    ) -> None:
        self._key = key
        self._wake = wake
        self._events_max, self._bytes_max = events_max, bytes_max
        self._max_wait_s = max_wait_s
        self._changed = threading.Condition()
        self._waiting: deque[Event] = deque()
        self._bytes = 0
        self._is_woken = False
        self._next: dict[int, int] = {}
        self._resumable_from: dict[int, int] = {}
        """A follower cannot resume before these offsets: its rows contain some of the changes."""
        self._is_in_rows: Callable[[DecodedChange], bool] | None = None
        self._reason: str | None = None

    @property
    def is_over(self) -> bool:
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        return self._reason

    def begin(
        self,
        positions: Mapping[int, int],
        *,
        resumable_from: Mapping[int, int] | None = None,
        is_in_rows: Callable[[DecodedChange], bool] | None = None,
    ) -> None:
        """Set the start positions of the changes, by partition.

        Rows sent before contain some of the changes before `resumable_from`.
        """
        with self._changed:
            self._next = dict(positions)
            self._resumable_from = {
                partition: end
                for partition, end in (resumable_from or {}).items()
                if end > self._next[partition]
            }
            self._is_in_rows = is_in_rows if self._resumable_from else None
            if not self._resumable_from:
                self._add(self._position_event())

    def next_of(self, partition: int) -> int:
        return self._next[partition]

    def wants(self, change: DecodedChange) -> bool:
        """Return whether it would be sent now; this may differ when it is offered."""
        with self._changed:
            return change.offset >= self._next[change.partition] and self._is_wanted(change)

    def offer(self, change: DecodedChange, *, can_wait: bool = False) -> bool:
        """Enqueue a change if it is wanted and new; return whether the subscription is open.

        Without `can_wait`, a full queue closes the follower.
        """
        with self._changed:
            if self._reason is not None:
                return False
            partition = change.partition
            if change.offset < self._next[partition]:
                return True
            if self._is_wanted(change):
                data = change.data
                if not self._await_space(len(data), can_wait=can_wait):
                    return False
                self._next[partition] = change.offset + 1
                self._add(Event("change", data, self._position()))
            self._reach(partition, change.offset + 1)
            return True

    def reach(self, partition: int, offset: int) -> None:
        """Advance the position to an offset without further changes before it."""
        with self._changed:
            if self._reason is None:
                self._reach(partition, offset)

    def emit(self, name: Name, data: bytes) -> bool:
        """Enqueue another event, waiting for space; return whether the subscription is open."""
        with self._changed:
            if self._reason is not None or not self._await_space(len(data), can_wait=True):
                return False
            self._add(Event(name, data, None))
            return True

    def close(self, reason: str) -> None:
        """Close the subscription; waiting events and the reason can still be taken."""
        with self._changed:
            self._close(reason)

    def take(self, most_bytes: int | None = None) -> tuple[list[Event], str | None]:
        """Return waiting events, and the position after all waiting events.

        The last event of a closed subscription is `closed`. `most_bytes` is approximate: at least
        one event is returned.
        """
        with self._changed:
            events: list[Event] = []
            taken = 0
            while self._waiting and (most_bytes is None or taken < most_bytes):
                events.append(self._waiting.popleft())
                taken += len(events[-1].data) + _EVENT_BYTES
                self._bytes -= len(events[-1].data)
            self._is_woken = False
            self._changed.notify_all()
            return events, self._position()

    # -- with the lock held ----------------------------------------------------------------------

    def _is_wanted(self, change: DecodedChange) -> bool:
        if change.key is None or (self._key is not None and change.bare_key != self._key):
            return False
        return self._is_in_rows is None or not self._is_in_rows(change)

    def _await_space(self, size: int, *, can_wait: bool) -> bool:
        def fits() -> bool:
            full = len(self._waiting) >= self._events_max or (
                self._bytes + size > self._bytes_max and bool(self._waiting)
            )
            return self._reason is not None or not full

        if not fits() and not (can_wait and self._changed.wait_for(fits, self._max_wait_s)):
            self._close(
                f"{len(self._waiting):,} events are queued, because the client reads too slowly. "
                "Continue from the last position, which is the id of the last event"
            )
        return self._reason is None

    def _reach(self, partition: int, offset: int) -> None:
        if offset > self._next[partition]:
            self._next[partition] = offset
        if self._resumable_from and all(
            self._next[p] >= end for p, end in self._resumable_from.items()
        ):
            self._resumable_from, self._is_in_rows = {}, None
            self._add(self._position_event())

    def _position(self) -> str | None:
        return text_of(self._next) if self._next and not self._resumable_from else None

    def _position_event(self) -> Event:
        data = msgspec.json.encode({"position": text_of(self._next)})
        return Event("position", data, text_of(self._next))

    def _close(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
            self._add(Event("closed", msgspec.json.encode({"reason": reason}), None))
            self._changed.notify_all()

    def _add(self, event: Event) -> None:
        self._waiting.append(event)
        self._bytes += len(event.data)
        if not self._is_woken:
            self._is_woken = True
            self._wake()
