"""What workers counted is held against a recount, and what is off is seen."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from tests.chaos.check_figures import Counted, Logged, figures
from tests.chaos.history import Committed, History, Log, Place, Record
from tests.chaos.transactions import Decided, decided

ORDERS, ECHO = Place("orders", 0), Place("echo", 0)
LOGGED = Logged(reactions=1, restored=5)
DECIDED = Decided(committed=2, aborted=1)


def history() -> History:
    """Four orders that count, and one that was aborted; one of the four was echoed twice."""
    orders = [Record(n, b"k", b"v", 1, committed=n != 1) for n in range(5)]
    echoes = [Record(n, b"k", b"v", 1, committed=n != 1) for n in range(5)]
    logs = {ORDERS: Log(orders), ECHO: Log(echoes)}
    return History(logs=logs, changelogs={}, committed={ORDERS: Committed(5)})


def wrong(lives: Sequence[Counted], lag: int | None = 0, found: History | None = None) -> list[str]:
    lags = {} if lag is None else {ORDERS: lag}
    shown = figures(found or history(), lives, LOGGED, DECIDED, lags)
    return [one.what.split()[0] for one in shown if not one.holds]


def life(**other: int) -> Counted:
    right = {
        "processed": 5, "told_processed": 5, "committed": 4, "restored": 6, "told_restored": 6,
        "reactions": 1, "begun": 3, "commits": 2, "aborted": 1,
    }  # fmt: skip
    return Counted(**{**right, **other})


def test_what_is_right_is_right() -> None:
    assert wrong([life()]) == []
    killed = life(committed=2, in_doubt=2, commits=1, commits_in_doubt=1)
    assert wrong([killed, Counted()]) == []
    cut_short = life(processed=4, told_processed=4, unfinished=1, aborted=0, left_open=1)
    assert wrong([cut_short]) == []


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"committed": 3}, "committed"),
        ({"committed": 5}, "committed"),
        ({"processed": 4}, "processed"),
        ({"processed": 4, "told_processed": 4}, "processed"),
        ({"processed": 6}, "processed"),
        ({"commits": 1}, "commits"),
        ({"commits": 3}, "commits"),
        ({"aborted": 0}, "aborted"),
        ({"aborted": 2}, "aborted"),
        ({"begun": 4}, "aborted"),
        ({"reactions": 2}, "reactions"),
        ({"restored": 4, "told_restored": 4}, "restored"),
        ({"restored": 7}, "restored"),
    ],
)
def test_a_figure_that_is_off_is_seen(other: dict[str, int], what: str) -> None:
    assert what in wrong([life(**other)])


def test_a_lag_that_is_there_or_not_told_is_seen() -> None:
    assert wrong([life()], lag=3) == ["the"]
    assert wrong([life()], lag=None) == ["the"]
    behind = History(logs=history().logs, changelogs={}, committed={ORDERS: Committed(4)})
    assert "the" in wrong([life()], lag=1, found=behind)
    assert "the" in wrong([life()], lag=0, found=behind)


def test_transactions_are_counted_by_the_log_of_their_coordinators() -> None:
    ongoing, committing, aborting, committed, aborted = 1, 2, 3, 4, 5
    states = [
        ("app-w0", ongoing), ("app-w0", committing), ("app-w0", committed),
        ("app-w0", ongoing), ("app-w1", ongoing), ("app-w0", aborting), ("app-w0", aborting),
        ("app-w1", committing), ("app-w0", aborted), ("app-w1", committed),
        ("other", ongoing), ("other", committing), ("other", committed),
    ]  # fmt: skip
    records = [(_key(name), _value(state)) for name, state in states]
    assert decided([*records, (_key("app-w0"), None), (None, b"")], "app-") == Decided(2, 1)


def _key(name: str) -> bytes:
    return struct.pack(">hh", 0, len(name)) + name.encode()


def _value(status: int) -> bytes:
    return struct.pack(">hqhib", 1, 7, 0, 60_000, status) + b"more"
