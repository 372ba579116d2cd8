"""Simulated run: input, workers, the cluster and the nemesis, from start to end."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from headrace.state.errors import UnknownStoreError
from headrace.state.store import TaskState
from headrace.streams.errors import MissingTopicError, OffsetLostError
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.identity import ChangelogLostError, TopicReplacedError
from headrace.streams.plan.plan import TaskId
from headrace.streams.simulation.setup import Outcome, Row, Setup
from headrace.streams.simulation.simulated_worker import SimulatedWorker
from headrace.streams.simulation.world.cluster import SimulatedCluster
from headrace.streams.simulation.world.disk import Host, MemoryFiles, RocksFiles, TaskFiles
from headrace.streams.simulation.world.faults import FaultPlan, Faults
from headrace.streams.simulation.world.kernel import (
    MS,
    SECOND,
    START_MS,
    Actor,
    Kernel,
    StuckError,
)
from headrace.streams.simulation.world.process import SimulatedProcess
from headrace.streams.simulation.world.tables import Tables
from headrace.streams.simulation.world.transactions import BrokerResponseError
from headrace.streams.tasks.lost_offsets import StateWithoutOffsetsError
from headrace.streams.testing.local_cluster import LocalAdmin

# Disasters that may end an application: lost offsets, and lost or replaced topics.
#
# A run with a disaster ends correctly in two cases: the results are as if it had not happened, or a
# worker fails with an error that reports it, and everything committed until then is correct. The
# supervisor then stops the other workers, as `headrace run` does.


@dataclass(frozen=True, slots=True)
class Disaster:
    """Kind of disaster.

    Args:
        refusals: the errors that report it.
        needs_rest: whether it can only happen while no worker runs.
    """

    refusals: tuple[type[Exception], ...]
    needs_rest: bool


DISASTERS: Mapping[str, Disaster] = {
    "offsets of one input": Disaster((StateWithoutOffsetsError,), needs_rest=True),
    "offsets of all inputs": Disaster((StateWithoutOffsetsError,), needs_rest=True),
    "whole group": Disaster((StateWithoutOffsetsError,), needs_rest=True),
    "expired offsets": Disaster((StateWithoutOffsetsError,), needs_rest=False),
    "lost changelog": Disaster((ChangelogLostError,), needs_rest=True),
    "recreated topic": Disaster(
        (TopicReplacedError, OffsetLostError, MissingTopicError), needs_rest=False
    ),
    "restored snapshot": Disaster((), needs_rest=True),
}
"""
| disaster | effect |
|---|---|
| `offsets of one input`, `of all inputs` | the offsets are deleted while no worker runs |
| `whole group` | the group is deleted, including the offsets of repartition topics |
| `expired offsets` | the offsets of an input that is not subscribed to expire |
| `lost changelog` | a changelog is deleted while no worker runs, or re-created, with lost rows |
| `recreated topic` | an input topic is deleted and re-created, while workers run or not |
| `restored snapshot` | all topics and offsets return to an earlier state, local rows do not |
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Topics of a cluster and offsets of its group, while no transaction is open."""

    entries: Mapping[TopicPartition, Sequence[Message | None]]
    starts: Mapping[TopicPartition, int]
    offsets: Mapping[TopicPartition, CommittedOffset]

    @classmethod
    def of(cls, cluster: SimulatedCluster) -> Snapshot:
        logs = {tp: cluster.log(tp) for tp in cluster.all_partitions()}
        return cls(
            # A copy, because compaction may remove entries before the restore.
            {tp: list(log.entries) for tp, log in logs.items()},
            {tp: log.start for tp, log in logs.items()},
            dict(cluster.group.offsets),
        )

    def restore(self, cluster: SimulatedCluster) -> str:
        """Return a description of the lost records."""
        lost = []
        for tp in cluster.all_partitions():
            log, entries = cluster.log(tp), self.entries.get(tp, ())
            if log.end > len(entries):
                lost.append(f"{tp} from {len(entries)} to {log.end}")
            log.cut(entries, self.starts.get(tp, 0))
        cluster.group.offsets.clear()
        cluster.group.offsets.update(self.offsets)
        return ", ".join(lost) or "nothing"


@dataclass(slots=True)
class Disasters:
    """Scheduler of a disaster, which also recognizes the errors that report it.

    Args:
        inputs: the external source topics.
    """

    cluster: SimulatedCluster
    workers: Sequence[SimulatedWorker]
    hosts: Sequence[Host]
    inputs: Sequence[str]
    changelogs: Sequence[str]
    subscribed: frozenset[str]
    dice: random.Random
    _snapshot: Snapshot | None = None
    happened: dict[str, str] = field(default_factory=dict)
    """The affected topics of each disaster that has happened, by its name."""

    def plan(self, name: str, seconds: float) -> None:
        """Schedule a disaster at a random time in a phase with faults of `seconds`."""
        # A restored cluster must grow past its old end while input is left.
        first, last = (0.05, 0.3) if name == "restored snapshot" else (0.2, 1)
        self.cluster.kernel.after(
            int(self.dice.uniform(first, last) * seconds * SECOND), lambda: self._begin(name)
        )

    def is_named_by(self, error: BaseException) -> bool:
        return any(isinstance(error, DISASTERS[name].refusals) for name in self.happened)

    def _begin(self, name: str) -> None:
        if not DISASTERS[name].needs_rest:
            self._inject(name)
            return
        for worker in self.workers:
            worker.is_paused = True
            if worker.process is not None:
                worker.process.die()
        self.cluster.kernel.after(10 * MS, lambda: self._rest(name))

    def _rest(self, name: str) -> None:
        """Wait until the group is empty and no transaction is undecided."""
        group = self.cluster.group
        if group.members or group.pending or self.cluster.transactions.busy:
            self.cluster.kernel.after(100 * MS, lambda: self._rest(name))
            return
        if name == "restored snapshot" and self._snapshot is None:
            self._snapshot = Snapshot.of(self.cluster)
            self._resume(self.workers)
            between = int(self.dice.uniform(0.2, 0.8) * SECOND)
            self.cluster.kernel.after(between, lambda: self._begin(name))
            return
        ends = {
            p: self.cluster.log(p).end for t in self.changelogs for p in self.cluster.partitions(t)
        }
        self._inject(name)
        self._resume(self.workers[:1] if name == "restored snapshot" else self.workers)
        if name == "restored snapshot":
            self._await_growth(ends, self.cluster.kernel.now_us + 9 * SECOND)

    def _await_growth(self, ends: Mapping[TopicPartition, int], until_us: int) -> None:
        """Pause the workers with old rows until the new logs are longer than the old logs."""
        cluster = self.cluster
        has_grown = all(cluster.log(tp).end > end + 2 for tp, end in ends.items())
        if has_grown or cluster.kernel.now_us >= until_us:
            self._resume(self.workers)
        else:
            cluster.kernel.after(100 * MS, lambda: self._await_growth(ends, until_us))

    def _resume(self, workers: Sequence[SimulatedWorker]) -> None:
        for worker in workers:
            worker.is_paused = False

    def _restore_snapshot(self) -> str:
        assert self._snapshot is not None
        return self._snapshot.restore(self.cluster)

    def _inject(self, name: str) -> None:
        act: dict[str, Callable[[], str]] = {
            "offsets of one input": lambda: self._delete_offsets([self._choose(self.inputs)]),
            "offsets of all inputs": lambda: self._delete_offsets(self.inputs),
            "whole group": lambda: self._delete_offsets(list(self.cluster.topics)),
            "expired offsets": lambda: self._delete_offsets(
                [self._choose([t for t in self.inputs if t not in self.subscribed])]
            ),
            "lost changelog": lambda: self._lose_changelog(self._choose(self.changelogs)),
            "restored snapshot": self._restore_snapshot,
            "recreated topic": lambda: self._recreate(self._choose(self.inputs)),
        }
        self.happened[name] = act[name]()
        self.cluster.kernel.note("nemesis", f"DISASTER: {name}: {self.happened[name]}")

    def _choose(self, topics: Sequence[str]) -> str:
        assert topics, "the topology has no such topic"
        return self.dice.choice(list(topics))

    def _delete_offsets(self, topics: Sequence[str]) -> str:
        offsets = self.cluster.group.offsets
        gone: list[TopicPartition] = [tp for tp in offsets if tp.topic in topics]
        for tp in gone:
            del offsets[tp]
        return ", ".join(map(str, gone)) or "nothing"

    def _lose_changelog(self, topic: str) -> str:
        if self.dice.random() < 0.5:
            return self.cluster.delete(topic).name
        self._recreate(topic)
        gone = [host.lose(all_of_it=True) for host in self.hosts if self.dice.random() < 0.7]
        return f"{topic}, re-created; local rows: {'; '.join(filter(None, gone)) or 'all there'}"

    def _recreate(self, topic: str) -> str:
        found = self.cluster.delete(topic)
        self.cluster.create(topic, len(found.logs), found.config)
        return topic


class InputProducer:
    """Producer that writes the input over some time, partly in transactions.

    Args:
        plan: determines whether there are foreign transactions.
        seconds: the duration of the input in virtual seconds.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        rows: Mapping[str, Sequence[Row]],
        plan: FaultPlan,
        seconds: float,
    ) -> None:
        self._cluster = cluster
        self._kernel = cluster.kernel
        self._foreign = plan.foreign_transactions
        self._numbers = 0
        self.left = 0
        """Number of batches and transactions that have not ended."""
        for topic, own in rows.items():
            self._plan(topic, own, int(seconds * SECOND))

    def _plan(self, topic: str, rows: Sequence[Row], span_us: int) -> None:
        random = self._kernel.random
        batches: list[Sequence[Row]] = []
        begin = 0
        while begin < len(rows):
            size = random.randint(1, 8)
            batches.append(rows[begin : begin + size])
            begin += size
        for at_us, batch in zip(
            sorted(random.randrange(span_us + 1) for _ in batches), batches, strict=True
        ):
            self.left += 1
            self._kernel.after(at_us, partial(self._write, topic, batch))

    def _write(self, topic: str, rows: Sequence[Row]) -> None:
        chance = self._kernel.random.random() if self._foreign else 1.0
        if chance < 0.1:
            # Written and aborted: a reader of aborted records would process them twice.
            self._in_transaction(topic, rows, committed=False)
        if chance < 0.2:
            self._in_transaction(topic, rows, committed=True)
        else:
            for row in rows:
                self._append(self._assign(topic, row), row, None)
        self.left -= 1

    def _in_transaction(self, topic: str, rows: Sequence[Row], *, committed: bool) -> None:
        self._numbers += 1
        name = f"input-{self._numbers}"
        transactions = self._cluster.transactions
        epoch = transactions.init(name, 60 * SECOND)
        for row in rows:
            tp = self._assign(topic, row)
            self._append(tp, row, transactions.join(name, epoch, tp))
        self.left += 1

        def end() -> None:
            try:
                transactions.end(name, epoch, committed=committed)
            except BrokerResponseError as refused:  # no other client ends it
                raise AssertionError(name) from refused
            self.left -= 1

        late = self._kernel.chance(0.3)
        self._kernel.after(self._kernel.between(MS, (5 * SECOND) if late else 50 * MS), end)

    def _assign(self, topic: str, row: Row) -> TopicPartition:
        # Once per row: without a key, the next call returns another partition.
        return self._cluster.route(topic, row[0], -1)

    def _append(self, tp: TopicPartition, row: Row, txn: Any) -> None:
        key, value, at_ms = row
        self._cluster.append(tp, key, value, START_MS + at_ms, None, txn)


@dataclass(frozen=True, slots=True)
class _Nemesis:
    """Faults of whole workers, disks and clocks, with a method for each kind."""

    faults: Faults
    cluster: SimulatedCluster
    workers: Sequence[SimulatedWorker]
    hosts: Sequence[Host]
    changelogs: Sequence[str]
    chances: random.Random
    """A separate generator, so that newer kinds of faults do not change existing seeds."""

    def plan(self, seconds: float) -> None:
        plan, dice = self.faults.plan, self.faults.random
        troubles = [
            (plan.crashes, self.kill, dice),
            (plan.stalls, self.suspend, dice),
            (plan.restarts, self.restart, dice),
            (plan.compaction if self.changelogs else None, self.compact, dice),
            (2.0 if plan.lost_state else None, self.remember, dice),
            (plan.full_disks, self.fill, self.chances),
            (plan.clock_jumps, self.jump, self.chances),
            (plan.twins, self.twin, self.chances),
        ]
        for average, what, drawn_by in troubles:
            for _ in range(0 if average is None else _draw(drawn_by, average)):
                moment = drawn_by.uniform(0.02, 1) * seconds * SECOND
                self.cluster.kernel.after(int(moment), what)

    def kill(self) -> None:
        process = self._living()
        if process is not None:
            self.faults.counts["process", "killed"] += 1
            process.die()

    def suspend(self) -> None:
        process = self._living()
        if process is not None:
            self.faults.counts["process", "left standing"] += 1
            process.suspend(self.faults.stall_us())

    def restart(self) -> None:
        self.faults.counts["process", "restarted"] += 1
        self.faults.random.choice(self.workers).restart()

    def compact(self) -> None:
        topic = self.faults.random.choice(self.changelogs)
        tps = self.cluster.partitions(topic)
        gone = sum(self.cluster.log(tp).compact() for tp in tps)
        self.faults.counts["cluster", "compacted"] += 1
        self.cluster.kernel.note("cluster", f"compacts {topic}: {gone} records")

    def remember(self) -> None:
        for host in self.hosts:
            host.remember()

    def fill(self) -> None:
        self.faults.counts["disk", "full"] += 1
        host, seconds = self.chances.choice(self.hosts), self.chances.uniform(0.05, 4)
        self.cluster.kernel.note("nemesis", f"a disk is full for {seconds:.3f} s")
        host.full_until_us = self.cluster.kernel.now_us + int(seconds * SECOND)

    def jump(self) -> None:
        self.faults.counts["clock", "jumped"] += 1
        hours = self.chances.choice((-48, -1, 0.01, 1, 48))
        self.cluster.kernel.note("nemesis", f"the clock jumps by {hours} h")
        self.cluster.kernel.wall_ahead_ms += int(hours * 3_600_000)

    def twin(self) -> None:
        worker = self.chances.choice(self.workers)
        if worker.start_twin(int(self.chances.uniform(0.5, 12) * SECOND)):
            self.faults.counts["process", "twins"] += 1
            self.cluster.kernel.note(
                "nemesis", "a worker starts while another process with its identity is suspended"
            )

    def _living(self) -> SimulatedProcess | None:
        found = [s.process for s in self.workers if s.process is not None and s.process.alive]
        return self.faults.random.choice(found) if found else None


def _draw(dice: random.Random, average: float) -> int:
    most = max(5, int(2 * average))
    return min(most, int(dice.expovariate(1 / average) + 0.5)) if average > 0 else 0


TROUBLE_S = 14.0
"""Duration of the phase with faults, in virtual seconds."""
DRAIN_S = 180.0
"""Maximum time to process all remaining input afterwards, in virtual seconds."""
SETTLE_S = 10
"""Time for stream time to reach the end of a backlog, in virtual seconds."""
STOP_S = 60.0


def _has(state: TaskState, store: str) -> bool:
    """Return whether the state of a task, possibly of another version, contains a store."""
    try:
        state.position(store)
    except UnknownStoreError:
        return False
    return True


class SimulatedRun:
    """Simulated run, from its seed to its result.

    Args:
        state_dir: directory for local state in RocksDB; None keeps state in memory.
    """

    def __init__(self, setup: Setup, seed: int, state_dir: Path | None = None) -> None:
        self.setup = setup
        self.kernel = Kernel(seed)
        dice = random.Random(f"faults/{seed}")  # noqa: S311 - reproducible on purpose
        self.faults = Faults(setup.plan, dice)
        self.cluster = SimulatedCluster(self.kernel, setup.config.application_id)
        self.cluster.transactions.slow = setup.plan.slow_markers
        self.outcome = Outcome()
        self.disasters: Disasters | None = None
        self.background: list[Actor] = []
        self.tables = Tables()
        self._seed = seed
        self._create_topics()
        self._upgrades = random.Random(f"upgrade/{seed}")  # noqa: S311 - reproducible on purpose
        shared = dice.random() < 0.5
        count = 1 if shared else setup.workers
        # Duplicate instances run on a separate host.
        all_hosts = count + (setup.plan.twins > 0)
        self._hosts = [Host(partial(self._make_files, state_dir, n)) for n in range(all_hosts)]
        self.workers = [
            SimulatedWorker(self, number, self._hosts[number % count], self._hosts[-1])
            for number in range(setup.workers)
        ]

    def _make_files(self, state_dir: Path | None, host: int, name: str) -> TaskFiles:
        if state_dir is None:
            return MemoryFiles(self.kernel.chance)
        return RocksFiles(state_dir / f"host-{host}" / name)

    def _create_topics(self) -> None:
        cluster, plans = self.cluster, self.setup.plans
        for name, partitions in self.setup.partitions.items():
            cluster.create(name, partitions, {})
        LocalAdmin(cluster).create_internal(plans, self.setup.config.topic_configs)

    # -- the run -------------------------------------------------------------------------------

    def go(self) -> Outcome:
        kernel, plan = self.kernel, self.setup.plan
        calm = plan.rate == 0 and plan.crashes == 0 and plan.stalls == 0
        seconds = 1.0 if calm else TROUBLE_S
        for topic, rows in self.setup.global_rows.items():
            for key, value, at_ms in rows:
                tp = self.cluster.route(topic, key, -1)
                self.cluster.append(tp, key, value, START_MS + at_ms, None, None)
        feed_s = 0.0 if plan.backlog else seconds * 0.8
        feed = InputProducer(self.cluster, self.setup.rows, plan, feed_s)
        changelogs = [t for p in self.setup.plans for t in p.changelogs.values()]
        self._plan_upgrade(seconds)
        chances = random.Random(f"nemesis/{self._seed}")  # noqa: S311 - reproducible on purpose
        nemesis = _Nemesis(
            self.faults, self.cluster, self.workers, self._hosts, changelogs, chances
        )
        nemesis.plan(seconds)
        self._plan_disaster(seconds)
        try:
            for worker in self.workers:
                worker.start()
            kernel.sleep(int(seconds * SECOND))
            self._end_faults()
            self._end_upgrade()
            self._drain(feed)
            if self.disasters is not None and not self.outcome.refusals:
                # An undetected disaster is detected at the next start.
                for worker in self.workers:
                    worker.restart()
                kernel.sleep(20 * SECOND)
                self._drain(feed)
            if plan.backlog:
                kernel.sleep(SETTLE_S * SECOND)
            self._read_states()
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
            self.workers,
            self._hosts,
            list(self.setup.rows),
            [topic for plan in self.setup.plans for topic in plan.changelogs.values()],
            frozenset(plan.subscribed_topic(partitions) for plan in self.setup.plans),
            random.Random(f"disaster/{self._seed}"),  # noqa: S311 - reproducible on purpose
        )
        self.disasters.plan(name, seconds)

    def _plan_upgrade(self, seconds: float) -> None:
        """Schedule the restart of each worker with the next version; some return temporarily."""
        if not self.setup.next_plans:
            return
        dice = self._upgrades
        # In some runs the first worker starts with the next version while other workers start.
        is_mixed = dice.random() < 0.3
        at_s = 0.0 if is_mixed else dice.uniform(0.0, 0.5) * seconds
        for worker in self.workers:
            if is_mixed:
                worker.starts_within_us = 30 * MS
            self.kernel.after(int(at_s * SECOND), partial(worker.deploy, self.setup.next_plans))
            if dice.random() < 0.2:
                back_s = min(at_s + dice.uniform(0.1, 5), 0.99 * seconds)
                self.kernel.after(int(back_s * SECOND), partial(worker.deploy, self.setup.plans))
            at_s = min(at_s + dice.choice((0.01, 0.3, 5.0)) * dice.random(), 0.9 * seconds)

    def _end_upgrade(self) -> None:
        if self.setup.next_plans:
            for worker in self.workers:
                worker.deploy(self.setup.next_plans)

    def refuse(self, error: BaseException) -> bool:
        if self.disasters is None or not self.disasters.is_named_by(error):
            return False
        self.outcome.refusals.append(f"{type(error).__name__}: {error}")
        self.retire()
        return True

    def retire(self) -> None:
        for worker in self.workers:
            worker.retire()

    def _end_faults(self) -> None:
        self.kernel.note("nemesis", "no more faults")
        self.faults.is_on = False
        self.cluster.transactions.slow = 0.0

    def _drain(self, feed: InputProducer) -> None:
        deadline_us = self.kernel.now_us + int(DRAIN_S * SECOND)
        while not self.outcome.refusals and (feed.left or (left := self._left_over())):
            if self.kernel.now_us > deadline_us:
                self.outcome.problems.append(f"not done after {DRAIN_S:.0f} s: {left}")
                return
            self.kernel.sleep(200 * MS)

    def _left_over(self) -> str:
        """Return a description of unfinished work, or ""."""
        if not self.cluster.is_settled():
            return "a transaction hangs"
        return self._unprocessed() or self._unrestored()

    def _unrestored(self) -> str:
        held = {t: s for host in self._hosts for t, s in host.held().items()}
        for plan in self.setup.last_plans:
            for store, topic in plan.changelogs.items():
                for tp in self.cluster.partitions(topic):
                    records = self.cluster.log(tp).records()
                    if not records:
                        continue
                    state = held.get(TaskId(plan.id, tp.partition))
                    position = None
                    if state is not None and _has(state, store):
                        position = state.position(store)
                    if position is None or position.offset <= (records[-1].offset() or 0):
                        return f"{store} of partition {tp.partition} at {position}"
        return ""

    def _unprocessed(self) -> str:
        group = self.cluster.group
        if group.pending:
            return "offsets are undecided"
        for tp in self._input_partitions():
            log = self.cluster.log(tp)
            committed = group.offsets.get(tp)
            if committed is None and self.disasters is not None and self.disasters.happened:
                continue  # the next start reports it
            begin = log.start if committed is None else committed.offset
            if log.read(begin, 1, committed=self.setup.config.reads_committed)[0]:
                return f"{tp} from {begin}"
        return ""

    def _input_partitions(self) -> list[TopicPartition]:
        topics = dict.fromkeys(t for plan in self.setup.last_plans for t in plan.topics.all_sources)
        return [tp for topic in topics for tp in self.cluster.partitions(topic)]

    def _read_states(self) -> None:
        logged = {
            plan.id: [
                s.spec for s in plan.program.sub_topology.stores if s.spec.name in plan.changelogs
            ]
            for plan in self.setup.last_plans
        }
        for host in self._hosts:
            for task_id, state in host.held().items():
                specs = logged.get(task_id.sub_topology, [])
                held = [spec for spec in specs if _has(state, spec.name)]
                rows = {s.name: dict(s.rows.view(state.store(s.name)).scan()) for s in held}
                self.outcome.states[task_id] = rows

    def _stop(self) -> None:
        self.retire()
        deadline_us = self.kernel.now_us + int(STOP_S * SECOND)
        while not all(worker.is_done for worker in self.workers):
            if self.kernel.now_us > deadline_us:
                self.outcome.problems.append(f"workers did not stop within {STOP_S:.0f} s")
                return
            self.kernel.sleep(100 * MS)

    def _end(self) -> None:
        for worker in self.workers:
            worker.end()
        for _ in range(100):
            if all(worker.is_done for worker in self.workers) and all(
                a.finished for a in self.background
            ):
                break
            self.kernel.sleep(SECOND)
        for host in self._hosts:
            host.close()
        self.outcome.problems += self.cluster.violations
