"""What a reset would do, as plain data: the offsets, the topics and the directories it concerns.

Pure: the cluster is asked by `headrace.streams.upgrade.reset`, and `lines` is what `headrace reset`
prints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from headrace.streams.errors import ConfigError
from headrace.streams.plan.left_out import left_out
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.progress import CHANGELOG_MARK, RESET_MARK, Progress
from headrace.streams.seams.clients import CommittedOffset, Offsets, TopicPartition
from headrace.streams.seams.group_facts import Member
from headrace.streams.upgrade.backfill_gate import BackfillNote
from headrace.streams.upgrade.outside_tables import OutsideTable, table_lines

_INTERNAL = re.compile(
    r".*(-changelog|-repartition|-subscription-registration-topic|-subscription-response-topic"
    r"|-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-[0-9]{10}-topic)"
)
"""What topics are called that applications make for themselves, Kafka Streams' as well."""

_JSON = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Move:
    """An input partition: its committed offset, and where it goes; None for no offset."""

    place: TopicPartition
    committed: int | None
    target: int | None
    skipped: tuple[int, ...] = field(default=(), compare=False)
    """Offsets that `headrace skip` has left out and that were not reached yet."""

    @property
    def mark(self) -> CommittedOffset:
        """What is committed while the reset is on its way; `committed` survives in it."""
        assert self.target is not None
        text = f"{RESET_MARK} {json.dumps({'was': self.committed})}"
        return CommittedOffset(self.target, text)


@dataclass(frozen=True, slots=True)
class ApplicationTopics:
    """The topics of an application by what a reset does to them.

    Args:
        inputs: read, and not its own; their offsets are set.
        repartitions: its own, between its sub-topologies; deleted.
        changelogs: its own, behind its stores; deleted.
        others: read or written by it; never deleted, whatever they are called.
        also_written: inputs that it writes itself.
    """

    inputs: tuple[str, ...]
    repartitions: tuple[str, ...]
    changelogs: tuple[str, ...]
    others: frozenset[str]
    also_written: tuple[str, ...] = ()

    @classmethod
    def of(cls, plans: Sequence[SubPlan], global_topics: Iterable[str] = ()) -> ApplicationTopics:
        """Collect them from the application's sub-topologies and global tables."""
        topics = [plan.topics for plan in plans]
        repartitions = _each(topic.name for subs in topics for topic in subs.repartition_sources)
        changelogs = _each(topic.name for subs in topics for topic in subs.changelogs)
        own = {*repartitions, *changelogs}
        sources = _each(name for subs in topics for name in subs.sources)
        sinks = {name for plan in plans for name in plan.sinks}
        inputs = tuple(name for name in sources if name not in own)
        return cls(
            inputs=inputs,
            repartitions=repartitions,
            changelogs=changelogs,
            others=frozenset(sources) | sinks | frozenset(global_topics),
            also_written=tuple(name for name in inputs if name in sinks),
        )

    @property
    def internal(self) -> tuple[str, ...]:
        """What is deleted."""
        return self.repartitions + self.changelogs

    def leftovers(self, application_id: str, names: Iterable[str]) -> tuple[str, ...]:
        """Topics that are called like internal ones of the application, and are none of these."""
        known = {*self.internal, *self.others}
        return tuple(
            name
            for name in sorted(names)
            if name.startswith(f"{application_id}-")
            and _INTERNAL.fullmatch(name)
            and name not in known
        )

    def chosen(self, wanted: Sequence[str]) -> frozenset[str]:
        """The inputs that are to be set: those that are wanted, or all.

        Raises:
            ConfigError: one of them is no input.
        """
        unknown = [name for name in wanted if name not in self.inputs]
        if unknown:
            raise ConfigError(
                f"--topic {', '.join(unknown)}: the application does not read it; its inputs "
                f"are {', '.join(self.inputs)}"
            )
        return frozenset(wanted or self.inputs)


def _each(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What is to be done, as it was found at one moment.

    Args:
        members: of the group; while there is one, nothing is done.
        repartitions: partitions of repartition topics, whose offsets end with the topics.
        leftovers: topics that may have been the application's.
        deletes_leftovers: whether those are deleted too.
        missing: inputs that do not exist.
        directories: of local state on this host.
        unfinished: whether an earlier reset did not come to its end.
        backfill: the first note of the backfill that is open; while one is, nothing is done.
        tables: outside of Kafka; what becomes of them is said, and nothing is done.
        read_as_tables: inputs that go to the beginning in any case.
        also_written: inputs that the application writes itself.
    """

    group: str
    members: tuple[Member, ...]
    moves: tuple[Move, ...]
    repartitions: tuple[TopicPartition, ...]
    internal: tuple[str, ...]
    leftovers: tuple[str, ...]
    deletes_leftovers: bool
    missing: tuple[str, ...]
    directories: tuple[Path, ...]
    unfinished: bool
    backfill: BackfillNote | None = None
    tables: tuple[OutsideTable, ...] = ()
    read_as_tables: frozenset[str] = frozenset()
    also_written: tuple[str, ...] = ()

    @property
    def doomed(self) -> tuple[str, ...]:
        """All topics that are deleted."""
        return self.internal + (self.leftovers if self.deletes_leftovers else ())

    @property
    def marks(self) -> Offsets:
        """The offsets that are committed first: no task begins from one of them."""
        inputs = {move.place: move.mark for move in self.moves if move.target is not None}
        between = {place: Move(place, None, 0).mark for place in self.repartitions}
        return {**inputs, **between}

    @property
    def finals(self) -> Offsets:
        """The offsets that are committed last."""
        return {m.place: CommittedOffset(m.target) for m in self.moves if m.target is not None}

    def is_still(self, later: ResetPlan) -> bool:
        """Whether a later look finds the same, apart from inputs that have grown meanwhile."""
        return self._found() == later._found()

    def _found(self) -> tuple[object, ...]:
        moved = tuple((move.place, move.committed) for move in self.moves)
        topics = self.repartitions, self.doomed, self.missing
        return self.members, moved, topics, self.unfinished, self.backfill


def committed_before(offset: CommittedOffset | None) -> int | None:
    """The offset that the application committed, behind the mark of an unfinished reset too.

    Example:
        >>> committed_before(Move(TopicPartition("in", 0), 7, 0).mark)
        7
        >>> committed_before(CommittedOffset(5))
        5
        >>> committed_before(CommittedOffset(0, 'headrace.reset {"was": 7}\x7f\x01'))
        7
    """
    if offset is None:
        return None
    # The mark of `headrace.streams.upgrade.local_changelogs` stands beside the offset that was
    # committed.
    if not offset.metadata.startswith(RESET_MARK):
        return offset.offset
    # The object ends where its brace says: see `headrace.streams.seams.offset_texts`.
    said, _ = _JSON.raw_decode(offset.metadata.removeprefix(RESET_MARK).lstrip())
    was = said.get("was")
    return None if was is None else int(was)


def moves(
    committed: Mapping[TopicPartition, CommittedOffset],
    targets: Mapping[TopicPartition, int],
    places: Iterable[TopicPartition],
) -> tuple[Move, ...]:
    """How each input partition moves; one without a target stays at what is committed."""
    found = []
    for place in places:
        offset = committed.get(place)
        before = committed_before(offset)
        found.append(Move(place, before, targets.get(place, before), _skipped(offset)))
    return tuple(found)


def _skipped(offset: CommittedOffset | None) -> tuple[int, ...]:
    if offset is None or offset.metadata.startswith((RESET_MARK, CHANGELOG_MARK)):
        return ()
    return tuple(left_out(Progress.decode(offset.metadata).values))


def backfill_in_the_way(group: str, note: BackfillNote) -> str:
    """Why a reset is not done while a backfill is open, and what to do.

    Example:
        >>> print(backfill_in_the_way("shop", BackfillNote("dropping", "bf-1", "0f")))
        backfill bf-1 of shop is being dropped; finish that with `headrace backfill ... --drop \
--id bf-1`, then reset
    """
    drop = f"`headrace backfill ... --drop --id {note.id}`"
    if note.state == "dropping":
        return (
            f"backfill {note.id} of {group} is being dropped; finish that with {drop}, then reset"
        )
    return (
        f"backfill {note.id} of {group} is open, and a reset would delete rows that it counts as "
        f"written; finish it with `headrace backfill ... --id {note.id}`, or drop it with {drop}, "
        "then reset"
    )


def lines(plan: ResetPlan) -> Iterator[str]:
    """Say what would be done."""
    if plan.backfill is not None:
        yield f"Refused for now: {backfill_in_the_way(plan.group, plan.backfill)}"
    if plan.unfinished:
        yield "An earlier reset was not finished; this one finishes it."
    yield f"Offsets of the group {plan.group}:"
    yield from _columns(plan.moves, plan.read_as_tables)
    for name in plan.missing:
        yield f"  {name} does not exist: no offsets to set"
    yield from _read_again(plan)
    yield "Internal topics to delete:"
    yield from _listed(plan.internal)
    if plan.leftovers:
        yield _LEFTOVERS[plan.deletes_leftovers].format(prefix=f"{plan.group}-")
        yield from _listed(plan.leftovers)
    yield "Local state to remove on this host:"
    yield from _listed(map(str, plan.directories))
    yield from table_lines(plan.tables)
    yield (
        "Local state on other hosts is dropped by itself at the next start, as its changelogs are "
        "then other topics. Output topics stay as they are, and get results anew."
    )


_LEFTOVERS = {
    False: "Topics that begin with {prefix} and are not of this topology; kept without "
    "--all-internal:",
    True: "Topics that begin with {prefix} and are not of this topology, to delete too (see that "
    "they are not of another application):",
}


def _read_again(plan: ResetPlan) -> Iterator[str]:
    """Report records that are processed though they were skipped, or for a second time."""
    for move in plan.moves:
        again = [str(offset) for offset in move.skipped if offset >= (move.target or 0)]
        if again:
            yield (
                f"  {move.place} was to skip offset {', '.join(again)}: run headrace skip again "
                "before the start, or the application stops there"
            )
    if any(_goes_back(move) for move in plan.moves):
        yield (
            "If headrace skip has left out records from the new offsets on, they are processed "
            "again; skip them again."
        )
    for topic in plan.also_written:
        if any(move.place.topic == topic and _goes_back(move) for move in plan.moves):
            yield (
                f"{topic} is written by the application too: its old results there are processed, "
                "and then the new ones. Delete its records first if they must not count twice."
            )


def _goes_back(move: Move) -> bool:
    if move.committed is None or move.target is None:
        return False
    return move.target < move.committed


def _columns(moved: Sequence[Move], tables: AbstractSet[str]) -> Iterator[str]:
    width = max((len(str(move.place)) for move in moved), default=0)
    for move in moved:
        before = "none" if move.committed is None else str(move.committed)
        after = "none" if move.target is None else str(move.target)
        stays = "stays" if move.committed == move.target else f"-> {after}"
        why = ", as a table is read from the beginning" if move.place.topic in tables else ""
        yield f"  {move.place!s:<{width}}  {before} {stays}{why}"
    if not moved:
        yield "  none"


def _listed(names: Iterable[str]) -> Iterator[str]:
    found = [f"  {name}" for name in names]
    yield from found or ["  none"]
