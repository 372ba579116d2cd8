"""Breaks the core on purpose, one change at a time, and says which tests notice: `make mutants`."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.mutants.changes import Change, all_changes
from tests.mutants.trial import Bench, Trial, Verdict, in_shares


@click.command()
@click.option("--module", default="", help="Only changes of files whose path has this in it.")
@click.option("--name", default="", help="Only changes whose name has this in it.")
@click.option("--jobs", default=2, help="How many are tried at the same time.", show_default=True)
@click.option("--timeout", default=300.0, help="Seconds for the tests of one.", show_default=True)
def main(module: str, name: str, jobs: int, timeout: float) -> None:
    """Try the changes of tests/mutants/changes, and list those that nobody notices."""
    chosen = [c for c in all_changes() if module in c.file and name in c.name]
    if not chosen:
        raise click.UsageError("no change has that in its file's path and its name")
    console, begun_s = Console(soft_wrap=True), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:

        def try_share(number: int, share: Sequence[Change]) -> list[Trial]:
            bench = Bench(Path(directory) / str(number), timeout_s=timeout)
            return [_tell(console, bench.try_change(change)) for change in share]

        with ThreadPoolExecutor(jobs) as pool:
            shares = in_shares(chosen, jobs)
            trials = [t for found in pool.map(try_share, range(jobs), shares) for t in found]
    console.print(_scores(trials, "area", lambda trial: trial.change.area))
    console.print(_scores(trials, "file", lambda trial: trial.change.file))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    console.print(
        f"{len(trials)} changes in {time.monotonic() - begun_s:.0f} s, "
        f"{used.ru_utime + used.ru_stime:.0f} s of processor time"
    )
    sys.exit(any(t.verdict in (Verdict.SURVIVED, Verdict.UNUSABLE) for t in trials))


def _tell(console: Console, trial: Trial) -> Trial:
    color = {Verdict.SURVIVED: "red", Verdict.UNUSABLE: "magenta"}.get(trial.verdict, "green")
    line = f"[{color}]{trial.verdict.value}[/] {trial.change.area}: {trial.change.name}"
    console.print(f"{line} ({trial.seconds:.0f} s)", highlight=False)
    if not trial.verdict.counts_as_noticed:
        console.print(f"    {trial.change.file}: {trial.said}", highlight=False, markup=False)
    return trial


def _scores(trials: Sequence[Trial], by: str, of: Callable[[Trial], str]) -> Table:
    """How many of the changes that can be noticed are, by some name, and of all together."""
    table = Table(by, "changes", "noticed", "survived", "equivalent", "unusable", "score")
    for name in [*sorted({of(t) for t in trials}), ""]:
        own = [t.verdict for t in trials if name in ("", of(t))]
        noticed = sum(v.counts_as_noticed for v in own)
        survived, same, unusable = map(
            own.count, (Verdict.SURVIVED, Verdict.EQUIVALENT, Verdict.UNUSABLE)
        )
        score = f"{noticed / (noticed + survived):.2f}" if noticed + survived else "-"
        counts = map(str, (len(own), noticed, survived, same, unusable))
        table.add_row(name or "all", *counts, score)
    return table


if __name__ == "__main__":
    main()
