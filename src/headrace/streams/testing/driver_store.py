"""Worker and stores of a topology under test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
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
from headrace.streams.testing.driver_names import DriverNames
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

# The worker of a topology under test, across its restarts.


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


class DriverWorker:
    """Worker of the test driver, which can be started, stepped, killed and started again."""

    def __init__(
        self,
        config: StreamsConfig,
        plans: Sequence[SubPlan],
        global_plans: Sequence[GlobalPlan],
        *,
        cluster: MemoryCluster,
        disk: Disk,
        clock: ManualClock,
        log: EventLog,
        open_sink: OpenSink,
    ) -> None:
        self._config = config
        self._plans = plans
        self._global_plans = global_plans
        self._clock = clock
        self._log = log
        self._open_sink = open_sink
        self._keep = True
        self.cluster = cluster
        self.disk = disk
        self.counts = WorkerCounts()
        self.crashes = 0
        self.deployed: Deployment | None = None
        """The previously deployed topology, if another driver has used the cluster."""
        self.worker: Worker | None = None
        """The present worker, or None."""
        self.consumer: MemoryConsumer | None = None
        """The consumer of the last worker."""
        self.armed: CrashPoint | SinkPoint | None = None
        """The step after which the worker crashes."""

    def present(self) -> Worker:
        """Return the worker, and start it if necessary."""
        if self.worker is None:
            self.consumer = MemoryConsumer(
                self.cluster,
                group=self._config.application_id,
                committed=self._config.reads_committed,
            )
            worker = make_memory_worker(
                self._config,
                self._plans,
                cluster=self.cluster,
                consumer=self.consumer,
                disk=self.disk,
                clock=self._clock,
                counts=self.counts,
                probe=self._probe,
                log=self._log,
                global_plans=self._global_plans,
                deployed=self.deployed,
                open_sink=self._open_sink,
            )
            try:
                worker.begin()
            except BaseException:
                worker.give_up()
                self.disk.process_ended()
                raise
            self.worker = worker
        return self.worker

    def turn(self) -> None:
        self._let(Worker.turn)

    def finish(self) -> None:
        self._let(Worker.finish)
        if self.worker is not None:
            self.worker = None
            self.disk.process_ended()

    def close(self) -> None:
        if self.worker is not None:
            worker, self.worker = self.worker, None
            worker.give_up()
        self.disk.process_ended()

    def abort(self) -> None:
        self.present()
        assert self.consumer is not None
        self.consumer.fail(AbortableError("the test driver was told to abort"))
        self.turn()

    def crash(self, at: CrashPoint | SinkPoint | None, *, keep: bool) -> None:
        if at is not None and at not in _POINTS:
            raise ValueError(f"no step {at!r}; there are {', '.join(_POINTS)}")
        self.armed, self._keep = at, keep
        if at is None:
            self._die()

    def activity(self) -> tuple[object, ...]:
        """Return a value that changes if an iteration has done any work."""
        tasks = self.worker.tasks if self.worker is not None else None
        queued = sum(task.queued() for task in tasks.running) if tasks is not None else 0
        return self.worker, self.cluster.changes, queued

    def _let(self, act: Callable[[Worker], None]) -> None:
        """Run an action of the worker, which may be its last."""
        worker, crashed = self.present(), False
        try:
            act(worker)
        except _CrashError:
            crashed = True
        except BaseException:
            self.worker = None
            worker.give_up()
            self.disk.process_ended()
            raise
        if crashed:  # not in the handler, where the traceback still holds what was open
            self._die()

    def _probe(self, step: str) -> None:
        if step == self.armed:
            raise _CrashError

    def _die(self) -> None:
        worker, self.worker = self.present(), None
        worker.tasks.rebuild()  # releases its resources and writes nothing
        self.armed = None
        self.disk.process_ended()
        if not self._keep:
            self.disk.lose()
        self.crashes += 1


K = TypeVar("K")
V = TypeVar("V")

Rows = Callable[[bytes | None, bytes | None], Iterable[tuple[bytes, Any, int]]]
"""Yields ``(key bytes, value, timestamp)`` of all partitions, from a key on and before another."""

P = TypeVar("P")


class StoreView(Mapping[K, V], Generic[K, V]):
    """Rows of a store over all partitions, read on each access, in the order of encoded keys."""

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
            kept: V = value
            return kept
        return self._value.deserialize(self._value.serialize(value))


class DriverStores:
    """Stores by name: of running tasks, or on disk if the task does not run."""

    def __init__(
        self,
        names: DriverNames,
        worker: DriverWorker,
        global_plans: Sequence[GlobalPlan],
        config: StreamsConfig,
    ) -> None:
        self._names = names
        self._worker = worker
        self._global_plans = global_plans
        self._config = config

    def view(self, name: str, *, committed: bool) -> StoreView[Any, Any]:
        table = self._names.global_table(name)
        if table is not None:
            return StoreView(table.key, table.value, partial(self._global_rows, table))
        plan, store = self._names.store(name)
        key, value = store.key or self._config.default_key_serde, plan.value_serdes[name]
        return StoreView(key, value, partial(self._rows, plan, store, value, committed))

    def _rows(
        self,
        plan: SubPlan,
        store: Store,
        value: Serde[Any],
        committed: bool,
        start: bytes | None,
        end: bytes | None,
    ) -> Iterable[tuple[bytes, Any, int]]:
        worker, disk = self._worker.worker, self._worker.disk
        running = {task.id: task for task in worker.tasks.running} if worker is not None else {}
        topics, cluster = plan.topics.all_sources, self._worker.cluster
        for partition in range(max(len(cluster.topics[topic].logs) for topic in topics)):
            task_id = TaskId(plan.id, partition)
            task = running.get(task_id)
            if task is not None:
                yield from task.rows(store.name, start, end, committed=committed)
                continue
            home = disk.open(task_id, plan.program.sub_topology.stores)
            held = store.spec.rows.view(home.state.store(store.name))
            yield from committed_rows(held, value.deserialize, start, end)

    def _global_rows(
        self, plan: GlobalPlan, start: bytes | None, end: bytes | None
    ) -> Iterable[tuple[bytes, Any, int]]:
        state = GlobalState(self._worker.disk.open_global(stores_of_tables(self._global_plans)))
        yield from committed_rows(state.rows(plan), plan.value.deserialize, start, end)
