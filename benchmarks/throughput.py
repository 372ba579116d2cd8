"""Runs variants of a job in turns on one input, and compares each output with the expected one."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.jobs.job import topic
from benchmarks.measure.cluster import Cluster
from benchmarks.measure.noise import loop_ms
from benchmarks.measure.progress import Progress
from benchmarks.measure.usage import ResourceUsage, resource_usage
from benchmarks.peers.commands import PYTHON_PEERS, Command
from benchmarks.peers.peer import RunSpec, Variant
from benchmarks.plan import JobRun
from benchmarks.results import JobResult, Run, Series

RUN_TIMEOUT_S = 300
STOP_TIMEOUT_S = 30
POLL_INTERVAL_S = 0.1
OUTPUT_TAIL = 2000
MEMORY_SAMPLES = 21

Log = Callable[[str], None]


class Benchmark:
    """Runs variants of one job on one input.

    Args:
        cluster: the cluster.
        job_run: the job and its input.
        peers: commands of the peers.
        partitions: partitions of each topic.
    """

    def __init__(
        self, cluster: Cluster, job_run: JobRun, peers: Mapping[str, Command], partitions: int
    ) -> None:
        self._cluster = cluster
        self._job_run = job_run
        self._peers = peers
        self._partitions = partitions
        self._prefix = f"bench-{job_run.job.name.replace('_', '-')}-{secrets.token_hex(3)}"
        dataset = job_run.job.generate(job_run.shape)
        self._expected = dataset.expected
        self.records = dataset.records
        self.rows = dataset.rows
        self._sources = [topic(self._prefix, suffix) for suffix in dataset.inputs]
        cluster.create(*self._sources, partitions=partitions)
        for suffix, rows in dataset.inputs.items():
            cluster.fill(topic(self._prefix, suffix), rows)

    def run(self, variant: Variant) -> Run:
        """Run one variant, and check its output."""
        name = f"{self._prefix}-{secrets.token_hex(3)}"
        output = f"{name}-output"
        own = [f"{name}-repartition", f"{name}-changelog"] if variant.peer == "by hand" else []
        self._cluster.create(output, *own, partitions=self._partitions)
        noise_ms = loop_ms()
        try:
            with tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as state:
                spec = RunSpec(
                    self._job_run.job.kind,
                    self._cluster.bootstrap,
                    name,
                    self._prefix,
                    output,
                    Path(state),
                )
                run = self._measured(variant, spec, noise_ms)
        finally:
            self._cluster.delete(name)
        return run

    def _measured(self, variant: Variant, spec: RunSpec, noise_ms: float) -> Run:
        command = self._peers[variant.peer](variant, spec)
        # A JVM's workers are threads.
        count = variant.workers if variant.peer in PYTHON_PEERS else 1
        progress = Progress(spec.bootstrap, self._cluster.admin, spec.run, self._sources)
        broker_before, bytes_before = self._broker(), self._cluster.stored_bytes(spec.run)
        began = time.monotonic()
        with running(command, count) as processes:
            samples = _follow(progress, processes)
        broker_cpu_s = self._broker().cpu_s - broker_before.cpu_s
        memory = [sample.memory for sample in samples]
        return Run(
            records=self.records,
            end_to_end_s=progress.ended_s - began,
            steady_s=progress.steady_s(),
            cpu_s=samples[-1].cpu_s,
            memory=max(memory),
            broker_cpu_s=broker_cpu_s if self._cluster.broker_pid is not None else None,
            noise_ms=noise_ms,
            wrong=self._check_output(spec.output, variant),
            stored_bytes=self._cluster.stored_bytes(spec.run) - bytes_before,
            memory_series=_thinned(memory) if self._job_run.is_long else [],
        )

    def _broker(self) -> ResourceUsage:
        pid = self._cluster.broker_pid
        return resource_usage([] if pid is None else [pid])

    def _check_output(self, output: str, variant: Variant) -> str:
        """Return how the output differs from the expected one; empty if it is equal."""
        expected = self._expected
        outcome = self._cluster.read(output, each_record=expected.each_record)
        last = {key: value for key, value in outcome.last.items() if value is not None}
        if last != expected.last:
            differing = sum(last.get(k) != v for k, v in expected.last.items())
            unknown = len(last.keys() - expected.last.keys())
            return f"{differing} keys have a wrong final value, {unknown} keys are not expected"
        # With caches, a stateful job writes the last result of a key and commit.
        combines_updates = variant.caches and self._job_run.job.stateful
        has_each_output = expected.each_record or not combines_updates
        if has_each_output and expected.outputs is not None and outcome.count != expected.outputs:
            return f"{outcome.count} records in the output instead of {expected.outputs}"
        return ""

    def close(self) -> None:
        """Delete the input."""
        self._cluster.delete(self._prefix)


@contextmanager
def running(command: Sequence[str], count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run a number of processes of a command, and stop them at the end."""
    with tempfile.TemporaryFile() as output:
        processes = [
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            for _ in range(count)
        ]
        try:
            yield processes
        except Exception as error:
            output.seek(0)
            error.add_note(output.read()[-OUTPUT_TAIL:].decode(errors="replace"))
            raise
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _thinned(series: Sequence[int]) -> list[int]:
    """Return `MEMORY_SAMPLES` of the samples at equal intervals, from start to end."""
    last = len(series) - 1
    return [series[last * n // (MEMORY_SAMPLES - 1)] for n in range(MEMORY_SAMPLES)]


def _follow(
    progress: Progress, processes: Sequence[subprocess.Popen[bytes]]
) -> list[ResourceUsage]:
    """Poll until everything is committed; return samples of CPU time and memory."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    samples: list[ResourceUsage] = []
    while True:
        is_done = progress.poll()
        samples.append(resource_usage([process.pid for process in processes]))
        if is_done:
            return samples
        for process in processes:
            if process.poll() is not None:
                raise RuntimeError(f"the process ended with exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"input is not committed after {RUN_TIMEOUT_S} s")
        time.sleep(POLL_INTERVAL_S)


def measure(
    cluster: Cluster, job_run: JobRun, peers: Mapping[str, Command], *, partitions: int, log: Log
) -> JobResult:
    """Run all variants of a job on one input, in turns.

    Args:
        cluster: the cluster.
        job_run: the job and its input.
        peers: commands of the peers; variants of other peers are skipped.
        partitions: partitions of each topic, unless the job's run sets it.
        log: called with a line for each run.
    """
    log(f"[bold]{job_run.title}[/], {job_run.shape.name}: {job_run.shape.describe()}")
    benchmark = Benchmark(cluster, job_run, peers, job_run.partitions or partitions)
    available = [variant for variant in job_run.variants if variant.peer in peers]
    series = {v: Series(v.name, v.settings, v.peer) for v in available}
    try:
        for number in range(job_run.rounds):
            # The order alternates, so that effects of a run on the next one favour no variant.
            variants = [variant for variant in job_run.in_round(number) if variant in series]
            for variant in variants if number % 2 == 0 else reversed(variants):
                series[variant].runs.append(_run(benchmark, variant, log))
    finally:
        benchmark.close()
    return JobResult(
        job_run.job.name,
        job_run.title,
        benchmark.records,
        list(series.values()),
        job_run.shape,
        benchmark.rows / benchmark.records,
    )


def _run(benchmark: Benchmark, variant: Variant, log: Log) -> Run | None:
    try:
        run = benchmark.run(variant)
    except (RuntimeError, TimeoutError) as error:
        log(f"  [red]{variant.name}: {error}[/]\n" + "\n".join(getattr(error, "__notes__", [])))
        return None
    log(
        f"  {variant.name}: {run.end_to_end_rate:,.0f} records/s, {run.steady_rate:,.0f} in the "
        f"steady state, {run.records / run.cpu_s:,.0f} per CPU-second, {run.memory >> 20} MiB"
        + (f" [red]{run.wrong}[/]" if run.wrong else "")
    )
    return run
