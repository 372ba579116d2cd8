"""The table of metrics: its page, its names, and how quickly a large application is written."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.streams_web.metrics import METRICS
from headrace.streams_web.pages import scrape
from tests.support.generated_pages import metrics
from tests.support.snapshots import application_snapshot

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_the_table() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == metrics(), (
        "run python -m tests.support.generated_pages metrics > docs/metrics.md"
    )


def test_a_silent_worker_has_no_rate_and_keeps_its_counts() -> None:
    facts = application_snapshot(workers=1, restored_per_s=7.5)

    def value(text: bytes, name: str) -> float:
        return float(next(re.finditer(rf"^{name}{{.*}} (.*)$", text.decode(), re.M))[1])

    rate, count = (
        "headrace_worker_restore_records_per_second",
        "headrace_worker_restore_records_total",
    )
    at_work, silent = scrape(facts, 101.0), scrape(facts, 200.0)
    assert value(at_work, rate) > 0
    assert value(silent, rate) == 0
    assert value(silent, count) == value(at_work, count) > 0


def test_names_are_as_prometheus_wants_them() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"headrace(_[a-z0-9]+)+", metric.name)
        assert not metric.name.endswith(("_total", "_info", "_count", "_sum", "_bucket"))
        assert metric.help.endswith(".")
        assert "le" not in metric.labels


def test_every_metric_has_a_sample_of_an_application_that_does_everything() -> None:
    text = scrape(application_snapshot(), 101.0).decode()
    for metric in METRICS:
        assert re.search(rf"^{metric.sample}[ {{]", text, re.M), metric.name
