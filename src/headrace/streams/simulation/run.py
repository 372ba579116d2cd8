"""One run: workers, their supervisor, the cluster and the nemesis, from the first record on."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

from headrace.state.errors import UnknownStoreError
from headrace.state.store import TaskState
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.plan.topic_plan import plan_internal_topics
from headrace.streams.seams.clients import TopicPartition
from headrace.streams.simulation.disasters import Disasters
from headrace.streams.simulation.inputs import Feed
from headrace.streams.simulation.nemesis import plan_trouble
from headrace.streams.simulation.setup import Outcome, Setup
from headrace.streams.simulation.slot import Slot
from headrace.streams.simulation.world.cluster import Cluster, SimulatedAdmin
from headrace.streams.simulation.world.disk import Files, Host, MemoryFiles, RocksFiles
from headrace.streams.simulation.world.faults import Faults
from headrace.streams.simulation.world.kernel import (
    MS,
    SECOND,
    START_MS,
    Actor,
    Kernel,
    StuckError,
)
from headrace.streams.simulation.world.tables import Tables

TROUBLE_S = 14.0
"""How long faults happen, in virtual seconds."""
DRAIN_S = 180.0
"""How long all that is left may take afterwards."""
SETTLE_S = 10
"""How long stream time may take to reach the end of a backlog that was read."""
STOP_S = 60.0


def _has(state: TaskState, store: str) -> bool:
    """Whether a task that another version may have left has a store of this one."""
    try:
        state.position(store)
    except UnknownStoreError:
        return False
    return True


class Run:
    """See the module.

    Args:
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
        self.tables = Tables()
        self._seed = seed
        self._create_topics()
        self._upgrades = random.Random(f"upgrade/{seed}")  # noqa: S311 - reproducible on purpose
        shared = dice.random() < 0.5
        count = 1 if shared else setup.workers
        # Twins live on a host of their own.
        all_hosts = count + (setup.plan.twins > 0)
        self._hosts = [Host(partial(self._make_files, state_dir, n)) for n in range(all_hosts)]
        self.slots = [
            Slot(self, number, self._hosts[number % count], self._hosts[-1])
            for number in range(setup.workers)
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
        for topic, rows in self.setup.global_rows.items():
            for key, value, at_ms in rows:
                place = self.cluster.route(topic, key, -1)
                self.cluster.append(place, key, value, START_MS + at_ms, None, None)
        feed_s = 0.0 if plan.backlog else seconds * 0.8
        feed = Feed(self.cluster, self.setup.rows, plan, feed_s)
        changelogs = [t for p in self.setup.plans for t in p.changelogs.values()]
        self._plan_upgrade(seconds)
        plan_trouble(
            self.faults, self.cluster, self.slots, self._hosts, changelogs, seconds, self._seed
        )
        self._plan_disaster(seconds)
        try:
            for slot in self.slots:
                slot.start()
            kernel.sleep(int(seconds * SECOND))
            self._calm_down()
            self._end_upgrade()
            self._drain(feed)
            if self.disasters is not None and not self.outcome.refusals:
                # What nobody has met yet is met at the next start.
                for slot in self.slots:
                    slot.restart()
                kernel.sleep(20 * SECOND)
                self._drain(feed)
            if plan.backlog:
                kernel.sleep(SETTLE_S * SECOND)
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

    def _plan_upgrade(self, seconds: float) -> None:
        """Restart one worker after the other with the next version; some go back meanwhile."""
        if not self.setup.next_plans:
            return
        dice = self._upgrades
        # Now and then the first one begins with the next version, beside others that begin.
        is_mixed = dice.random() < 0.3
        at_s = 0.0 if is_mixed else dice.uniform(0.0, 0.5) * seconds
        for slot in self.slots:
            if is_mixed:
                slot.starts_within_us = 30 * MS
            self.kernel.after(int(at_s * SECOND), partial(slot.deploy, self.setup.next_plans))
            if dice.random() < 0.2:
                back_s = min(at_s + dice.uniform(0.1, 5), 0.99 * seconds)
                self.kernel.after(int(back_s * SECOND), partial(slot.deploy, self.setup.plans))
            at_s = min(at_s + dice.choice((0.01, 0.3, 5.0)) * dice.random(), 0.9 * seconds)

    def _end_upgrade(self) -> None:
        """Stop all workers of the version before, and start the next one."""
        if self.setup.next_plans:
            for slot in self.slots:
                slot.deploy(self.setup.next_plans)

    def refuse(self, error: BaseException) -> bool:
        """Whether an error names what has happened; the others end with it then."""
        if self.disasters is None or not self.disasters.is_named_by(error):
            return False
        self.outcome.refusals.append(f"{type(error).__name__}: {error}")
        self.retire()
        return True

    def retire(self) -> None:
        """Stop all workers for good."""
        for slot in self.slots:
            slot.retire()

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
        for plan in self.setup.last_plans:
            for store, topic in plan.changelogs.items():
                for place in self.cluster.places(topic):
                    records = self.cluster.log(place).records()
                    if not records:
                        continue
                    state = held.get(TaskId(plan.id, place.partition))
                    position = None
                    if state is not None and _has(state, store):
                        position = state.position(store)
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
        topics = dict.fromkeys(t for plan in self.setup.last_plans for t in plan.topics.all_sources)
        return [place for topic in topics for place in self.cluster.places(topic)]

    def _look_at_states(self) -> None:
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
        while not all(slot.is_done for slot in self.slots):
            if self.kernel.now_us > deadline_us:
                self.outcome.problems.append(f"workers did not stop within {STOP_S:.0f} s")
                return
            self.kernel.sleep(100 * MS)

    def _end(self) -> None:
        """Leave no thread behind."""
        for slot in self.slots:
            slot.end()
        for _ in range(100):
            if all(slot.is_done for slot in self.slots) and all(a.finished for a in self.beside):
                break
            self.kernel.sleep(SECOND)
        for host in self._hosts:
            host.close()
        self.outcome.problems += self.cluster.violations
