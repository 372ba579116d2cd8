"""Runs variants of a job in turns over one input, and checks what each of them wrote."""

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
from benchmarks.measure.usage import Usage, usage
from benchmarks.peers.commands import Command
from benchmarks.peers.peer import Order, Variant
from benchmarks.plan import Task
from benchmarks.results import JobResult, Run, Series

RUN_TIMEOUT_S = 300
STOP_TIMEOUT_S = 30
LOOK_EVERY_S = 0.1
SHOWN = 2000

Say = Callable[[str], None]


class Benchmark:
    """Runs variants of one job over one input.

    Args:
        place: the cluster.
        task: the job and its size.
        peers: who can be started.
        partitions: of every topic.
    """

    def __init__(
        self, place: Cluster, task: Task, peers: Mapping[str, Command], partitions: int
    ) -> None:
        self._cluster = place
        self._task = task
        self._peers = peers
        self._partitions = partitions
        self._prefix = f"bench-{task.job.name.replace('_', '-')}-{secrets.token_hex(3)}"
        made = task.job.make(task.records)
        self._expected = made.expected
        self.records = made.records
        self._sources = [topic(self._prefix, end) for end in made.inputs]
        place.create(*self._sources, partitions=partitions)
        for end, rows in made.inputs.items():
            place.fill(topic(self._prefix, end), rows)

    def run(self, variant: Variant) -> Run:
        """Run one variant, and check what it wrote."""
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
        count = variant.workers if variant.peer == "headrace" else 1
        progress = Progress(order.bootstrap, self._cluster.admin, order.run, self._sources)
        broker_before, bytes_before = self._broker(), self._cluster.stored_bytes(order.run)
        began = time.monotonic()
        with running(command, count) as processes:
            used, memory = _follow(progress, processes)
        broker_cpu_s = self._broker().cpu_s - broker_before.cpu_s
        return Run(
            self.records,
            progress.ended_s - began,
            progress.middle_s(),
            used.cpu_s,
            memory,
            broker_cpu_s if self._cluster.broker_pid is not None else None,
            noise_ms,
            self._what_is_wrong(order.output, variant),
            self._cluster.stored_bytes(order.run) - bytes_before,
        )

    def _broker(self) -> Usage:
        pid = self._cluster.broker_pid
        return usage([] if pid is None else [pid])

    def _what_is_wrong(self, output: str, variant: Variant) -> str:
        outcome, expected = self._cluster.read(output), self._expected
        last = {key: value for key, value in outcome.last.items() if value is not None}
        if last != expected.last:
            differing = sum(last.get(k) != v for k, v in expected.last.items())
            unknown = len(last.keys() - expected.last.keys())
            return f"{differing} keys end with another value, {unknown} should not be there"
        every_update = not (variant.caches and self._task.job.stateful)
        if every_update and expected.outputs is not None and outcome.count != expected.outputs:
            return f"{outcome.count} records in the output instead of {expected.outputs}"
        return ""

    def close(self) -> None:
        """Delete the input."""
        self._cluster.delete(self._prefix)


@contextmanager
def running(command: Sequence[str], count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes of a command, which are asked to stop in the end."""
    with tempfile.TemporaryFile() as said:
        processes = [
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            for _ in range(count)
        ]
        try:
            yield processes
        except Exception as error:
            said.seek(0)
            error.add_note(said.read()[-SHOWN:].decode(errors="replace"))
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


def _follow(progress: Progress, processes: Sequence[subprocess.Popen[bytes]]) -> tuple[Usage, int]:
    """Look until everything is done; returns what was used, and the most memory."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    memory = 0
    while True:
        done = progress.look()
        used = usage([process.pid for process in processes])
        memory = max(memory, used.memory)
        if done:
            return used, memory
        for process in processes:
            if process.poll() is not None:
                raise RuntimeError(f"it ended with exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"it was not done within {RUN_TIMEOUT_S} s")
        time.sleep(LOOK_EVERY_S)


def measure(
    place: Cluster,
    task: Task,
    peers: Mapping[str, Command],
    *,
    partitions: int,
    until_s: float,
    say: Say,
) -> JobResult:
    """Run all variants of a task in turns, as often as its rounds say.

    Args:
        place: the cluster.
        task: the job.
        peers: who can be started.
        partitions: of every topic.
        until_s: on the monotonic clock; no round after the first begins later.
        say: is told of each run.
    """
    say(f"[bold]{task.title}[/]: writing {task.records:,} records")
    benchmark = Benchmark(place, task, peers, partitions)
    here = [variant for variant in task.variants if variant.peer in peers]
    series = {v: Series(v.name, v.settings, v.peer) for v in here}
    for number in range(task.rounds):
        if number and time.monotonic() > until_s:
            say(f"  no time for round {number + 1}")
            break
        # Who comes first changes: what a round leaves behind is not always the same one's burden.
        turns = [variant for variant in task.in_round(number) if variant in series]
        for variant in turns if number % 2 == 0 else reversed(turns):
            series[variant].runs.append(_run(benchmark, variant, say))
    benchmark.close()
    return JobResult(task.job.name, task.title, benchmark.records, list(series.values()))


def _run(benchmark: Benchmark, variant: Variant, say: Say) -> Run | None:
    try:
        run = benchmark.run(variant)
    except (RuntimeError, TimeoutError) as error:
        say(f"  [red]{variant.name}: {error}[/]\n" + "\n".join(getattr(error, "__notes__", [])))
        return None
    say(
        f"  {variant.name}: {run.whole_rate:,.0f} records/s, {run.middle_rate:,.0f} in the "
        f"middle, {run.records / run.cpu_s:,.0f} per CPU-second, {run.memory >> 20} MiB"
        + (f" [red]{run.wrong}[/]" if run.wrong else "")
    )
    return run
