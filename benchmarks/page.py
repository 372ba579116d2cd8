"""The figures of docs/performance.md, from what the last whole benchmark wrote.

``python -m benchmarks.page`` puts them between the page's marks; a test holds that they are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.results import Comparison, Latency, Report, Restart, comparisons

PAGE = Path("docs/performance.md")
RESULTS = Path("benchmarks/results/latest.json")
RATIOS_SAY = (
    "Headrace over others, median (lowest-highest) of the rounds' ratios, one alone where there "
    "was time for one round. More is better; of memory, less."
)
BEGIN, END = "<!-- figures: python -m benchmarks.page -->\n", "<!-- end of figures -->\n"


def read(path: Path = RESULTS) -> Report:
    """What was measured last."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def figures(report: Report) -> str:
    """The tables of the page, in Markdown."""
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
        f"{report.noise.median_ms:.0f} ms, up to {report.noise.spread:.0%} more than its best, so "
        "the machine's speed changed by that, and a ratio of one round shows no more than its "
        "order."
    )
    lines = [
        call,
        "",
        RATIOS_SAY,
        "",
        *_table(
            ("job", "settings", "over", "whole run", "middle of it", "per CPU-second", "memory"),
            _ratios(comparisons(report.jobs)),
        ),
        "",
        "Input records per second of the whole run, and the most memory that was resident:",
        "",
        *_table(("job", "records", "variant", "whole", "middle", "MiB"), _runs(report)),
        "",
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
        yield one.title, one.settings, one.other, *(_ratio(*figure) for figure in figured)


def _ratio(middle: float, low: float, high: float) -> str:
    return f"{middle:.2f}" if low == high else f"{middle:.2f} ({low:.2f}-{high:.2f})"


def _runs(report: Report) -> Iterator[Sequence[str]]:
    for job in report.jobs:
        for series in job.series:
            if any(run is not None for run in series.runs):
                yield (
                    job.title,
                    f"{job.records:,}",
                    series.name,
                    f"{series.median(lambda run: run.whole_rate):,.0f}",
                    f"{series.median(lambda run: run.middle_rate):,.0f}",
                    f"{series.median(lambda run: run.memory) / 2**20:,.0f}",
                )


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


def placed(page: str, text: str) -> str:
    """The page with the figures between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(), figures(read())))
