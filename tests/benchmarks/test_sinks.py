"""benchmarks.sinks: the middle of a run, and what is written."""

from __future__ import annotations

import pytest

from benchmarks.sinks import reached_s, records


def test_a_moment_between_two_looks_lies_on_the_line() -> None:
    samples = [(1.0, 10), (2.0, 20), (4.0, 20), (5.0, 100)]
    assert [reached_s(samples, total) for total in (10, 15, 20, 60)] == [1.0, 1.5, 2.0, 4.5]
    with pytest.raises(ValueError, match="never reached"):
        reached_s(samples, 101)


def test_keys_come_again_and_numbers_do_not() -> None:
    made = list(records(1000, 10))
    assert len({key for key, _, _ in made}) == 10
    assert len({value for _, value, _ in made}) == 1000
