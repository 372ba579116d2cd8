"""Input offsets of an application: display, change and skip while the application is stopped.

The order of the steps makes a change safe: transactions that a killed worker left open are
completed first, so that they cannot overwrite the new offsets; the broker rejects the commit while
the group has members; and the committed offsets are read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.streams.admin.backfill_gate import BackfillNote, open_note
from headrace.streams.admin.reset import changed_since, refuse_members, set_offsets
from headrace.streams.errors import ConfigError, ResetRefusedError
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    GroupAdminClient,
    Member,
    Offsets,
    OffsetTarget,
    TopicPartition,
)
from headrace.streams.plan.identity import committed_id, same_topic, with_topic_id
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.plan.progress import (
    AT_ONCE_MAX,
    CHANGELOG_MARK,
    RESET_MARK,
    OffsetMetadata,
    left_out,
    left_out_values,
    without_left_out,
)
from headrace.streams.plan.topics import describe_as, partitions_of
from headrace.streams.tasks.lost_offsets import Counted

# The effect of setting offsets of a stopped application, as plain data.
#
# State does not change when an offset is set, so each move has an effect on counted records:
#
#     again      records between the target and the offset are processed a second time
#     left out   records between the offset and the target are never processed
#     unknown    no offset records how far the input was processed
#
# Pure: `InputOffsets` queries the cluster, and `headrace offsets` prints the lines.


Wanted = Mapping[TopicPartition, OffsetTarget]
"""Target position of each partition."""


@dataclass(frozen=True, slots=True)
class Input:
    """Input partition of a task, as found on the cluster.

    Args:
        begin: the offset of the first existing record.
        end: the offset after the last record.
        has_begun: whether the application's internal topics exist.
        outside: the operator that writes its records to an external sink; empty for other inputs.
    """

    task: TaskId
    tp: TopicPartition
    topic_id: str
    committed: CommittedOffset | None
    begin: int
    end: int
    counted: Counted
    has_begun: bool
    outside: str = ""

    @property
    def is_marked(self) -> bool:
        return self.committed is not None and self.committed.metadata.startswith(
            (RESET_MARK, CHANGELOG_MARK)
        )

    @property
    def is_of_another_topic(self) -> bool:
        """Whether the offset belongs to a deleted topic of the same name."""
        if self.committed is None or self.is_marked:
            return False
        before = committed_id(self.tp.topic, OffsetMetadata.decode(self.committed.metadata).values)
        return before is not None and not same_topic(before, self.topic_id)

    @property
    def processed_to(self) -> int | None:
        """Offset after the last processed record; None if it is unknown."""
        if self.is_of_another_topic:
            return self.begin
        if self.committed is None or self.committed.offset > self.end:
            return None
        return self.committed.offset

    def at(self, offset: int) -> CommittedOffset:
        """Keep the offset's metadata: it has the partition time, so windows stay closed.

        Without metadata none is added, because it would look like a task that has run.
        """
        text = "" if self.committed is None else self.committed.metadata
        if (OffsetMetadata.parse(text) or OffsetMetadata()) == OffsetMetadata():
            return CommittedOffset(offset)
        return CommittedOffset(offset, with_topic_id(text, self.tp.topic, self.topic_id))

    @property
    def note(self) -> str:
        if self.is_marked:
            return "a reset, or restore-from-local, is not finished"
        if self.is_of_another_topic:
            return "of a deleted topic; this topic was re-created"
        if self.committed is not None and self.committed.offset > self.end:
            return "beyond the end"
        if self.committed is not None and self.committed.offset < self.begin:
            return "the record there is deleted"
        return ""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Input offsets of an application at a point in time.

    Args:
        missing: inputs that do not exist.
        backfill: the first note of an open backfill.
    """

    group: str
    exactly_once: bool
    members: tuple[Member, ...]
    inputs: Mapping[TopicPartition, Input]
    missing: tuple[str, ...] = ()
    backfill: BackfillNote | None = None

    def chosen(self, topic: str, partitions: Sequence[int] = ()) -> list[TopicPartition]:
        """Return the given partitions of an input, or all if none is given."""
        there = [tp for tp in self.inputs if tp.topic == topic]
        if not there:
            known = sorted({tp.topic for tp in self.inputs})
            raise ConfigError(
                f"{topic} is not an existing input of {self.group}; its inputs are "
                f"{', '.join(known) or 'none'}"
            )
        wanted = [TopicPartition(topic, number) for number in partitions] or there
        beyond = [tp.partition for tp in wanted if tp not in self.inputs]
        if beyond:
            raise ConfigError(
                f"{topic} has the partitions 0 to {len(there) - 1}, and no "
                f"{', '.join(map(str, beyond))}"
            )
        return wanted

    def refuse_changes(self) -> None:
        """Raise if an unfinished reset, changelog restore or backfill owns these offsets."""
        marked = sorted(tp for tp, one in self.inputs.items() if one.is_marked)
        if marked:
            raise ResetRefusedError(
                f"a reset of {self.group}, or headrace changelog restore-from-local, is not "
                f"finished ({marked[0]} is marked); run it again to finish it. Nothing was set"
            )
        if self.backfill is not None:
            raise ResetRefusedError(
                f"backfill {self.backfill.id} of {self.group} is {self.backfill.state}, and sets "
                f"the offsets itself; finish it with `headrace backfill ... --id "
                f"{self.backfill.id}`, or drop it with --drop. Nothing was set"
            )


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """Input partition with a new offset."""

    input: Input
    target: int

    @property
    def again(self) -> tuple[int, int] | None:
        """First and last offset of the records that are processed a second time; None for none."""
        to = self.input.processed_to
        return None if to is None or self.target >= to else (self.target, to - 1)

    @property
    def left_out(self) -> tuple[int, int] | None:
        """First and last offset of the records that are never processed; None for none."""
        to = self.input.processed_to
        if to is None or self.target <= max(to, self.input.begin):
            return None
        return max(to, self.input.begin), self.target - 1

    @property
    def may_repeat(self) -> bool:
        """Whether all records are processed and an unknown part of them for a second time."""
        input_ = self.input
        is_all = input_.begin == self.target < input_.end
        return input_.processed_to is None and is_all and bool(input_.counted) and input_.has_begun

    def __str__(self) -> str:
        input_ = self.input
        before = "none" if input_.committed is None else str(input_.committed.offset)
        note = f" ({input_.note})" if input_.note else ""
        parts = [f"{input_.tp}  {before}{note} -> {self.target}"]
        if self.again and input_.outside:
            parts.append(
                f"{_span(*self.again)} NOT written again, because the sink of {input_.outside} has "
                "its own position: see headrace reset --dry-run"
            )
        elif self.again:
            parts.append(f"{_span(*self.again)} processed again{_where(input_.counted)}")
        if self.left_out:
            parts.append(f"{_span(*self.left_out)} left out")
        if input_.processed_to is None and input_.counted and input_.has_begun:
            parts.append(
                "the offset up to which the state includes its records is unknown: make sure that "
                "it is this offset; the stream time is lost with the old offset, so late records "
                "can open closed windows again"
            )
        return "; ".join(parts)


def _where(counted: Counted) -> str:
    return f", and the task {counted}" if counted else ""


def _span(first: int, last: int) -> str:
    return f"offset {first} is" if first == last else f"offsets {first} to {last} are"


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Plan of offset changes, with the offsets that were found before."""

    group_offsets: GroupOffsets
    moves: tuple[OffsetChange, ...]

    @classmethod
    def of(
        cls, group_offsets: GroupOffsets, wanted: Wanted, since: Mapping[TopicPartition, int]
    ) -> MovePlan:
        """Plan the moves; `since` has the first offset at or after each requested time."""
        unknown = sorted(wanted.keys() - group_offsets.inputs.keys())
        if unknown:
            group_offsets.chosen(unknown[0].topic, [unknown[0].partition])
        moves = []
        for tp, target in wanted.items():
            there = group_offsets.inputs[tp]
            to = {"earliest": there.begin, "latest": there.end, "offset": target.number}
            offset = since[tp] if target.kind == "time" else to[target.kind]
            if not there.begin <= offset <= there.end:
                raise ConfigError(
                    f"{tp} has the offsets {there.begin} to {there.end}, where {there.end} "
                    f"follows its last record, and not {offset}; nothing was set"
                )
            moves.append(OffsetChange(there, offset))
        return cls(group_offsets, tuple(moves))

    @property
    def offsets(self) -> Offsets:
        return {move.input.tp: move.input.at(move.target) for move in self.moves}

    @property
    def left_without(self) -> list[TopicPartition]:
        """Inputs of stateful tasks that still lack an offset, so that a start is refused."""
        moved = {move.input.tp for move in self.moves}
        others = {tp: one for tp, one in self.group_offsets.inputs.items() if tp not in moved}
        lacking = (p for p, one in others.items() if one.processed_to is None)
        return sorted(p for p in lacking if others[p].counted and others[p].has_begun)

    def is_still(self, later: MovePlan) -> bool:
        """Return whether a later plan found the same state, apart from new records in inputs."""
        return self._state() == later._state()

    def _state(self) -> tuple[object, ...]:
        inputs = tuple((m.input.tp, m.input.topic_id, m.input.committed) for m in self.moves)
        return self.group_offsets.members, self.group_offsets.backfill, inputs

    def require_consent(self, *, again: bool, left_out: bool) -> None:
        """Raise if exactly-once would count records twice or skip them without consent."""
        if not self.group_offsets.exactly_once:
            return
        repeated = [str(m.input.tp) for m in self.moves if m.again or m.may_repeat]
        if repeated and not again:
            raise ResetRefusedError(
                f"records of {', '.join(repeated)} would or might be processed a second time, and "
                "results would count them twice. Nothing was set. If that is intended, or the "
                "state does not include them yet, add --process-again; to start with empty state, "
                "run headrace reset"
            )
        passed = [str(move.input.tp) for move in self.moves if move.left_out]
        if passed and not left_out:
            raise ResetRefusedError(
                f"records of {', '.join(passed)} would never be processed. Nothing was set. If "
                "that is intended, add --leave-out"
            )


def lines(plan: MovePlan) -> Iterator[str]:
    yield f"Offsets of the group {plan.group_offsets.group}:"
    for move in plan.moves:
        yield f"  {move}"
    yield "State, internal topics and all other offsets stay as they are."
    if plan.left_without:
        names = ", ".join(map(str, plan.left_without))
        has = "has" if len(plan.left_without) == 1 else "have"
        yield f"{names} still {has} no offset, although the state includes their records."


def listing(group_offsets: GroupOffsets) -> Iterator[str]:
    members = len(group_offsets.members)
    yield f"Group {group_offsets.group}, {members or 'no'} member{'' if members == 1 else 's'}"
    rows = [("task", "partition", "committed", "begin", "end", "left", "")]
    for input_ in sorted(group_offsets.inputs.values(), key=lambda i: (i.task, i.tp)):
        committed = "none" if input_.committed is None else str(input_.committed.offset)
        to = input_.processed_to
        left = "?" if to is None else str(input_.end - max(to, input_.begin))
        tp = str(input_.tp)
        rows.append(
            (str(input_.task), tp, committed, str(input_.begin), str(input_.end), left, input_.note)
        )
    yield from _columns(rows)
    for name in group_offsets.missing:
        yield f"{name} does not exist"
    if group_offsets.backfill is not None:
        yield f"backfill {group_offsets.backfill.id} is {group_offsets.backfill.state}"


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for task, tp, *numbers, note in rows:
        shown = [text.rjust(width) for text, width in zip(numbers, widths[2:], strict=False)]
        cells = [task.ljust(widths[0]), tp.ljust(widths[1]), *shown, note]
        yield "  ".join(cells).rstrip()


_HEADER = ["topic", "partition", "offset"]


def read_offsets(text: Iterable[str]) -> dict[TopicPartition, OffsetTarget]:
    """Parse lines ``topic,partition,offset``, with an optional header line of these names.

    >>> read_offsets(["lines,0,1500"])
    {TopicPartition(topic='lines', partition=0): OffsetTarget(kind='offset', number=1500)}
    """
    targets: dict[TopicPartition, OffsetTarget] = {}
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        parts = [part.strip().strip('"') for part in line.split(",")]
        if number == 1 and [part.lower() for part in parts] == _HEADER:
            continue
        if len(parts) != 3 or not (_is_number(parts[1]) and _is_number(parts[2])):
            raise ConfigError(
                f"line {number} is not topic,partition,offset, such as lines,0,1500; nothing was "
                "set"
            )
        tp = TopicPartition(parts[0], int(parts[1]))
        if tp in targets:
            raise ConfigError(
                f"line {number} names {tp} a second time; nothing was set: remove either line"
            )
        targets[tp] = OffsetTarget("offset", int(parts[2]))
    return targets


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


class InputOffsets:
    """Input offsets of an application on its cluster."""

    def __init__(
        self,
        application_id: str,
        plans: Sequence[SubPlan],
        cluster: GroupAdminClient,
        *,
        exactly_once: bool,
    ) -> None:
        self._group = application_id
        self.plans = plans
        self._cluster = cluster
        self._exactly_once = exactly_once

    def read(self) -> GroupOffsets:
        """Read the offsets; raise ResetRefusedError if a dead worker's transaction stays open."""
        members = self._cluster.members(self._group)
        # Running workers always have open transactions; nothing can be set then anyway.
        committed = self._cluster.committed(self._group, decided=not members)
        names = [name for plan in self.plans for name in plan.topics.all_sources]
        own_topics = [name for plan in self.plans for name in _own_topics(plan)]
        descriptions = describe_as(self._cluster, dict.fromkeys([*names, *own_topics]))
        tps = partitions_of(names, descriptions)
        begins = self._cluster.start_offsets(tps) if tps else {}
        ends = self._cluster.end_offsets(tps) if tps else {}
        has_begun = any(name in descriptions for name in own_topics)
        inputs = {
            tp: Input(
                task=TaskId(plan.id, tp.partition),
                tp=tp,
                topic_id=descriptions[tp.topic].topic_id,
                committed=committed.get(tp),
                begin=begins[tp],
                end=ends[tp],
                counted=Counted.by(plan, self.plans),
                has_begun=has_begun,
                outside=plan.sink_node.name if plan.sink_node is not None else "",
            )
            for plan in self.plans
            for tp in tps
            if tp.topic in plan.topics.all_sources
        }
        return GroupOffsets(
            group=self._group,
            exactly_once=self._exactly_once,
            members=members,
            inputs=inputs,
            missing=tuple(name for name in names if name not in descriptions),
            backfill=open_note(self._group, self._cluster),
        )

    def plan(self, choose: Callable[[GroupOffsets], Wanted]) -> MovePlan:
        """Plan changes to the targets that `choose` returns; nothing is changed."""
        group_offsets = self.read()
        wanted = choose(group_offsets)
        times = {target for target in wanted.values() if target.kind == "time"}
        since: dict[TopicPartition, int] = {}
        for time in times:
            tps = [tp for tp, target in wanted.items() if target == time]
            since.update(self._cluster.offsets_for(time, tps))
        return MovePlan.of(group_offsets, wanted, since)

    def carry_out(self, plan: MovePlan, plan_again: Callable[[], MovePlan]) -> None:
        """Set the offsets of a confirmed plan; `plan_again` plans again, to detect changes."""
        later = plan_again()
        refuse_members(self._group, later.group_offsets.members)
        later.group_offsets.refuse_changes()
        if not plan.is_still(later):
            raise changed_since(self._group, nothing_was="set")
        self.commit(plan.offsets)

    def commit(self, offsets: Offsets) -> None:
        """Commit without members; raise ResetRefusedError if a worker has overwritten offsets."""
        set_offsets(self._cluster, self._group, offsets, when="while they were set")


def _own_topics(plan: SubPlan) -> list[str]:
    return [
        *(topic.name for topic in plan.topics.changelogs),
        *(topic.name for topic in plan.topics.repartition_sources),
    ]


# Skip of a record that an application cannot process, while the application is stopped.
#
# If the group's offset is the record's, it is set to the next offset. If it is smaller, because
# other records of the batch precede it, the offset stays, and the record's offset is added to the
# offset metadata: the task that reads the partition skips exactly that record.


@dataclass(frozen=True, slots=True)
class SkipPlan:
    """Plan of the commit that skips a record.

    Args:
        next_offset: the offset of the next record that the group would read.
    """

    group_offsets: GroupOffsets
    input: Input
    offset: int
    next_offset: int

    @property
    def is_next(self) -> bool:
        return self.next_offset == self.offset

    @property
    def committed(self) -> CommittedOffset:
        before = self.input.committed
        assert before is not None, "refused by `plan_skip`"
        if self.is_next:
            return self.input.at(self.offset + 1)
        progress = OffsetMetadata.decode(before.metadata)
        offsets = {*left_out(progress.values), self.offset}
        values = {**without_left_out(progress.values), **left_out_values(offsets)}
        text = OffsetMetadata(progress.partition_time, values).encode()
        return CommittedOffset(
            before.offset, with_topic_id(text, self.input.tp.topic, self.input.topic_id)
        )

    def __str__(self) -> str:
        before = self.input.committed
        assert before is not None, "refused by `plan_skip`"
        if self.is_next:
            return f"{self.input.tp}  {before.offset} -> {self.offset + 1}"
        return (
            f"{self.input.tp}  {before.offset}, and {self.offset} is skipped when it is "
            "reached: the records before it are processed first"
        )


def plan_skip(
    work: InputOffsets,
    tp: TopicPartition,
    offset: int,
    first_from: Callable[[TopicPartition, int], int | None],
) -> SkipPlan:
    """Plan the skip; `first_from` returns the first record at or after an offset."""
    group_offsets = work.read()
    group_offsets.chosen(tp.topic, [tp.partition])
    there = group_offsets.inputs[tp]
    group_offsets.refuse_changes()
    reached = there.processed_to
    if there.committed is None or reached is None:
        note = f" ({there.note})" if there.note else ""
        raise ResetRefusedError(
            f"the group {group_offsets.group} has no usable offset of {tp}{note}; set it with "
            f"headrace offsets set --topic {tp.topic} --partition {tp.partition} (with --to "
            "beginning --process-again if the application has committed nothing yet), and then "
            "skip the record. Nothing was set"
        )
    if offset < max(reached, there.begin):
        raise ResetRefusedError(
            f"the group {group_offsets.group} has already passed offset {offset} of {tp}: its "
            f"offset is {reached}. Nothing was set"
        )
    if offset in left_out(OffsetMetadata.decode(there.committed.metadata).values):
        raise ResetRefusedError(f"offset {offset} of {tp} is already marked to be skipped")
    first = first_from(tp, offset)
    if first != offset:
        instead = "no later record exists" if first is None else f"the next record is at {first}"
        raise ConfigError(f"{tp} has no record at offset {offset}, and {instead}; nothing was set")
    next_offset = first_from(tp, max(there.committed.offset, there.begin))
    assert next_offset is not None, "there is a record at the offset"
    plan = SkipPlan(group_offsets, there, offset, next_offset)
    _require_space(plan)
    return plan


def _require_space(plan: SkipPlan) -> None:
    try:
        metadata = plan.committed.metadata
        few = len(left_out(OffsetMetadata.decode(metadata).values)) <= AT_ONCE_MAX
    except ValueError:
        few = False
    if not few:
        raise ResetRefusedError(
            f"the offset metadata of {plan.input.tp} cannot hold more records to skip; start "
            "the application, so that it skips the marked records, and try again. Nothing was set"
        )


def carry_out_skip(work: InputOffsets, plan: SkipPlan, later: SkipPlan) -> None:
    """Commit a confirmed plan if `later`, which was planned again, is the same."""
    refuse_members(plan.group_offsets.group, later.group_offsets.members)
    if (plan.committed, plan.input.committed) != (later.committed, later.input.committed):
        raise ResetRefusedError(
            f"the offset of {plan.input.tp} has changed since the plan was made; nothing was "
            "set: check the new plan and try again"
        )
    work.commit({plan.input.tp: plan.committed})
