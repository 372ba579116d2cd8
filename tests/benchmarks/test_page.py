"""docs/performance.md has the shapes of the code, and the figures of the last full benchmark."""

from __future__ import annotations

from benchmarks.page import PAGE, placed, read


def test_the_page_has_the_last_figures_and_all_shapes() -> None:
    page = PAGE.read_text()
    assert placed(page, read()) == page, "run: python -m benchmarks.page"


def test_published_runs_are_complete_and_correct() -> None:
    report = read()
    runs = [run for job in report.jobs for series in job.series for run in series.runs]
    assert not report.quick
    assert not [run for run in runs if run is None or run.wrong]
