"""What one follower is still to be told: a bounded queue between those who read and him.

    reader's thread ─► offer ─► [ … ] ─► take ─► whoever writes to the follower

He who does not take what is offered is told so and let go: he can resume at his last position.
Behind the changes stands where he is, so that each has a position of its own.
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

from headrace.streams.queries.change import Change, text_of

# Those who catch up make JSON one at a time, and pause between.
#
# Each has a thread, and what they do keeps Python's one lock for itself: eight of them would leave
# the server's loop, which needs that lock many times for one answer, none of it for seconds.


T = TypeVar("T")

TURN_RECORDS = 100
"""So many are made in one turn: some milliseconds."""
PAUSE_S = 0.001
_pause = time.sleep


def shares(all_of_them: Sequence[T]) -> Iterator[Sequence[T]]:
    """What is made turn by turn.

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
        """Have a turn, in which nothing is waited for."""
        with self._lock:
            yield
            # Before the next one begins, others than those who catch up have theirs.
            _pause(PAUSE_S)


EVENTS_MAX = 10_000
BYTES_MAX = 8 << 20
_EVENT_BYTES = 100
"""What an event is besides its data, about."""
Name = Literal["change", "row", "position", "compacted", "closed"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that is told.

    Args:
        data: JSON.
        position: where the follower is behind it; None where nobody can resume there.
    """

    name: Name
    data: bytes
    position: str | None


class Subscription:
    """One follower of a change feed, with its buffer of changes. Thread-safe.

    Args:
        key: the bytes of the one key that is followed; None follows the whole store.
        wake: called when there is something to take, from any thread; not again before `take`.
        patience_s: how long a reader that can wait does so for room.
    """

    def __init__(
        self,
        key: bytes | None,
        wake: Callable[[], None],
        *,
        events_max: int = EVENTS_MAX,
        bytes_max: int = BYTES_MAX,
        patience_s: float = 30.0,
    ) -> None:
        self._key = key
        self._wake = wake
        self._events_max, self._bytes_max = events_max, bytes_max
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._waiting: deque[Event] = deque()
        self._bytes = 0
        self._is_woken = False
        self._next: dict[int, int] = {}
        self._untold: dict[int, int] = {}
        """Before these offsets nobody can resume: some of the changes are in rows that he has."""
        self._is_in_rows: Callable[[Change], bool] | None = None
        self._reason: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be offered any more."""
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """Why it ended; None before that."""
        return self._reason

    def begin(
        self,
        positions: Mapping[int, int],
        *,
        untold: Mapping[int, int] | None = None,
        is_in_rows: Callable[[Change], bool] | None = None,
    ) -> None:
        """Say where the changes begin, by partition.

        Args:
            untold: until where some of them are in the rows that were told before.
            is_in_rows: tells which.
        """
        with self._changed:
            self._next = dict(positions)
            self._untold = {
                partition: end
                for partition, end in (untold or {}).items()
                if end > self._next[partition]
            }
            self._is_in_rows = is_in_rows if self._untold else None
            if not self._untold:
                self._add(self._where())

    def next_of(self, partition: int) -> int:
        """The offset of the change that comes next in a partition."""
        return self._next[partition]

    def wants(self, change: Change) -> bool:
        """Whether a change would be told; it may be so no more when it is offered."""
        with self._changed:
            return change.offset >= self._next[change.partition] and self._is_wanted(change)

    def offer(self, change: Change, *, can_wait: bool = False) -> bool:
        """Tell of a change, if it is one that is wanted and was not told yet.

        Args:
            can_wait: whether to wait for room, instead of letting him go.

        Returns:
            Whether he still follows.
        """
        with self._changed:
            if self._reason is not None:
                return False
            partition = change.partition
            if change.offset < self._next[partition]:
                return True
            if self._is_wanted(change):
                data = change.data
                if not self._has_room(len(data), can_wait=can_wait):
                    return False
                self._next[partition] = change.offset + 1
                self._add(Event("change", data, self._position()))
            self._reach(partition, change.offset + 1)
            return True

    def reach(self, partition: int, offset: int) -> None:
        """There is nothing to tell before an offset."""
        with self._changed:
            if self._reason is None:
                self._reach(partition, offset)

    def tell(self, name: Name, data: bytes) -> bool:
        """Tell something else, and wait for room; returns whether he still follows."""
        with self._changed:
            if self._reason is not None or not self._has_room(len(data), can_wait=True):
                return False
            self._add(Event(name, data, None))
            return True

    def close(self, reason: str) -> None:
        """End it; what waits, and why it ended, can still be taken."""
        with self._changed:
            self._close(reason)

    def take(self, most_bytes: int | None = None) -> tuple[list[Event], str | None]:
        """What there is to tell, and where the follower is behind all that waits.

        The last is `closed`, with the reason.

        Args:
            most_bytes: about so many at once, and at least an event; None takes all that waits.
        """
        with self._changed:
            found: list[Event] = []
            taken = 0
            while self._waiting and (most_bytes is None or taken < most_bytes):
                found.append(self._waiting.popleft())
                taken += len(found[-1].data) + _EVENT_BYTES
                self._bytes -= len(found[-1].data)
            self._is_woken = False
            self._changed.notify_all()
            return found, self._position()

    # -- with the lock held ----------------------------------------------------------------------

    def _is_wanted(self, change: Change) -> bool:
        if change.key is None or (self._key is not None and change.bare_key != self._key):
            return False
        return self._is_in_rows is None or not self._is_in_rows(change)

    def _has_room(self, size: int, *, can_wait: bool) -> bool:
        def fits() -> bool:
            full = len(self._waiting) >= self._events_max or (
                self._bytes + size > self._bytes_max and bool(self._waiting)
            )
            return self._reason is not None or not full

        if not fits() and not (can_wait and self._changed.wait_for(fits, self._patience_s)):
            self._close(
                f"{len(self._waiting):,} events waited that were not read: too slow; go on from "
                "the last position, which is the id of the last event"
            )
        return self._reason is None

    def _reach(self, partition: int, offset: int) -> None:
        if offset > self._next[partition]:
            self._next[partition] = offset
        if self._untold and all(self._next[p] >= end for p, end in self._untold.items()):
            self._untold, self._is_in_rows = {}, None
            self._add(self._where())

    def _position(self) -> str | None:
        return text_of(self._next) if self._next and not self._untold else None

    def _where(self) -> Event:
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
