"""Looks at the offsets of an application's inputs, and sets them while nobody runs it.

The order makes it safe: whatever transaction a killed worker left is decided first, so that it
cannot put its offsets over the new ones; the broker refuses the commit while the group has a
member; and what was committed is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from headrace.streams.admin.backfill_gate import BackfillNote, open_note
from headrace.streams.admin.reset import refuse_members
from headrace.streams.errors import ConfigError, ResetRefusedError
from headrace.streams.kafka.access_errors import GroupDeniedError
from headrace.streams.kafka.offset_texts import without_mark
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    Member,
    Offsets,
    Target,
    TopicFacts,
    TopicPartition,
)
from headrace.streams.plan.deployed import Groups
from headrace.streams.plan.plan import SubPlan, TaskId
from headrace.streams.plan.progress import CHANGELOG_MARK, RESET_MARK, OffsetMetadata, with_topic_id
from headrace.streams.plan.topic_identity import committed_id, same_topic
from headrace.streams.plan.topics import describe_as
from headrace.streams.tasks.lost_offsets import Counted

# What it means to set the offsets of a stopped application, as plain data.
#
# State stays as it is when an offset is set, so each move says what follows for what is counted:
#
#     again      records between the target and the offset were processed, and will be once more
#     left out   records between the offset and the target never are
#     unknown    no offset says how far the records were processed
#
# Pure: the cluster is asked by `headrace.streams.admin.offsets`, and the lines are what
# `headrace offsets` prints.


Wanted = Mapping[TopicPartition, Target]
"""Where partitions are to be set to."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input partition of a task, as the cluster has it.

    Args:
        begin: the offset of the first record that is there.
        end: the offset behind the last one.
        has_begun: whether the application has made what it counts in.
        outside: the step that writes its records to a table outside of Kafka; empty for others.
    """

    task: TaskId
    place: TopicPartition
    topic_id: str
    committed: CommittedOffset | None
    begin: int
    end: int
    counted: Counted
    has_begun: bool
    outside: str = ""

    @property
    def is_marked(self) -> bool:
        """Whether something else is half done that sets the offset."""
        return self.committed is not None and self.committed.metadata.startswith(
            (RESET_MARK, CHANGELOG_MARK)
        )

    @property
    def is_of_another_topic(self) -> bool:
        """Whether the offset is of a topic of that name that was deleted."""
        if self.committed is None or self.is_marked:
            return False
        before = committed_id(
            self.place.topic, OffsetMetadata.decode(self.committed.metadata).values
        )
        return before is not None and not same_topic(before, self.topic_id)

    @property
    def processed_to(self) -> int | None:
        """The offset behind the last one that was processed; None where nothing says it."""
        if self.is_of_another_topic:
            return self.begin
        if self.committed is None or self.committed.offset > self.end:
            return None
        return self.committed.offset

    def at(self, offset: int) -> CommittedOffset:
        """What to commit to begin there: what stood beside the offset goes along.

        So windows keep the times that they have reached. Where nothing stood there nothing is
        put, as that would look like a task that has run.
        """
        text = "" if self.committed is None else self.committed.metadata
        if (OffsetMetadata.parse(text) or OffsetMetadata()) == OffsetMetadata():
            return CommittedOffset(offset)
        return CommittedOffset(offset, with_topic_id(text, self.place.topic, self.topic_id))

    @property
    def note(self) -> str:
        """What a reader of the offset should know; empty where there is nothing."""
        if self.is_marked:
            return "a reset, or restore-from-local, is not finished"
        if self.is_of_another_topic:
            return "of a topic that was deleted; this one was made anew"
        if self.committed is not None and self.committed.offset > self.end:
            return "beyond the end"
        if self.committed is not None and self.committed.offset < self.begin:
            return "the record there is deleted"
        return ""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The offsets of an application's inputs at one moment.

    Args:
        exactly_once: whether its records may count once only.
        missing: topics that it reads and that do not exist.
        backfill: the first note of the backfill that is open.
    """

    group: str
    exactly_once: bool
    members: tuple[Member, ...]
    inputs: Mapping[TopicPartition, Input]
    missing: tuple[str, ...] = ()
    backfill: BackfillNote | None = None

    def chosen(self, topic: str, partitions: Sequence[int] = ()) -> list[TopicPartition]:
        """The partitions of an input.

        Args:
            partitions: some of them; none stands for all.

        Raises:
            ConfigError: the application does not read it.
        """
        there = [place for place in self.inputs if place.topic == topic]
        if not there:
            known = sorted({place.topic for place in self.inputs})
            raise ConfigError(
                f"{topic} is no input of {self.group} that exists; these are "
                f"{', '.join(known) or 'none'}"
            )
        wanted = [TopicPartition(topic, number) for number in partitions] or there
        beyond = [place.partition for place in wanted if place not in self.inputs]
        if beyond:
            raise ConfigError(
                f"{topic} has the partitions 0 to {len(there) - 1}, and no "
                f"{', '.join(map(str, beyond))}"
            )
        return wanted

    def refuse_changes(self) -> None:
        """See that nothing else is under way with these offsets.

        Raises:
            ResetRefusedError: something is.
        """
        marked = sorted(place for place, found in self.inputs.items() if found.is_marked)
        if marked:
            raise ResetRefusedError(
                f"a reset of {self.group}, or headrace changelog restore-from-local, was begun and "
                f"not finished, as {marked[0]} says; run it again, which finishes it. Nothing was "
                "set"
            )
        if self.backfill is not None:
            raise ResetRefusedError(
                f"backfill {self.backfill.id} of {self.group} is {self.backfill.state}, and sets "
                f"the offsets itself; finish it with `headrace backfill ... --id "
                f"{self.backfill.id}`, or drop it with --drop. Nothing was set"
            )


@dataclass(frozen=True, slots=True)
class Move:
    """An input partition, and where its offset goes."""

    input: Input
    target: int

    @property
    def again(self) -> tuple[int, int] | None:
        """The first and the last offset of what is processed once more."""
        to = self.input.processed_to
        return None if to is None or self.target >= to else (self.target, to - 1)

    @property
    def left_out(self) -> tuple[int, int] | None:
        """The first and the last offset of what is never processed."""
        to = self.input.processed_to
        if to is None or self.target <= max(to, self.input.begin):
            return None
        return max(to, self.input.begin), self.target - 1

    @property
    def may_repeat(self) -> bool:
        """Whether all that is there is processed, and nobody knows of how much it is again."""
        found = self.input
        is_all = found.begin == self.target < found.end
        return found.processed_to is None and is_all and bool(found.counted) and found.has_begun

    def __str__(self) -> str:
        found = self.input
        before = "none" if found.committed is None else str(found.committed.offset)
        note = f" ({found.note})" if found.note else ""
        says = [f"{found.place}  {before}{note} -> {self.target}"]
        if self.again and found.outside:
            says.append(
                f"{_span(*self.again)} NOT written again, as the table of step {found.outside} has "
                "a position of its own: see headrace reset --dry-run"
            )
        elif self.again:
            says.append(f"{_span(*self.again)} processed again{_where(found.counted)}")
        if self.left_out:
            says.append(f"{_span(*self.left_out)} left out")
        if found.processed_to is None and found.counted and found.has_begun:
            says.append(
                "nothing says how far its records are counted: see that it is up to here, "
                "and no further; the times that windows had reached are gone with the old offset: "
                "records too late for those that were closed open them again"
            )
        return "; ".join(says)


def _where(counted: Counted) -> str:
    return f", and the task {counted}" if counted else ""


def _span(first: int, last: int) -> str:
    return f"offset {first} is" if first == last else f"offsets {first} to {last} are"


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Offsets that are to be set, and what was found before."""

    found: GroupOffsets
    moves: tuple[Move, ...]

    @classmethod
    def of(
        cls, found: GroupOffsets, wanted: Wanted, since: Mapping[TopicPartition, int]
    ) -> MovePlan:
        """Plan the moves.

        Args:
            since: the first offset of those that are wanted from a time on.

        Raises:
            ConfigError: an offset is not in its partition, or the partition is none.
        """
        unknown = sorted(wanted.keys() - found.inputs.keys())
        if unknown:
            found.chosen(unknown[0].topic, [unknown[0].partition])
        moves = []
        for place, target in wanted.items():
            there = found.inputs[place]
            to = {"earliest": there.begin, "latest": there.end, "offset": target.number}
            offset = since[place] if target.kind == "time" else to[target.kind]
            if not there.begin <= offset <= there.end:
                raise ConfigError(
                    f"{place} has the offsets {there.begin} to {there.end}, where {there.end} is "
                    f"behind its last record, and no {offset}; nothing was set"
                )
            moves.append(Move(there, offset))
        return cls(found, tuple(moves))

    @property
    def offsets(self) -> Offsets:
        """What is committed."""
        return {move.input.place: move.input.at(move.target) for move in self.moves}

    @property
    def left_without(self) -> list[TopicPartition]:
        """Inputs of tasks with state that have no offset even then: a start is refused."""
        moved = {move.input.place for move in self.moves}
        others = {place: one for place, one in self.found.inputs.items() if place not in moved}
        lacking = (p for p, one in others.items() if one.processed_to is None)
        return sorted(p for p in lacking if others[p].counted and others[p].has_begun)

    def is_still(self, later: MovePlan) -> bool:
        """Whether a later look finds the same, apart from inputs that have grown meanwhile."""
        return self._found() == later._found()

    def _found(self) -> tuple[object, ...]:
        inputs = tuple((m.input.place, m.input.topic_id, m.input.committed) for m in self.moves)
        return self.found.members, self.found.backfill, inputs

    def refuse_unasked(self, *, again: bool, left_out: bool) -> None:
        """See that nothing is counted twice or never under exactly-once, unless that is meant.

        Args:
            again: somebody asks for records to be processed again.
            left_out: somebody asks for records to be left out.

        Raises:
            ResetRefusedError: something would be.
        """
        if not self.found.exactly_once:
            return
        repeated = [str(m.input.place) for m in self.moves if m.again or m.may_repeat]
        if repeated and not again:
            raise ResetRefusedError(
                f"records of {', '.join(repeated)} would be processed again on top of what they "
                "have done already, or may have: results would count them twice. Nothing was set. "
                "If that is meant, or none of them is counted yet, say --process-again; headrace "
                "reset begins anew with empty state"
            )
        passed = [str(move.input.place) for move in self.moves if move.left_out]
        if passed and not left_out:
            raise ResetRefusedError(
                f"records of {', '.join(passed)} would never be processed. Nothing was set. If "
                "that is meant, say --leave-out"
            )


def lines(plan: MovePlan) -> Iterator[str]:
    """Say what would be set."""
    yield f"Offsets of the group {plan.found.group}:"
    for move in plan.moves:
        yield f"  {move}"
    yield "State, internal topics and all other offsets stay as they are."
    if plan.left_without:
        names = ", ".join(map(str, plan.left_without))
        yield f"Without an offset, though their records are counted, stay {names}."


def listing(found: GroupOffsets) -> Iterator[str]:
    """Say where the inputs stand."""
    members = len(found.members)
    yield f"Group {found.group}, {members or 'no'} member{'' if members == 1 else 's'}"
    rows = [("task", "partition", "committed", "begin", "end", "left", "")]
    for one in sorted(found.inputs.values(), key=lambda i: (i.task, i.place)):
        committed = "none" if one.committed is None else str(one.committed.offset)
        to = one.processed_to
        left = "?" if to is None else str(one.end - max(to, one.begin))
        place = str(one.place)
        rows.append((str(one.task), place, committed, str(one.begin), str(one.end), left, one.note))
    yield from _columns(rows)
    for name in found.missing:
        yield f"{name} does not exist"
    if found.backfill is not None:
        yield f"backfill {found.backfill.id} is {found.backfill.state}"


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for task, place, *numbers, note in rows:
        shown = [text.rjust(width) for text, width in zip(numbers, widths[2:], strict=False)]
        cells = [task.ljust(widths[0]), place.ljust(widths[1]), *shown, note]
        yield "  ".join(cells).rstrip()


_HEADER = ["topic", "partition", "offset"]


def read_offsets(text: Iterable[str]) -> dict[TopicPartition, Target]:
    """Read lines ``topic,partition,offset``; the first may be these three words.

    Raises:
        ConfigError: a line is none; the message has its number.

    Example:
        >>> read_offsets(["lines,0,1500"])
        {TopicPartition(topic='lines', partition=0): Target(kind='offset', number=1500)}
    """
    found: dict[TopicPartition, Target] = {}
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
        place = TopicPartition(parts[0], int(parts[1]))
        if place in found:
            raise ConfigError(
                f"line {number} names {place} a second time; nothing was set: leave one of them"
            )
        found[place] = Target("offset", int(parts[2]))
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


class OffsetsCluster(Groups, Protocol):
    """What is asked of a cluster."""

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """The facts of those topics that exist."""

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the first record that is still there."""

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind the last record."""

    def offsets_for(
        self, target: Target, places: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Where a target is in each partition."""


class InputOffsets:
    """The offsets of one application.

    Args:
        exactly_once: whether its records may count once only.
    """

    def __init__(
        self,
        application_id: str,
        plans: Sequence[SubPlan],
        cluster: OffsetsCluster,
        *,
        exactly_once: bool,
    ) -> None:
        self._group = application_id
        self.plans = plans
        self._cluster = cluster
        self._exactly_once = exactly_once

    def look(self) -> GroupOffsets:
        """Find out where its inputs stand; nothing is changed.

        Raises:
            ResetRefusedError: a transaction of a worker that is gone stayed open.
        """
        members = self._cluster.members(self._group)
        # While workers run there is always something undecided, and nothing will be set.
        committed = self._cluster.committed(self._group, decided=not members)
        names = [name for plan in self.plans for name in plan.topics.all_sources]
        own = [name for plan in self.plans for name in _own_topics(plan)]
        facts = describe_as(self._cluster, dict.fromkeys([*names, *own]))
        places = [
            TopicPartition(name, partition)
            for name in names
            for partition in range(facts[name].partitions if name in facts else 0)
        ]
        begins = self._cluster.start_offsets(places) if places else {}
        ends = self._cluster.end_offsets(places) if places else {}
        has_begun = any(name in facts for name in own)
        inputs = {
            place: Input(
                task=TaskId(plan.id, place.partition),
                place=place,
                topic_id=facts[place.topic].topic_id,
                committed=committed.get(place),
                begin=begins[place],
                end=ends[place],
                counted=Counted.by(plan, self.plans),
                has_begun=has_begun,
                outside=plan.outside.name if plan.outside is not None else "",
            )
            for plan in self.plans
            for place in places
            if place.topic in plan.topics.all_sources
        }
        return GroupOffsets(
            group=self._group,
            exactly_once=self._exactly_once,
            members=members,
            inputs=inputs,
            missing=tuple(name for name in names if name not in facts),
            backfill=self._open_backfill(),
        )

    def _open_backfill(self) -> BackfillNote | None:
        with suppress(GroupDeniedError):  # then there is none: who hands over writes there
            return open_note(self._group, self._cluster)
        return None

    def plan(self, choose: Callable[[GroupOffsets], Wanted]) -> MovePlan:
        """Find out what is to be set; nothing is changed.

        Args:
            choose: says what is wanted of what is there.

        Raises:
            ConfigError: what is wanted is not there.
            ResetRefusedError: a transaction of a worker that is gone stayed open.
        """
        found = self.look()
        wanted = choose(found)
        times = {target for target in wanted.values() if target.kind == "time"}
        since: dict[TopicPartition, int] = {}
        for time in times:
            places = [place for place, target in wanted.items() if target == time]
            since.update(self._cluster.offsets_for(time, places))
        return MovePlan.of(found, wanted, since)

    def carry_out(self, plan: MovePlan, look_again: Callable[[], MovePlan]) -> None:
        """Set the offsets.

        Args:
            plan: what was shown and agreed to.
            look_again: makes the plan anew, to see that nothing has changed.

        Raises:
            ResetRefusedError: the application runs, or something else changed.
        """
        later = look_again()
        refuse_members(self._group, later.found.members)
        later.found.refuse_changes()
        if not plan.is_still(later):
            raise ResetRefusedError(
                f"offsets, members or topics of {self._group} have changed since the plan was "
                "made; nothing was set: look at the new plan and try again"
            )
        self.commit(plan.offsets)

    def commit(self, offsets: Offsets) -> None:
        """Commit offsets of a group without members, and see that they stay.

        Raises:
            ResetRefusedError: a worker commits, too.
        """
        self._cluster.set_offsets(self._group, offsets)
        over = without_mark(offsets, self._cluster.committed(self._group, decided=True))
        if over:
            raise ResetRefusedError(
                f"a worker committed offsets of {', '.join(over)} while they were set; stop all "
                "workers and run it again"
            )


def _own_topics(plan: SubPlan) -> list[str]:
    return [
        *(topic.name for topic in plan.topics.changelogs),
        *(topic.name for topic in plan.topics.repartition_sources),
    ]
