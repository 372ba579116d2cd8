"""The policy of restarts, with a clock of the test's own and seeded randomness."""

from __future__ import annotations

from random import Random

from headrace.streams.worker.restarts import RestartLimits, Restarts

LIMITS = RestartLimits(first_s=1, longest_s=8, steady_s=60, most=100, within_s=1_000)


class Worker:
    """A worker that is started after each pause."""

    def __init__(self, limits: RestartLimits, seed: int = 0) -> None:
        self.now_s = 0.0
        self._restarts = Restarts(limits, Random(seed))

    def crash(self, after_s: float = 0.0) -> float | None:
        """Run for a while, and crash; returns the pause, which then passes."""
        started_s, self.now_s = self.now_s, self.now_s + after_s
        pause_s = self._restarts.pause_s(started_s=started_s, ended_s=self.now_s)
        self.now_s += pause_s or 0.0
        return pause_s


def test_pauses_double_up_to_the_longest_and_are_at_least_half_of_it() -> None:
    for seed in range(50):
        worker = Worker(LIMITS, seed)
        for ceiling_s in (1, 2, 4, 8, 8, 8):
            pause_s = worker.crash()
            assert pause_s is not None
            assert ceiling_s / 2 <= pause_s <= ceiling_s


def test_workers_that_fall_together_do_not_rise_together() -> None:
    pauses = {Worker(LIMITS, seed).crash() for seed in range(20)}
    assert len(pauses) == 20


def test_equal_seeds_give_equal_pauses() -> None:
    one, other = Worker(LIMITS, 7), Worker(LIMITS, 7)
    assert [one.crash() for _ in range(5)] == [other.crash() for _ in range(5)]


def test_a_worker_that_ran_well_begins_with_the_short_pause_again() -> None:
    worker = Worker(LIMITS)
    for _ in range(4):
        worker.crash()
    long_s = worker.crash(after_s=59.9)
    short_s = worker.crash(after_s=60.1)
    assert long_s is not None
    assert short_s is not None
    assert long_s >= 4
    assert short_s <= 1


def test_one_crash_more_than_the_limit_within_the_window_is_the_end() -> None:
    worker = Worker(RestartLimits(most=3, within_s=600))
    assert [worker.crash() is None for _ in range(4)] == [False, False, False, True]


def test_crashes_that_left_the_window_do_not_count() -> None:
    worker = Worker(RestartLimits(most=3, within_s=600, steady_s=60))
    for _ in range(20):
        assert worker.crash(after_s=200) is not None
    for _ in range(3):
        worker.crash()
    assert worker.crash() is None


def test_no_restart_at_all_can_be_asked_for() -> None:
    assert Worker(RestartLimits(most=0)).crash(after_s=1_000) is None


def test_a_very_long_row_of_crashes_keeps_the_longest_pause() -> None:
    worker = Worker(RestartLimits(most=10_000, longest_s=5, within_s=1e9))
    pauses = [worker.crash() for _ in range(5_000)]
    assert all(pause_s is not None and pause_s <= 5 for pause_s in pauses)
