"""Results of a benchmark, which `latest.json`, tables and plots are made from."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.jobs.shape import Shape
from benchmarks.measure.noise import Noise

MIN_ROUNDS = 3
"""Minimum rounds for a ratio."""
WORST = "worst of {} shapes"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one variant.

    Args:
        records: input records.
        end_to_end_s: time from the start of the process until its last commit.
        steady_s: time from 20 % to 80 % of all committed offsets.
        cpu_s: CPU time of the application, including its start.
        memory: maximum resident bytes.
        broker_cpu_s: CPU time of the broker meanwhile; None if it was not started here.
        noise_ms: time of the fixed loop before the run.
        wrong: how the output differs from the expected one; empty if it is equal.
        stored_bytes: bytes stored by the broker meanwhile; 0 if it was not started here.
        memory_series: resident bytes at equal intervals from start to end, of long runs.
    """

    records: int
    end_to_end_s: float
    steady_s: float
    cpu_s: float
    memory: int
    broker_cpu_s: float | None
    noise_ms: float
    wrong: str = ""
    stored_bytes: int = 0
    memory_series: list[int] = field(default_factory=list)

    @property
    def end_to_end_rate(self) -> float:
        """Records per second, end to end."""
        return self.records / self.end_to_end_s

    @property
    def steady_rate(self) -> float:
        """Records per second in the steady state."""
        return 0.6 * self.records / self.steady_s if self.steady_s > 0 else float("nan")


Figure = Callable[[Run], float]


@dataclass(frozen=True, slots=True)
class Series:
    """All runs of one variant of a job.

    Args:
        name: name in tables.
        settings: settings; series of equal settings are compared.
        peer: name of the peer.
        runs: one run per round; None if it failed.
    """

    name: str
    settings: str
    peer: str
    runs: list[Run | None] = field(default_factory=list)

    def median(self, figure: Figure) -> float:
        """Return the median of a figure over the rounds."""
        return statistics.median(figure(run) for run in self.runs if run is not None)

    def ratios(self, other: Series, figure: Figure) -> list[float]:
        """Return the ratio of a figure to that of another series, round by round."""
        pairs = zip(self.runs, other.runs, strict=False)
        return [figure(one) / figure(two) for one, two in pairs if one and two]


@dataclass(frozen=True, slots=True)
class JobResult:
    """All series of one shape of a job.

    Args:
        job: name of the job.
        title: title in tables, without the shape.
        records: input records.
        series: one per variant.
        shape: the input; None if its shape is not recorded.
        rows_per_record: new rows of windows, sessions or joins per input record, as counted.
    """

    job: str
    title: str
    records: int
    series: list[Series]
    shape: Shape | None = None
    rows_per_record: float = 0.0

    @property
    def shape_name(self) -> str:
        """Name of the shape, empty if there is none."""
        return "" if self.shape is None else self.shape.name

    @property
    def name(self) -> str:
        """Title with the shape."""
        return f"{self.title}, {self.shape_name}" if self.shape_name else self.title


Ratio = tuple[float, float, float]
"""Median, lowest and highest of the rounds."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ratios of Headrace to a peer with the same settings.

    In the row of the worst ratios, each of them may come from a different shape.
    """

    job: str
    title: str
    shape: str
    settings: str
    other: str
    end_to_end: Ratio
    steady: Ratio
    per_cpu: Ratio
    memory: Ratio

    @property
    def name(self) -> str:
        """Title with the shape."""
        return f"{self.title}, {self.shape}" if self.shape else self.title


def comparisons(results: Sequence[JobResult], min_rounds: int = MIN_ROUNDS) -> list[Comparison]:
    """Compare Headrace with each peer of the same settings.

    For each job and settings, the first comparison has the worst ratios of all shapes; each of its
    columns may come from a different shape. The shapes follow, worst first.

    Args:
        results: results of all shapes.
        min_rounds: comparisons of fewer rounds are skipped.
    """
    found: dict[str, dict[tuple[str, str], list[Comparison]]] = {}
    for result in results:
        for own in result.series:
            for other in result.series:
                is_peer = own.peer == "headrace" and other.peer != "headrace"
                is_pair = is_peer and own.settings == other.settings
                if is_pair and len(own.ratios(other, lambda run: run.end_to_end_s)) >= min_rounds:
                    one = _comparison(result, own, other)
                    of_job = found.setdefault(result.title, {})
                    of_job.setdefault((one.settings, one.other), []).append(one)
    groups = [group for of_job in found.values() for group in of_job.values()]
    return [one for group in groups for one in _worst_first(group)]


def scaling(
    results: Sequence[JobResult], min_rounds: int = MIN_ROUNDS
) -> list[tuple[str, str, Ratio, Ratio]]:
    """Return title, peer, and ratios end to end and in the steady state of two workers to one."""
    found = []
    for result in results:
        for one in result.series:
            for two in result.series:
                is_pair = two.peer == one.peer and two.settings == f"{one.settings}, 2 workers"
                end_to_end = two.ratios(one, lambda run: run.end_to_end_rate) if is_pair else []
                if end_to_end and len(end_to_end) >= min_rounds:
                    steady = two.ratios(one, lambda run: run.steady_rate)
                    found.append((result.title, one.peer, _ratio(end_to_end), _ratio(steady)))
    return found


def _worst_first(group: list[Comparison]) -> list[Comparison]:
    shapes = sorted(group, key=lambda one: one.end_to_end[0])
    if len(shapes) == 1:
        return shapes
    worst = replace(
        shapes[0],
        shape=WORST.format(len(shapes)),
        steady=min(one.steady for one in shapes),
        per_cpu=min(one.per_cpu for one in shapes),
        memory=max(one.memory for one in shapes),
    )
    return [worst, *shapes]


def _ratio(rounds: Sequence[float]) -> Ratio:
    return statistics.median(rounds), min(rounds), max(rounds)


def _comparison(result: JobResult, own: Series, other: Series) -> Comparison:
    def ratio(figure: Figure) -> Ratio:
        return _ratio(own.ratios(other, figure))

    return Comparison(
        result.job,
        result.title,
        result.shape_name,
        own.settings,
        other.name.partition(",")[0],
        ratio(lambda run: run.end_to_end_rate),
        ratio(lambda run: run.steady_rate),
        ratio(lambda run: run.records / run.cpu_s),
        ratio(lambda run: run.memory),
    )


@dataclass(frozen=True, slots=True)
class Latency:
    """Time from sending a record to its committed output, in milliseconds.

    Args:
        application: name of the topology.
        runner: name of the application's runner.
        per_s: records per second.
        commits_per_s: transactions that wrote to the output.
        cpu: CPU of the application, in cores.
        broker_cpu: CPU of the broker; None if it was not started here.
    """

    application: str
    runner: str
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
    """Start after a kill; times are seconds since the start of the process.

    Args:
        keys: size of the state.
        state: `kept` or `empty`, for the state directory.
        initialised_s: end of init_transactions, after the old transaction was aborted.
        running_s: all tasks process records.
        committed_s: end of the first new commit.
        restored: number of restored changelog records.
    """

    keys: int
    state: str
    initialised_s: float
    running_s: float
    committed_s: float
    restored: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes of an application while its state grows.

    Args:
        keys: rows of its state at the end.
        value_bytes: size of a row's value.
        begin: bytes before the first record.
        most: maximum.
        last: bytes after the commit of the last row.
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
    """Results of one run of the benchmark.

    Args:
        machine: processor, cores and memory.
        versions: versions of the compared software.
        quick: whether it was the short selection.
        minutes: duration.
        noise: times of the fixed loop before each run.
        jobs: throughput.
        latency: latency of Headrace, and of Kafka Streams if it is available.
        restarts: restarts of Headrace.
        min_rounds: minimum rounds for a ratio.
        skipped: jobs and shapes that did not start in time.
    """

    machine: str
    versions: dict[str, str]
    quick: bool
    minutes: float
    noise: Noise
    jobs: list[JobResult]
    latency: list[Latency]
    restarts: list[Restart]
    min_rounds: int = 1
    skipped: list[str] = field(default_factory=list)
