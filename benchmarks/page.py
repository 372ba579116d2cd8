"""Figures of docs/performance.md, from the results of the last full benchmark.

``python -m benchmarks.page`` writes them between the page's marks, with the shapes of the jobs. A
test checks them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.jobs.catalogue import JOBS
from benchmarks.results import Comparison, Latency, Report, Restart, comparisons

PAGE = Path("docs/performance.md")
RESULTS = Path("benchmarks/results/latest.json")
SINGLE_ROUNDS = (
    "Headrace over others, median (lowest-highest) of the rounds' ratios, a single figure if there "
    "was one round, which only shows the order of magnitude. Each job had one input, whose number "
    "of records is listed below. More is better; of memory, less."
)
RATIOS = (
    "Headrace over others, median (lowest-highest) of the ratios of {} rounds or more. For each "
    "job, the first row has the worst ratio of all shapes. More is better; of memory, less."
)
BEGIN, END = "<!-- figures: python -m benchmarks.page -->\n", "<!-- end of figures -->\n"
SHAPES = "<!-- shapes: python -m benchmarks.page -->\n", "<!-- end of shapes -->\n"


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
    call = (
        f"{report.machine}; {versions}. One call of `make bench` of {report.minutes:.0f} minutes, "
        f"rounds of each job: {' to '.join(str(n) for n in dict.fromkeys(ends))}. "
        f"Outputs that differ from the recount, and runs that failed: {wrong}. The fixed loop took "
        f"{report.noise.median_ms:.0f} ms, up to {report.noise.spread:.0%} more than its "
        "minimum, so smaller differences are not significant."
    )
    explanation = SINGLE_ROUNDS if report.min_rounds == 1 else RATIOS.format(report.min_rounds)
    lines = [
        call,
        "",
        explanation,
        "",
        *_table(
            ("job", "settings", "over", "end to end", "steady state", "per CPU-second", "memory"),
            _ratios(comparisons(report.jobs, report.min_rounds)),
        ),
        "",
        "Input records per second, and maximum resident memory:",
        "",
        *_table(("job", "records", "variant", "end to end", "steady state", "MiB"), _runs(report)),
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


def _ratios(found: Sequence[Comparison]) -> Iterator[Sequence[str]]:
    for one in found:
        figured = (one.whole, one.middle, one.per_cpu, one.memory)
        yield one.name, one.settings, one.other, *(_ratio(*figure) for figure in figured)


def _ratio(middle: float, low: float, high: float) -> str:
    return f"{middle:.2f}" if low == high else f"{middle:.2f} ({low:.2f}-{high:.2f})"


def _runs(report: Report) -> Iterator[Sequence[str]]:
    for job in report.jobs:
        for series in job.series:
            if any(run is not None for run in series.runs):
                yield (
                    job.name,
                    f"{job.records:,}",
                    series.name,
                    f"{series.median(lambda run: run.whole_rate):,.0f}",
                    f"{series.median(lambda run: run.middle_rate):,.0f}",
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
    rows = [
        (job.name, series.name, *(f"{run.memory_series[n] >> 20:,}" for n in (0, middle, -1)))
        for job in report.jobs
        for series in job.series
        for run in series.runs
        if run is not None and (middle := len(run.memory_series) // 2)
    ]
    if rows:
        yield "Resident memory in MiB at the start, in the middle and at the end of long runs:"
        yield ""
        yield from _table(("job", "variant", "start", "middle", "end"), rows)
        yield ""


def _latency(found: Sequence[Latency]) -> Iterator[str]:
    if not found:
        return
    yield (
        f"Milliseconds from sending to the committed output at {found[0].per_s:,} records/s, "
        "exactly-once, and the CPU that it takes, in cores:"
    )
    yield ""
    names = ("application", "of", "p50", "p90", "p99", "p99.9", "commits/s", "CPU", "broker's CPU")
    rows = (
        (
            one.application,
            one.who,
            *(f"{ms:.1f}" for ms in (one.p50, one.p90, one.p99, one.p999)),
            f"{one.commits_per_s:.0f}",
            f"{one.cpu:.2f}",
            "" if one.broker_cpu is None else f"{one.broker_cpu:.2f}",
        )
        for one in found
    )
    yield from _table(names, rows)


def _restarts(found: Sequence[Restart]) -> Iterator[str]:
    if not found:
        return
    yield "Restart after kill -9, in seconds since the start of the process:"
    yield ""
    names = ("keys", "local state", "initialised", "running", "first commit", "records restored")
    rows = (
        (
            f"{one.keys:,}",
            one.state,
            *(f"{s:.2f}" for s in (one.initialised_s, one.running_s, one.committed_s)),
            f"{one.restored:,}",
        )
        for one in found
    )
    yield from _table(names, rows)


def fixed_shapes() -> str:
    """Return the table of all fixed shapes, in Markdown."""
    rows = ((job.title, s.name, s.summary()) for job in JOBS.values() for s in job.shapes)
    return "\n".join(_table(("job", "shape", "input"), rows)) + "\n"


def placed(page: str, report: Report) -> str:
    """Return the page with shapes and figures between their marks."""
    for (begin, end), text in ((SHAPES, fixed_shapes()), ((BEGIN, END), figures(report))):
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(), read()))
