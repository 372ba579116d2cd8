"""Headrace beside loops written by hand, in one run: ``python -m benchmarks.run``.

Each pair runs the hand-written loop, the application under exactly-once, under at-least-once and,
where it has state, with the default caches; each as a process of its own, with its own group,
state and output, over the same input topic. Ratios are taken within a pair, as the machine's speed
changes from one minute to the next. Every run's output is compared with a recount; a wrong one ends
the benchmark with exit code 1.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.jobs.jobs import JOBS, Job
from benchmarks.measure.cluster import Cluster, Outcome, cluster

RUN_TIMEOUT_S = 300
TABLE_WIDTH = 132
UNCACHED = ("--set", "statestore.cache.max.bytes=0")


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a job.

    Args:
        name: what the table calls it.
        module: the program.
        options: its options.
        every_update: whether each update goes to the output, so that records can be counted.
    """

    name: str
    module: str
    options: tuple[str, ...] = ()
    every_update: bool = True


HAND = Variant("by hand, exactly-once", "benchmarks.peers.hand")
EXACT = Variant("exactly-once", "benchmarks.peers.apps", UNCACHED)
AT_LEAST = Variant(
    "at-least-once", "benchmarks.peers.apps", (*UNCACHED, "--guarantee", "at_least_once")
)
CACHED = Variant("exactly-once, caches", "benchmarks.peers.apps", (), every_update=False)


@dataclass(frozen=True, slots=True)
class Result:
    """One run.

    Args:
        variant: which way.
        records_per_s: input records per second of wall-clock time.
        records_per_cpu_s: input records per second of the process's CPU time.
        wrong: what is wrong with the output; empty if nothing is.
    """

    variant: str
    records_per_s: float
    records_per_cpu_s: float
    commits: int
    wrong: str = ""


@dataclass(slots=True)
class JobResults:
    """All runs of one job, pair by pair."""

    job: str
    records: int
    pairs: list[dict[str, Result]] = field(default_factory=list)

    def of(self, variant: str, pick: Callable[[Result], float]) -> list[float]:
        """One figure of a variant, over the pairs."""
        return [pick(pair[variant]) for pair in self.pairs]

    def ratios(self, variant: str, pick: Callable[[Result], float]) -> list[float]:
        """A variant's figure over that of the loop by hand, pair by pair."""
        return [pick(pair[variant]) / pick(pair[HAND.name]) for pair in self.pairs]


class Benchmark:
    """Runs variants of one job over one input topic."""

    def __init__(self, place: Cluster, job: Job, records: int, partitions: int) -> None:
        self._cluster = place
        self._job = job
        self._records = records
        self._partitions = partitions
        self._prefix = f"bench-{job.name.replace('_', '-')}-{secrets.token_hex(3)}"
        rows, self._expected = job.make(records)
        self._source = f"{self._prefix}-input"
        place.create(self._source, partitions=partitions)
        place.fill(self._source, rows)

    def variants(self) -> list[Variant]:
        """What one pair consists of, in order."""
        return [HAND, EXACT, AT_LEAST, *([CACHED] if self._job.stateful else [])]

    def run(self, variant: Variant) -> Result:
        """Run one variant, and check what it wrote."""
        name = f"{self._prefix}-{secrets.token_hex(3)}"
        topics = [f"{name}-output"]
        if variant is HAND:
            topics += [f"{name}-repartition", f"{name}-changelog"]
        self._cluster.create(*topics, partitions=self._partitions)
        with tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as state:
            cost = self._spawn(variant, name, state)
        # Input records, also where a repartition topic doubles the way.
        share = self._records / cost["processed"]
        records = cost["records"] * share
        result = Result(
            variant.name,
            records / cost["wall_s"],
            records / cost["cpu_s"],
            int(cost["commits"]),
            self._what_is_wrong(cost, self._cluster.read(topics[0]), variant),
        )
        self._cluster.delete(name)
        return result

    def _spawn(self, variant: Variant, name: str, state: str) -> dict[str, float]:
        command = [sys.executable, "-m", variant.module, self._job.name]
        command += ["--bootstrap", self._cluster.bootstrap, "--run", name, "--source", self._source]
        if variant.module != HAND.module:
            command += ["--state-dir", state]
        command += ["--until", str(self._expected.processed)]
        done = subprocess.run(
            [*command, *variant.options],
            stdout=subprocess.PIPE,
            timeout=RUN_TIMEOUT_S,
            check=False,
            text=True,
        )
        if done.returncode != 0:
            raise click.ClickException(f"{variant.name} ended with exit code {done.returncode}")
        cost: dict[str, float] = json.loads(done.stdout)
        return cost

    def _what_is_wrong(self, cost: dict[str, float], outcome: Outcome, variant: Variant) -> str:
        expected = self._expected
        combined = self._job.repartitions and not variant.every_update
        if cost["processed"] != expected.processed and not combined:
            return f"{cost['processed']} records were processed instead of {expected.processed}"
        if outcome.last != expected.last:
            differing = sum(outcome.last.get(k) != v for k, v in expected.last.items())
            unknown = len(outcome.last.keys() - expected.last.keys())
            return f"{differing} keys end with another value, {unknown} should not be there"
        if variant.every_update and outcome.count != expected.outputs:
            return f"{outcome.count} records in the output instead of {expected.outputs}"
        return ""

    def close(self) -> None:
        """Delete the input."""
        self._cluster.delete(self._prefix)


def _speed(result: Result) -> float:
    return result.records_per_s


def _thrift(result: Result) -> float:
    return result.records_per_cpu_s


def _table(results: Sequence[JobResults]) -> Table:
    table = Table(
        title="input records; median over the pairs, and lowest-highest ratio to the loop"
    )
    table.add_column("job")
    table.add_column("variant", no_wrap=True)
    for title in ("records/s", "ratio", "range", "records/CPU-s", "ratio", "range", "output"):
        table.add_column(title, justify="right")
    for one in results:
        title = f"{JOBS[one.job].title}\n{one.records:,} records"
        for variant in (HAND, EXACT, AT_LEAST, CACHED):
            if variant.name not in one.pairs[0]:
                continue
            wrong = sum(bool(pair[variant.name].wrong) for pair in one.pairs)
            table.add_row(
                title,
                variant.name,
                *_columns(one, variant, _speed),
                *_columns(one, variant, _thrift),
                "right" if not wrong else f"WRONG in {wrong}",
            )
            title = ""
        table.add_section()
    return table


def _columns(one: JobResults, variant: Variant, pick: Callable[[Result], float]) -> list[str]:
    value = f"{statistics.median(one.of(variant.name, pick)):,.0f}"
    if variant is HAND:
        return [value, "", ""]
    ratios = one.ratios(variant.name, pick)
    return [value, f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f}-{max(ratios):.2f}"]


def _measure(
    place: Cluster, job: Job, records: int, partitions: int, pairs: int, say: Console
) -> JobResults:
    say.print(f"[bold]{job.title}[/]: writing {records:,} records")
    benchmark = Benchmark(place, job, records, partitions)
    results = JobResults(job.name, records)
    for number in range(1, pairs + 1):
        pair: dict[str, Result] = {}
        for variant in benchmark.variants():
            result = pair[variant.name] = benchmark.run(variant)
            say.print(
                f"  {number}/{pairs} {variant.name}: {result.records_per_s:,.0f} records/s, "
                f"{result.records_per_cpu_s:,.0f} per CPU-second, {result.commits} commits"
                + (f" [red]{result.wrong}[/]" if result.wrong else "")
            )
        results.pairs.append(pair)
    benchmark.close()
    return results


@click.command()
@click.option("--bootstrap", help="A cluster to run on; by default a broker of one's own.")
@click.option("--job", "names", multiple=True, type=click.Choice(list(JOBS)), help="Only these.")
@click.option("--records", type=int, help="Input records of each job, instead of the defaults.")
@click.option("--pairs", default=2, show_default=True, help="How often everything runs.")
@click.option("--partitions", default=1, show_default=True, help="Of every topic.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the results here.")
def main(
    bootstrap: str | None,
    names: tuple[str, ...],
    records: int | None,
    pairs: int,
    partitions: int,
    path: Path | None,
) -> None:
    """Compare Headrace with loops written by hand over the same input.

    The word count takes 100,000 sentences of eight words by default, which are 800,000 records in
    the repartition topic and 800,000 updates; the other jobs take 1,000,000 records.
    """
    terminal = Console()
    say = Console(width=max(terminal.width, TABLE_WIDTH))
    jobs = [JOBS[name] for name in names or JOBS]
    with cluster(bootstrap) as place:
        results = [
            _measure(place, job, records or job.default_records, partitions, pairs, say)
            for job in jobs
        ]
    say.print(_table(results))
    say.print(f"{platform.machine()}, {os.cpu_count()} cores shared with the broker, {partitions=}")
    if path is not None:
        path.write_text(json.dumps([asdict(one) for one in results], indent=2) + "\n")
    if any(r.wrong for one in results for pair in one.pairs for r in pair.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
