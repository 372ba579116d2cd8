"""Runs variants of a job in turns on one input, and compares each output with the expected one."""

from __future__ import annotations

import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.jobs.job import topic
from benchmarks.measure.cluster import Cluster
from benchmarks.measure.noise import loop_ms
from benchmarks.measure.progress import Progress
from benchmarks.measure.usage import Usage, usage
from benchmarks.peers.commands import PYTHON_PEERS, Command
from benchmarks.peers.peer import Order, Variant
from benchmarks.plan import Task
from benchmarks.results import JobResult, Run, Series

RUN_TIMEOUT_S = 300
STOP_TIMEOUT_S = 30
POLL_INTERVAL_S = 0.1
OUTPUT_TAIL = 2000
MEMORY_SAMPLES = 21

Log = Callable[[str], None]


@dataclass(slots=True)
class Used:
    """CPU time of processes, and their memory over time."""

    cpu_s: float = 0.0
    memory: list[int] = field(default_factory=list)

    def series(self) -> list[int]:
        """Return samples of the memory at equal intervals, from start to end."""
        last = len(self.memory) - 1
        return [self.memory[last * n // (MEMORY_SAMPLES - 1)] for n in range(MEMORY_SAMPLES)]


class Benchmark:
    """Runs variants of one job on one input.

    Args:
        cluster: the cluster.
        task: the job and its input.
        peers: commands of the peers.
        partitions: partitions of each topic.
    """

    def __init__(
        self, cluster: Cluster, task: Task, peers: Mapping[str, Command], partitions: int
    ) -> None:
        self._cluster = cluster
        self._task = task
        self._peers = peers
        self._partitions = partitions
        self._prefix = f"bench-{task.job.name.replace('_', '-')}-{secrets.token_hex(3)}"
        made = task.job.make(task.shape)
        self._expected = made.expected
        self.records = made.records
        self.rows = made.rows
        self._sources = [topic(self._prefix, end) for end in made.inputs]
        cluster.create(*self._sources, partitions=partitions)
        for end, rows in made.inputs.items():
            cluster.fill(topic(self._prefix, end), rows)

    def run(self, variant: Variant) -> Run:
        """Run one variant, and check its output."""
        name = f"{self._prefix}-{secrets.token_hex(3)}"
        output = f"{name}-output"
        own = [f"{name}-repartition", f"{name}-changelog"] if variant.peer == "by hand" else []
        self._cluster.create(output, *own, partitions=self._partitions)
        noise_ms = loop_ms()
        try:
            with tempfile.TemporaryDirectory(prefix="headrace-bench-state-") as state:
                order = Order(
                    self._task.job.kind,
                    self._cluster.bootstrap,
                    name,
                    self._prefix,
                    output,
                    Path(state),
                )
                run = self._measured(variant, order, noise_ms)
        finally:
            self._cluster.delete(name)
        return run

    def _measured(self, variant: Variant, order: Order, noise_ms: float) -> Run:
        command = self._peers[variant.peer](variant, order)
        # A JVM's workers are threads.
        count = variant.workers if variant.peer in PYTHON_PEERS else 1
        progress = Progress(order.bootstrap, self._cluster.admin, order.run, self._sources)
        broker_before, bytes_before = self._broker(), self._cluster.stored_bytes(order.run)
        began = time.monotonic()
        with running(command, count) as processes:
            used = _follow(progress, processes)
        broker_cpu_s = self._broker().cpu_s - broker_before.cpu_s
        return Run(
            self.records,
            progress.ended_s - began,
            progress.middle_s(),
            used.cpu_s,
            max(used.memory),
            broker_cpu_s if self._cluster.broker_pid is not None else None,
            noise_ms,
            self._check_output(order.output, variant),
            self._cluster.stored_bytes(order.run) - bytes_before,
            used.series() if self._task.is_long else [],
        )

    def _broker(self) -> Usage:
        pid = self._cluster.broker_pid
        return usage([] if pid is None else [pid])

    def _check_output(self, output: str, variant: Variant) -> str:
        """Return how the output differs from the expected one; empty if it is equal."""
        expected = self._expected
        outcome = self._cluster.read(output, each_record=expected.each_record)
        last = {key: value for key, value in outcome.last.items() if value is not None}
        if last != expected.last:
            differing = sum(last.get(k) != v for k, v in expected.last.items())
            unknown = len(last.keys() - expected.last.keys())
            return f"{differing} keys end with another value, {unknown} keys are not expected"
        is_cached = variant.caches and self._task.job.stateful and not expected.each_record
        if not is_cached and expected.outputs is not None and outcome.count != expected.outputs:
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


def _follow(progress: Progress, processes: Sequence[subprocess.Popen[bytes]]) -> Used:
    """Poll until everything is committed, and sample CPU time and memory."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    used = Used()
    while True:
        is_done = progress.poll()
        now = usage([process.pid for process in processes])
        used.cpu_s = now.cpu_s
        used.memory.append(now.memory)
        if is_done:
            return used
        for process in processes:
            if process.poll() is not None:
                raise RuntimeError(f"the process ended with exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"input is not committed after {RUN_TIMEOUT_S} s")
        time.sleep(POLL_INTERVAL_S)


def measure(
    cluster: Cluster, task: Task, peers: Mapping[str, Command], *, partitions: int, log: Log
) -> JobResult:
    """Run all variants of a task in turns.

    Args:
        cluster: the cluster.
        task: the job and its input.
        peers: commands of the peers; variants of other peers are left out.
        partitions: partitions of each topic, unless the task has a number.
        log: called with a line for each run.
    """
    log(f"[bold]{task.title}[/], {task.shape.name}: {task.shape.describe()}")
    benchmark = Benchmark(cluster, task, peers, task.partitions or partitions)
    here = [variant for variant in task.variants if variant.peer in peers]
    series = {v: Series(v.name, v.settings, v.peer) for v in here}
    for number in range(task.rounds):
        # The order alternates, so that effects of one run on the next one do not favour a variant.
        turns = [variant for variant in task.in_round(number) if variant in series]
        for variant in turns if number % 2 == 0 else reversed(turns):
            series[variant].runs.append(_run(benchmark, variant, log))
    benchmark.close()
    return JobResult(
        task.job.name,
        task.title,
        benchmark.records,
        list(series.values()),
        task.shape,
        benchmark.rows / benchmark.records,
    )


def _run(benchmark: Benchmark, variant: Variant, log: Log) -> Run | None:
    try:
        run = benchmark.run(variant)
    except (RuntimeError, TimeoutError) as error:
        log(f"  [red]{variant.name}: {error}[/]\n" + "\n".join(getattr(error, "__notes__", [])))
        return None
    log(
        f"  {variant.name}: {run.whole_rate:,.0f} records/s, {run.middle_rate:,.0f} in the "
        f"steady state, {run.records / run.cpu_s:,.0f} per CPU-second, {run.memory >> 20} MiB"
        + (f" [red]{run.wrong}[/]" if run.wrong else "")
    )
    return run
