"""Skip of a record that an application cannot process, while the application is stopped.

If the group's offset is the record's, it is set to the next offset. If it is smaller, because other
records of the batch precede it, the offset stays, and the record's offset is added to the offset
metadata: the task that reads the partition skips exactly that record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.streams.admin.offsets import GroupOffsets, Input, InputOffsets
from headrace.streams.admin.reset import refuse_members
from headrace.streams.errors import ConfigError, ResetRefusedError
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.plan.progress import (
    AT_ONCE_MAX,
    OffsetMetadata,
    left_out,
    left_out_values,
    with_topic_id,
    without_left_out,
)


@dataclass(frozen=True, slots=True)
class SkipPlan:
    """Plan of the commit that skips a record.

    Args:
        next_offset: the offset of the next record that the group would read.
    """

    found: GroupOffsets
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
            before.offset, with_topic_id(text, self.input.place.topic, self.input.topic_id)
        )

    def __str__(self) -> str:
        before = self.input.committed
        assert before is not None, "refused by `plan_skip`"
        if self.is_next:
            return f"{self.input.place}  {before.offset} -> {self.offset + 1}"
        return (
            f"{self.input.place}  {before.offset}, and {self.offset} is left out when its turn "
            "comes: the records before it are not processed yet, and will be"
        )


def plan_skip(
    work: InputOffsets,
    tp: TopicPartition,
    offset: int,
    first_from: Callable[[TopicPartition, int], int | None],
) -> SkipPlan:
    """Plan the skip; `first_from` returns the first record at or after an offset."""
    found = work.look()
    found.chosen(tp.topic, [tp.partition])
    there = found.inputs[tp]
    found.refuse_changes()
    reached = there.processed_to
    if there.committed is None or reached is None:
        note = f" ({there.note})" if there.note else ""
        raise ResetRefusedError(
            f"the group {found.group} has no offset of {tp} that is of use{note}; set it with "
            f"headrace offsets set --topic {tp.topic} --partition {tp.partition}, and then "
            "leave the record out: --to beginning --process-again where the application has "
            "committed nothing yet. Nothing was set"
        )
    if offset < max(reached, there.begin):
        raise ResetRefusedError(
            f"the group {found.group} is past offset {offset} of {tp} already: it stands at "
            f"{reached}. Nothing was set"
        )
    if offset in left_out(OffsetMetadata.decode(there.committed.metadata).values):
        raise ResetRefusedError(f"offset {offset} of {tp} is to be left out already")
    first = first_from(tp, offset)
    if first != offset:
        instead = "none behind it" if first is None else f"the next one at {first}"
        raise ConfigError(f"{tp} has no record at offset {offset}, and {instead}; nothing was set")
    next_offset = first_from(tp, max(there.committed.offset, there.begin))
    assert next_offset is not None, "there is a record at the offset"
    plan = SkipPlan(found, there, offset, next_offset)
    _require_room(plan)
    return plan


def _require_room(plan: SkipPlan) -> None:
    try:
        metadata = plan.committed.metadata
        few = len(left_out(OffsetMetadata.decode(metadata).values)) <= AT_ONCE_MAX
    except ValueError:
        few = False
    if not few:
        raise ResetRefusedError(
            f"so many records of {plan.input.place} are to be left out that their numbers find no "
            "more room beside the offset; start the application first, which passes those. "
            "Nothing was set"
        )


def carry_out(work: InputOffsets, plan: SkipPlan, later: SkipPlan) -> None:
    """Commit a confirmed plan if `later`, which was planned again, is the same."""
    refuse_members(plan.found.group, later.found.members)
    if (plan.committed, plan.input.committed) != (later.committed, later.input.committed):
        raise ResetRefusedError(
            f"the offset of {plan.input.place} has changed since the plan was made; nothing was "
            "set: look at the new plan and try again"
        )
    work.commit({plan.input.place: plan.committed})
