"""What clients were told of stores while things failed: answers to questions, and changes.

Plain data, as `history` has it: keys and values are what JSON has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

Question = Literal["key", "keys", "range", "windows"]


class AnsweredRow(NamedTuple):
    """A row of an answer."""

    partition: int
    key: Any
    value: Any
    timestamp: int


class AnsweredPlace(NamedTuple):
    """A partition that an answer is from, how far all its rows were and the newest, and where."""

    partition: int
    offset: int
    host: str | None
    max_offset: int


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question about a store.

    Args:
        client: who asked; each asks one question after the other.
        at_s: when he began, wall clock in seconds.
        keys: that were asked for; of a range its first and its last.
        rows: None for each key that has none.
        is_whole: whether there are no more rows behind them.
        error: what it was refused with, if that is no "retry later".
    """

    client: str
    at_s: float
    store: str
    question: Question
    keys: tuple[Any, ...] = ()
    rows: tuple[AnsweredRow | None, ...] = ()
    places: tuple[AnsweredPlace, ...] = ()
    is_whole: bool = True
    error: str | None = None

    def line(self) -> str:
        """It as a line of JSON."""
        return json.dumps([getattr(self, name) for name in self.__slots__])

    @classmethod
    def of_line(cls, line: str) -> Answer:
        """Read a line."""
        client, at_s, store, question, keys, rows, places, is_whole, error = json.loads(line)
        return cls(
            client, at_s, store, question, tuple(keys),
            tuple(None if row is None else AnsweredRow(*row) for row in rows),
            tuple(AnsweredPlace(*place) for place in places), is_whole, error,
        )  # fmt: skip


class ToldChange(NamedTuple):
    """A change that a follower was told."""

    partition: int
    offset: int
    key: Any
    value: Any
    timestamp: int


@dataclass(frozen=True, slots=True)
class Followed:
    """What one follower was told from the beginning of a changelog on, over all resumptions.

    Args:
        key: the one that he followed; None for the whole store.
        resumed: how often he came back with a position.
        errors: what else he was told: that something is missing, or that it cannot go on.
    """

    name: str
    store: str
    key: Any
    changes: tuple[ToldChange, ...]
    resumed: int = 0
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Calm:
    """A time in which no task moved.

    Args:
        begin_s: wall clock, some seconds after the last one moved.
        end_s: wall clock.
        owners: the host of each task, by its id.
    """

    begin_s: float
    end_s: float
    owners: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that was told.

    Args:
        refused: how many questions had no answer in time, by the client.
        calm: None where none was waited for.
    """

    answers: tuple[Answer, ...] = ()
    followed: tuple[Followed, ...] = ()
    refused: int = 0
    calm: Calm | None = None


def answers_in(path: Path) -> Iterator[Answer]:
    """The answers that a process wrote down; the last line may be cut off."""
    yield from (Answer.of_line(line) for line in _lines(path))


def followed_in(path: Path) -> Followed:
    """What a follower wrote down: who he is, and then what he was told."""
    lines = [json.loads(line) for line in _lines(path)]
    (name, store, key), *told = lines
    return Followed(
        name,
        store,
        key,
        tuple(ToldChange(*fields) for what, *fields in told if what == "change"),
        sum(what == "resumed" for what, *_ in told),
        tuple(str(fields[0]) for what, *fields in told if what == "error"),
    )


def _lines(path: Path) -> list[str]:
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()
