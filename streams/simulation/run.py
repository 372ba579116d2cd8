"""One run: workers, their supervisor, the cluster and the nemesis, from the first record on."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from state.errors import StateError
from streams.background import Job
from streams.clients import CommittedOffset, Log, TopicPartition
from streams.committed_records import CommittedRecords
from streams.config import StreamsConfig
from streams.consumer import LiveConsumer
from streams.errors import FatalClientError, IdentityError, LocalStateError
from streams.plan import SubPlan
from streams.restore import SilentRestoreListener
from streams.runtime import Connections, LocalState, make_worker
from streams.simulation.cluster import Cluster, SimulatedAdmin
from streams.simulation.consumer_client import SimulatedConsumer
from streams.simulation.disasters import Disasters
from streams.simulation.disk import Files, Host, MemoryFiles, RocksFiles, open_homes
from streams.simulation.faults import FaultPlan, Faults
from streams.simulation.inputs import Feed, Row
from streams.simulation.kernel import (
    MS,
    SECOND,
    Actor,
    CrashError,
    Kernel,
    StuckError,
    VirtualClock,
)
from streams.simulation.nemesis import plan_trouble
from streams.simulation.process import Process
from streams.simulation.producer_client import SimulatedProducer
from streams.start_check import StartCheck
from streams.task import TaskId
from streams.tasks import OpenHome, TaskHome
from streams.topic_plan import plan_internal_topics
from streams.worker import SilentListener, Worker

TROUBLE_S = 14.0
"""How long faults happen, in virtual seconds."""
DRAIN_S = 180.0
"""How long all that is left may take afterwards."""
STOP_S = 60.0

_STOPPED_BY_TROUBLE = (FatalClientError, IdentityError, LocalStateError, StateError)
"""What may stop a worker while brokers fail; a supervisor, or its operator, starts it again."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is the same in every run.

    Args:
        config: the application's settings.
        plans: its sub-topologies, compiled.
        rows: the input, encoded.
        partitions: partition count of each topic that is not internal.
        workers: how many there are.
        plan: what goes wrong.
    """

    config: StreamsConfig
    plans: Sequence[SubPlan]
    rows: dict[str, list[Row]]
    partitions: dict[str, int]
    workers: int
    plan: FaultPlan


@dataclass(slots=True)
class Outcome:
    """What was found at the end, before the workers were stopped."""

    problems: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    """The errors that named a disaster and ended the application."""
    states: dict[TaskId, dict[str, dict[bytes, bytes]]] = field(default_factory=dict)


class _Log:
    """Writes what the runtime logs into the history (see `streams.clients.Log`)."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def info(self, event: str, /, **fields: Any) -> None:
        self._write(event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._write(f"warning: {event}", fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._write(f"error: {event}", fields)

    def _write(self, event: str, fields: dict[str, Any]) -> None:
        if self._process.alive:
            words = " ".join(f"{name}={value}" for name, value in fields.items())
            self._process.note(f"[{event}] {words}")


@dataclass(frozen=True, slots=True)
class _Local:
    """A worker's identity and its host's disk (see `streams.runtime.LocalState`)."""

    instance_id: str
    open_home: OpenHome

    def homes(self, clock: object, log: object) -> OpenHome:
        del clock, log
        return self.open_home

    def global_home(self, stores: object, log: object) -> TaskHome:
        del stores, log
        raise AssertionError("simulate() refuses global tables")

    def close(self) -> None:
        """Nothing: identities are not locked here."""


class _Beside:
    """Runs jobs of a process in a thread of their own (see `streams.background.Background`)."""

    def __init__(self, run: Run, process: Process) -> None:
        self._run = run
        self._process = process
        self._actor: Actor | None = None

    def __call__(self, job: Job) -> bool:
        if self._actor is not None and not self._actor.finished:
            return False
        self._actor = self._run.kernel.spawn(f"{self._process.name}-beside", job)
        self._run.beside.append(self._actor)
        return True


class Run:
    """See the module.

    Args:
        setup: what is the same in every run.
        seed: decides the rest.
        state_dir: keep local state in RocksDB there; None keeps it in memory.
    """

    def __init__(self, setup: Setup, seed: int, state_dir: Path | None = None) -> None:
        self.setup = setup
        self.kernel = Kernel(seed)
        dice = random.Random(f"faults/{seed}")  # noqa: S311 - reproducible on purpose
        self.faults = Faults(setup.plan, dice)
        self.cluster = Cluster(self.kernel, setup.config.application_id)
        self.cluster.transactions.slow = setup.plan.slow_markers
        self.outcome = Outcome()
        self.disasters: Disasters | None = None
        self.beside: list[Actor] = []
        self._seed = seed
        self._create_topics()
        shared = dice.random() < 0.5
        count = 1 if shared else setup.workers
        self._hosts = [Host(partial(self._make_files, state_dir, n)) for n in range(count)]
        self.slots = [
            _Slot(self, number, self._hosts[number % count]) for number in range(setup.workers)
        ]

    def _make_files(self, state_dir: Path | None, host: int, name: str) -> Files:
        if state_dir is None:
            return MemoryFiles(self.kernel.chance)
        return RocksFiles(state_dir / f"host-{host}" / name)

    def _create_topics(self) -> None:
        cluster, plans = self.cluster, self.setup.plans
        for name, partitions in self.setup.partitions.items():
            cluster.create(name, partitions, {})
        admin = SimulatedAdmin(cluster)
        planned = plan_internal_topics(
            [plan.topics for plan in plans],
            admin.describe(admin.names()),
            topic_configs=self.setup.config.topic_configs,
        )
        admin.create(planned.create)

    # -- the run -------------------------------------------------------------------------------

    def go(self) -> Outcome:
        """Run until everything is processed and the workers are stopped."""
        kernel, plan = self.kernel, self.setup.plan
        calm = plan.rate == 0 and plan.crashes == 0 and plan.stalls == 0
        seconds = 1.0 if calm else TROUBLE_S
        feed = Feed(self.cluster, self.setup.rows, plan, seconds * 0.8)
        changelogs = [t for p in self.setup.plans for t in p.changelogs.values()]
        plan_trouble(
            self.faults, self.cluster, self.slots, self._hosts, changelogs, seconds, self._seed
        )
        self._plan_disaster(seconds)
        try:
            for slot in self.slots:
                slot.start()
            kernel.sleep(int(seconds * SECOND))
            self._calm_down()
            self._drain(feed)
            if self.disasters is not None and not self.outcome.refusals:
                # What nobody has met yet is met at the next start.
                for slot in self.slots:
                    slot.restart()
                kernel.sleep(20 * SECOND)
                self._drain(feed)
            self._look_at_states()
            self._stop()
        except StuckError as error:
            self.outcome.problems.append(f"stuck: {error}")
        finally:
            self._end()
        return self.outcome

    def _plan_disaster(self, seconds: float) -> None:
        name = self.setup.plan.disaster
        if name is None:
            return
        partitions = {name: len(topic.logs) for name, topic in self.cluster.topics.items()}
        self.disasters = Disasters(
            self.cluster,
            self.slots,
            self._hosts,
            list(self.setup.rows),
            [topic for plan in self.setup.plans for topic in plan.changelogs.values()],
            frozenset(plan.lead(partitions) for plan in self.setup.plans),
            random.Random(f"disaster/{self._seed}"),  # noqa: S311 - reproducible on purpose
        )
        self.disasters.plan(name, seconds)

    def refuse(self, error: BaseException) -> bool:
        """Whether an error names what has happened; the others end with it then."""
        if self.disasters is None or not self.disasters.is_named_by(error):
            return False
        self.outcome.refusals.append(f"{type(error).__name__}: {error}")
        for slot in self.slots:
            slot.retire()
        return True

    def _calm_down(self) -> None:
        self.kernel.note("nemesis", "no more faults")
        self.faults.is_on = False
        self.cluster.transactions.slow = 0.0

    def _drain(self, feed: Feed) -> None:
        deadline_us = self.kernel.now_us + int(DRAIN_S * SECOND)
        while not self.outcome.refusals and (feed.left or (left := self._left_over())):
            if self.kernel.now_us > deadline_us:
                self.outcome.problems.append(f"not done after {DRAIN_S:.0f} s: {left}")
                return
            self.kernel.sleep(200 * MS)

    def _left_over(self) -> str:
        """What is still to be done, if anything."""
        if not self.cluster.is_settled():
            return "a transaction hangs"
        return self._unprocessed() or self._unrestored()

    def _unrestored(self) -> str:
        """Which store is not where its changelog ends."""
        held = {t: s for host in self._hosts for t, s in host.held().items()}
        for plan in self.setup.plans:
            for store, topic in plan.changelogs.items():
                for place in self.cluster.places(topic):
                    records = self.cluster.log(place).records()
                    if not records:
                        continue
                    state = held.get(TaskId(plan.id, place.partition))
                    position = None if state is None else state.position(store)
                    if position is None or position.offset <= (records[-1].offset() or 0):
                        return f"{store} of partition {place.partition} at {position}"
        return ""

    def _unprocessed(self) -> str:
        """Where a committed offset is not behind the last record yet."""
        group = self.cluster.group
        if group.pending:
            return "offsets are undecided"
        for place in self.input_places():
            log = self.cluster.log(place)
            committed = group.offsets.get(place)
            if committed is None and self.disasters is not None and self.disasters.happened:
                continue  # the next start says so
            begin = log.start if committed is None else committed.offset
            if log.read(begin, 1, committed=self.setup.config.reads_committed)[0]:
                return f"{place} from {begin}"
        return ""

    def input_places(self) -> list[TopicPartition]:
        """The input partitions of all tasks."""
        topics = dict.fromkeys(t for plan in self.setup.plans for t in plan.topics.all_sources)
        return [place for topic in topics for place in self.cluster.places(topic)]

    def _look_at_states(self) -> None:
        logged = {
            plan.id: [
                s.spec for s in plan.program.sub_topology.stores if s.spec.name in plan.changelogs
            ]
            for plan in self.setup.plans
        }
        for host in self._hosts:
            for task_id, state in host.held().items():
                specs = logged.get(task_id.sub_topology, [])
                rows = {s.name: dict(s.rows.view(state.store(s.name)).scan()) for s in specs}
                self.outcome.states[task_id] = rows

    def _stop(self) -> None:
        for slot in self.slots:
            slot.retire()
        deadline_us = self.kernel.now_us + int(STOP_S * SECOND)
        while not all(slot.is_done for slot in self.slots):
            if self.kernel.now_us > deadline_us:
                self.outcome.problems.append(f"workers did not stop within {STOP_S:.0f} s")
                return
            self.kernel.sleep(100 * MS)

    def _end(self) -> None:
        """Leave no thread behind."""
        for slot in self.slots:
            slot.retired = True
            if slot.process is not None:
                slot.process.die()
        for _ in range(100):
            if all(slot.is_done for slot in self.slots) and all(a.finished for a in self.beside):
                break
            self.kernel.sleep(SECOND)
        for host in self._hosts:
            host.close()
        self.outcome.problems += self.cluster.violations


class _Slot:
    """A worker across its lives, with its supervisor."""

    def __init__(self, run: Run, number: int, host: Host) -> None:
        self._run = run
        self._kernel = run.kernel
        self.name = f"w{number}"
        self._host = host
        self._actor: Actor | None = None
        self._worker: Worker | None = None
        self.process: Process | None = None
        self.retired = False
        self.is_paused = False
        """Whether it is not to be started for now."""
        self._lives = 0

    @property
    def is_done(self) -> bool:
        """Whether there is no worker any more."""
        return self._actor is None or self._actor.finished

    def start(self) -> None:
        """Begin the first life."""
        self._actor = self._kernel.spawn(self.name, self._supervise)

    def restart(self) -> None:
        """Stop cleanly, and start again some time later."""
        if self._worker is not None:
            self._kernel.note(self.name, "! is told to stop")
            self._worker.stop()

    def retire(self) -> None:
        """Stop cleanly for good."""
        self.retired = True
        self.restart()

    def _supervise(self) -> None:
        dice = self._run.faults.random
        self._kernel.sleep(self._kernel.between(0, 500 * MS))
        while not self.retired:
            while self.is_paused and not self.retired:
                self._kernel.sleep(100 * MS)
            self._live()
            if self.retired:
                return
            if self._run.faults.is_on and dice.random() < self._run.setup.plan.lost_state:
                lost = self._host.lose(all_of_it=dice.random() < 0.5)
                self._run.faults.counts["disk", "lost"] += 1
                self._kernel.note(self.name, f"! local state: {lost or 'none to lose'}")
            long = self._run.faults.is_on and dice.random() < 0.3
            self._kernel.sleep(self._kernel.between(100 * MS, (9 if long else 1) * SECOND))

    def _live(self) -> None:
        self._lives += 1
        process = Process(self._kernel, self.name, self.name)
        process.actor = self._actor
        self.process = process
        process.note(f"starts for the {self._lives}. time")
        try:
            parts = self._make(process)
            self._worker = parts.worker
            if not self.retired:
                parts.worker.run()
            process.note("has stopped")
        except CrashError:
            process.note("is dead")
        except _STOPPED_BY_TROUBLE as error:
            process.note(f"stops: {type(error).__name__}: {error}")
        except BaseException as error:
            if self._run.refuse(error):
                process.note(f"refuses to go on: {type(error).__name__}: {error}")
                return
            process.note(f"fails: {type(error).__name__}: {error}")
            words = "".join(traceback.format_exception(error)[-14:])
            self._run.outcome.problems.append(f"{self.name} fails: {error!r}\n{words}")
        finally:
            self._worker = None
            process.die_quietly()
            self._host.process_ended(process)

    def _make(self, process: Process) -> Any:
        run = self._run
        cluster, faults = run.cluster, run.faults

        def admin(*_: object) -> FaultyAdmin:
            return FaultyAdmin(cluster, process, faults)

        connections = Connections(
            admin=lambda _, __: FaultyAdmin(cluster, process, faults),
            consumer_client=partial(SimulatedConsumer, cluster, process, faults),  # type: ignore[arg-type]
            producer_client=partial(SimulatedProducer, cluster, process, faults),  # type: ignore[arg-type]
            local_state=lambda _: self._local(process),
            background=lambda _: _Beside(run, process),
            first_commit_id=lambda: faults.random.getrandbits(30) << 32,
        )

        def probe(step: str) -> None:
            process.check()
            kind = faults.draw(process, "probe")
            if kind is not None:
                process.note(f"at {step}")
            if kind == "crash_before":
                process.die()
            elif kind == "stall":
                process.stand(faults.stall_us())
            if kind is not None:
                process.settle()

        log = _Log(process)
        return make_worker(
            run.setup.config,
            run.setup.plans,
            clock=VirtualClock(self._kernel, process.check),
            listener=SilentListener(),
            restore_listener=SilentRestoreListener(),
            probe=probe,
            log=log,
            connections=connections,
            before_start=self._start_check(process, connections, log).begin,
        )

    def _start_check(self, process: Process, connections: Connections, log: Log) -> StartCheck:
        config, plans = self._run.setup.config, self._run.setup.plans
        clock = VirtualClock(self._kernel, process.check)
        timeout_s = config.task_timeout_ms / 1000

        def consumer() -> LiveConsumer:
            make = connections.consumer_client
            settings = config.restore_config()
            return LiveConsumer(settings, timeout_s=timeout_s, clock=clock, make_client=make)

        records = CommittedRecords(consumer, clock=clock, timeout_s=timeout_s)
        offsets = SimulatedOffsets(self._run.cluster, process)
        return StartCheck(config, plans, offsets, records, None, log)

    def _local(self, process: Process) -> LocalState:
        return _Local(self.name, open_homes(self._host, process, self._run.faults))


class SimulatedOffsets:
    """The group's offsets, asked for from outside of it (see `streams.lost_group.OffsetsAt`)."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self._cluster = cluster
        self._process = process

    def committed_at(
        self, group: str, places: Iterable[TopicPartition], *, decided: bool = True
    ) -> dict[TopicPartition, CommittedOffset]:
        """The offsets at some places; with `decided`, once no transaction may change one."""
        found = self._cluster.group
        assert group == found.name
        asked = list(places)
        self._process.sleep(self._process.kernel.between(200, 2 * MS))
        while decided and found.is_undecided(asked):
            self._process.sleep(100 * MS)
        return {place: found.offsets[place] for place in asked if place in found.offsets}


class FaultyAdmin(SimulatedAdmin):
    """An admin client whose calls take long, fail, or are the last ones."""

    def __init__(self, cluster: Cluster, process: Process, faults: Faults) -> None:
        super().__init__(cluster)
        self._process = process
        self._faults = faults

    def _ask(self, call: str, effect: Any) -> Any:
        self._process.sleep(self._process.kernel.between(200, 2 * MS))
        return self._faults.around(self._process, call, effect)

    def end_offsets(self, partitions: Any) -> dict[TopicPartition, int]:
        """The high watermarks."""
        ends: dict[TopicPartition, int] = self._ask(
            "end_offsets", partial(super().end_offsets, list(partitions))
        )
        return ends

    def stable_offsets(self, partitions: Any) -> dict[TopicPartition, int]:
        """The last stable offsets."""
        ends: dict[TopicPartition, int] = self._ask(
            "end_offsets", partial(super().stable_offsets, list(partitions))
        )
        return ends

    def start_offsets(self, partitions: Any) -> dict[TopicPartition, int]:
        """The offset of the first record that is still there."""
        starts: dict[TopicPartition, int] = self._ask(
            "start_offsets", partial(super().start_offsets, list(partitions))
        )
        return starts

    def delete_records(self, before: Any) -> None:
        """Delete the records before these offsets."""
        effect = partial(super().delete_records, dict(before))
        if self._faults.draw(self._process, "delete_records") == "failure":
            raise FatalClientError("simulated: records could not be deleted")
        self._ask("delete_records", effect)
