"""Results as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table

from benchmarks.results import (
    Comparison,
    JobResult,
    Latency,
    Memory,
    Ratio,
    Report,
    Restart,
    Run,
    comparisons,
    scaling,
)

WIDTH = 150


def tables(report: Report) -> list[RenderableType]:
    """Return all tables of a report, and the lines below them."""
    compared = comparisons(report.jobs, report.min_rounds)
    found: list[RenderableType] = [ratio_table(compared)] if compared else []
    if not compared:
        found.append(f"No ratios: they require {report.min_rounds} rounds (--rounds).")
    found += [shape_table(report.jobs), run_table(report.jobs)]
    if scaled := scaling(report.jobs, report.min_rounds):
        found.append(scaling_table(scaled))
    if any(run.memory_series for _, run in _runs(report.jobs)):
        found.append(memory_over_time_table(report.jobs))
    if report.latency:
        found.append(latency_table(report.latency))
    if report.restarts:
        found.append(restart_table(report.restarts))
    noise = report.noise
    found.append(
        f"{report.machine}; {report.minutes:.0f} minutes; the fixed loop took "
        f"{noise.median_ms:.0f} ms, up to {noise.spread:.0%} more than its minimum: "
        "smaller differences are not significant"
    )
    if report.skipped:
        found.append(f"Not started in time: {'; '.join(report.skipped)}")
    return found


def _table(title: str, *names: str, right: Sequence[str]) -> Table:
    table = Table(title=title)
    for name in names:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


def ratio_table(compared: Sequence[Comparison]) -> Table:
    """Return the ratios of Headrace to each peer of the same settings."""
    table = _table(
        "Headrace over peers, median (lowest-highest) of the rounds; more is better, less memory",
        *("job", "shape", "settings", "over"),
        right=("end to end", "steady state", "per CPU-second", "memory"),
    )
    job = ""
    for one in compared:
        if one.title != job:
            table.add_section()
        table.add_row(
            one.title if one.title != job else "",
            one.shape,
            one.settings,
            one.other,
            *(_ratio(r) for r in (one.whole, one.middle, one.per_cpu, one.memory)),
        )
        job = one.title
    return table


def scaling_table(scaled: Sequence[tuple[str, str, Ratio, Ratio]]) -> Table:
    """Return the ratios of more workers, or threads, to one."""
    table = _table("2 workers over 1", "job", "peer", right=("end to end", "steady state"))
    for title, peer, whole, middle in scaled:
        table.add_row(title, peer, _ratio(whole), _ratio(middle))
    return table


def shape_table(results: Sequence[JobResult]) -> Table:
    """Return the input of each job."""
    table = _table("inputs", "job", "shape", "input", right=("rows per record",))
    for result in results:
        if result.shape is not None:
            rows = f"{result.rows_per_record:.2f}" if result.rows_per_record else ""
            table.add_row(result.title, result.shape.name, result.shape.describe(), rows)
    return table


def _runs(results: Sequence[JobResult]) -> Iterator[tuple[str, Run]]:
    for result in results:
        for series in result.series:
            for run in series.runs:
                if run is not None:
                    yield f"{result.title}: {series.name}", run


def memory_over_time_table(results: Sequence[JobResult]) -> Table:
    """Return resident memory at the start, in the middle and at the end of long runs."""
    table = _table(
        "resident memory in MiB over time", "run", right=("seconds", "start", "middle", "end")
    )
    for name, run in _runs(results):
        if run.memory_series:
            series = run.memory_series
            samples = series[0], series[len(series) // 2], series[-1]
            table.add_row(name, f"{run.whole_s:.0f}", *(f"{size >> 20:,}" for size in samples))
    return table


def _ratio(found: Ratio) -> str:
    middle, low, high = found
    return f"{middle:.2f} ({low:.2f}-{high:.2f})" if low != high else f"{middle:.2f}"


def run_table(results: Sequence[JobResult]) -> Table:
    """Return the figures, median of the rounds."""
    table = _table(
        "input records per second, median of the rounds",
        *("job", "variant"),
        right=("end to end", "steady", "per CPU-s", "MiB", "broker CPU-s", "rounds", "output"),
    )
    for result in results:
        title = f"{result.name}\n{result.records:,} records"
        for series in result.series:
            runs = [run for run in series.runs if run is not None]
            if not runs:
                table.add_row(title, series.name, *[""] * 5, "0", "[red]failed[/]")
                continue
            wrong = sum(bool(run.wrong) for run in runs)
            failed = len(series.runs) - len(runs)
            table.add_row(
                title,
                series.name,
                f"{series.median(lambda run: run.whole_rate):,.0f}",
                f"{series.median(lambda run: run.middle_rate):,.0f}",
                f"{series.median(lambda run: run.records / run.cpu_s):,.0f}",
                f"{series.median(lambda run: run.memory) / 2**20:,.0f}",
                _broker(runs),
                str(len(runs)),
                f"[red]WRONG in {wrong}, failed {failed}[/]" if wrong or failed else "right",
            )
            title = ""
        table.add_section()
    return table


def _broker(runs: Sequence[Run]) -> str:
    known = [run.broker_cpu_s for run in runs if run.broker_cpu_s is not None]
    return f"{sorted(known)[len(known) // 2]:.1f}" if known else ""


def latency_table(found: Sequence[Latency]) -> Table:
    """Return latency in milliseconds and CPU, median of the rounds."""
    rate = found[0].per_s
    table = _table(
        f"latency in ms at {rate:,} records/s, exactly-once, read_committed; CPU in cores",
        *("application", "of"),
        right=("p50", "p90", "p99", "p99.9", "highest", "commits/s", "CPU", "broker CPU"),
    )
    for application, who in dict.fromkeys((one.application, one.who) for one in found):
        runs = [one for one in found if (one.application, one.who) == (application, who)]
        broker = [one.broker_cpu for one in runs if one.broker_cpu is not None]
        table.add_row(
            application,
            who,
            *(
                _rounds([getattr(one, name) for one in runs], 1)
                for name in ("p50", "p90", "p99", "p999", "highest")
            ),
            _rounds([one.commits_per_s for one in runs], 0),
            _rounds([one.cpu for one in runs], 2),
            _rounds(broker, 2) if broker else "",
        )
    return table


def _rounds(found: Sequence[float], digits: int) -> str:
    middle = f"{statistics.median(found):.{digits}f}"
    if len(found) == 1:
        return middle
    return f"{middle} ({min(found):.{digits}f}-{max(found):.{digits}f})"


def restart_table(found: Sequence[Restart]) -> Table:
    """Return restarts in seconds."""
    table = _table(
        "restart after kill -9, seconds since the start of the process",
        right=("keys", "local state", "init", "running", "first commit", "records restored"),
    )
    for one in found:
        times = (f"{s:.2f}" for s in (one.initialised_s, one.running_s, one.committed_s))
        table.add_row(f"{one.keys:,}", one.state, *times, f"{one.restored:,}")
    return table


def memory_table(found: Sequence[Memory]) -> Table:
    """Return resident memory in MiB by number of keys."""
    table = _table(
        "resident memory in MiB while the last document of each key is kept, exactly-once",
        right=("keys", "bytes of a value", "running", "most", "last", "rows/s"),
    )
    for one in found:
        sizes = (f"{size / 2**20:,.0f}" for size in (one.begin, one.most, one.last))
        table.add_row(f"{one.keys:,}", f"{one.value_bytes:,}", *sizes, f"{one.per_s:,.0f}")
    return table
