"""A wall clock that is set back makes nothing look young."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headrace.state.store import Position
from headrace.streams.kafka.clocks import MonotonicWallClock
from headrace.streams.tasks.restore import ChangelogDescription, plan_restore

HOUR_MS = 3_600_000
FACTS = ChangelogDescription("id", start=0, end=100, delete_retention_ms=24 * HOUR_MS)


@dataclass
class Jumping:
    """A wall clock that somebody sets."""

    wall_ms: int = 1_700_000_000_000
    passed_s: float = 50.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_s(self) -> float:
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds
        self.wall_ms += int(seconds * 1000)


def test_time_goes_on_where_the_clock_is_set_back() -> None:
    clock = Jumping()
    steady = MonotonicWallClock(clock)
    begun_ms = steady.now_ms()
    clock.sleep(10)
    assert steady.now_ms() == begun_ms + 10_000
    clock.wall_ms -= 5 * HOUR_MS
    assert steady.now_ms() == begun_ms + 10_000
    clock.sleep(7)
    assert steady.now_ms() == begun_ms + 17_000
    clock.wall_ms += 6 * HOUR_MS
    assert steady.now_ms() == clock.wall_ms, "a clock that is put right, or ahead, is followed"


def test_rows_that_are_too_old_are_dropped_though_the_clock_was_set_back_meanwhile() -> None:
    clock = Jumping()
    steady = MonotonicWallClock(clock)
    position = Position("id", 50, 1, steady.now_ms())
    clock.sleep(30 * 3600)
    clock.wall_ms -= 30 * HOUR_MS
    assert plan_restore(position, FACTS, clock.now_ms()).drop is None, "what it was before"
    assert plan_restore(position, FACTS, steady.now_ms()).begin == 0


@pytest.mark.parametrize(("offset", "dropped"), [(50, True), (99, False), (100, False)])
def test_a_position_of_the_future_says_nothing_about_its_age(offset: int, dropped: bool) -> None:
    """The host began again with a clock of before; where nothing was missed, age is no matter."""
    position = Position("id", offset, 1, 1_700_000_000_000)
    plan = plan_restore(position, FACTS, 1_700_000_000_000 - HOUR_MS)
    assert (plan.drop is not None) is dropped
    assert plan.begin == (0 if dropped else offset)
