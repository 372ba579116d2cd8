"""Those who catch up make JSON one at a time, and pause between.

Each has a thread, and what they do keeps Python's one lock for itself: eight of them would leave
the server's loop, which needs that lock many times for one answer, none of it for seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

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
    """See the module. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Have a turn, in which nothing is waited for."""
        with self._lock:
            yield
            # Before the next one begins, others than those who catch up have theirs.
            _pause(PAUSE_S)
