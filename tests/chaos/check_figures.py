"""What the workers counted themselves, beside what the logs of topics and of transactions say.

A process that is killed takes no more than its last commit along: whether that was made, it has
never heard. So what was committed is between what all processes counted, and that with the commits
under way at their deaths; without such deaths it is the same. In the same way what came to nothing
is between what they counted, and that with the transactions that were open when they ended.

Records processed and not committed leave few traces. Each order is echoed as it is processed, and
some of those echoes reach the brokers before the transaction is aborted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import Self

from tests.chaos.application import INPUTS
from tests.chaos.history import History, Place
from tests.chaos.status import Field, Status
from tests.chaos.transactions import Decided

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one process counted; records are those of tasks that read inputs.

    Args:
        told_processed: records of which its tasks said that they were processed.
        unfinished: records with which tasks began and of which they said nothing more, at most.
        in_doubt: records of commits of which it does not know whether they were made.
        restored: changelog records, of all tasks, as `reactions`.
        told_restored: those of which the listener of restores was told.
        begun: transactions.
        commits: of them, those that it knows to be made.
        commits_in_doubt: those of which it does not know.
        aborted: those that it knows to have come to nothing.
        left_open: those that were open when it ended: one at most.
    """

    processed: int = 0
    told_processed: int = 0
    unfinished: int = 0
    committed: int = 0
    in_doubt: int = 0
    restored: int = 0
    told_restored: int = 0
    reactions: int = 0
    begun: int = 0
    commits: int = 0
    commits_in_doubt: int = 0
    aborted: int = 0
    left_open: int = 0

    @classmethod
    def of(cls, status: Status) -> Self:
        """What it left in its file."""
        return cls(
            processed=status[Field.COUNTED_PROCESSED],
            told_processed=status[Field.TOLD_PROCESSED],
            unfinished=status[Field.UNFINISHED],
            committed=status[Field.COUNTED_COMMITTED],
            in_doubt=status[Field.COUNTED_OPEN] + status[Field.COUNTED_UNDECIDED],
            restored=status[Field.COUNTED_RESTORED],
            told_restored=status[Field.TOLD_RESTORED],
            reactions=status[Field.COUNTED_REACTIONS],
            begun=status[Field.TRANSACTIONS],
            commits=status[Field.COUNTED_COMMITS],
            commits_in_doubt=status[Field.COUNTED_UNDECIDED_COMMITS]
            + (status.step == "offsets_sent"),
            aborted=status[Field.COUNTED_ABORTED],
            left_open=status[Field.COUNTED_BEGUN],
        )

    @classmethod
    def all_of(cls, lives: Iterable[Self]) -> Self:
        """What all of them counted together."""
        sums = Counter[str]()
        for life in lives:
            sums.update(asdict(life))
        return cls(**sums)


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
    history: History,
    lives: Sequence[Counted],
    logged: Logged,
    decided: Decided,
    lags: Mapping[Place, int | None],
) -> list[Figure]:
    """Compare.

    Args:
        lives: of all processes.
        decided: what the coordinators wrote down of the application's transactions.
        lags: what the workers that were there at the end said that they were behind.
    """
    all_ = Counted.all_of(lives)
    return [
        *_records(history, all_),
        *_transactions(all_, decided),
        Figure(
            "reactions are as many as events",
            # What is logged and not counted happened behind the last step before a death.
            all_.reactions <= logged.reactions <= all_.reactions + 2 * len(lives),
            f"{all_.reactions} counted, {logged.reactions} logged, {len(lives)} processes ended",
        ),
        Figure(
            "restored records are those of all restores",
            all_.restored == all_.told_restored >= logged.restored,
            f"{all_.restored:,} counted, {all_.told_restored:,} told batch by batch, "
            f"{logged.restored:,} of restores that came to their end",
        ),
        _lag(history, lags),
    ]


def _records(history: History, all_: Counted) -> list[Figure]:
    consumed = {name: _consumed(history, name) for name in INPUTS}
    made = sum(consumed.values())
    echoed = sum(len(log) for log in history.of("echo").values())
    # All that is known to have been processed: of orders, aborted ones included.
    seen = made - consumed["orders"] + max(echoed, consumed["orders"])
    return [
        Figure(
            "committed records are those that the offsets are beyond",
            all_.committed <= made <= all_.committed + all_.in_doubt,
            f"{all_.committed:,} counted, {made:,} in the inputs, {all_.in_doubt:,} in doubt",
        ),
        Figure(
            "processed records are those that tasks processed, with all that left a trace",
            all_.processed == all_.told_processed
            and seen <= all_.processed + all_.unfinished
            and all_.committed <= all_.processed,
            f"{all_.processed:,} counted, {all_.told_processed:,} told by tasks, {seen:,} seen in "
            f"outputs and offsets; {all_.unfinished:,} begun with and not finished",
        ),
    ]


def _transactions(all_: Counted, decided: Decided) -> list[Figure]:
    # Those without a record never reached a coordinator.
    void = all_.begun - decided.committed
    known = all_.aborted + all_.left_open + all_.commits_in_doubt
    return [
        Figure(
            "commits are those of the coordinators",
            all_.commits <= decided.committed <= all_.commits + all_.commits_in_doubt,
            f"{all_.commits:,} counted, {decided.committed:,} made, "
            f"{all_.commits_in_doubt} in doubt",
        ),
        Figure(
            "aborted transactions are those that were begun and not committed",
            all_.aborted <= void <= known and decided.aborted <= known,
            f"{all_.aborted} counted, {void} came to nothing, {all_.left_open} of them open when "
            f"a process ended; coordinators aborted {decided.aborted}",
        ),
    ]


def _lag(history: History, lags: Mapping[Place, int | None]) -> Figure:
    found = {
        place: log.stable_end - history.committed[place].offset
        for place, log in history.logs.items()
        if place.topic in INPUTS and place in history.committed
    }
    wrong = {str(p): (lags.get(p), lag) for p, lag in found.items() if lags.get(p) != lag}
    missing = [str(p) for p in history.logs if p.topic in INPUTS and p not in found]
    return Figure(
        "the lag that is told is that of the offsets, and none",
        not wrong and not missing and not any(found.values()),
        f"{len(lags)} partitions; told and recounted differ: {wrong or 'nowhere'}; "
        f"without an offset: {missing or 'none'}; in all {sum(found.values())}",
    )


def _consumed(history: History, topic: str) -> int:
    """Records of an input that the group's offsets are beyond."""
    count = 0
    for place, log in history.logs.items():
        if place.topic == topic and place in history.committed:
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
