"""What docs/performance.md tells is what was measured last."""

from __future__ import annotations

from benchmarks.page import PAGE, figures, placed, read


def test_the_page_tells_what_was_measured() -> None:
    page = PAGE.read_text()
    assert placed(page, figures(read())) == page, "run: python -m benchmarks.page"


def test_what_is_published_was_whole_and_right() -> None:
    report = read()
    runs = [run for job in report.jobs for series in job.series for run in series.runs]
    assert not report.quick
    assert not [run for run in runs if run is None or run.wrong]
