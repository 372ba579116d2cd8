"""Simulated worker with its parts and its supervisor, across restarts."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from headrace.state.errors import StateError
from headrace.streams.admin.start_check import StartCheck
from headrace.streams.errors import (
    FatalClientError,
    IdentityError,
    LocalStateError,
    StopRequestedError,
    TopologyChangedError,
    VersionConflictError,
)
from headrace.streams.kafka.clocks import Job
from headrace.streams.kafka.protocols import (
    Clock,
    CommittedOffset,
    Log,
    Offsets,
    TopicPartition,
)
from headrace.streams.plan.deployed import DeployedTopology
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.identity import ChangelogLostError
from headrace.streams.plan.live_versions import LiveVersions
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.plan.progress import COMMIT_COUNT_BITS
from headrace.streams.simulation.setup import Incarnation, Outcome, Setup
from headrace.streams.simulation.world.cluster import SimulatedAdmin, SimulatedCluster
from headrace.streams.simulation.world.consumer_client import SimulatedConsumer
from headrace.streams.simulation.world.coverage import PhaseWatch
from headrace.streams.simulation.world.disk import Host
from headrace.streams.simulation.world.faults import Faults
from headrace.streams.simulation.world.kernel import (
    MS,
    SECOND,
    Actor,
    CrashError,
    Kernel,
    VirtualClock,
)
from headrace.streams.simulation.world.process import SimulatedProcess
from headrace.streams.simulation.world.producer_client import SimulatedProducer
from headrace.streams.simulation.world.tables import Tables
from headrace.streams.tasks.async_io import OneByOne
from headrace.streams.tasks.background_request import BackgroundRequest
from headrace.streams.tasks.gate_watch import GateWatch
from headrace.streams.tasks.lost_offsets import StateWithoutOffsetsError
from headrace.streams.tasks.tasks import OpenHome, TaskHome
from headrace.streams.worker.connections import Connections
from headrace.streams.worker.runtime import WorkerFactory
from headrace.streams.worker.worker import Worker
from headrace.topology.processors.store import Store

_UNKNOWN_BEFORE = (ChangelogLostError, StateWithoutOffsetsError)
"""Errors that refuse a version if the previously deployed topology is unknown."""
_GLOBAL_TABLES = -1
"""Sub-topology number in the task id of a directory of global tables."""

_STOPPED_BY_TROUBLE = (
    FatalClientError,
    IdentityError,
    LocalStateError,
    StateError,
    StopRequestedError,
)
"""Errors that may stop a worker while brokers fail or on request; it is restarted."""


class World(Protocol):
    """Run to which a worker belongs (see `headrace.streams.simulation.run.SimulatedRun`)."""

    kernel: Kernel
    faults: Faults
    cluster: SimulatedCluster
    setup: Setup
    outcome: Outcome
    background: list[Actor]
    tables: Tables

    def retire(self) -> None:
        """Stop all workers permanently."""

    def refuse(self, error: BaseException) -> bool:
        """Return whether an error reports the disaster; in that case stop all workers."""


class _Log:
    """Log that writes to the history of the run (see `kafka.protocols.Log`)."""

    def __init__(self, process: SimulatedProcess, on_event: Callable[[str], None]) -> None:
        self._process = process
        self._on_event = on_event

    def info(self, event: str, /, **fields: Any) -> None:
        self._write("", event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._write("warning: ", event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._write("error: ", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if self._process.alive:
            text = " ".join(f"{name}={value}" for name, value in fields.items())
            self._process.note(f"[{level}{event}] {text}")
            self._on_event(event)


@dataclass(frozen=True, slots=True)
class _LocalState:
    """Identity of a worker, and the disk of its host."""

    instance_id: str
    open_home: OpenHome
    global_id: TaskId
    """The task id of the directory of this worker's global tables."""

    def homes(self, clock: object, log: object) -> OpenHome:
        del clock, log
        return self.open_home

    def global_home(self, stores: Sequence[Store], log: object) -> TaskHome:
        del log
        home = self.open_home(self.global_id, stores)
        assert home is not None, "another process has this worker's global tables"
        return home

    def close(self) -> None:
        """Do nothing, because identities are not locked here."""


class _BackgroundThread:
    """Runner of background jobs of a process in a separate thread."""

    def __init__(self, run: World, process: SimulatedProcess) -> None:
        self._run = run
        self._process = process
        self._actor: Actor | None = None

    def __call__(self, job: Job) -> bool:
        if self._actor is not None and not self._actor.finished:
            return False
        self._actor = self._run.kernel.spawn(f"{self._process.name}-beside", job)
        self._run.background.append(self._actor)
        return True


class SimulatedWorker:
    """Simulated worker with its supervisor, across restarts.

    At most two of its processes exist at the same time, if a duplicate instance has started while
    the first process is suspended.

    Args:
        other_host: the host of duplicate instances; on the same host a lock on the identity would
            prevent them.
    """

    def __init__(self, run: World, number: int, host: Host, other_host: Host) -> None:
        self._run = run
        self._kernel = run.kernel
        self.name = f"w{number}"
        self._number = number
        self._host = host
        self._other_host = other_host
        self._actor: Actor | None = None
        self._twin: Actor | None = None
        self.starts_within_us = 500 * MS
        self._plans = run.setup.plans
        self._workers: dict[SimulatedProcess, Worker | None] = {}
        """The worker of each existing process."""
        self.retired = False
        self.is_paused = False
        """Whether it must not be started now."""
        self._lives = 0

    @property
    def process(self) -> SimulatedProcess | None:
        """The last started process that still exists, or None."""
        return next(reversed(self._workers), None)

    @property
    def is_done(self) -> bool:
        return all(actor is None or actor.finished for actor in (self._actor, self._twin))

    def start(self) -> None:
        self._actor = self._kernel.spawn(self.name, self._supervise)

    def restart(self) -> None:
        for worker in list(self._workers.values()):
            if worker is not None:
                self._kernel.note(self.name, "! is stopped")
                worker.stop()

    def deploy(self, plans: Sequence[SubPlan]) -> None:
        """Run another version from the next process on, and restart if the version has changed."""
        if self._plans is not plans:
            self._kernel.note(self.name, "! is upgraded")
            self._plans = plans
            self.restart()

    def retire(self) -> None:
        self.retired = True
        self.restart()

    def end(self) -> None:
        self.retired = True
        for process in list(self._workers):
            process.die()

    def start_twin(self, suspended_us: int) -> bool:
        """Start a duplicate, as a supervisor does that takes a suspended process for dead."""
        is_there = self._twin is not None and not self._twin.finished
        if is_there or self.process is None or not self.process.alive or self.retired:
            return False
        self.process.suspend(suspended_us)
        self._twin = self._kernel.spawn(f"{self.name}-twin", self._live_as_twin)
        return True

    def _live_as_twin(self) -> None:
        assert self._twin is not None
        self._live(self._twin, self._other_host)

    def _supervise(self) -> None:
        assert self._actor is not None
        dice = self._run.faults.random
        self._kernel.sleep(self._kernel.between(0, self.starts_within_us))
        while not self.retired:
            while self.is_paused and not self.retired:
                self._kernel.sleep(100 * MS)
            self._live(self._actor, self._host)
            if self.retired:
                return
            if self._run.faults.is_on and dice.random() < self._run.setup.plan.lost_state:
                lost = self._host.lose(all_of_it=dice.random() < 0.5)
                self._run.faults.counts["disk", "lost"] += 1
                self._kernel.note(self.name, f"! local state: {lost or 'none to lose'}")
            long = self._run.faults.is_on and dice.random() < 0.3
            self._kernel.sleep(self._kernel.between(100 * MS, (9 if long else 1) * SECOND))

    def _live(self, actor: Actor, host: Host) -> None:
        self._lives += 1
        process = SimulatedProcess(self._kernel, self.name)
        process.actor = actor
        self._workers[process] = None
        life = Incarnation(self.name, PhaseWatch(process, self._run.faults.coverage))
        self._run.outcome.lives.append(life)
        process.note(f"starts for the {self._lives}. time")
        try:
            plans = self._plans
            parts = self._make(process, host, life)
            self._workers[process] = life.worker = parts.worker
            if not self.retired and plans is self._plans:
                life.watch.on_joining()
                parts.worker.run()
            life.has_stopped = True
            process.note("has stopped")
        except CrashError:
            process.note("is dead")
        except _STOPPED_BY_TROUBLE as error:
            process.note(f"stops: {type(error).__name__}: {error}")
        except VersionConflictError as error:
            process.note(f"is refused: {error}")
            self._run.outcome.conflicts += 1
            # If sessions expire, a version may be refused after it has lost its membership.
            is_calm = not self._run.setup.plan.rate
            if is_calm and life.worker is not None and life.worker.processed:
                self._run.outcome.problems.append(f"{self.name} is refused with work done")
        except BaseException as error:
            if isinstance(error, TopologyChangedError) and self._run.setup.next_plans:
                process.note(f"is refused: {error}")
                return
            if isinstance(error, _UNKNOWN_BEFORE) and self._run.setup.next_plans:
                # It was killed before it could write the description of the deployed topology.
                process.note(f"is refused: {error}")
                self._run.outcome.refusals.append(f"{type(error).__name__}: {error}")
                self._run.retire()
                return
            if self._run.refuse(error):
                process.note(f"refuses to continue: {type(error).__name__}: {error}")
                return
            process.note(f"fails: {type(error).__name__}: {error}")
            text = "".join(traceback.format_exception(error)[-14:])
            self._run.outcome.problems.append(f"{self.name} fails: {error!r}\n{text}")
        finally:
            del self._workers[process]
            process.end()
            host.process_ended(process)

    def _make(self, process: SimulatedProcess, host: Host, life: Incarnation) -> Any:
        run, watch = self._run, life.watch
        cluster, faults = run.cluster, run.faults

        def make_producer(config: dict[str, Any]) -> SimulatedProducer:
            life.producers += 1
            return SimulatedProducer(cluster, process, faults, config, life=life)

        open_home = partial(host.open_home, process, faults)
        local = _LocalState(self.name, open_home, TaskId(_GLOBAL_TABLES, self._number))
        connections = Connections(
            admin=lambda _, __: SimulatedAdmin(cluster, process, faults),
            consumer_client=partial(SimulatedConsumer, cluster, process, faults),  # type: ignore[arg-type]
            producer_client=make_producer,  # type: ignore[arg-type]
            local_state=lambda _: local,
            background=lambda _: _BackgroundThread(run, process),
            calls=OneByOne,
            first_commit_id=lambda: faults.random.getrandbits(30) << COMMIT_COUNT_BITS,
            results_per_commit=faults.plan.results_per_commit,
            open_sink=run.tables.opening(process, faults),
        )

        def on_event(event: str) -> None:
            life.events[event] += 1
            watch.on_event(event, counts=faults.is_on)

        def probe(step: str) -> None:
            process.check()
            life.steps[step] += 1
            watch.on_step(step)
            if faults.stops_at(step):
                self.restart()
            kind = faults.draw(process, "probe")
            if kind is not None:
                process.note(f"at {step}")
            faults.strike(process, kind)

        config, plans, log = run.setup.config, self._plans, _Log(process, on_event)
        clock = VirtualClock(self._kernel, process.check)
        offsets = SimulatedOffsets(cluster, process)
        deployed, versions, gate = self._versions(offsets, connections, clock, log)
        records = connections.committed_records(config, clock)
        return WorkerFactory(
            config=config,
            plans=plans,
            clock=clock,
            listener=watch,
            restore_listener=watch,
            probe=probe,
            log=log,
            connections=connections,
            global_plans=run.setup.global_plans,
            before_start=StartCheck(config, plans, offsets, records, deployed, log).begin,
            deployed=deployed,
            versions=versions,
            gate=gate,
        ).make()

    def _versions(
        self, offsets: SimulatedOffsets, connections: Connections, clock: Clock, log: Log
    ) -> tuple[Deployment | None, LiveVersions | None, GateWatch | None]:
        if not self._run.setup.next_plans:
            return None, None, None
        config, plans = self._run.setup.config, self._plans
        deployed = DeployedTopology(config, plans, offsets, log)
        deployed.check()
        versions = LiveVersions(
            config,
            plans,
            deployed,
            clock=clock,
            log=log,
            stopping=lambda: self.retired or plans is not self._plans,
        )
        keeping = BackgroundRequest[bool](connections.background("headrace-topology"))
        gate = GateWatch(
            versions.may_begin,
            watch=versions.refuse_older,
            passed=lambda: None if keeping.is_pending else keeping.submit(deployed.keep),
            make_background=lambda: connections.background("headrace-gate"),
            clock=clock,
            timeout_s=config.task_timeout_ms / 1000,
            log=log,
        )
        return deployed.before, versions, gate


class SimulatedOffsets:
    """Offsets of groups, read and written without being a member.

    See `headrace.streams.kafka.protocols.OffsetClient`.
    """

    def __init__(self, cluster: SimulatedCluster, process: SimulatedProcess) -> None:
        self._cluster = cluster
        self._process = process

    def committed_at(
        self, group: str, tps: Iterable[TopicPartition], *, decided: bool = True
    ) -> dict[TopicPartition, CommittedOffset]:
        found = self._cluster.group
        assert group == found.name
        wanted = list(tps)
        self._process.sleep(self._process.kernel.between(200, 2 * MS))
        while decided and found.is_undecided(wanted):
            self._process.sleep(100 * MS)
        return {tp: found.offsets[tp] for tp in wanted if tp in found.offsets}

    def committed(self, group: str, *, decided: bool) -> dict[TopicPartition, CommittedOffset]:
        del decided
        self._process.sleep(self._process.kernel.between(200, 2 * MS))
        return dict(self._cluster.committed(group))

    def set_offsets(self, group: str, offsets: Offsets) -> None:
        self._process.sleep(self._process.kernel.between(200, 20 * MS))
        self._cluster.offsets.setdefault(group, {}).update(offsets)
