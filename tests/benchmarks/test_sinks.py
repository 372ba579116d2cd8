"""Benchmark of sinks: interpolation between samples, and generated records."""

from __future__ import annotations

import pytest

from benchmarks.sinks import reached_s, records


def test_times_are_interpolated_between_samples() -> None:
    samples = [(1.0, 10), (2.0, 20), (4.0, 20), (5.0, 100)]
    assert [reached_s(samples, total) for total in (10, 15, 20, 60)] == [1.0, 1.5, 2.0, 4.5]
    with pytest.raises(ValueError, match="never reached the total"):
        reached_s(samples, 101)


def test_keys_repeat_and_numbers_do_not() -> None:
    generated = list(records(1000, 10))
    assert len({key for key, _, _ in generated}) == 10
    assert len({value for _, value, _ in generated}) == 1000
