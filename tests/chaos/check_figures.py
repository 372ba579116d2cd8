"""What the workers counted themselves, beside what the logs of their inputs say.

A process that is killed takes no more than its last commit along: whether that was made, it has
never heard. So what was committed is between what all processes counted, and that with the commits
under way at their deaths; without such deaths it is the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Self

from tests.chaos.application import INPUTS
from tests.chaos.history import History, Place
from tests.chaos.status import Field, Status

REACTED = frozenset(
    {
        "transaction_aborted",
        "member_replaced",
        "state_rebuilt",
        "offset_lost",
        "restore_lost",
    }
)
"""What is logged where a reaction is counted; a producer is replaced for more than one reason."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What one process counted, of tasks that read inputs.

    Args:
        in_doubt: records of commits of which it does not know whether they were made.
        reactions: of all tasks, as `restored`.
    """

    processed: int
    committed: int
    in_doubt: int
    restored: int
    reactions: int

    @classmethod
    def of(cls, status: Status) -> Self:
        """What it left in its file."""
        return cls(
            status[Field.COUNTED_PROCESSED],
            status[Field.COUNTED_COMMITTED],
            status[Field.COUNTED_OPEN] + status[Field.COUNTED_UNDECIDED],
            status[Field.COUNTED_RESTORED],
            status[Field.COUNTED_REACTIONS],
        )


@dataclass(frozen=True, slots=True)
class Logged:
    """What all processes logged.

    Args:
        restored: changelog records of restores that came to their end.
    """

    reactions: int
    restored: int

    @classmethod
    def of(cls, logs: Iterable[Path]) -> Self:
        """Read their logs."""
        reactions = restored = 0
        for path in logs:
            for line in path.read_text(errors="replace").splitlines():
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # what a thread dump or Python itself wrote
                reactions += event["event"] in REACTED
                restored += event["records"] if event["event"] == "task_restored" else 0
        return cls(reactions, restored)


@dataclass(frozen=True, slots=True)
class Figure:
    """One comparison: what must hold, whether it does, and the numbers."""

    what: str
    holds: bool
    numbers: str


def figures(
    history: History, lives: Sequence[Counted], logged: Logged, lags: Mapping[Place, int | None]
) -> list[Figure]:
    """Compare.

    Args:
        lives: of all processes.
        lags: what the workers that were there at the end said that they were behind.
    """
    committed, in_doubt = sum(x.committed for x in lives), sum(x.in_doubt for x in lives)
    processed, restored = sum(x.processed for x in lives), sum(x.restored for x in lives)
    reactions = sum(x.reactions for x in lives)
    consumed = _consumed(history)
    echoed = sum(len(log) for log in history.of("echo").values())
    behind = {str(place): lag for place, lag in lags.items() if lag}
    missing = [str(p) for p in history.logs if p.topic in INPUTS and p not in lags]
    return [
        Figure(
            "committed records are those that the offsets are beyond",
            committed <= consumed <= committed + in_doubt,
            f"{committed:,} counted, {consumed:,} in the inputs, {in_doubt:,} in doubt at deaths",
        ),
        Figure(
            "processed records are the committed ones and those that came to nothing",
            processed >= committed,
            f"{processed:,} counted, {echoed:,} orders echoed, aborted ones included",
        ),
        Figure(
            "reactions are as many as events",
            # What is logged and not counted happened behind the last step before a death.
            reactions <= logged.reactions <= reactions + 2 * len(lives),
            f"{reactions} counted, {logged.reactions} logged, {len(lives)} processes ended",
        ),
        Figure(
            "restored records are those of all restores",
            restored >= logged.restored,
            f"{restored:,} counted, {logged.restored:,} of restores that came to their end",
        ),
        Figure(
            "the lag is told, and is none",
            not behind and not missing,
            f"{len(lags)} partitions; behind: {behind or 'none'}; not told: {missing or 'none'}",
        ),
    ]


def _consumed(history: History) -> int:
    """Records of the inputs that the group's offsets are beyond."""
    count = 0
    for place, log in history.logs.items():
        if place.topic in INPUTS and place in history.committed:
            offset = history.committed[place].offset
            count += sum(o < offset for o in compress(log.offsets, log.committed))
    return count


def read_lags(paths: Iterable[Path], names: Mapping[str, str]) -> dict[Place, int | None]:
    """What workers wrote down when they ended, by the names of a history."""
    found: dict[Place, int | None] = {}
    for path in paths:
        if path.exists():
            for topic, partition, committed, end in json.loads(path.read_text()):
                if names.get(topic) in INPUTS:
                    found[Place(names[topic], partition)] = (
                        None if end is None else max(0, end - committed)
                    )
    return found
