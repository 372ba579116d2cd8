"""docs/performance.md has the shapes of the code, and the figures of the last full benchmark."""

from __future__ import annotations

import pytest

from benchmarks.page import PAGE, insert_figures, read


def test_the_page_has_the_last_figures_and_all_shapes() -> None:
    page = PAGE.read_text()
    assert insert_figures(page, read()) == page, "run: python -m benchmarks.page"


def test_a_page_without_markers_is_rejected() -> None:
    with pytest.raises(ValueError, match="markers are missing"):
        insert_figures("# Performance\n", read())


def test_published_runs_are_complete_and_correct() -> None:
    report = read()
    runs = [run for job in report.jobs for series in job.series for run in series.runs]
    assert not report.quick
    assert not [run for run in runs if run is None or run.wrong]
