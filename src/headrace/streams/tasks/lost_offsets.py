"""Reaction to committed offsets that have disappeared, for tasks with state.

Offsets expire, can be deleted, and disappear with their topic. A task that reads such an input from
its beginning would aggregate records again: in its own state, or in the state of the tasks that
read its repartition topics.

An input that the task never read has no offset either, and may start at its beginning. The offsets
of the other inputs distinguish the two cases: each has a number that identifies all topics whose
offsets were committed together. If another version wrote the offsets, the deployed topology is used
instead (see `headrace.streams.plan.deployed`). If neither is conclusive, the input counts as read:
a rejected start can be corrected, but double counting cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import combinations

from headrace.streams.errors import StreamsError
from headrace.streams.kafka.offset_texts import topic_options
from headrace.streams.kafka.protocols import CommittedOffset, Log, Offsets, TopicPartition
from headrace.streams.plan.deployment import Deployment
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.progress import INPUTS, OffsetMetadata, inputs_number
from headrace.streams.tasks.restore import ChangelogDescription

Committed = Mapping[TopicPartition, CommittedOffset | None]

_COMBINED_MAX = 12
"""Maximum number of inputs without offsets of which all combinations are tried."""


class StateWithoutOffsetsError(StreamsError):
    """Error: the group lacks offsets for inputs of a task, so records would be counted twice.

    It is not handled. The offsets expired, or the offsets, the group or a topic were deleted.
    """


@dataclass(frozen=True, slots=True)
class Counted:
    """Stores or topics in which the records of a task are counted; falsy if they are not.

    Args:
        written: the topics that it writes for tasks with state.
    """

    stores: Sequence[str] = ()
    written: Sequence[str] = ()

    @classmethod
    def by(cls, plan: SubPlan, plans: Sequence[SubPlan]) -> Counted:
        """Find stores, and outputs that are read elsewhere if any sub-topology has state."""
        stores = [store.name for store in plan.program.sub_topology.stores]
        counts = any(other.program.sub_topology.stores for other in plans)
        read = {topic for other in plans for topic in other.topics.all_sources}
        written = [*plan.topics.repartition_sinks, *plan.topics.sinks]
        return cls(stores, [topic for topic in written if counts and topic in read])

    def __bool__(self) -> bool:
        return bool(self.stores or self.written)

    def __str__(self) -> str:
        if self.stores:
            return f"has state in {', '.join(self.stores)}"
        return f"writes to {', '.join(self.written)}, whose readers count the records"

    def fields(self) -> dict[str, Sequence[str]]:
        return {"stores": self.stores} if self.stores else {"writes_to": self.written}


@dataclass(frozen=True, slots=True)
class ReadBefore:
    """Inputs of the same task in the deployed version.

    Args:
        topics: its inputs; None if they are not known.
        has_state: whether it had any of the task's stores, or the task has none.
    """

    topics: frozenset[str] | None = None
    has_state: bool = True


def read_before(
    deployed: Deployment | None, plans: Sequence[SubPlan], application_id: str
) -> dict[int, ReadBefore]:
    """Return the inputs of the deployed task with the same stores or outputs, by sub-topology."""
    if deployed is None:
        return {}
    internal = {topic.name for topic in deployed.topics}
    inputs_before = {}
    for plan in plans:
        names = {store.name for store in plan.program.sub_topology.stores}
        same = [store.reads for store in deployed.stores if store.name in names]
        read = same or _read_upstream(deployed, plan, application_id)
        topics = frozenset(
            f"{application_id}-{topic}" if topic in internal else topic
            for some in read
            for topic in some
        )
        if read or deployed.subs:
            # A topic that no task of the deployed version read has no offsets to lose.
            topics = (topics if read else deployed.reads) - frozenset(deployed.fresh)
        inputs_before[plan.id] = ReadBefore(
            topics if read or deployed.subs else None, bool(same) or not names
        )
    return inputs_before


def _read_upstream(
    deployed: Deployment, plan: SubPlan, application_id: str
) -> list[tuple[str, ...]]:
    """Return the topics that the deployed version read to write this repartition output."""
    prefix = f"{application_id}-"
    written = {topic.removeprefix(prefix) for topic in plan.topics.repartition_sinks}
    return [topic.reads for topic in deployed.topics if topic.name in written and topic.reads]


def lost_inputs(committed: Committed, before: ReadBefore) -> list[TopicPartition]:
    """Return the inputs of a task whose offsets were, or may have been, committed and are missing.

    >>> both = OffsetMetadata(5, {INPUTS: inputs_number(["a", "b"])}).encode()
    >>> a, b, c = (TopicPartition(topic, 0) for topic in "abc")
    >>> lost_inputs({a: CommittedOffset(7, both), b: None, c: None}, ReadBefore())
    [TopicPartition(topic='b', partition=0)]
    """
    lacking = [tp for tp, offset in committed.items() if offset is None]
    if not lacking:
        return []
    known = {tp.topic: offset for tp, offset in committed.items() if offset is not None}
    numbers = {OffsetMetadata.decode(o.metadata).values.get(INPUTS) for o in known.values()}
    topics = [tp.topic for tp in lacking]
    if len(numbers) == 1 and len(topics) <= _COMBINED_MAX:
        for count in range(len(topics) + 1):
            for lost in combinations(topics, count):
                if inputs_number([*known, *lost]) in numbers:
                    return [tp for tp in lacking if tp.topic in lost]
    read = before.topics
    return lacking if read is None else [tp for tp in lacking if tp.topic in read]


def has_run(committed: Committed) -> bool:
    """Return whether any offset has the metadata of a task that has committed."""
    offsets = (offset for offset in committed.values() if offset is not None)
    return any(OffsetMetadata.decode(offset.metadata) != OffsetMetadata() for offset in offsets)


class LostOffsets:
    """Reaction of a task to committed offsets that have disappeared.

    Args:
        before: by sub-topology (see `read_before`).
        reported: the inputs that were already reported (see `headrace.streams.admin.start_check`).
    """

    def __init__(
        self,
        group: str,
        before: Mapping[int, ReadBefore],
        *,
        exactly_once: bool,
        log: Log,
        reported: AbstractSet[TopicPartition] = frozenset(),
    ) -> None:
        self._group = group
        self._before = before
        self._exactly_once = exactly_once
        self._log = log
        self._reported = set(reported)
        self._unreadable: set[TopicPartition] = set()

    def of(self, sub_topology: int, committed: Committed) -> list[TopicPartition]:
        self._log_unreadable(committed)
        return lost_inputs(committed, self._read_before(sub_topology))

    def has_counted(self, sub_topology: int, committed: Committed) -> bool:
        """Return whether a task has had state, according to its offsets."""
        return self._read_before(sub_topology).has_state and has_run(committed)

    def _log_unreadable(self, committed: Committed) -> None:
        """Log offset metadata of unknown origin, once per partition; it is ignored."""
        for tp, offset in committed.items():
            if offset is None or not offset.metadata or tp in self._unreadable:
                continue
            if OffsetMetadata.parse(offset.metadata) is None:
                self._unreadable.add(tp)
                self._log.error(
                    "offset_metadata_unreadable",
                    group=self._group,
                    topic=tp.topic,
                    partition=tp.partition,
                    taken=f"offset {offset.offset}, without the times that windows, joins and "
                    "suppressed updates had reached, as if none had been committed",
                )

    def _read_before(self, sub_topology: int) -> ReadBefore:
        return self._before.get(sub_topology, ReadBefore())

    def handle(
        self,
        task: str,
        counted: Counted,
        lost: Sequence[TopicPartition],
        effects: Mapping[str, str],
        others: Sequence[TopicPartition] = (),
    ) -> None:
        """Report the effects of missing offsets; under exactly-once, raise if records are counted.

        `others` are inputs of other tasks of this worker whose offsets are missing, too.
        """
        where = ", ".join(map(str, lost))
        if counted and self._exactly_once:
            raise StateWithoutOffsetsError(self._refusal(task, counted, where, [*lost, *others]))
        if self._reported >= set(lost):
            self._reported.difference_update(lost)
            return
        if counted:
            self._log.error(
                "records_counted_twice",
                task=task,
                **counted.fields(),
                partitions=effects,
                reason=f"the group {self._group} has no committed offsets for {where} any more, "
                f"{advice_at_least_once(topic_options(lost, {}))}",
            )
        else:
            self._log.warning(
                "records_processed_again",
                task=task,
                partitions=effects,
                reason=f"the group {self._group} has no committed offsets for {where} any more",
            )

    def _refusal(
        self, task: str, counted: Counted, where: str, lost: Iterable[TopicPartition]
    ) -> str:
        return (
            f"task {task} {counted}, but its group {self._group} has no committed offsets for "
            f"{where}: {advice_exactly_once(topic_options(lost, {}))}"
        )


def advice_exactly_once(options: str) -> str:
    """Return the explanation and the fix for lost offsets, given `topic_options`."""
    return (
        "they expired or were deleted, or the topic was re-created. Starting from the beginning "
        "would count records twice, so it did not start. Set the offset of each partition to the "
        "state's position: write a file of lines topic,partition,offset, and run headrace offsets "
        "set MODULE:APP --from-file FILE; to set all partitions to the same offset, use "
        f"{options} --to N instead of the file, or --to beginning --process-again if none of the "
        "records is counted yet, as of a new input or a re-created topic. After a clean stop that "
        "had read everything, the offsets are the ends of the partitions: --to end. To start "
        "without state, run headrace reset"
    )


def advice_at_least_once(options: str) -> str:
    """Return the advice about records that at-least-once counts again."""
    return (
        "and at_least_once continues: it counts their records again, and records after a "
        "repartition topic up to twice again. To prevent that, set the offsets before a start: "
        f"headrace offsets set MODULE:APP {options} --to end starts at the end of the topics, and "
        "skips the records since the last commit. To correct records that were counted again, "
        "stop, run headrace reset, and start"
    )


def effects_of(
    lost: Iterable[TopicPartition],
    start: Offsets,
    changelogs: Mapping[TopicPartition, ChangelogDescription],
) -> dict[str, str]:
    """Return the effect of each missing offset, given the offsets to read from now."""
    return {str(tp): _effect(start[tp].offset, changelogs[tp].end) for tp in lost}


def _effect(first: int, end: int) -> str:
    if first < end:
        return f"offsets {first} to {end - 1} are processed, also if they were processed before"
    return f"starts at its end, {end}; records since its last commit are skipped"
