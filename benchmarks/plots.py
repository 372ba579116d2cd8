"""Plots for docs/performance.md; requires the extra `bench`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Comparison, Report, comparisons

BAR_HEIGHT = 0.8
INCHES_PER_ROW = 0.32


def draw(report: Report, directory: Path) -> list[Path]:
    """Draw the ratios; return the files.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("svg")
    # Equal figures result in an equal file.
    mpl.rcParams["svg.hashsalt"] = "headrace"
    directory.mkdir(parents=True, exist_ok=True)
    compared = comparisons(report.jobs, report.min_rounds)
    found = []
    for other in dict.fromkeys(one.other for one in compared):
        path = directory / f"bench-{other.replace(' ', '-')}.svg"
        _ratios(other, [one for one in compared if one.other == other], path)
        found.append(path)
    return found


def _ratios(other: str, compared: Sequence[Comparison], path: Path) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 1.2 + INCHES_PER_ROW * len(compared)))
    rows = list(range(len(compared)))
    middles = [one.end_to_end[0] for one in compared]
    errors = [
        [one.end_to_end[0] - one.end_to_end[1] for one in compared],
        [one.end_to_end[2] - one.end_to_end[0] for one in compared],
    ]
    axes.barh(rows, middles, BAR_HEIGHT, xerr=errors, color="#4878a8", ecolor="#333333")
    axes.axvline(1, color="#333333", linewidth=1)
    axes.set_yticks(rows, [f"{one.name}\n{one.settings}" for one in compared], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(f"records per second, end to end: Headrace / {other}")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
