"""Results as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table

from benchmarks.columns import (
    COMPARED_WITH,
    LATENCY,
    LATENCY_FIGURES,
    MEMORY_OVER_TIME,
    RATIOS,
    RESTARTS,
    SHAPES,
    format_ratio,
    latency_rows,
    memory_over_time_rows,
    ratio_cells,
    restart_rows,
)
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
    if any(True for _ in memory_over_time_rows(report.jobs)):
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


def _filled(table: Table, rows: Iterable[Sequence[str]]) -> Table:
    for row in rows:
        table.add_row(*row)
    return table


def ratio_table(compared: Sequence[Comparison]) -> Table:
    """Return the ratios of Headrace to each peer of the same settings."""
    table = _table(
        "Headrace / peer, median (min-max); higher is better, lower for memory",
        *("job", "shape", "settings", COMPARED_WITH),
        right=RATIOS,
    )
    job = ""
    for comparison in compared:
        if comparison.title != job:
            table.add_section()
        table.add_row(
            comparison.title if comparison.title != job else "",
            comparison.shape,
            comparison.settings,
            comparison.other,
            *ratio_cells(comparison),
        )
        job = comparison.title
    return table


def scaling_table(scaled: Sequence[tuple[str, str, Ratio, Ratio]]) -> Table:
    """Return the ratios of more workers, or threads, to one."""
    table = _table("2 workers / 1 worker", "job", "peer", right=RATIOS[:2])
    for title, peer, end_to_end, steady in scaled:
        table.add_row(title, peer, format_ratio(end_to_end), format_ratio(steady))
    return table


def shape_table(results: Sequence[JobResult]) -> Table:
    """Return the input of each job."""
    table = _table("inputs", *SHAPES, right=("rows per record",))
    for result in results:
        if result.shape is not None:
            rows = f"{result.rows_per_record:.2f}" if result.rows_per_record else ""
            table.add_row(result.title, result.shape.name, result.shape.describe(), rows)
    return table


def memory_over_time_table(results: Sequence[JobResult]) -> Table:
    """Return resident memory at the start, in the middle and at the end of long runs."""
    left, right = MEMORY_OVER_TIME[:2], MEMORY_OVER_TIME[2:]
    return _filled(
        _table("resident memory in MiB over time", *left, right=right),
        memory_over_time_rows(results),
    )


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
                f"{series.median(lambda run: run.end_to_end_rate):,.0f}",
                f"{series.median(lambda run: run.steady_rate):,.0f}",
                f"{series.median(lambda run: run.records / run.cpu_s):,.0f}",
                f"{series.median(lambda run: run.memory) / 2**20:,.0f}",
                _broker(runs),
                str(len(runs)),
                f"[red]WRONG in {wrong}, failed {failed}[/]" if wrong or failed else "correct",
            )
            title = ""
        table.add_section()
    return table


def _broker(runs: Sequence[Run]) -> str:
    known = [run.broker_cpu_s for run in runs if run.broker_cpu_s is not None]
    return f"{statistics.median(known):.1f}" if known else ""


def latency_table(found: Sequence[Latency]) -> Table:
    """Return latency in milliseconds and CPU, median of the rounds."""
    table = _table(
        f"latency in ms at {found[0].per_s:,} records/s, exactly-once, committed; CPU in cores",
        *LATENCY,
        right=LATENCY_FIGURES,
    )
    return _filled(table, latency_rows(found))


def restart_table(found: Sequence[Restart]) -> Table:
    """Return restarts in seconds."""
    title = "restart after kill -9, seconds since the start of the process"
    return _filled(_table(title, right=RESTARTS), restart_rows(found))


def memory_table(found: Sequence[Memory]) -> Table:
    """Return resident memory in MiB by number of keys."""
    table = _table(
        "resident memory in MiB, with the last document of each key as state, exactly-once",
        right=("keys", "bytes of a value", "running", "most", "last", "rows/s"),
    )
    for memory in found:
        sizes = (f"{size / 2**20:,.0f}" for size in (memory.begin, memory.most, memory.last))
        table.add_row(f"{memory.keys:,}", f"{memory.value_bytes:,}", *sizes, f"{memory.per_s:,.0f}")
    return table
