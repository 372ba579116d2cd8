"""Jobs, shapes and variants of `make bench`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.jobs.catalogue import JOBS
from benchmarks.jobs.job import Job
from benchmarks.jobs.shape import Shape
from benchmarks.jobs.sums import ACCOUNTS
from benchmarks.peers.hand_written import CONSUMERS
from benchmarks.peers.peer import Guarantee, Peer, Variant
from benchmarks.peers.quix import KINDS
from benchmarks.results import MIN_ROUNDS

QUICK_SHARE = 0.15
RANDOM = "random"
LONG_RECORDS = {"words": 1_000_000, "sum": 5_000_000}
"""Runs in which the start counts little, a JVM is warm, and two workers share the work."""
LONG_PARTITIONS = (2, 4)
WARM_JOB, WARM_RECORDS = "sum", 200_000
"""Input that warms the JVM of a broker that has just started."""
BOTH_GUARANTEES = ("sum", "stateless")
EVERY_UPDATE = ("words", "sum")
NEXT_JOBS = ("sum", "windows", "sessions")
"""Jobs that run on the next version of Kafka Streams in a run of all jobs."""
NEXT_PEERS: tuple[Peer, ...] = ("kafka-streams next", "kafka-streams next transactional")


@dataclass(frozen=True, slots=True)
class BenchmarkSize:
    """Size of a benchmark.

    Args:
        minutes: no shape starts after this time.
        rounds: number of runs of each variant.
        share: share of the records of each shape.
        is_full: whether all jobs run, including long runs and each guarantee.
        latency_s: duration of a latency measurement.
        restart_keys: sizes of the state in restarts.
    """

    minutes: float
    rounds: int
    share: float
    is_full: bool
    latency_s: int
    restart_keys: tuple[int, ...]


FULL = BenchmarkSize(48, MIN_ROUNDS, 1.0, True, 15, (1_000_000, 5_000_000))
QUICK = BenchmarkSize(3.5, 1, QUICK_SHARE, False, 5, (100_000,))
QUICK_JOBS = ("words", "sum", "stateless", "windows", "stream_table", "sessions")


@dataclass(frozen=True, slots=True)
class JobRun:
    """One shape of a job, and its variants in the order of a round.

    Args:
        job: the job.
        title: title in tables, without the shape.
        shape: the input.
        variants: variants of the first round.
        rounds: number of rounds. Later rounds have only repeated variants.
        partitions: partitions of each topic; None for the default.
        is_long: whether memory over time is recorded.
    """

    job: Job
    title: str
    shape: Shape
    variants: tuple[Variant, ...]
    rounds: int
    partitions: int | None = None
    is_long: bool = False

    def in_round(self, number: int) -> tuple[Variant, ...]:
        """Return the variants of a round."""
        return tuple(v for v in self.variants if not number or v.repeated)


@dataclass(frozen=True, slots=True)
class Selection:
    """Jobs and shapes from the command line.

    Args:
        jobs: names of jobs; empty for all of the benchmark's size.
        shapes: names of shapes, or `random`; empty for all fixed ones.
        seed: seed of random shapes, and of the data of fixed ones; None for its default.
        records: number of input records; None for that of each shape.
        rounds: number of rounds; None for that of the benchmark's size.
        is_long: whether only long runs are selected; shapes and seed do not apply to them.
    """

    jobs: Sequence[str] = ()
    shapes: Sequence[str] = ()
    seed: int | None = None
    records: int | None = None
    rounds: int | None = None
    is_long: bool = False

    def of(self, job: Job, size: BenchmarkSize) -> list[Shape]:
        """Return the selected shapes of a job."""
        found = [s for s in job.shapes if not self.shapes or s.name in self.shapes]
        if self.seed is not None:
            found = [replace(shape, seed=self.seed) for shape in found]
            if RANDOM in self.shapes and job.ranges is not None:
                found.append(job.ranges.draw(job.name, self.seed))
        if self.records is None and size.share == 1:
            return found
        return [s.scaled(self.records or int(s.records * size.share)) for s in found]


def job_runs(size: BenchmarkSize, selection: Selection) -> Iterator[JobRun]:
    """Yield the first shape of every job, then long runs, then the other shapes.

    The first shape of a job is the hardest one, so that the least favourable ratios are measured
    even if time is short.
    """
    if selection.is_long:
        yield from long_job_runs(selection)
        return
    names = selection.jobs or tuple(JOBS if size.is_full else QUICK_JOBS)
    shapes = {name: selection.of(JOBS[name], size) for name in names}
    longest = max(map(len, shapes.values()))
    for number in range(longest if size.is_full or selection.shapes or selection.jobs else 1):
        for name, found in shapes.items():
            if number < len(found):
                job, has_others = JOBS[name], not number and not selection.shapes
                is_all = not selection.jobs
                variants = tuple(_variants(job, size, is_all=is_all, has_others=has_others))
                rounds = selection.rounds or size.rounds
                yield JobRun(job, job.title, found[number], variants, rounds)
        if not number and size.is_full and selection == Selection():
            yield from long_job_runs(selection)


def long_job_runs(selection: Selection) -> Iterator[JobRun]:
    """Yield runs of one and two workers, or threads, on two and four partitions.

    The selected jobs must be in `LONG_RECORDS`.
    """
    for name in selection.jobs or LONG_RECORDS:
        for partitions in LONG_PARTITIONS:
            peers: tuple[Peer, ...] = ("headrace", "kafka-streams")
            variants = tuple(Variant(peer, workers=n) for n in (1, 2) for peer in peers)
            job = JOBS[name]
            title = f"{job.title}, long, {partitions} partitions"
            shape = job.shape(selection.records or LONG_RECORDS[name])
            rounds = selection.rounds or 1
            yield JobRun(job, title, shape, variants, rounds, partitions, is_long=True)


def warm_up() -> JobRun:
    """Return a run whose result is not reported."""
    shape = replace(ACCOUNTS, records=WARM_RECORDS)
    return JobRun(JOBS[WARM_JOB], "warm-up", shape, (Variant("headrace"),), 1)


def _variants(
    job: Job, size: BenchmarkSize, *, is_all: bool, has_others: bool
) -> Iterator[Variant]:
    """Yield the variants with exactly-once and caches, and those of other settings.

    Args:
        job: the job.
        size: size of the benchmark.
        is_all: whether all jobs run. If false, other settings run in every round.
        has_others: whether to add variants of other settings.
    """
    repeated = not is_all
    yield from _compared(job, "exactly_once_v2", caches=True, repeated=True)
    if job.stateful and (not is_all or (has_others and size.is_full and job.name in NEXT_JOBS)):
        yield from (Variant(peer) for peer in NEXT_PEERS)
    if not has_others:
        return
    if job.kind in KINDS:
        # Quix has no caches: it writes each update.
        yield Variant("quix", caches=not job.stateful, repeated=repeated)
    if size.is_full and job.name in BOTH_GUARANTEES:
        yield from _compared(job, "at_least_once", caches=True, repeated=repeated)
    if job.name in EVERY_UPDATE and (size.is_full or job.name == "sum"):
        yield from _compared(job, "exactly_once_v2", caches=False, repeated=repeated)


def _compared(job: Job, guarantee: Guarantee, *, caches: bool, repeated: bool) -> Iterator[Variant]:
    peers: tuple[Peer, ...] = ("headrace", "checkout", "kafka-streams")
    for peer in (*peers, "by hand") if job.kind in CONSUMERS else peers:
        yield Variant(peer, guarantee, caches, repeated=repeated)
    if job.kind == "words" and caches:
        yield Variant("by hand", guarantee, caches, combined=True, repeated=repeated)
