"""The worker of a topology under test, across its lives: started, turned, killed, started again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from headrace.streams.config.config import StreamsConfig
from headrace.streams.deployed.deployment import Deployment
from headrace.streams.external.connections import OpenSink
from headrace.streams.local.driver_disk import Disk
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.plan import SubPlan
from headrace.streams.testing.memory_clients import MemoryConsumer
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.streams.testing.memory_worker import Counts, EventLog, ManualClock, make_memory_worker
from headrace.streams.worker.worker import Worker
from headrace.streams.worker_errors import AbortableError

CrashPoint = Literal[
    "caches_flushed",
    "changelogs_written",
    "offsets_sent",
    "transaction_committed",
    "state_written",
    "records_restored",
    "restore_ended",
]
"""The steps of a commit and of a restore after which a worker can die."""
SinkPoint = Literal["sink_written"]
"""The same of what goes to tables outside of Kafka, which comes before the commit."""
_POINTS = (*get_args(CrashPoint), *get_args(SinkPoint))


class _CrashError(BaseException):
    """The worker dies here. No reaction of the runtime may catch it, so it is no Exception."""


class DriverWorker:
    """See the module."""

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
        self.counts = Counts()
        self.crashes = 0
        self.deployed: Deployment | None = None
        """What was deployed before, where the cluster is another driver's."""
        self.worker: Worker | None = None
        """The present one, if there is one."""
        self.consumer: MemoryConsumer | None = None
        """That of the last one."""
        self.armed: CrashPoint | SinkPoint | None = None
        """The step after which it dies."""

    def present(self) -> Worker:
        """The worker; started where there is none."""
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
        """Go once around the worker's loop."""
        self._let(Worker.turn)

    def finish(self) -> None:
        """Stop the worker cleanly."""
        self._let(Worker.finish)
        if self.worker is not None:
            self.worker = None
            self.disk.process_ended()

    def close(self) -> None:
        """End it; what is not committed is forgotten."""
        if self.worker is not None:
            worker, self.worker = self.worker, None
            worker.give_up()
        self.disk.process_ended()

    def abort(self) -> None:
        """Have the open transaction aborted."""
        self.present()
        assert self.consumer is not None
        self.consumer.fail(AbortableError("the test driver was told to abort"))
        self.turn()

    def crash(self, at: CrashPoint | SinkPoint | None, *, keep: bool) -> None:
        """Kill the worker, now or after a step; local state survives if it is kept.

        Raises:
            ValueError: there is no such step.
        """
        if at is not None and at not in _POINTS:
            raise ValueError(f"no step {at!r}; there are {', '.join(_POINTS)}")
        self.armed, self._keep = at, keep
        if at is None:
            self._die()

    def activity(self) -> tuple[object, ...]:
        """What differs after a turn that did something."""
        tasks = self.worker.tasks if self.worker is not None else None
        queued = sum(task.queued() for task in tasks.running) if tasks is not None else 0
        return self.worker, self.cluster.changes, queued

    def _let(self, act: Callable[[Worker], None]) -> None:
        """Let the worker do something, which may be the last that it does."""
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
        worker.tasks.rebuild()  # lets go of what it held, and writes nothing
        self.armed = None
        self.disk.process_ended()
        if not self._keep:
            self.disk.lose()
        self.crashes += 1
