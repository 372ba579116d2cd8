"""A scrape of many workers is fast and complete while one is stopped and another restarts."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.scrape import RESTARTED, STOPPED, scrape
from headrace.streams_web.metrics import METRICS

pytestmark = pytest.mark.slow


def test_scrapes_of_eight_workers_with_64_tasks_are_fast_and_complete() -> None:
    """A scrape takes 20 ms on an idle machine; `python -m benchmarks.scrape` measures it."""
    found = scrape(8, 64, times=8)
    assert statistics.median(found.seconds) < 5
    assert found.restarts > 0
    for page in found.pages:
        families = {family.name: family for family in text_string_to_metric_families(page)}
        assert len(families) == len(METRICS)
        names = Counter(line.split(" ")[2] for line in page.splitlines() if "# TYPE" in line)
        assert set(names.values()) == {1}
        running = families["headrace_task_running"].samples
        tasks = Counter(int(sample.labels["worker"]) for sample in running)
        # The restarted worker may not have reported yet; the stopped one has.
        assert {n: 64 for n in range(8) if n != RESTARTED}.items() <= tasks.items()
        assert tasks.get(RESTARTED, 64) == 64
        ids = [sample.labels["task"] for sample in running]
        assert len(set(ids)) == len(ids)
        stores = families["headrace_store_keys"].samples
        assert len(stores) == 2 * len(running)
        assert {sample.value for sample in stores} == {10.0}
    counts = [_processed(page) for page in found.pages]
    assert len({count[STOPPED] for count in counts}) == 1
    assert counts[0][0] < counts[-1][0]


def _processed(page: str) -> dict[int, float]:
    return {
        int(sample.labels["worker"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "headrace_worker_process_records_total"
    }
