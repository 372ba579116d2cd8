"""What was measured, as values: what `latest.json` holds, and tables and plots are made from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.measure.noise import Noise


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one variant.

    Args:
        records: input records.
        whole_s: from the start of the process until its last commit.
        middle_s: the time from a fifth of all committed offsets to four fifths.
        cpu_s: CPU time of the application, its start included.
        memory: the most resident bytes that were seen.
        broker_cpu_s: CPU time of the broker meanwhile; None for a cluster of somebody else.
        noise_ms: the time of the fixed loop before the run.
        wrong: what is wrong with the output; empty if nothing is.
        stored_bytes: what the broker has stored meanwhile; 0 for a cluster of somebody else.
    """

    records: int
    whole_s: float
    middle_s: float
    cpu_s: float
    memory: int
    broker_cpu_s: float | None
    noise_ms: float
    wrong: str = ""
    stored_bytes: int = 0

    @property
    def whole_rate(self) -> float:
        """Records per second over the whole run."""
        return self.records / self.whole_s

    @property
    def middle_rate(self) -> float:
        """Records per second in the middle of the run: neither start nor end."""
        return 0.6 * self.records / self.middle_s if self.middle_s > 0 else float("nan")


Figure = Callable[[Run], float]


@dataclass(frozen=True, slots=True)
class Series:
    """All runs of one variant of a job, one a round; None where it did not come to it.

    Args:
        name: what the table calls it.
        settings: what was set; series of equal settings are compared.
        peer: who ran.
        runs: round by round.
    """

    name: str
    settings: str
    peer: str
    runs: list[Run | None] = field(default_factory=list)

    def median(self, figure: Figure) -> float:
        """A figure over the rounds."""
        return statistics.median(figure(run) for run in self.runs if run is not None)

    def ratios(self, other: Series, figure: Figure) -> list[float]:
        """A figure over another series', round by round."""
        pairs = zip(self.runs, other.runs, strict=False)
        return [figure(one) / figure(two) for one, two in pairs if one and two]


@dataclass(frozen=True, slots=True)
class JobResult:
    """All series of a job."""

    job: str
    title: str
    records: int
    series: list[Series]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Headrace's series over another one: median, lowest and highest of the rounds' ratios."""

    job: str
    title: str
    settings: str
    other: str
    whole: tuple[float, float, float]
    middle: tuple[float, float, float]
    per_cpu: tuple[float, float, float]
    memory: tuple[float, float, float]


def comparisons(results: Sequence[JobResult]) -> list[Comparison]:
    """Headrace beside each peer of the same settings."""
    found = []
    for result in results:
        for own in result.series:
            if own.peer != "headrace":
                continue
            for other in result.series:
                if other.peer == "headrace" or other.settings != own.settings:
                    continue
                if not own.ratios(other, lambda run: run.whole_s):
                    continue
                found.append(_comparison(result, own, other))
    return found


def _comparison(result: JobResult, own: Series, other: Series) -> Comparison:
    def over(figure: Figure) -> tuple[float, float, float]:
        ratios = own.ratios(other, figure)
        return statistics.median(ratios), min(ratios), max(ratios)

    return Comparison(
        result.job,
        result.title,
        own.settings,
        other.name.partition(",")[0],
        over(lambda run: run.whole_rate),
        over(lambda run: run.middle_rate),
        over(lambda run: run.records / run.cpu_s),
        over(lambda run: run.memory),
    )


@dataclass(frozen=True, slots=True)
class Latency:
    """From the sending of a record to its committed output, in milliseconds.

    Args:
        who: runs the application.
        per_s: records per second.
        commits_per_s: transactions that wrote to the output.
        cpu: of the application, in cores.
        broker_cpu: the same of the broker; None for a cluster of somebody else.
    """

    application: str
    who: str
    per_s: int
    p50: float
    p90: float
    p99: float
    p999: float
    highest: float
    commits_per_s: float
    cpu: float
    broker_cpu: float | None


@dataclass(frozen=True, slots=True)
class Restart:
    """One start after a kill; times are seconds since the start of the process.

    Args:
        keys: the size of the state.
        state: whether local state was there.
        initialised_s: when init_transactions was done, so the old transaction decided.
        running_s: when all tasks processed records.
        committed_s: when the first new commit was done.
        restored: how many changelog records were applied.
    """

    keys: int
    state: str
    initialised_s: float
    running_s: float
    committed_s: float
    restored: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes of an application while its state grew from nothing.

    Args:
        keys: rows of its state in the end.
        value_bytes: the size of a row's value.
        begin: what it had when it ran, before the first record.
        most: the most that was seen.
        last: what it had when the last row was committed.
        per_s: rows per second.
    """

    keys: int
    value_bytes: int
    begin: int
    most: int
    last: int
    per_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything of one call of the benchmark.

    Args:
        machine: processor, cores and memory.
        versions: of what was compared.
        quick: whether it was the short one.
        minutes: how long it took.
        noise: the fixed loop before each run.
        jobs: throughput.
        latency: of Headrace, and of Kafka Streams where it is here.
        restarts: of Headrace.
    """

    machine: str
    versions: dict[str, str]
    quick: bool
    minutes: float
    noise: Noise
    jobs: list[JobResult]
    latency: list[Latency]
    restarts: list[Restart]
