"""Who is far ahead of a slower task in event time waits for it, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from headrace import StreamsBuilder, TimeWindows, TopologyTestDriver, serdes
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.event_order import STALLED_S, EventOrder
from headrace.streams.testing.memory_worker import ManualClock

LIMIT = 100


@dataclass
class Reader:
    """A task, as far as it matters here: it reads one partition, a record at each of its steps."""

    partition: int
    step_ms: int
    lag: int = 10 * LIMIT
    read: int = 0

    @property
    def id(self) -> TaskId:
        return TaskId(0, self.partition)

    @property
    def inputs(self) -> list[TopicPartition]:
        return [TopicPartition("in", self.partition)]

    @property
    def next_offset(self) -> dict[TopicPartition, int]:
        return dict.fromkeys(self.inputs, self.read)

    @property
    def partition_time(self) -> dict[TopicPartition, int]:
        return dict.fromkeys(self.inputs, self.read * self.step_ms if self.read else -1)

    def queued(self) -> int:
        return 1

    def heads(self) -> list[Any]:
        time = (self.read + 1) * self.step_ms
        return [SimpleNamespace(timestamp=lambda: (1, time))]


@dataclass
class Worker:
    dense: Reader = field(default_factory=lambda: Reader(0, 1))
    sparse: Reader = field(default_factory=lambda: Reader(1, 50))

    def __post_init__(self) -> None:
        tasks = [self.dense, self.sparse]
        self.clock = ManualClock(0)
        self.order = EventOrder(
            frozenset([0]),
            LIMIT,
            SimpleNamespace(lag=lambda p, _: tasks[p.partition].lag, positions=lambda _: {}),  # type: ignore[arg-type]
            SimpleNamespace(running=tasks),  # type: ignore[arg-type]
            check_s=0,
            clock=self.clock,
        )

    def must_wait(self, task: Reader) -> bool:
        return self.order.must_wait(task)  # type: ignore[arg-type]

    def turn(self) -> None:
        """Each of them reads a few records, unless it has to wait."""
        self.clock.pass_ms(10)
        for task in (self.dense, self.sparse):
            if not self.must_wait(task):
                task.read += 5


def test_a_task_that_is_ahead_waits_and_stays_within_what_the_slow_one_reads() -> None:
    worker = Worker()
    for _ in range(20):
        worker.turn()
    waited = 0
    for _ in range(400):
        worker.turn()
        ahead = worker.sparse.read * 50 - worker.dense.read
        assert ahead <= LIMIT + 5 * 50 or worker.must_wait(worker.sparse)
        waited += worker.must_wait(worker.sparse)
    assert waited > 100
    assert worker.dense.read == 420 * 5, "the slow one never waits"


def test_nobody_waits_where_partitions_have_as_many_records() -> None:
    worker = Worker(sparse=Reader(1, 1))
    for _ in range(200):
        worker.turn()
        assert not worker.must_wait(worker.sparse)


def test_nobody_waits_for_one_that_has_little_left_or_stands_still() -> None:
    worker = Worker()
    for _ in range(100):
        worker.turn()
    worker.sparse.read += 10 * LIMIT
    assert worker.must_wait(worker.sparse)
    worker.clock.pass_ms(int(STALLED_S * 1000) + 1)
    assert not worker.must_wait(worker.sparse)
    worker.dense.read += 1
    assert worker.must_wait(worker.sparse)
    worker.dense.lag = LIMIT - 1
    assert not worker.must_wait(worker.sparse)


def most_ahead(limit: int) -> int:
    """How far a partition with a fifth of the records gets ahead of the other one, in hours."""
    times = {"sparse": 0, "dense": 0}
    most = 0

    def look(key: str, time: int) -> None:
        nonlocal most
        times[key] = time
        if times["dense"] > 3_600_000:
            most = max(most, times["sparse"] - times["dense"])

    builder = StreamsBuilder()
    rows = builder.stream("in", key=serdes.string, value=serdes.long).peek(look)
    group = rows.group_by(lambda _, time: f"{time % 5}", key=serdes.string, name="moved")
    counts = group.windowed_by(TimeWindows(size=timedelta(minutes=1))).count(store="counts")
    counts.to_stream(lambda key, _: key.key).to("counts", key=serdes.string, value=serdes.long)
    settings = {
        "max.poll.records": 100,
        "buffered.records.per.partition": 200,
        "repartition.lag.max.records": limit,
    }
    driver = TopologyTestDriver(builder.build(), settings, partitions=2, commit="manual")
    with driver:
        for partition, (key, count) in enumerate((("sparse", 4_000), ("dense", 20_000))):
            for number in range(count):
                time = number * 36_000_000 // count
                value = serdes.long.serialize(time)
                driver.input("in").append(key.encode(), value, timestamp=time, partition=partition)
        driver.commit()
        assert driver.dropped == {}
    return most // 3_600_000


def test_a_worker_reads_partitions_in_slices_of_event_time() -> None:
    assert most_ahead(limit=0) > 5
    assert most_ahead(limit=500) < 2
