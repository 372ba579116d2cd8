"""Columns and cells of results, as text: for the tables of a terminal and of a page."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.results import Comparison, JobResult, Latency, Ratio, Restart

Rows = Iterator[tuple[str, ...]]

COMPARED_WITH = "compared with"
RATIOS = ("end to end", "steady state", "per CPU-second", "memory")
SHAPES = ("job", "shape", "input")
MEMORY_OVER_TIME = ("job", "variant", "seconds", "start", "middle", "end")
LATENCY = ("application", "runner")
LATENCY_FIGURES = ("p50", "p90", "p99", "p99.9", "highest", "commits/s", "CPU", "broker's CPU")
RESTARTS = ("keys", "local state", "initialised", "running", "first commit", "records restored")


def format_ratio(ratio: Ratio) -> str:
    """Return the median, and the lowest and the highest of several rounds."""
    median, low, high = ratio
    return f"{median:.2f} ({low:.2f}-{high:.2f})" if low != high else f"{median:.2f}"


def ratio_cells(comparison: Comparison) -> tuple[str, ...]:
    """Return the cells of `RATIOS`."""
    ratios = comparison.end_to_end, comparison.steady, comparison.per_cpu, comparison.memory
    return tuple(map(format_ratio, ratios))


def memory_over_time_rows(results: Sequence[JobResult]) -> Rows:
    """Yield the resident memory in MiB of each long run."""
    for result in results:
        for series in result.series:
            for run in series.runs:
                if run is not None and run.memory_series:
                    sizes = run.memory_series
                    samples = sizes[0], sizes[len(sizes) // 2], sizes[-1]
                    mib = (f"{size >> 20:,}" for size in samples)
                    yield result.name, series.name, f"{run.end_to_end_s:.0f}", *mib


def latency_rows(found: Sequence[Latency]) -> Rows:
    """Yield a row for each application and runner: medians of the rounds."""
    for application, runner in dict.fromkeys((one.application, one.runner) for one in found):
        runs = [one for one in found if (one.application, one.runner) == (application, runner)]
        broker = [run.broker_cpu for run in runs if run.broker_cpu is not None]
        yield (
            application,
            runner,
            *(
                _median([getattr(run, name) for run in runs], 1)
                for name in ("p50", "p90", "p99", "p999", "highest")
            ),
            _median([run.commits_per_s for run in runs], 0),
            _median([run.cpu for run in runs], 2),
            _median(broker, 2) if broker else "",
        )


def _median(found: Sequence[float], digits: int) -> str:
    median = f"{statistics.median(found):.{digits}f}"
    if len(found) == 1:
        return median
    return f"{median} ({min(found):.{digits}f}-{max(found):.{digits}f})"


def restart_rows(found: Sequence[Restart]) -> Rows:
    """Yield restarts in seconds."""
    for restart in found:
        times = restart.initialised_s, restart.running_s, restart.committed_s
        seconds = (f"{time_s:.2f}" for time_s in times)
        yield f"{restart.keys:,}", restart.state, *seconds, f"{restart.restored:,}"
