"""Looks at the offsets of an application's inputs, and sets them while nobody runs it.

The order makes it safe: whatever transaction a killed worker left is decided first, so that it
cannot put its offsets over the new ones; the broker refuses the commit while the group has a
member; and what was committed is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from headrace.streams.contact.access_errors import GroupDeniedError
from headrace.streams.deployed.deployed import Groups
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.task_spec import TaskId
from headrace.streams.plan.topics import describe_as
from headrace.streams.seams.clients import Offsets, TopicPartition
from headrace.streams.seams.group_facts import Target
from headrace.streams.seams.offset_texts import without_mark
from headrace.streams.seams.topic_facts import TopicFacts
from headrace.streams.start_errors import ResetRefusedError
from headrace.streams.tasks.lost_offsets import Counted
from headrace.streams.upgrade.backfill_gate import BackfillNote, open_note
from headrace.streams.upgrade.offset_moves import GroupOffsets, Input, MovePlan, Wanted
from headrace.streams.upgrade.reset import refuse_members


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
