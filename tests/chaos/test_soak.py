"""Growth in samples of workers, and the samples of a process that lives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.soak import Sample, draw, growth, soak_lines


def samples(rss_mb: list[float], *, worker: str = "w0", pid: int = 1) -> list[Sample]:
    return [
        Sample(5.0 * n, worker, pid, one, 100, 10, n, 0.01 if n else None)
        for n, one in enumerate(rss_mb)
    ]


def test_what_rises_in_each_span_of_time_is_growth() -> None:
    choose = random.Random(1)
    rising = [300 + n + choose.uniform(-20, 20) for n in range(300)]
    (found,) = growth(samples(rising))
    assert found.startswith("rss_mb of w0 (process 1) grows: ")


@pytest.mark.parametrize(
    "rss_mb",
    [
        [300.0] * 300,
        [min(600.0, 100.0 + 10 * n) for n in range(300)],  # caches fill, and then it is the same
        [300.0 + 200 * (n % 50 > 25) for n in range(300)],
        [300.0 + n / 10 for n in range(300)],  # less than a tenth
        [100.0, 500.0, 900.0],  # too short to say anything
    ],
)
def test_what_warms_up_or_goes_up_and_down_is_no_growth(rss_mb: list[float]) -> None:
    assert growth(samples(rss_mb)) == []


def test_each_process_of_a_worker_is_looked_at_alone() -> None:
    """One that is started again begins small."""
    first, second = samples([300.0] * 60), samples([900.0] * 60, pid=2)
    assert growth(first + second) == []


def test_figures_are_shown_and_drawn(tmp_path: Path) -> None:
    found = samples([300.0, 310.0]) + samples([200.0], worker="w1", pid=2)
    first, second = soak_lines(found)
    assert first.startswith("w0: memory 300 to 310 MB, open files 100 to 100, lag at most 10, ")
    assert second.endswith("a commit takes no time, as there was none")
    pytest.importorskip("matplotlib")
    assert draw(found, tmp_path / "soak.svg").stat().st_size
