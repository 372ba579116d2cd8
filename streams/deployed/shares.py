"""Which task a partition stands for that the group gives to a worker.

The group gives out the partitions of lead topics, one topic a sub-topology. librdkafka takes those
that are to move by the names of their topics, so a second worker would get all tasks of one
sub-topology and the first keep all of the other: one splits, the other counts, and one of the two
waits. No setting of an assignor changes that, and there is none of one's own. So a partition stands
for the task of the same number in this or another sub-topology, in such a turn that neighbours
differ: by the sum of the number's digits, to the base of how many sub-topologies there are.

    given     in-0   in-1   in-2   in-3   words-0  words-1  words-2  words-3
    task of   in-0   words-1 words-2 in-3  words-0  in-1     in-2     words-3

All workers of a group must go by the same shares, or two would have one task. So what the first one
went by is kept with what is deployed, and stays: see docs/decisions/0007-shares.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from headrace.streams.seams.clients import TopicPartition

Family = tuple[tuple[str, int], ...]
"""Lead topics that share their partitions among them, in order, and how many each had."""


@dataclass(frozen=True, slots=True)
class Shares:
    """See the module.

    Args:
        families: the lead topics that share; a partition of any other stands for its own task.

    Example:
        >>> shares = Shares.of({"in": 4, "words": 4})
        >>> here = [TopicPartition("in", p) for p in range(3)]
        >>> [str(task) for task in shares.tasks(here, {"in", "words"})]
        ['in-0', 'words-1', 'words-2']
    """

    families: tuple[Family, ...] = ()

    @classmethod
    def of(cls, leads: Mapping[str, int]) -> Self:
        """The shares of lead topics with so many partitions."""
        return cls().extended(leads)

    def extended(self, leads: Mapping[str, int]) -> Self:
        """The same with a family of those lead topics that are new; nobody knows them yet."""
        known = self.partitions
        new = tuple(sorted((name, n) for name, n in leads.items() if name not in known))
        return type(self)((*self.families, new)) if new else self

    @property
    def partitions(self) -> dict[str, int]:
        """How many partitions of each lead topic are shared."""
        return dict(lead for family in self.families for lead in family)

    def tasks(
        self, given: Iterable[TopicPartition], leads: Collection[str]
    ) -> list[TopicPartition]:
        """The partitions of lead topics whose tasks are a worker's.

        Args:
            given: what the group has given to it.
            leads: the lead topics of its topology; what stands for a task of any other, as an
                older or newer version has it, stands for nothing.
        """
        tasks = map(self._task, given)
        return [place for place in tasks if place.topic in leads]

    def _task(self, given: TopicPartition) -> TopicPartition:
        topic, partition = given
        for family in self.families:
            row = [name for name, count in family if count > partition]
            if topic in row:
                turn = row.index(topic) + _digit_sum(partition, len(row))
                return TopicPartition(row[turn % len(row)], partition)
        return given


UNSHARED = Shares()
"""Each partition stands for its own task."""


def _digit_sum(number: int, base: int) -> int:
    """The sum of a number's digits.

    >>> [_digit_sum(number, 2) for number in range(8)], _digit_sum(5, 1)
    ([0, 1, 1, 2, 1, 2, 2, 3], 0)
    """
    total = 0
    while number and base > 1:
        number, digit = divmod(number, base)
        total += digit
    return total
