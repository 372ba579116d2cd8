"""Joins of two streams in one task: ``python -m benchmarks.micro.joins``.

The task has its state in RocksDB, and commits it, but there is no Kafka. Each input has one record
per millisecond. Prints records per second, and the CPU time per record of processing and of commits
in the task's thread. ``--profile FILE`` writes a cProfile instead.
"""

from __future__ import annotations

import cProfile
import random
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from confluent_kafka import Message

from headrace import JoinWindows, StreamsBuilder, serdes
from headrace.state.rocks import RocksMemory
from headrace.state.store import Position
from headrace.state.task_state import open_task_state
from headrace.streams.config.config import StreamsConfig
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.plan import plan_application
from headrace.streams.tasks.task import Task
from headrace.topology.topology import Topology

KINDS = ("inner", "left", "outer")
BATCH = 500
"""Number of records of an input in a batch."""


def two_streams(kind: str) -> Topology:
    """Join two streams whose timestamps differ by at most ten seconds."""
    builder = StreamsBuilder()
    options: Any = {"key": serdes.string, "value": serdes.json}
    left, right = builder.stream("left", **options), builder.stream("right", **options)
    methods: dict[str, Any] = {"inner": left.join, "left": left.left_join, "outer": left.outer_join}
    windows = JoinWindows(time_difference=timedelta(seconds=10))
    methods[kind](right, lambda one, other: [one and one["n"], other and other["n"]], windows).to(
        "out"
    )
    return builder.build()


def batches(topic: str, count: int, keys: int, seed: int) -> list[list[Any]]:
    """Return batches of records with random keys, as the client returns them."""
    rng = random.Random(seed)
    records = [
        Message(
            topic=topic,
            partition=0,
            offset=offset,
            key=b"key-%d" % rng.randrange(keys),
            value=b'{"n":%d,"text":"some more of a record"}' % offset,
            timestamp=(1, 1_000_000 + offset),
        )
        for offset in range(count)
    ]
    return [records[i : i + BATCH] for i in range(0, count, BATCH)]


@dataclass
class JoinBenchmark:
    """Runs one task, and measures the times of processing and of commits."""

    task: Task
    inputs: Mapping[TopicPartition, list[list[Any]]]
    commit_every: int
    process_s: float = 0.0
    commit_s: float = 0.0
    records: int = 0
    commits: int = 0

    def run(self) -> None:
        """Process all records, and commit regularly, as a worker does."""
        uncommitted = 0
        for round_of_batches in zip(*self.inputs.values(), strict=True):
            for tp, batch in zip(self.inputs, round_of_batches, strict=True):
                self.task.add(tp, batch)
            begun = time.thread_time()
            uncommitted += self.task.process(1_000_000)
            self.process_s += time.thread_time() - begun
            if uncommitted >= self.commit_every:
                self.records += uncommitted
                uncommitted = 0
                self.commit()

    def commit(self) -> None:
        """Commit as a worker does, without the network."""
        begun = time.thread_time()
        self.commits += 1
        while self.task.cached_updates():
            self.task.flush()
        deltas = self.task.deltas()
        for store, delta in deltas.items():
            tp = self.task.spec.changelogs[store]
            for key, value, timestamp in delta:
                _discard(tp.topic, value, key, tp.partition, timestamp)
        offsets = self.task.offsets({}, self.commits)
        positions = {store: Position("id", self.commits, self.commits, 0) for store in deltas}
        self.task.written(deltas, positions, offsets)
        self.commit_s += time.thread_time() - begun


_discard: Any = "".format


def create_benchmark(
    kind: str, records: int, keys: int, commit_every: int, path: Path
) -> JoinBenchmark:
    """Create a task with its inputs."""
    settings = {"application.id": "bench", "bootstrap.servers": "none:1"}
    (plan,) = plan_application(two_streams(kind), StreamsConfig.parse(settings))
    spec = plan.task(0, partitions_of=lambda _: 1)
    memory = RocksMemory(block_cache_bytes=64 << 20, write_buffer_bytes=64 << 20)
    state = open_task_state(path, [store.spec for store in spec.stores], memory=memory)
    tps = plan.inputs(0, {"left": 1, "right": 1})
    start = {tp: CommittedOffset(0) for tp in tps}
    task = Task(spec, state, start, _discard, _discard)
    inputs = {tp: batches(tp.topic, records // 2, keys, seed) for seed, tp in enumerate(tps)}
    return JoinBenchmark(task, inputs, commit_every)


@click.command()
@click.option("--kind", type=click.Choice(KINDS), multiple=True, default=KINDS, help="Repeatable.")
@click.option("--records", default=60_000, show_default=True, help="Records of both inputs.")
@click.option("--keys", default=10_000, show_default=True, help="Number of keys.")
@click.option("--commit-every", default=3_000, show_default=True, help="Records per commit.")
@click.option("--profile", type=Path, help="File for a cProfile.")
def main(
    kind: tuple[str, ...], records: int, keys: int, commit_every: int, profile: Path | None
) -> None:
    """Time joins of two streams."""
    for one in kind:
        with tempfile.TemporaryDirectory() as path:
            run = create_benchmark(one, records, keys, commit_every, Path(path))
            if profile is not None:
                profiler = cProfile.Profile()
                profiler.runcall(run.run)
                profiler.dump_stats(profile)
                continue
            run.run()
            total = run.process_s + run.commit_s
            print(
                f"{one:10} {run.records / total:10,.0f} records/s, "
                f"process {run.process_s / run.records * 1e6:.1f} us, "
                f"commit {run.commit_s / run.records * 1e6:.1f} us per record"
            )
            run.task.state.close()


if __name__ == "__main__":
    main()
