"""What a worker is asked about the rows of one store of one of its tasks, and what it says.

A question is about the rows as they lie in the store (see `headrace.state.layout`), and as little
at a time as a worker does beside its work: some keys, or some rows of a range. Who asks makes of
the answers what people ask for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

import msgspec

from headrace.streams.errors import StreamsError

NO_PARTITION = -1
"""Stands for the partition of a global table, which has all."""
KEYS_MAX = 500
ROWS_MAX = 500
BYTES_MAX = 256 << 10
"""So many bytes of keys, or of rows, are in a question or an answer; one row may be larger."""


class Question(msgspec.Struct, frozen=True, array_like=True):
    """See the module.

    Args:
        store: its name, or that of the family of a global table.
        sub_topology: which keeps it; None for a global table.
        keys: those whose rows are wanted; without any, how far the store is.
        start: the first key of a scan; None for the store's first.
        end: behind the last key of a scan; None for beyond the last.
    """

    store: str
    sub_topology: int | None
    partition: int
    what: Literal["get", "scan", "count"] = "get"
    keys: tuple[bytes, ...] = ()
    start: bytes | None = None
    end: bytes | None = None
    reverse: bool = False


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says; all of it is of one moment.

    Args:
        topic_id: of the changelog; with the next three the store's position.
        values: what the first keys have, in their order; of all unless that is too much.
        rows: those of a scan.
        after: the last key that a scan looked at, to go on behind; None at the end.
        count: how many rows there are.
    """

    topic_id: str
    offset: int
    commit_id: int
    wall_ms: int
    values: tuple[bytes | None, ...] = ()
    rows: tuple[tuple[bytes, bytes], ...] = ()
    after: bytes | None = None
    count: int = 0


class Refused(msgspec.Struct, frozen=True, array_like=True):
    """Why a worker does not say it.

    Args:
        is_elsewhere: whether the task is not this worker's.
        remaining: offsets of changelogs that are still to be read.
    """

    reason: str
    is_elsewhere: bool = False
    remaining: int | None = None


Outcome = Told | Refused


class UnansweredError(StreamsError):
    """A worker does not answer a question; ask again later.

    Args:
        refused: why.
    """

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.reason)
        self.refused = refused


Ask = Callable[[Question, float], Told]
"""Asks one worker, and waits for so many seconds; raises `UnansweredError`."""
Workers = Callable[[], "dict[int, Ask] | None"]
"""The workers that can be asked now, by number; None where none is to run here."""


def silent(within_s: float) -> Refused:
    """What is said where nothing is."""
    return Refused(
        f"its worker did not answer within {within_s:g} s: a batch, a commit or a function takes "
        "that long, or the worker stands still; ask again later"
    )


class Awaited:
    """An answer that one thread waits for, and another brings."""

    def __init__(self) -> None:
        self._outcome: Outcome | None = None
        self._is_there = threading.Event()

    def bring(self, outcome: Outcome) -> None:
        """Have the waiting end; any thread, and only the first counts."""
        if self._outcome is None:
            self._outcome = outcome
        self._is_there.set()

    def wait(self, within_s: float) -> Told:
        """Wait for the answer.

        Raises:
            UnansweredError: there is none in time, or it is a refusal.
        """
        self._is_there.wait(within_s)
        outcome = self._outcome or silent(within_s)
        if isinstance(outcome, Refused):
            raise UnansweredError(outcome)
        return outcome
