"""Times of short functions on a shared machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

ROUNDS = 40
MIN_BUDGET_S = 0.5


@dataclass(frozen=True, slots=True)
class TimedPair:
    """A hot path, and plain Python with the same result.

    Args:
        name: description of the work, for the table.
        items: number of items per call.
        ours: the hot path.
        plain: plain Python with the same result; None if there is no equivalent.
    """

    name: str
    items: int
    ours: Callable[[], object]
    plain: Callable[[], object] | None = None


def print_times(title: str, pairs: list[TimedPair]) -> None:
    """Time both sides in turns, and print nanoseconds per item and the ratio of speeds.

    The shortest round of each side counts, because other processes only make rounds longer.
    """
    table = Table(title=title)
    table.add_column("work")
    for column in ("ns per item", "plain Python", "speed of plain Python"):
        table.add_column(column, justify="right")
    for one in pairs:
        ours, plain = _best(one)
        table.add_row(
            one.name,
            f"{ours / one.items * 1e9:,.0f}",
            "" if plain is None else f"{plain / one.items * 1e9:,.0f}",
            "" if plain is None else f"{plain / ours:.2f}",
        )
    Console().print(table)


def _best(one: TimedPair) -> tuple[float, float | None]:
    ours: list[float] = []
    plain: list[float] = []
    begun = time.perf_counter()
    while len(ours) < ROUNDS or time.perf_counter() - begun < MIN_BUDGET_S:
        ours.append(_seconds(one.ours))
        if one.plain is not None:
            plain.append(_seconds(one.plain))
    return min(ours), min(plain, default=None)


def _seconds(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started
