"""Times of short functions on a machine that others use too."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

ROUNDS = 40
MIN_BUDGET_S = 0.5


@dataclass(frozen=True, slots=True)
class Comparison:
    """A hot path beside plain Python that does the same.

    Args:
        what: the work that both do.
        items: how many items one call of each works on.
        ours: the hot path.
        plain: the equivalent; None where there is none, as for parts of a whole.
    """

    what: str
    items: int
    ours: Callable[[], object]
    plain: Callable[[], object] | None = None


def compare(title: str, comparisons: list[Comparison]) -> None:
    """Time both sides in turns and print nanoseconds per item and the ratio of the speeds.

    The best round of each counts: what is slower was disturbed by somebody else.
    """
    table = Table(title=title)
    table.add_column("work")
    for column in ("ns per item", "plain Python", "speed of plain Python"):
        table.add_column(column, justify="right")
    for one in comparisons:
        ours, plain = _best(one)
        table.add_row(
            one.what,
            f"{ours / one.items * 1e9:,.0f}",
            "" if plain is None else f"{plain / one.items * 1e9:,.0f}",
            "" if plain is None else f"{plain / ours:.2f}",
        )
    Console().print(table)


def _best(one: Comparison) -> tuple[float, float | None]:
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
