"""Ratios: of equal settings, round by round."""

from __future__ import annotations

from benchmarks.plan import FULL, tasks
from benchmarks.results import JobResult, Run, Series, comparisons


def run(whole_s: float) -> Run:
    return Run(1000, whole_s, whole_s / 2, whole_s, 100, None, 1.0)


def test_ratios_are_of_equal_settings_and_taken_round_by_round() -> None:
    own = Series("headrace, exactly-once", "exactly-once", "headrace", [run(1), run(2), run(3)])
    peer = Series("quix, exactly-once", "exactly-once", "quix", [run(2), run(2), run(12)])
    other = Series("quix, at-least-once", "at-least-once", "quix", [run(9)])
    (found,) = comparisons([JobResult("job", "Job", 1000, [own, peer, other])])
    assert (found.other, found.whole, found.memory) == ("quix", (2.0, 1.0, 4.0), (1.0, 1.0, 1.0))
    assert found.middle == found.whole


def test_a_round_that_failed_has_no_ratio() -> None:
    own = Series("headrace, exactly-once", "exactly-once", "headrace", [None, run(1)])
    peer = Series("quix, exactly-once", "exactly-once", "quix", [run(7), run(3)])
    (found,) = comparisons([JobResult("job", "Job", 1000, [own, peer])])
    assert found.whole == (3.0, 3.0, 3.0)


def test_rounds_after_the_first_have_what_is_published_with_its_spread() -> None:
    (task,) = tasks(FULL, ("words",), None, None)
    later = task.in_round(1)
    assert task.in_round(0) == task.variants
    assert [variant.name for variant in later] == [
        "headrace, exactly-once, caches",
        "kafka-streams, exactly-once, caches",
        "by hand, exactly-once, caches",
        "by hand combined, exactly-once, caches",
    ]
