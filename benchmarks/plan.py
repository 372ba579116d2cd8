"""What `make bench` runs, and how much of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.jobs.catalogue import JOBS
from benchmarks.jobs.job import Job
from benchmarks.peers.hand import LOOPS
from benchmarks.peers.peer import Guarantee, Variant
from benchmarks.peers.quix import KINDS

QUICK_SHARE = 0.15
START_S, RATE_PER_S = 5, 50_000
"""What a run takes, roughly."""
LONG_RECORDS = {"words": 1_000_000, "sum_100k": 5_000_000}
"""Runs in which the start counts for little, a JVM gets warm, and two workers share the work."""
WARM_JOB, WARM_RECORDS = "sum_100k", 200_000
"""What a broker that has just started is warmed with, as its own JVM is cold too."""
BOTH_GUARANTEES = ("sum_100k", "stateless")
EVERY_UPDATE = ("words", "sum_100k")
"""Run without caches too."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is run.

    Args:
        minutes: rounds after the first are left out when a job's share of it is over.
        rounds: how often each variant runs.
        share: of each job's default number of records.
        long: whether there are long runs, on which a JVM gets warm.
        latency_s: how long latency is measured.
        restart_keys: sizes of state.
    """

    minutes: float
    rounds: int
    share: float
    long: bool
    latency_s: int
    restart_keys: tuple[int, ...]


FULL = Amount(27, 3, 1.0, True, 15, (1_000_000, 5_000_000))
QUICK = Amount(4.5, 1, QUICK_SHARE, False, 5, (100_000,))
QUICK_JOBS = ("words", "sum_100k", "stateless", "windows", "stream_table", "sessions")


@dataclass(frozen=True, slots=True)
class Task:
    """A job with so many records, and its variants in the order of a round.

    Rounds after the first have the variants that ratios are published of, and none beside them.
    """

    job: Job
    title: str
    records: int
    variants: tuple[Variant, ...]
    rounds: int

    def in_round(self, number: int) -> tuple[Variant, ...]:
        """The variants of a round."""
        return tuple(v for v in self.variants if not number or v.published)

    @property
    def weight_s(self) -> float:
        """About how long it takes, to share out the time."""
        runs = sum(len(self.in_round(number)) for number in range(self.rounds))
        return runs * (START_S + self.records / RATE_PER_S)


def tasks(
    amount: Amount, names: tuple[str, ...], records: int | None, rounds: int | None
) -> Iterator[Task]:
    """What is run, job by job.

    Args:
        amount: how much.
        names: the jobs; none for all.
        records: input records of each job, instead of the defaults.
        rounds: how often each variant runs, instead of the default.
    """
    chosen = names or tuple(JOBS if amount is FULL else QUICK_JOBS)
    for name in chosen:
        job = JOBS[name]
        count = records or int(job.records * amount.share)
        variants = tuple(_variants(job, full=amount is FULL))
        yield Task(job, job.title, count, variants, rounds or amount.rounds)
    if amount.long and not names and records is None:
        for name, many in LONG_RECORDS.items():
            job = JOBS[name]
            long = tuple(
                variant
                for count in (1, 2)
                for variant in (
                    Variant("headrace", workers=count),
                    Variant("kafka-streams", workers=count),
                )
            )
            yield Task(job, f"{job.title}, long", many, long, 1)


def warming() -> Task:
    """What nobody is told of: it runs first, so that no job pays for a broker that is cold."""
    return Task(JOBS[WARM_JOB], "warm-up", WARM_RECORDS, (Variant("headrace"),), 1)


def _variants(job: Job, *, full: bool) -> Iterator[Variant]:
    """Caches are on first, as they are by default; without state there are none to be on."""
    yield from _compared(job, "exactly_once_v2", caches=True)
    if job.kind in KINDS and job.name not in ("sum_10k", "sum_1m"):
        # Quix has no caches: it writes each update.
        yield Variant("quix", caches=not job.stateful)
    if full and job.name in BOTH_GUARANTEES:
        yield from _compared(job, "at_least_once", caches=True)
    if job.name in EVERY_UPDATE and (full or job.name == "sum_100k"):
        yield from _compared(job, "exactly_once_v2", caches=False)


def _compared(job: Job, guarantee: Guarantee, *, caches: bool) -> Iterator[Variant]:
    yield Variant("headrace", guarantee, caches)
    yield Variant("kafka-streams", guarantee, caches)
    if job.kind in LOOPS:
        yield Variant("by hand", guarantee, caches)
        if job.kind == "words" and caches:
            yield Variant("by hand", guarantee, caches, combined=True)
