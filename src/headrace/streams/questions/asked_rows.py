"""The committed rows of a store that are in a worker's memory, as if they were here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace.state.store import Position
from headrace.streams.questions.question import (
    BYTES_MAX,
    KEYS_MAX,
    Question,
    Refused,
    Told,
    UnansweredError,
    Workers,
)

ANSWER_WITHIN_S = 3.0
"""How long one question may wait for a worker."""


class AskedRows:
    """A `CommittedStore` whose rows are asked for, some at a time.

    Args:
        workers: those that can be asked.
        likely: tells which of them has the task, as it told last.
        question: says which store is meant, and nothing else.
    """

    def __init__(
        self, workers: Workers, likely: Callable[[], int | None], question: Question
    ) -> None:
        self._workers = workers
        self._likely = likely
        self._store = question
        self._first: Told | None = None
        self.max_offset = 0
        """How far no row is beyond that was given."""
        self.has_moved = False
        """Whether a commit came between two answers."""

    @property
    def position(self) -> Position:
        """How far all rows are at least that were given."""
        told = self._first or self._ask()
        return Position(told.topic_id, told.offset, told.commit_id, told.wall_ms)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None when it has none."""
        return self._ask(keys=(key,)).values[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys` in their order, None for each that has none."""
        found: list[bytes | None] = []
        for some in _divided(keys):
            while some:
                values = self._ask(keys=some).values
                found += values
                some = some[len(values) :]
        return found

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with `start` <= key < `end` in key order, as they are when asked for."""
        while True:
            told = self._ask(what="scan", start=start, end=end, reverse=reverse)
            yield from told.rows
            if told.after is None:
                return
            if reverse:
                end = told.after
            else:
                start = told.after + b"\0"

    def approximate_count(self) -> int:
        """Return the number of rows."""
        return self._ask(what="count").count

    def approximate_bytes(self) -> int:
        """Nobody asks for it here."""
        raise NotImplementedError

    def _ask(self, **what: object) -> Told:
        store = self._store
        question = Question(
            store.store,
            store.sub_topology,
            store.partition,
            **what,  # type: ignore[arg-type]
        )
        told = self._told(question)
        if self._first is None:
            self._first = told
        self.max_offset = max(self.max_offset, told.offset)
        self.has_moved |= told.commit_id != self._first.commit_id
        return told

    def _told(self, question: Question) -> Told:
        workers = self._workers() or {}
        likely = self._likely()
        refused: Refused | None = None
        for _, ask in sorted(workers.items(), key=lambda one: one[0] != likely):
            try:
                return ask(question, ANSWER_WITHIN_S)
            except UnansweredError as error:
                if not error.refused.is_elsewhere:
                    raise
                refused = error.refused
        if refused is None:
            refused = Refused("its worker starts again; ask again later")
        elif question.sub_topology is not None:
            refused = Refused("no worker of this host has the task now; ask again later")
        raise UnansweredError(refused)


def _divided(keys: Sequence[bytes]) -> Iterator[tuple[bytes, ...]]:
    """Keys in questions of their own, so that none is too large."""
    some: list[bytes] = []
    size = 0
    for key in keys:
        if some and (len(some) >= KEYS_MAX or size + len(key) > BYTES_MAX):
            yield tuple(some)
            some, size = [], 0
        some.append(key)
        size += len(key)
    if some:
        yield tuple(some)
