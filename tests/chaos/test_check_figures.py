"""What workers counted is held against a recount, and what is off is seen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.chaos.check_figures import Counted, Logged, figures
from tests.chaos.history import Committed, History, Log, Place, Record

ORDERS = Place("orders", 0)
LOGGED = Logged(reactions=1, restored=5)


def history() -> History:
    """Three orders that count, one that was aborted, and one behind the offset."""
    records = [Record(n, b"k", b"v", 1, committed=n != 1) for n in range(5)]
    return History(logs={ORDERS: Log(records)}, changelogs={}, committed={ORDERS: Committed(4)})


def wrong(lives: Sequence[Counted], lag: int | None = 0) -> list[str]:
    found = figures(history(), lives, LOGGED, {} if lag is None else {ORDERS: lag})
    return [one.what.split()[0] for one in found if not one.holds]


def life(**other: int) -> Counted:
    right = {"processed": 4, "committed": 3, "in_doubt": 0, "restored": 5, "reactions": 1}
    return Counted(**{**right, **other})


def test_what_is_right_is_right() -> None:
    assert wrong([life()]) == []
    assert wrong([life(committed=1, in_doubt=2), life(committed=0, processed=0, reactions=0)]) == []


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"committed": 2}, "committed"),
        ({"committed": 4}, "committed"),
        ({"committed": 2, "processed": 1}, "processed"),
        ({"reactions": 2}, "reactions"),
        ({"restored": 4}, "restored"),
    ],
)
def test_a_figure_that_is_off_is_seen(other: dict[str, int], what: str) -> None:
    assert what in wrong([life(**other)])


def test_a_lag_that_is_there_or_not_told_is_seen() -> None:
    assert wrong([life()], lag=3) == ["the"]
    assert wrong([life()], lag=None) == ["the"]
