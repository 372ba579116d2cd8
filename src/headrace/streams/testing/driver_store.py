"""Worker and stores of a topology under test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, get_args

from headrace.state.codec import prefix_end
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import AbortableError
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.tasks.committed_numbers import committed_rows
from headrace.streams.tasks.driver_disk import Disk
from headrace.streams.tasks.global_state import GlobalState, stores_of_tables
from headrace.streams.tasks.sink_connections import OpenSink
from headrace.streams.testing.memory_clients import MemoryConsumer
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.streams.testing.memory_worker import (
    EventLog,
    ManualClock,
    WorkerCounts,
    make_memory_worker,
)
from headrace.streams.worker.worker import Worker
from headrace.topology.processors.store import Store
from headrace.topology.serdes import Serde

CrashPoint = Literal[
    "caches_flushed",
    "changelogs_written",
    "offsets_sent",
    "transaction_committed",
    "state_written",
    "records_restored",
    "restore_ended",
]
"""The steps of a commit and of a restore after which a worker can crash."""
SinkPoint = Literal["sink_written"]
"""The steps of a write to an external sink, which happens before the commit."""
_POINTS = (*get_args(CrashPoint), *get_args(SinkPoint))


class _CrashError(BaseException):
    """Simulated crash of the worker; not an Exception, so that the runtime cannot catch it."""


@dataclass(slots=True, eq=False, kw_only=True)
class DriverWorker:
    """Worker of the test driver, which can be started, stepped, killed and started again.

    Args:
        deployed: the previously deployed topology, if another driver has used the cluster.
        worker: the present worker, or None.
        consumer: the consumer of the last worker.
        crash_at: the step after which the worker crashes.
    """

    config: StreamsConfig
    plans: Sequence[SubPlan]
    global_plans: Sequence[GlobalPlan]
    cluster: MemoryCluster
    disk: Disk
    clock: ManualClock
    log: EventLog
    open_sink: OpenSink
    counts: WorkerCounts = field(default_factory=WorkerCounts)
    crashes: int = 0
    deployed: Deployment | None = None
    worker: Worker | None = None
    consumer: MemoryConsumer | None = None
    crash_at: CrashPoint | SinkPoint | None = None
    _keeps_state: bool = True

    def present(self) -> Worker:
        """Return the worker, and start it if necessary."""
        if self.worker is None:
            self.consumer = MemoryConsumer(
                self.cluster,
                group=self.config.application_id,
                committed=self.config.reads_committed,
            )
            worker = make_memory_worker(
                self.config,
                self.plans,
                cluster=self.cluster,
                consumer=self.consumer,
                disk=self.disk,
                clock=self.clock,
                counts=self.counts,
                probe=self._probe,
                log=self.log,
                global_plans=self.global_plans,
                deployed=self.deployed,
                open_sink=self.open_sink,
            )
            try:
                worker.begin()
            except BaseException:
                worker.close_after_error()
                self.disk.process_ended()
                raise
            self.worker = worker
        return self.worker

    def turn(self) -> None:
        self._run(Worker.turn)

    def finish(self) -> None:
        self._run(Worker.finish)
        if self.worker is not None:
            self.worker = None
            self.disk.process_ended()

    def close(self) -> None:
        if self.worker is not None:
            worker, self.worker = self.worker, None
            worker.close_after_error()
        self.disk.process_ended()

    def abort(self) -> None:
        self.present()
        assert self.consumer is not None
        self.consumer.fail(AbortableError("the test requested an abort"))
        self.turn()

    def crash(self, at: CrashPoint | SinkPoint | None, *, keep: bool) -> None:
        if at is not None and at not in _POINTS:
            raise ValueError(f"unknown step {at!r}. Use {', '.join(_POINTS)}.")
        self.crash_at, self._keeps_state = at, keep
        if at is None:
            self._die()

    def activity(self) -> tuple[object, ...]:
        """Return a value that changes if an iteration has done any work."""
        tasks = self.worker.tasks if self.worker is not None else None
        queued = sum(task.queued() for task in tasks.running) if tasks is not None else 0
        return self.worker, self.cluster.changes, queued

    def _run(self, act: Callable[[Worker], None]) -> None:
        """Run an action of the worker, which may be its last."""
        worker, crashed = self.present(), False
        try:
            act(worker)
        except _CrashError:
            crashed = True
        except BaseException:
            self.worker = None
            worker.close_after_error()
            self.disk.process_ended()
            raise
        if crashed:  # not in the handler, where the traceback still holds what was open
            self._die()

    def _probe(self, step: str) -> None:
        if step == self.crash_at:
            raise _CrashError

    def _die(self) -> None:
        worker, self.worker = self.present(), None
        worker.tasks.rebuild()  # releases its resources and writes nothing
        self.crash_at = None
        self.disk.process_ended()
        if not self._keeps_state:
            self.disk.lose()
        self.crashes += 1

    # -- rows of stores ------------------------------------------------------------------------

    def rows(
        self, plan: SubPlan, store: Store, committed: bool, start: bytes | None, end: bytes | None
    ) -> Iterable[tuple[bytes, Any, int]]:
        """Yield the rows of running tasks, and the rows on disk of tasks that do not run."""
        decode = plan.value_serdes[store.name].deserialize
        running = {} if self.worker is None else {t.id: t for t in self.worker.tasks.running}
        topics = plan.topics.all_sources
        for partition in range(max(len(self.cluster.topics[topic].logs) for topic in topics)):
            task_id = TaskId(plan.id, partition)
            task = running.get(task_id)
            if task is not None:
                yield from task.rows(store.name, start, end, committed=committed)
                continue
            home = self.disk.open(task_id, plan.program.sub_topology.stores)
            held = store.spec.rows.view(home.state.store(store.name))
            yield from committed_rows(held, decode, start, end)

    def global_rows(
        self, plan: GlobalPlan, start: bytes | None, end: bytes | None
    ) -> Iterable[tuple[bytes, Any, int]]:
        state = GlobalState(self.disk.open_global(stores_of_tables(self.global_plans)))
        yield from committed_rows(state.rows(plan), plan.value.deserialize, start, end)


K = TypeVar("K")
V = TypeVar("V")
P = TypeVar("P")

Rows = Callable[[bytes | None, bytes | None], Iterable[tuple[bytes, Any, int]]]
"""Yields ``(key bytes, value, timestamp)`` of all partitions, from a key on and before another."""


class StoreView(Mapping[K, V], Generic[K, V]):
    """Rows of a store over all partitions, read on each access, in the order of encoded keys.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> words = builder.stream("words", key=serdes.string, value=serdes.string)
        >>> _ = words.group_by_key().count(store="counts")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("words").send_many([("be", ""), ("to", ""), ("be", "")])
        ...     counts: StoreView[str, int] = driver.store("counts")
        ...     print(counts["be"], len(counts), counts.get_many(["to", "or"]))
        ...     print(list(counts.range("be", "or")), list(counts.prefix_scan("t")))
        ...     print(list(counts.rows()))
        2 2 [1, None]
        [('be', 2, 2)] [('to', 1, 1)]
        [('be', 2, 2), ('to', 1, 1)]
    """

    def __init__(self, key: Serde[K], value: Serde[V], rows: Rows) -> None:
        self._key = key
        self._value = value
        self._rows = rows

    def rows(self) -> Iterator[tuple[K, V, int]]:
        """Yield key, value and timestamp in milliseconds, in the order of the encoded keys."""
        return self._between(None, None)

    def get_many(self, keys: Iterable[K]) -> list[V | None]:
        """Return the values of keys in their order, and None for missing keys."""
        return [self.get(key) for key in keys]

    def range(self, start: K | None, end: K | None) -> Iterator[tuple[K, V, int]]:
        """Yield key, value and timestamp of a range of keys, both ends inclusive, by encoded key.

        Args:
            start: the first key; None is the store's first.
            end: the last key; None is the store's last.
        """
        low = None if start is None else self._key.serialize(start)
        # The first key after `end`.
        high = None if end is None else self._key.serialize(end) + b"\0"
        return self._between(low, high)

    def prefix_scan(self, prefix: P, serde: Serde[P] | None = None) -> Iterator[tuple[K, V, int]]:
        """Yield key, value and timestamp of the rows whose encoded key starts with a prefix.

        Args:
            prefix: such as the first letters.
            serde: serde of the prefix; None is the key serde.
        """
        coder: Serde[Any] = serde or self._key
        low = coder.serialize(prefix)
        return self._between(low, prefix_end(low))

    def _between(self, low: bytes | None, high: bytes | None) -> Iterator[tuple[K, V, int]]:
        for key, value, timestamp in sorted(self._rows(low, high), key=lambda row: row[0]):
            yield self._key.deserialize(key), self._private(value), timestamp

    def __getitem__(self, key: K) -> V:
        wanted = self._key.serialize(key)
        for _, value, _ in self._rows(wanted, wanted + b"\0"):
            return self._private(value)
        raise KeyError(key)

    def __iter__(self) -> Iterator[K]:
        return (key for key, _, _ in self.rows())

    def __len__(self) -> int:
        return sum(1 for _ in self._rows(None, None))

    def __repr__(self) -> str:
        inside = ", ".join(f"{key!r}: {value!r}" for key, value, _ in self.rows())
        return f"StoreView({{{inside}}})"

    def _private(self, value: Any) -> V:
        # A test that changes a returned value must not change the store.
        if self._value.immutable:
            stored: V = value
            return stored
        return self._value.deserialize(self._value.serialize(value))
