"""Turns of an application end with commits, whatever is switched meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.measure import turns
from benchmarks.measure.turns import Meter, rounds

EACH = 7


@pytest.fixture
def meter() -> Iterator[Meter]:
    """Of an application that commits seven records at a time."""
    meter, ended, done = Meter(), threading.Event(), 0

    def work() -> None:
        nonlocal done
        while not ended.wait(0.001):
            done += EACH - 1
            time.sleep(0.001)  # a turn that ended here would have a part of it
            done += 1
            meter.on_commit([], 0)  # what is not watched is not told

    meter.processed = lambda: done
    thread = threading.Thread(target=work)
    thread.start()
    yield meter
    ended.set()
    thread.join()


def test_a_turn_has_whole_commits_and_takes_its_time(meter: Meter) -> None:
    turn = meter.turn(0.03)
    assert turn.records
    assert turn.records % EACH == 0
    assert turn.wall_s >= 0.03
    assert meter.records >= turn.records


def test_rounds_have_a_turn_of_each_way_and_begin_with_another_one(meter: Meter) -> None:
    said: list[str] = []
    far_s = time.monotonic() + 60
    found = rounds(meter, "abc", said.append, seconds=0.0, until_s=far_s, most=10**9)
    assert [sorted(next(found)) for _ in range(4)] == [["a", "b", "c"]] * 4
    assert "".join(said) == "abc" + "bca" + "cab" + "abc"


def test_a_round_behind_the_last_sure_record_is_not_told_of(meter: Meter) -> None:
    far_s = time.monotonic() + 60
    assert not [*rounds(meter, "ab", str, seconds=0.0, until_s=far_s, most=1)]


def test_an_application_that_has_come_to_its_end_ends_the_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "COMMIT_TIMEOUT_S", 0.01)
    with pytest.raises(TimeoutError, match="no commit"):
        Meter().turn(0.0)
    far_s = time.monotonic() + 60
    assert not [*rounds(Meter(), "ab", str, seconds=0.0, until_s=far_s, most=1)]
