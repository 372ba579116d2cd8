"""The tasks of one worker: from the partitions that the group gives to tasks that run.

A task needs, in this order: its directory and local state, the committed offsets of its inputs,
the ends of its changelogs, the restore, and only then its input. `advance` takes each task as far
as it gets without waiting, so that the others go on meanwhile.

What a revocation takes away follows from this table, not from the list that the client hands over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from headrace.state.buffers import RowsKept, bound_caches
from headrace.streams.external.beginnings import begun_at
from headrace.streams.external.connections import SinkConnections
from headrace.streams.plan.changelog_identity import require_same_changelogs
from headrace.streams.plan.key_sample import KeySample
from headrace.streams.plan.known_topics import known_topics_alone
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.plan.upstream import Upstream
from headrace.streams.records.handlers import Handlers
from headrace.streams.seams.background import Background
from headrace.streams.seams.clients import (
    Clock,
    CommittedOffset,
    Consumer,
    Log,
    Offsets,
    TopicPartition,
)
from headrace.streams.task.dropped_records import dropped_record
from headrace.streams.task.phase import Phase
from headrace.streams.task.task import Task
from headrace.streams.task.task_failures import corruption_of
from headrace.streams.tasks.inquiry import Inquiry
from headrace.streams.tasks.lost_offsets import Counted, LostOffsets, effects_of
from headrace.streams.tasks.patience import Patience
from headrace.streams.tasks.restore import Restorer
from headrace.streams.tasks.restore_plan import ChangelogFacts
from headrace.streams.tasks.slot import (
    Facts,
    Found,
    OpenHome,
    Slot,
    drop_unlogged,
    has_rows,
    look_up,
    require_same_topics,
)
from headrace.topology.context.context import TableView
from headrace.topology.context.environment import Send
from headrace.topology.context.punctuation import NEVER_MS
from headrace.topology.context.task_facts import TaskFacts
from headrace.topology.errors import LAST_TIME_MS

MakeSend = Callable[[], Send]


class Tasks:
    """See the module.

    Args:
        open_home: opens a task's local state; None while another worker has it.
        make_send: gives the present producer's send.
        read_cache_bytes: what the caches of all stores and global tables may take together.
        make_facts: makes what the processors of a task share.
        global_views: the rows of global tables, by their nodes.
        write_line: what `print` writes with.
        sinks: the tables outside of Kafka.
        send_letter: what their tasks send with.
        record_limit: returns the bytes of the largest record that a topic takes, if known.
        max_ahead_ms: how far ahead of the clock topics accept timestamps.
        upstream: the inputs whose times bound the stream time of tasks.
    """

    def __init__(
        self,
        *,
        plans: Sequence[SubPlan],
        partitions: Mapping[str, int],
        consumer: Consumer,
        restorer: Restorer,
        facts: Facts,
        open_home: OpenHome,
        make_send: MakeSend,
        lost_offsets: LostOffsets,
        read_cache_bytes: int,
        clock: Clock,
        background: Background,
        log: Log,
        handlers: Handlers | None = None,
        make_facts: Callable[[TaskId], TaskFacts] | None = None,
        global_views: Mapping[str, TableView] | None = None,
        write_line: Callable[[str], None] = print,
        sinks: SinkConnections,
        send_letter: Send,
        record_limit: Callable[[str], int | None] = lambda _: None,
        max_ahead_ms: int = LAST_TIME_MS,
        upstream: Upstream | None = None,
    ) -> None:
        self._by_lead = {plan.lead(partitions): plan for plan in plans}
        self._counted = {plan.id: Counted.by(plan, plans) for plan in plans}
        subs = {plan.id: plan.program.sub_topology for plan in plans}
        # A processor's store leaves records out by its own name.
        self._sub_topologies = {
            **{store.name: number for number, sub in subs.items() for store in sub.stores},
            **{node.name: number for number, sub in subs.items() for node in sub.nodes},
        }
        self._partitions = partitions
        self._consumer = consumer
        self._restorer = restorer
        self._facts = facts
        self._open_home = open_home
        self._make_send = make_send
        self._lost_offsets = lost_offsets
        self._read_cache_bytes = read_cache_bytes
        self._write_line = write_line
        self._sinks = sinks
        self._send_letter = send_letter
        self._record_limit = record_limit
        self._max_ahead_ms = max_ahead_ms
        self._upstream = upstream or Upstream()
        self._handlers = handlers or Handlers()
        self._make_facts = make_facts or (lambda task_id: TaskFacts(task_id=str(task_id)))
        self._global_views = global_views or {}
        self._clock = clock
        self._slots: dict[TaskId, Slot] = {}
        self._readers: dict[TopicPartition, Task] = {}
        self._patience = Patience(clock, log)
        self._inquiry = Inquiry[Found](background)
        self._log = log
        self.key_sample = KeySample(plans, partitions, log)
        self.dropped: dict[tuple[str, str], int] = {}

    @property
    def lead_topics(self) -> list[str]:
        """What to subscribe to: one topic of each sub-topology."""
        return sorted(self._by_lead)

    @property
    def leads(self) -> frozenset[TopicPartition]:
        """The partitions that the group is to give out."""
        return frozenset(
            TopicPartition(topic, partition)
            for topic in self._by_lead
            for partition in range(self._partitions[topic])
        )

    @property
    def running(self) -> list[Task]:
        """The tasks that process records."""
        return list(dict.fromkeys(self._readers.values()))

    def bound_caches(self, beside: Iterable[RowsKept]) -> None:
        """Let the caches of committed rows have what all of them may take together.

        Args:
            beside: those that belong to no task.
        """
        own = [buffer for task in self.running for buffer in task.buffers]
        bound_caches((*own, *beside), self._read_cache_bytes)

    @property
    def owned(self) -> list[TaskId]:
        """All tasks of this worker."""
        return sorted(self._slots)

    def has_all_of(self, sub_topology: int) -> bool:
        """Whether all tasks of a sub-topology are this worker's."""
        own = sum(task_id.sub_topology == sub_topology for task_id in self._slots)
        leads = [lead for lead, plan in self._by_lead.items() if plan.id == sub_topology]
        return own == sum(self._partitions[lead] for lead in leads)

    @property
    def are_waiting(self) -> bool:
        """Whether a task waits for what the cluster or another worker will say."""
        return any(slot.task is None for slot in self._slots.values())

    @property
    def has_unknown(self) -> bool:
        """Whether the group has given out partitions that nobody here has heard of yet."""
        return not all(map(self._knows, self._slots.values()))

    def _knows(self, slot: Slot) -> bool:
        return slot.id.partition < self._partitions[slot.lead]

    @property
    def all_running(self) -> bool:
        """Whether no task is still on its way."""
        return all(slot.reads for slot in self._slots.values())

    def states(self) -> dict[TaskId, tuple[str, Task | None]]:
        """How far each task of this worker is, in words, and the task where there is one."""
        return {
            task_id: (
                "running" if slot.reads else "waiting" if slot.task is None else "restoring",
                slot.task,
            )
            for task_id, slot in sorted(self._slots.items())
        }

    def sub_topology_of(self, node: str) -> int:
        """The sub-topology that a node, or a store, is of."""
        return self._sub_topologies[node]

    def reader_of(self, place: TopicPartition) -> Task | None:
        """The running task that reads a partition."""
        return self._readers.get(place)

    # -- the group's word --------------------------------------------------------------------

    def assign(self, leads: Iterable[TopicPartition]) -> None:
        """Own the tasks of these partitions of lead topics."""
        for topic, partition in leads:
            plan = self._by_lead[topic]
            task_id = TaskId(plan.id, partition)
            if task_id not in self._slots:
                self._slots[task_id] = Slot(task_id, plan, topic, counted=self._counted[plan.id])

    def owned_of(self, leads: Iterable[TopicPartition]) -> list[TaskId]:
        """The tasks that these partitions of lead topics stand for."""
        ids = [TaskId(self._by_lead[topic].id, partition) for topic, partition in leads]
        return [task_id for task_id in ids if task_id in self._slots]

    def told(self, leads: Iterable[TopicPartition]) -> list[str]:
        """For the log: these partitions of lead topics, and all others that their tasks read."""
        found = set[TopicPartition](leads)
        for topic, partition in list(found):
            found.update(self._by_lead[topic].inputs(partition, self._partitions))
        return [str(place) for place in sorted(found)]

    def release(self, ids: Iterable[TaskId]) -> None:
        """Let go of tasks, those of them that are here; what is not committed is forgotten."""
        for task_id in list(ids):
            slot = self._slots.pop(task_id, None)
            if slot is None:
                continue
            self._stop(slot)
            if slot.home is not None:
                slot.home.close()
        if not self._slots:
            self._sinks.close()

    # -- rebuilding --------------------------------------------------------------------------

    def rebuild(self) -> None:
        """End the running tasks and begin them anew from committed facts; local state stays.

        Restores go on: what they read was committed before they began.
        """
        for slot in self._slots.values():
            if slot.reads:
                self._stop(slot)

    def rebuild_all(self) -> None:
        """End all tasks, those being restored too, and begin them anew; local state stays."""
        for slot in self._slots.values():
            self._stop(slot)

    def begin_again(self, task: Task) -> None:
        """End one task and begin it anew from committed facts; the others go on."""
        self._stop(self._slots[task.id])

    def wipe(self, names: Iterable[str]) -> None:
        """Rebuild the local state of tasks from their changelogs."""
        wanted = set(names)
        for slot in self._slots.values():
            if str(slot.id) in wanted and slot.home is not None:
                self._stop(slot, keep_restored=False)
                slot.home.wipe()

    def _stop(self, slot: Slot, *, keep_restored: bool = True) -> None:
        if slot.task is None:
            return
        if slot.reads:
            self._consumer.remove(slot.inputs)
            for place in slot.inputs:
                del self._readers[place]
        task, slot.task = slot.task, None
        slot.is_committed = task.is_committed
        self._restorer.forget(task, keep=keep_restored)
        for node, error in task.close():
            self._log.warning(
                "processor_close_failed", task=str(task.id), node=node, error=type(error).__name__
            )

    # -- on the way to running ---------------------------------------------------------------

    def unanswered_sinks(self) -> Mapping[str, str]:
        """The tables outside of Kafka that do not answer, and what is wrong with each."""
        return self._sinks.unanswered()

    def _may_begin(self, slot: Slot) -> bool:
        """Whether its sink may be asked, if it has one."""
        node = slot.plan.outside
        return node is None or self._sinks.is_asked_now(node.name)

    def advance(self) -> None:
        """Take tasks that do not run yet as far as they get without waiting."""
        if self._inquiry.is_open:
            self._begin_looked_up()
            return
        waiting = [s for s in self._slots.values() if s.task is None and self._knows(s)]
        for slot in waiting:
            slot.inputs = slot.plan.inputs(slot.id.partition, self._partitions)
            if slot.home is None:
                slot.home = self._open_home(slot.id, slot.plan.program.sub_topology.stores)
        waiting = [s for s in waiting if s.home is not None and self._may_begin(s)]
        if not waiting:
            return
        inputs = [place for slot in waiting for place in slot.inputs]
        # Committed offsets first, then the changelogs' ends: see headrace.streams.tasks.restore.
        committed = self._committed(inputs)
        if committed is None:
            return
        for slot in waiting:
            own = {place: committed[place] for place in slot.inputs}
            slot.lost = self._lost_offsets.of(slot.plan.id, own)
        self._inquiry.ask(partial(look_up, self._facts, waiting, committed, self._sinks))
        self._begin_looked_up()

    def _begin_looked_up(self) -> None:
        """Begin the tasks whose facts have come, as far as they are this worker's still."""
        found = self._inquiry.take()
        if found is None:
            return
        # The client asks a broker at once for what it reads first, and for the rest in its next
        # question: what the application itself writes is empty yet, and would hold the others up.
        for slot in sorted(found.slots, key=lambda slot: slot.plan.reads_own_alone):
            if self._slots.get(slot.id) is slot:
                self._begin_at(slot, found)

    def _begin_at(self, slot: Slot, found: Found) -> None:
        committed = {place: found.committed[place] for place in slot.inputs}
        start: Offsets = {p: c or CommittedOffset(found.first[p]) for p, c in committed.items()}
        # A topic that was made anew is what is wrong then, and not that its sink has no position.
        require_same_topics(slot, start, found.topic_ids)
        slot.beginning = found.beginnings.get(slot.id)
        if slot.beginning is not None:
            node = slot.plan.outside
            assert node is not None
            if slot.beginning.error is not None:
                self._sinks.unavailable(node.name, slot.beginning.error)
                return
            told = None not in committed.values()
            group = start
            start = begun_at(start, slot.beginning, node, self._log, told=told)
            if start != group:
                slot.is_committed = False  # the group is to follow, also where no record comes
            if slot.beginning.position is not None:
                slot.lost = ()  # the sink knows what was read
        slot.changelog_ids = require_same_changelogs(
            slot.id, slot.plan.changelogs, start, found.topic_ids
        )
        if slot.lost:
            slot.effects = effects_of(slot.lost, start, found.changelogs)
            has_counted = self._lost_offsets.has_counted(slot.plan.id, committed)
            if has_counted and not self._goes_on(slot):
                return
        self._begin(slot, committed, start, found.changelogs)

    def _committed(
        self, inputs: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset | None] | None:
        """Ask for committed offsets; None while a transaction on them is undecided."""
        busy = bool(self._readers)
        wait_s = self._patience.wait_s(busy=busy)
        if wait_s is None:
            return None
        committed = self._consumer.committed(inputs, wait_s)
        if committed is None:
            self._patience.more(inputs)
        else:
            self._patience.reset()
        return committed

    def _begin(
        self,
        slot: Slot,
        committed: Mapping[TopicPartition, CommittedOffset | None],
        start: Offsets,
        facts: Mapping[TopicPartition, ChangelogFacts],
    ) -> None:
        assert slot.home is not None
        with corruption_of(slot.id):
            drop_unlogged(slot, committed, self._log)
        writers = {
            topic.name: self._upstream.writers[topic.name]
            for topic in slot.plan.topics.repartition_sources
            if topic.name in self._upstream.writers
        }
        slot.task = Task(
            spec=slot.plan.task(
                slot.id.partition,
                partitions_of=self._facts.partitions_of,
            ),
            state=slot.home.state,
            start=start,
            send=self._send_of(slot.plan),
            dropped=partial(self._drop, slot),
            write_line=self._write_line,
            handlers=self._handlers,
            facts=self._make_facts(slot.id),
            global_views=self._global_views,
            now_ms=self._clock.now_ms,
            record_limit=self._record_limit,
            max_ahead_ms=self._max_ahead_ms,
            log=self._log,
            topic_ids=slot.topic_ids,
            changelog_ids=slot.changelog_ids,
            followed=frozenset(writers),
            is_time_bounded=any(w.are_many(self._partitions) for w in writers.values()),
            repartitions=self._upstream.written(slot.plan.id),
            is_committed=slot.is_committed,
        )
        if slot.beginning is not None:
            told = slot.beginning
            slot.task.facts.outbox.begin(
                told.source,
                told.position,
                told.batching,
                is_first=slot.reads_directly
                and told.position is None
                and None in committed.values(),
            )
        if self._restorer.begin(slot.task, facts):
            slot.task.become(Phase.RESTORING)
        else:
            self.run(slot.task)

    def _send_of(self, plan: SubPlan) -> Send:
        """What a task sends with; topics that its functions name are looked for first."""
        if plan.outside is not None:
            return self._send_letter
        send = self._make_send()
        return known_topics_alone(send, self._facts.partitions_of) if plan.chooses_topics else send

    def run(self, task: Task) -> None:
        """Let a task whose state is complete read its input."""
        slot = self._slots[task.id]
        assert slot.task is task
        with corruption_of(task.id):
            if slot.lost and has_rows(task) and not self._goes_on(slot):
                return
        task.begin()
        self._consumer.add(task.next_offset)
        task.become(Phase.RUNNING)
        for place in slot.inputs:
            self._readers[place] = task
        self._log.info(
            "task_started",
            task=str(task.id),
            offsets={str(place): offset for place, offset in task.next_offset.items()},
        )

    def _goes_on(self, slot: Slot) -> bool:
        """Whether a task that has state begins although offsets are gone.

        At first they are asked for once more: another worker may have had the task meanwhile.

        Raises:
            StateWithoutOffsetsError: it would count twice.
        """
        if not slot.lacked_offsets:
            slot.lacked_offsets = True
            self._stop(slot)
            return False
        others = [place for other in self._slots.values() for place in other.lost]
        self._lost_offsets.meet(str(slot.id), slot.counted, slot.lost, slot.effects, others)
        slot.lost = ()
        return True

    def _drop(self, slot: Slot, node: str, reason: str) -> None:
        count = self.dropped[node, reason] = self.dropped.get((node, reason), 0) + 1
        # Powers of two: seen at once, and never a flood. The last one of them is named.
        if count & (count - 1) == 0:
            times = {} if slot.task is None else slot.task.partition_time
            watermark = NEVER_MS if slot.task is None else slot.task.facts.watermark
            repartitions = {topic.name for topic in slot.plan.topics.repartition_sources}
            last = dropped_record(
                slot.plan.program,
                sys._getframe(),
                reason,
                times,
                watermark,
                repartitions - self._upstream.writers.keys(),
            )
            self._log.warning(
                "records_dropped",
                node=node,
                reason=reason,
                count=count,
                task=str(slot.id),
                **last,
            )
