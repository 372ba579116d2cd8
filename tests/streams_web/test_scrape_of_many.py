"""A scrape of many workers is quick, while one of them is stopped and another starts again."""

from __future__ import annotations

import statistics

from benchmarks.scrape import scrape_seconds


def test_eight_workers_of_64_tasks_are_scraped_soon() -> None:
    """On an idle machine it takes 50 ms; `python -m benchmarks.scrape` measures it."""
    seconds, samples = scrape_seconds(8, 64, times=3)
    assert samples > 6 * 64 * 15  # those of the one that starts again may be missing
    assert statistics.median(seconds) < 5
