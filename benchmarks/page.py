"""Figures of docs/performance.md, from the results of the last full benchmark.

``python -m benchmarks.page`` writes them between the page's markers, with the shapes of the jobs. A
test checks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.columns import (
    COMPARED_WITH,
    LATENCY,
    LATENCY_FIGURES,
    MEMORY_OVER_TIME,
    RATIOS,
    RESTARTS,
    SHAPES,
    Rows,
    latency_rows,
    memory_over_time_rows,
    ratio_cells,
    restart_rows,
)
from benchmarks.jobs.catalogue import JOBS
from benchmarks.results import Comparison, Latency, Report, Restart, comparisons

PAGE = Path("docs/performance.md")
RESULTS = Path("benchmarks/results/latest.json")
SINGLE_ROUNDS = (
    "Headrace / peer, median (min-max) of the rounds' ratios. A single figure is of one round, "
    "which only shows the order of magnitude. These figures predate the shapes above: each job had "
    "one input, whose number of records is listed below. Higher is better; for memory, lower."
)
MEDIANS = (
    "Headrace / peer, median (min-max) of the ratios of {} rounds or more. For each job, the first "
    "row has the worst ratio of all shapes, in each column. Higher is better; for memory, lower."
)
LATENCY_CONDITIONS = (
    "Milliseconds from sending to the committed output at {:,} records/s, exactly-once, and the "
    "CPU that it takes, in cores. Both use `commit.interval.ms=100`. Headrace commits earlier when "
    "it has caught up (`commit.interval.min.ms=10`, the default):"
)
BEGIN, END = "<!-- figures: python -m benchmarks.page -->\n", "<!-- end of figures -->\n"
SHAPES_BEGIN, SHAPES_END = (
    "<!-- shapes: python -m benchmarks.page -->\n",
    "<!-- end of shapes -->\n",
)


def read(path: Path = RESULTS) -> Report:
    """Read the last results."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def figures(report: Report) -> str:
    """Return the tables of the page, in Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    rounds = sorted({len(series.runs) for job in report.jobs for series in job.series})
    ends = rounds[0], rounds[-1]
    wrong = sum(
        run is None or bool(run.wrong)
        for job in report.jobs
        for series in job.series
        for run in series.runs
    )
    conditions = (
        f"{report.machine}; {versions}. One run of `make bench` of {report.minutes:.0f} minutes, "
        f"rounds of each job: {' to '.join(str(n) for n in dict.fromkeys(ends))}. "
        f"Outputs that differ from the recount, and runs that failed: {wrong}. The fixed loop took "
        f"{report.noise.median_ms:.0f} ms, up to {report.noise.spread:.0%} more than its "
        "minimum, so smaller differences are not significant."
    )
    explanation = SINGLE_ROUNDS if report.min_rounds == 1 else MEDIANS.format(report.min_rounds)
    lines = [
        conditions,
        "",
        explanation,
        "",
        *_table(
            ("job", "settings", COMPARED_WITH, *RATIOS),
            _ratios(comparisons(report.jobs, report.min_rounds)),
        ),
        "",
        "Input records per second, and maximum resident memory:",
        "",
        *_table(("job", "records", "variant", *RATIOS[:2], "MiB"), _runs(report)),
        "",
        *_shapes(report),
        *_memory_over_time(report),
        *_latency(report.latency),
        "",
        *_restarts(report.restarts),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _ratios(found: Sequence[Comparison]) -> Rows:
    for comparison in found:
        yield comparison.name, comparison.settings, comparison.other, *ratio_cells(comparison)


def _runs(report: Report) -> Rows:
    for job in report.jobs:
        for series in job.series:
            if any(run is not None for run in series.runs):
                yield (
                    job.name,
                    f"{job.records:,}",
                    series.name,
                    f"{series.median(lambda run: run.end_to_end_rate):,.0f}",
                    f"{series.median(lambda run: run.steady_rate):,.0f}",
                    f"{series.median(lambda run: run.memory) / 2**20:,.0f}",
                )


def _shapes(report: Report) -> Iterator[str]:
    shapes = {job.name: job.shape for job in report.jobs if job.shape is not None}
    if not shapes:
        return
    yield "Inputs:"
    yield ""
    yield from _table(("job", "input"), ((name, s.describe()) for name, s in shapes.items()))
    yield ""


def _memory_over_time(report: Report) -> Iterator[str]:
    rows = list(memory_over_time_rows(report.jobs))
    if rows:
        yield "Resident memory in MiB at the start, in the middle and at the end of long runs:"
        yield ""
        yield from _table(MEMORY_OVER_TIME, rows)
        yield ""


def _latency(found: Sequence[Latency]) -> Iterator[str]:
    if not found:
        return
    yield LATENCY_CONDITIONS.format(found[0].per_s)
    yield ""
    yield from _table((*LATENCY, *LATENCY_FIGURES), latency_rows(found))


def _restarts(found: Sequence[Restart]) -> Iterator[str]:
    if not found:
        return
    yield "Restart after kill -9, in seconds since the start of the process:"
    yield ""
    yield from _table(RESTARTS, restart_rows(found))


def fixed_shapes() -> str:
    """Return the table of all fixed shapes, in Markdown."""
    rows = ((job.title, s.name, s.summary()) for job in JOBS.values() for s in job.shapes)
    return "\n".join(_table(SHAPES, rows)) + "\n"


def insert_figures(page: str, report: Report) -> str:
    """Return the page with shapes and figures between their markers.

    Raises:
        ValueError: a marker is missing.
    """
    for begin, end, text in (
        (SHAPES_BEGIN, SHAPES_END, fixed_shapes()),
        (BEGIN, END, figures(report)),
    ):
        before, has_begin, rest = page.partition(begin)
        _, has_end, after = rest.partition(end)
        if not (has_begin and has_end):
            raise ValueError(f"markers are missing ({begin.strip()} {end.strip()})")
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(insert_figures(PAGE.read_text(), read()))
