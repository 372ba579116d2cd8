"""A task that a worker owns, and what it begins from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.streams.external.beginnings import Beginning, ask_sinks
from headrace.streams.external.connections import SinkConnections
from headrace.streams.local.task_home import TaskHome
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.progress import COMMIT_ID, Progress
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.plan.topic_errors import require_same
from headrace.streams.plan.topic_identity import committed_id
from headrace.streams.seams.clients import CommittedOffset, Log, Offsets, TopicPartition
from headrace.streams.task.phase import Phase
from headrace.streams.task.task import Task
from headrace.streams.tasks.lost_offsets import Counted
from headrace.streams.tasks.restore_plan import ChangelogFacts
from headrace.topology.processors.store import Store


class Facts(Protocol):
    """What tasks must ask of the cluster."""

    def changelogs(
        self, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ChangelogFacts]:
        """Ends and identities of changelog partitions, asked for now."""

    def first_offsets(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to begin with partitions for which nothing was ever committed."""

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The ids of those topics that exist, asked for now."""

    def partitions_of(self, topic: str) -> int:
        """The partition count of a topic that is written to."""


OpenHome = Callable[[TaskId, Sequence[Store]], TaskHome | None]


@dataclass(slots=True, eq=False)
class Slot:
    """A task that this worker owns, however far it is."""

    id: TaskId
    plan: SubPlan
    lead: str
    """The topic whose partitions the group gives out."""
    inputs: list[TopicPartition] = field(default_factory=list)
    home: TaskHome | None = None
    task: Task | None = None
    is_committed: bool = False
    """Whether this worker has committed the task's offsets since it has the task."""
    lost: Sequence[TopicPartition] = ()
    """The inputs whose offsets are gone."""
    effects: Mapping[str, str] = field(default_factory=dict)
    """What follows from that, by input."""
    counted: Counted = field(default_factory=Counted)
    """Where its records are counted."""
    lacked_offsets: bool = False
    """Whether state without offsets was met once."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The ids of the input topics when the task was begun last."""
    changelog_ids: Mapping[str, str] = field(default_factory=dict)
    """Those of the changelogs."""
    beginning: Beginning | None = None
    """What its sink says, where it writes to a table outside of Kafka."""

    @property
    def reads_directly(self) -> bool:
        """Whether it writes to such a table, and reads a topic that it does not write itself."""
        return self.plan.outside is not None and self.plan.outside.reads_directly

    @property
    def reads(self) -> bool:
        """Whether the task is there and gets records."""
        return self.task is not None and self.task.phase is Phase.RUNNING


@dataclass(frozen=True, slots=True)
class Found:
    """The facts that some tasks begin from."""

    slots: Sequence[Slot]
    committed: Mapping[TopicPartition, CommittedOffset | None]
    first: Mapping[TopicPartition, int]
    changelogs: Mapping[TopicPartition, ChangelogFacts]
    topic_ids: Mapping[str, str]
    beginnings: Mapping[TaskId, Beginning]
    """What sinks say."""


def look_up(
    facts: Facts,
    slots: Sequence[Slot],
    committed: Mapping[TopicPartition, CommittedOffset | None],
    sinks: SinkConnections,
) -> Found:
    """Ask what must be known besides the committed offsets; runs beside the worker."""
    topics = dict.fromkeys(place.topic for slot in slots for place in slot.inputs)
    logs = dict.fromkeys(t for slot in slots for t in slot.plan.changelogs.values())
    # Before the first offsets: those of a topic that is made anew later are of no use.
    topic_ids = facts.topic_ids({**topics, **logs})
    unknown = [p for slot in slots for p in slot.inputs if committed[p] is None]
    changelogs = [
        TopicPartition(topic, slot.id.partition)
        for slot in slots
        for topic in slot.plan.restored_from
    ]
    # Of an input whose offset is gone it is said what is read again.
    changelogs += [place for slot in slots for place in slot.lost]
    return Found(
        slots,
        committed,
        facts.first_offsets(unknown) if unknown else {},
        facts.changelogs(changelogs) if changelogs else {},
        topic_ids,
        ask_sinks(sinks, slots, topic_ids),
    )


def require_same_topics(slot: Slot, start: Offsets, found: Mapping[str, str]) -> None:
    """Compare the topics that are there with those that were read."""
    known = {
        place.topic: committed_id(place.topic, Progress.decode(c.metadata).values)
        for place, c in start.items()
    }
    committed = {topic: topic_id for topic, topic_id in known.items() if topic_id is not None}
    require_same({**slot.topic_ids, **committed}, found)
    slot.topic_ids = {place.topic: found[place.topic] for place in start if place.topic in found}


def drop_unlogged(
    slot: Slot, committed: Mapping[TopicPartition, CommittedOffset | None], log: Log
) -> None:
    """Empty unlogged stores that belong to another commit than the offsets do."""
    assert slot.home is not None
    # An input that was never committed says nothing.
    offsets = [offset for offset in committed.values() if offset is not None]
    ids = {Progress.decode(offset.metadata).values.get(COMMIT_ID) for offset in offsets}
    for store in slot.plan.program.sub_topology.stores:
        if store.spec.logged:
            continue
        position = slot.home.state.position(store.name)
        if position is None or {position.commit_id} != ids:
            slot.home.state.drop_store(store.name)
        if position is not None and {position.commit_id} != ids:
            log.warning(
                "store_dropped",
                task=str(slot.id),
                store=store.name,
                reason="it has no changelog, and is of another commit than the offsets",
            )


def has_rows(task: Task) -> bool:
    """Whether there is a row in a store of a task that has a changelog."""
    stores = map(task.state.store, task.spec.changelogs)
    return any(next(iter(store.scan()), None) is not None for store in stores)
