"""Reset of an application: its offsets, its internal topics, and its local state.

A kill may interrupt between any two steps, and the result must not start wrongly: old offsets with
empty stores lose records, new offsets with old stores count records twice. The steps are:

    1  lock the local state of this host; a running worker's lock refuses the reset
    2  check that the group has no members, that no backfill is open, and that nothing has changed
       since the plan was shown
    3  commit the new offsets with a mark in the metadata of each, and read them back as stable
    4  delete the repartition topics and the changelogs; wait until they and their offsets are gone
    5  remove the local state
    6  delete the description of the deployed topology (see `headrace.streams.plan.deployed`)
    7  commit the new offsets again, without the mark

Before step 3 nothing has changed, and after step 7 all is done. In between, each task that starts
reads the mark (`OffsetMetadata.decode`) and raises `ResetUnfinishedError`; a second run repeats all
steps and finishes. The mark contains the previous offset for the second run.

Step 3 resolves races. The broker rejects the commit while the group has members, and a member that
joins later reads the mark. A transaction that a killed worker left open may contain offsets that
would overwrite the mark: reading the marks back with `require_stable` waits for its end and detects
that.

State on other hosts needs no reset. Rows belong to a changelog with a topic id (see
`headrace.streams.tasks.restore.plan_restore`), and rows without a changelog to the commit id in the
offset metadata; neither matches after a reset, so the rows are dropped.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.state.directory import StateDirectory, TaskDirectory
from headrace.state.errors import StateError, StateLockedError, StoreCorruptedError
from headrace.streams.admin.backfill_gate import BackfillNote, open_note
from headrace.streams.errors import (
    ConfigError,
    FatalClientError,
    LocalStateError,
    ResetRefusedError,
)
from headrace.streams.kafka.acls import GroupDeniedError
from headrace.streams.kafka.offset_texts import differing_offsets
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    GroupAdminClient,
    Member,
    Offsets,
    OffsetTarget,
    Probe,
    TopicPartition,
    no_probe,
)
from headrace.streams.plan.deployed import delete_description
from headrace.streams.plan.plan import SubPlan
from headrace.streams.plan.progress import CHANGELOG_MARK, RESET_MARK, OffsetMetadata, left_out
from headrace.streams.plan.topics import describe_as, partitions_of
from headrace.topology.external_sink import ExternalSink
from headrace.topology.graph.graph import Node

# The stores and repartition topics that each input fills.
#
# A reset deletes all of them, so they lack the records of an input that is not read again from its
# beginning.


@dataclass(frozen=True, slots=True)
class InputUse:
    """Stores and repartition topics that an input fills.

    Args:
        tables: stores and repartition topics that receive its records as changes of a table.
        streamed: stores and repartition topics that receive its records as records of a stream.
        is_streamed: whether its records are used as records of a stream at all.
    """

    tables: tuple[str, ...] = ()
    streamed: tuple[str, ...] = ()
    is_streamed: bool = False

    @property
    def is_table(self) -> bool:
        """Whether the input is read only as a stored table."""
        return bool(self.tables) and not self.is_streamed


def input_uses(plans: Sequence[SubPlan]) -> Mapping[str, InputUse]:
    """Return the stores and repartition topics that each input fills, directly or indirectly."""
    nodes = {n.name: n for plan in plans for n in plan.program.sub_topology.nodes}
    edges = _edges(nodes.values())
    owners = _owners(nodes.values())
    uses = {}
    sources = [n for n in nodes.values() if n.as_source is not None and not n.internal]
    for topic in dict.fromkeys(t for source in sources for t in source.reads_topics):
        starts = [source for source in sources if topic in source.reads_topics]
        uses[topic] = _input_use(starts, edges, owners)
    return uses


def _edges(nodes: Iterable[Node]) -> Mapping[str, Sequence[Node]]:
    """Return the child nodes of each node, including nodes connected by a repartition topic."""
    nodes = tuple(nodes)
    readers = {t: n for n in nodes if n.as_source and n.internal for t in n.reads_topics}
    edges: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        for parent in node.parents:
            edges[parent].append(node)
        if node.internal and node.writes_topic in readers:
            edges[node.name].append(readers[node.writes_topic])
    return edges


def _owners(nodes: Iterable[Node]) -> Mapping[str, str]:
    """Return the owner node of each table store; other nodes only read it."""
    owners: dict[str, str] = {}
    for node in nodes:
        if node.is_table:
            for store in node.stores:
                owners.setdefault(store, node.name)
    return owners


def _filled(node: Node, owners: Mapping[str, str]) -> Iterable[str]:
    if node.internal and node.as_sink is not None and node.writes_topic is not None:
        yield node.writes_topic
    for store in node.stores:
        if node.is_processor or owners.get(store, node.name) == node.name:
            yield store


def _input_use(
    starts: Iterable[Node], edges: Mapping[str, Sequence[Node]], owners: Mapping[str, str]
) -> InputUse:
    filled: dict[bool, dict[str, None]] = {True: {}, False: {}}
    is_streamed = False
    seen: set[tuple[str, bool]] = set()
    left = [(node, False) for node in starts]
    between: dict[str, None] = {}
    while left:
        node, as_table = left.pop()
        as_table = as_table or node.reads_as_table
        if (node.name, as_table) in seen:
            continue
        seen.add((node.name, as_table))
        stores = dict.fromkeys(_filled(node, owners))
        is_internal_sink = node.internal and node.as_sink is not None
        if not as_table and is_internal_sink:
            between |= stores  # known later: whether a table is downstream
        else:
            filled[as_table] |= stores
        following = edges.get(node.name, ())
        if not as_table and ((stores and not is_internal_sink) or not following):
            is_streamed = True
        left += [(child, as_table) for child in following]
    # A repartition topic that only feeds tables contains changes of a table.
    filled[not is_streamed] |= between
    return InputUse(tuple(filled[True]), tuple(filled[False]), is_streamed)


def refuse_missing_rows(
    uses: Mapping[str, InputUse], chosen: AbstractSet[str], target: OffsetTarget
) -> None:
    """Raise if a store would lack rows of an input that is not `chosen`, so not read again."""
    for topic, use in uses.items():
        if topic not in chosen and use.streamed and not use.is_table:
            raise ResetRefusedError(
                f"a reset empties {', '.join(use.streamed)}, which {topic} fills, but the offset "
                f"of {topic} would not change, so its earlier records would be missing there. Add "
                f"--topic {topic}, or omit --topic to reset all inputs; if these records may be "
                "missing, change the offset afterwards with headrace offsets set. Nothing was done"
            )
        if not use.tables or use.is_table:
            continue
        if topic not in chosen:
            raise ResetRefusedError(
                f"a reset empties {', '.join(use.tables)}, which is filled from {topic}, and "
                f"{topic} is also read as a stream, so it is reset only on request. Add --topic "
                f"{topic}, which processes its records again, or leave --topic out. Nothing was "
                "done"
            )
        if target.kind != "earliest":
            raise ResetRefusedError(
                f"{topic} is read as a table ({', '.join(use.tables)}) and as a stream: from an "
                "offset after the beginning, the table would lack rows. Reset it with --to "
                "beginning, or write the stream to another topic. Nothing was done"
            )


# The effect of a reset on external sinks.
#
# Sinks keep their own positions, which no offset of the group moves. Only the user knows the right
# action, so each sink is listed before anything is confirmed or done.


@dataclass(frozen=True, slots=True)
class SinkUse:
    """External sink of an operator.

    Args:
        step: the operator's name.
        sink: printed form of the sink.
        name: the name of its positions.
        keyed: whether a row replaces the row with the same key.
        source: the topic that it reads directly; None if it reads a repartition topic, which is
            deleted.
    """

    step: str
    sink: str
    name: str
    keyed: bool = False
    source: str | None = None

    @classmethod
    def all_of(cls, application_id: str, plans: Sequence[SubPlan]) -> tuple[SinkUse, ...]:
        tables = []
        for plan in plans:
            node = plan.sink_node
            if node is None or node.external_sink is None:
                continue
            sink = node.external_sink
            source = plan.topics.all_sources[0] if node.reads_directly else None
            name = f"{application_id}/{node.name}"
            tables.append(cls(node.name, _shown(sink), name, sink.keyed, source))
        return tuple(tables)

    def __str__(self) -> str:
        if self.source is not None:
            return (
                f"{self.step}: {self.sink}: its position in {self.source} stays, and earlier "
                "records are NOT written again. To write them again, empty the table and delete "
                f"its positions (named '{self.name}') before the next start; files and lake tables "
                "contain their positions, so use another path or operator name"
            )
        if self.keyed:
            return (
                f"{self.step}: {self.sink}: results are written again under their keys; rows "
                "whose keys are not written again stay: empty it before the next start to remove "
                "them"
            )
        return (
            f"{self.step}: {self.sink}: results are written again, after the existing rows: each "
            "repeated result exists TWICE, unless you empty the sink before the next start"
        )


def _shown(sink: ExternalSink) -> str:
    kind = type(sink)
    return kind.__name__ if kind.__repr__ is object.__repr__ else repr(sink)


def sink_lines(sinks: Sequence[SinkUse]) -> Iterator[str]:
    """Yield the lines about external sinks; none without sinks.

    >>> for line in sink_lines([SinkUse("keep", "SqliteSink('a.db', 't')", "shop/keep")]):
    ...     print(line[:69])
    External sinks, which are not changed now:
      keep: SqliteSink('a.db', 't'): results are written again, after the
    """
    if sinks:
        yield "External sinks, which are not changed now:"
        yield from (f"  {sink}" for sink in sinks)


# The plan of a reset, as plain data: offsets, topics and directories.
#
# Pure: `Reset` queries the cluster, and `headrace reset` prints `lines`.


_INTERNAL = re.compile(
    r".*(-changelog|-repartition|-subscription-registration-topic|-subscription-response-topic"
    r"|-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-[0-9]{10}-topic)"
)
"""Names of internal topics, including internal topics of Kafka Streams."""

_JSON = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class InputReset:
    """Input partition with its committed offset and its new offset; None for no offset."""

    tp: TopicPartition
    committed: int | None
    target: int | None
    skipped: tuple[int, ...] = field(default=(), compare=False)
    """Offsets marked by `headrace skip` that were not reached yet."""

    @property
    def mark(self) -> CommittedOffset:
        assert self.target is not None
        text = f"{RESET_MARK} {json.dumps({'was': self.committed})}"
        return CommittedOffset(self.target, text)


@dataclass(frozen=True, slots=True)
class ApplicationTopics:
    """Topics of an application, grouped by the effect of a reset.

    Args:
        inputs: external topics that it reads; their offsets are set.
        repartitions: its repartition topics; deleted.
        changelogs: its changelogs; deleted.
        others: topics that it reads or writes; never deleted, regardless of their names.
        also_written: inputs that it also writes.
    """

    inputs: tuple[str, ...]
    repartitions: tuple[str, ...]
    changelogs: tuple[str, ...]
    others: frozenset[str]
    also_written: tuple[str, ...] = ()

    @classmethod
    def of(cls, plans: Sequence[SubPlan], global_topics: Iterable[str] = ()) -> ApplicationTopics:
        topics = [plan.topics for plan in plans]
        repartitions = _each(topic.name for subs in topics for topic in subs.repartition_sources)
        changelogs = _each(topic.name for subs in topics for topic in subs.changelogs)
        internal_topics = {*repartitions, *changelogs}
        sources = _each(name for subs in topics for name in subs.sources)
        sinks = {name for plan in plans for name in plan.sinks}
        inputs = tuple(name for name in sources if name not in internal_topics)
        return cls(
            inputs=inputs,
            repartitions=repartitions,
            changelogs=changelogs,
            others=frozenset(sources) | sinks | frozenset(global_topics),
            also_written=tuple(name for name in inputs if name in sinks),
        )

    @property
    def internal(self) -> tuple[str, ...]:
        return self.repartitions + self.changelogs

    def leftovers(self, application_id: str, names: Iterable[str]) -> tuple[str, ...]:
        """Return topics that are named like internal topics of the application but are not."""
        known = {*self.internal, *self.others}
        return tuple(
            name
            for name in sorted(names)
            if name.startswith(f"{application_id}-")
            and _INTERNAL.fullmatch(name)
            and name not in known
        )

    def chosen(self, wanted: Sequence[str]) -> frozenset[str]:
        """Return the given topics, or all inputs if none is given."""
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
    """Plan of a reset, from a snapshot of the cluster.

    Args:
        members: members of the group; nothing is done while it has any.
        repartitions: partitions of repartition topics, whose offsets are deleted with the topics.
        leftovers: topics that may have belonged to the application.
        deletes_leftovers: whether the leftovers are deleted, too.
        missing: inputs that do not exist.
        directories: local state on this host.
        unfinished: whether an earlier reset did not finish.
        backfill: the first note of an open backfill; nothing is done while one is open.
        sinks: external sinks, which are listed but not changed.
        read_as_tables: inputs that are always reset to the beginning.
        also_written: inputs that the application also writes.
    """

    group: str
    members: tuple[Member, ...]
    moves: tuple[InputReset, ...]
    repartitions: tuple[TopicPartition, ...]
    internal: tuple[str, ...]
    leftovers: tuple[str, ...]
    deletes_leftovers: bool
    missing: tuple[str, ...]
    directories: tuple[Path, ...]
    unfinished: bool
    backfill: BackfillNote | None = None
    sinks: tuple[SinkUse, ...] = ()
    read_as_tables: frozenset[str] = frozenset()
    also_written: tuple[str, ...] = ()

    @property
    def deleted_topics(self) -> tuple[str, ...]:
        return self.internal + (self.leftovers if self.deletes_leftovers else ())

    @property
    def marks(self) -> Offsets:
        """Offsets with a mark, committed first: no task starts from a marked offset."""
        inputs = {move.tp: move.mark for move in self.moves if move.target is not None}
        between = {tp: InputReset(tp, None, 0).mark for tp in self.repartitions}
        return {**inputs, **between}

    @property
    def final_offsets(self) -> Offsets:
        return {m.tp: CommittedOffset(m.target) for m in self.moves if m.target is not None}

    def is_still(self, later: ResetPlan) -> bool:
        """Return whether a later plan found the same state, apart from new records in inputs."""
        return self._state() == later._state()

    def _state(self) -> tuple[object, ...]:
        moved = tuple((move.tp, move.committed) for move in self.moves)
        topics = self.repartitions, self.deleted_topics, self.missing
        return self.members, moved, topics, self.unfinished, self.backfill


def committed_before(offset: CommittedOffset | None) -> int | None:
    """Return the offset that the application committed, even if an unfinished reset has marked it.

    >>> committed_before(InputReset(TopicPartition("in", 0), 7, 0).mark)
    7
    >>> committed_before(CommittedOffset(5))
    5
    >>> committed_before(CommittedOffset(0, 'headrace.reset {"was": 7}\x7f\x01'))
    7
    """
    if offset is None:
        return None
    # The mark of `headrace.streams.admin.local_changelogs` keeps the committed offset unchanged.
    if not offset.metadata.startswith(RESET_MARK):
        return offset.offset
    # Bytes may follow the JSON object: see `headrace.streams.kafka.offset_texts`.
    document, _ = _JSON.raw_decode(offset.metadata.removeprefix(RESET_MARK).lstrip())
    was = document.get("was")
    return None if was is None else int(was)


def moves(
    committed: Mapping[TopicPartition, CommittedOffset],
    targets: Mapping[TopicPartition, int],
    tps: Iterable[TopicPartition],
) -> tuple[InputReset, ...]:
    """Return the move of each input partition; without a target it keeps its committed offset."""
    resets = []
    for tp in tps:
        offset = committed.get(tp)
        before = committed_before(offset)
        resets.append(InputReset(tp, before, targets.get(tp, before), _skipped(offset)))
    return tuple(resets)


def _skipped(offset: CommittedOffset | None) -> tuple[int, ...]:
    if offset is None or offset.metadata.startswith((RESET_MARK, CHANGELOG_MARK)):
        return ()
    return tuple(left_out(OffsetMetadata.decode(offset.metadata).values))


def backfill_conflict(group: str, note: BackfillNote) -> str:
    """Return the reason why an open backfill prevents a reset, with advice.

    >>> print(backfill_conflict("shop", BackfillNote("dropping", "bf-1", "0f")))
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
    if plan.backfill is not None:
        yield f"Refused for now: {backfill_conflict(plan.group, plan.backfill)}"
    if plan.unfinished:
        yield "An earlier reset was not finished; this reset finishes it."
    yield f"Offsets of the group {plan.group}:"
    yield from _columns(plan.moves, plan.read_as_tables)
    for name in plan.missing:
        yield f"  {name} does not exist: no offsets to set"
    yield from _repeat_warnings(plan)
    yield "Internal topics to delete:"
    yield from _listed(plan.internal)
    if plan.leftovers:
        yield _LEFTOVERS[plan.deletes_leftovers].format(prefix=f"{plan.group}-")
        yield from _listed(plan.leftovers)
    yield "Local state to remove on this host:"
    yield from _listed(map(str, plan.directories))
    yield from sink_lines(plan.sinks)
    yield (
        "Local state on other hosts is dropped automatically at the next start, because its "
        "changelogs are re-created. Output topics are not changed, and receive the results again."
    )


_LEFTOVERS = {
    False: "Topics that begin with {prefix} and do not belong to this topology; kept without "
    "--all-internal:",
    True: "Topics that begin with {prefix} and do not belong to this topology, to delete too "
    "(check that they do not belong to another application):",
}


def _repeat_warnings(plan: ResetPlan) -> Iterator[str]:
    """Yield warnings about records that are processed despite a skip, or for a second time."""
    for move in plan.moves:
        again = [str(offset) for offset in move.skipped if offset >= (move.target or 0)]
        if again:
            yield (
                f"  {move.tp} was to skip offset {', '.join(again)}: run headrace skip again "
                "before the start, or the application stops there"
            )
    if any(_moves_back(move) for move in plan.moves):
        yield (
            "If headrace skip has skipped records after the new offsets, they are processed "
            "again; skip them again."
        )
    for topic in plan.also_written:
        if any(move.tp.topic == topic and _moves_back(move) for move in plan.moves):
            yield (
                f"{topic} is written by the application too: its old results there are processed, "
                "and then the new results. Delete its records first if they must not count twice."
            )


def _moves_back(move: InputReset) -> bool:
    if move.committed is None or move.target is None:
        return False
    return move.target < move.committed


def _columns(moved: Sequence[InputReset], tables: AbstractSet[str]) -> Iterator[str]:
    width = max((len(str(move.tp)) for move in moved), default=0)
    for move in moved:
        before = "none" if move.committed is None else str(move.committed)
        after = "none" if move.target is None else str(move.target)
        stays = "stays" if move.committed == move.target else f"-> {after}"
        why = ", as a table is read from the beginning" if move.tp.topic in tables else ""
        yield f"  {move.tp!s:<{width}}  {before} {stays}{why}"
    if not moved:
        yield "  none"


def _listed(names: Iterable[str]) -> Iterator[str]:
    lines = [f"  {name}" for name in names]
    yield from lines or ["  none"]


_RECHECK_S = 0.1
_BROKEN = (
    "a copy of these files, or another host, may have the rows: put the copy in their place and "
    "run this again; headrace reset starts without them"
)
"""Advice if local files are broken and no changelog contains their rows."""


class Reset:
    """Reset of an application.

    Args:
        application_id: the name of its group, and the prefix of its internal topics.
        timeout_s: time limit for the deletion of the group's offsets of deleted topics, in seconds.
        global_topics: topics of its global tables, which are never changed.
    """

    def __init__(
        self,
        application_id: str,
        plans: Sequence[SubPlan],
        cluster: GroupAdminClient,
        *,
        state_dir: Path,
        timeout_s: float,
        probe: Probe = no_probe,
        global_topics: Sequence[str] = (),
    ) -> None:
        self._group = application_id
        self._topics = ApplicationTopics.of(plans, global_topics)
        self._uses = input_uses(plans)
        self._sinks = SinkUse.all_of(application_id, plans)
        self._cluster = cluster
        self._state_dir = state_dir
        self._timeout_s = timeout_s
        self._probe = probe

    def plan(
        self, target: OffsetTarget, *, inputs: Sequence[str] = (), all_internal: bool = False
    ) -> ResetPlan:
        """Plan a reset; nothing is changed.

        Empty `inputs` chooses all. Other inputs keep their offsets, except tables, which are always
        read from the beginning. `all_internal` adds topics that only look like the application's.
        """
        chosen = self._topics.chosen(inputs)
        tables = {topic for topic, use in self._uses.items() if use.is_table}
        refuse_missing_rows(self._uses, chosen, target)
        members = self._cluster.members(self._group)
        # Running workers always have open transactions; nothing can be done then anyway.
        committed = self._cluster.committed(self._group, decided=not members)
        descriptions = describe_as(self._cluster, [*self._topics.inputs, *self._topics.internal])
        tps = partitions_of(self._topics.inputs, descriptions)
        set_tps = [tp for tp in tps if tp.topic in chosen - tables]
        table_tps = [tp for tp in tps if tp.topic in tables]
        targets = {
            **self._cluster.offsets_for(target, set_tps),
            **self._cluster.offsets_for(OffsetTarget(), table_tps),
        }
        return ResetPlan(
            group=self._group,
            members=members,
            moves=moves(committed, targets, tps),
            repartitions=tuple(partitions_of(self._topics.repartitions, descriptions)),
            internal=tuple(name for name in self._topics.internal if name in descriptions),
            leftovers=self._topics.leftovers(self._group, self._cluster.names()),
            deletes_leftovers=all_internal,
            missing=tuple(name for name in self._topics.inputs if name not in descriptions),
            directories=tuple(self._directories()),
            unfinished=any(c.metadata.startswith(RESET_MARK) for c in committed.values()),
            backfill=open_note(self._group, self._cluster),
            sinks=self._sinks,
            read_as_tables=frozenset(tables),
            also_written=self._topics.also_written,
        )

    def carry_out(self, plan: ResetPlan, plan_again: Callable[[], ResetPlan]) -> None:
        """Carry out a plan in the module's order; `plan_again` plans again, to detect changes."""
        with locked_state(self._state_dir, self._group) as held:
            refuse_members(self._group, self._cluster.members(self._group))
            refuse_backfill(self._group, open_note(self._group, self._cluster))
            if not plan.is_still(plan_again()):
                raise changed_since(self._group)
            again = "run it again, which finishes it"
            when = "while the reset began"
            set_offsets(self._cluster, self._group, plan.marks, when=when, again=again)
            self._probe("reset_marked")
            self._cluster.delete_topics(plan.deleted_topics)
            self._probe("reset_topics_deleted")
            self._await_offsets_deleted(plan.deleted_topics)
            for directory in held:
                directory.remove()
            self._probe("reset_state_removed")
            with suppress(GroupDeniedError):  # then no description was stored there either
                delete_description(self._group, self._cluster)
            self._probe("reset_topology_forgotten")
            self._cluster.set_offsets(self._group, plan.final_offsets)
            self._probe("reset_done")

    def _await_offsets_deleted(self, topics: Iterable[str]) -> None:
        """Wait until the group has no offsets of deleted topics, which new topics would inherit."""
        deleted = frozenset(topics)
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            offsets = self._cluster.committed(self._group, decided=True)
            left = sorted({tp.topic for tp in offsets} & deleted)
            if not left:
                return
            if time.monotonic() >= give_up_at:
                raise FatalClientError(
                    f"the group {self._group} still has offsets of deleted topics: "
                    f"{', '.join(left)}; run the reset again, and check the brokers' logs if they "
                    "stay"
                )
            time.sleep(_RECHECK_S)

    def _directories(self) -> list[Path]:
        if not (self._state_dir / self._group).is_dir():
            return []
        with local_errors():
            directory = self._directory()
            paths = (*directory.task_paths(), *directory.global_paths())
            return [path for path in paths if path.exists()]

    def _directory(self) -> StateDirectory:
        return StateDirectory(self._state_dir, self._group)


def refuse_members(group: str, members: Sequence[Member]) -> None:
    if members:
        raise ResetRefusedError(
            f"the application {group} is running: its group has the members "
            f"{', '.join(map(str, members))}; stop all its workers (SIGTERM to headrace run), on "
            "all hosts. A worker that was killed, or that stops with on.stop=stay, remains a "
            "member for consumer.session.timeout.ms"
        )


def changed_since(group: str, *, nothing_was: str = "done") -> ResetRefusedError:
    """Return the error for a plan that does not match the cluster any more."""
    return ResetRefusedError(
        f"offsets, members or topics of {group} have changed since the plan was made; nothing was "
        f"{nothing_was}: check the new plan and try again"
    )


def set_offsets(
    cluster: GroupAdminClient,
    group: str,
    offsets: Offsets,
    *,
    when: str,
    again: str = "run it again",
) -> None:
    """Commit without members, and read back; raise if a worker has overwritten offsets."""
    cluster.set_offsets(group, offsets)
    over = differing_offsets(offsets, cluster.committed(group, decided=True))
    if over:
        raise ResetRefusedError(
            f"a worker committed offsets of {', '.join(over)} {when}; stop all workers and {again}"
        )


def refuse_backfill(group: str, note: BackfillNote | None) -> None:
    """Raise if a backfill is open: its parts are rows that a reset would delete."""
    if note is not None:
        raise ResetRefusedError(f"{backfill_conflict(group, note)}; nothing was done")


@contextmanager
def locked_state(state_dir: Path, group: str) -> Iterator[list[TaskDirectory]]:
    """Lock all local state on this host; raise ResetRefusedError if a process holds some."""
    held: list[TaskDirectory] = []
    try:
        with local_errors():
            if (state_dir / group).is_dir():
                held = StateDirectory(state_dir, group).claim_all()
            yield held
    finally:
        for directory in held:
            directory.release()


@contextmanager
def local_errors() -> Iterator[None]:
    """Convert errors of local state to errors of the commands."""
    try:
        yield
    except StateLockedError as error:
        raise ResetRefusedError(str(error)) from error
    except StoreCorruptedError as error:
        raise LocalStateError(f"{error}; {_BROKEN}") from error
    except StateError as error:
        raise LocalStateError(str(error)) from error
