"""Moving a group: its offsets of one cluster become those of the same records on the other.

    group at the source ──► table: segments ──► group at the target
                   ◄── the same, the other way round, with `back`

Every record that was copied has its place in the table, so the next record that the group reads
is the next one that it has not read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.state.log import get_logger
from headrace.streams.errors import FatalClientError, ResetRefusedError, StreamsError
from headrace.streams.kafka.group_offsets import OpenGroup
from headrace.streams.kafka.protocols import CommittedOffset, GroupState, TopicPartition
from headrace.streams.mirror.names import table_of
from headrace.streams.mirror.table import Table, translated
from headrace.streams.mirror.topics import Side, read_table, require_table

# Where groups of the source stand, looked at beside the mirror: one thread.


EVERY_S = 2.0


class GroupWatch:
    """Positions of the source cluster's consumer groups, polled in one thread.

    Args:
        config: librdkafka's settings, without a group.
        groups: their names.
    """

    def __init__(self, config: Mapping[str, Any], groups: Iterable[str]) -> None:
        self._config = config
        self._groups = tuple(groups)
        self._places: tuple[TopicPartition, ...] = ()
        self._found: dict[tuple[str, TopicPartition], int] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-groups", daemon=True)

    def watch(self, places: Iterable[TopicPartition]) -> None:
        """Look at the groups' offsets at these places from now on."""
        self._places = tuple(places)
        if self._groups and not self._thread.is_alive():
            self._thread.start()

    def found(self) -> dict[tuple[str, TopicPartition], int]:
        """What was seen last."""
        with self._lock:
            return dict(self._found)

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(2 * EVERY_S)

    def _run(self) -> None:
        readers = {name: OpenGroup(self._config, name) for name in self._groups}
        said: dict[str, str] = {}
        while not self._ended.is_set():
            for name, reader in readers.items():
                try:
                    offsets = reader.committed(self._places)
                except StreamsError as error:
                    if said.get(name) != str(error):
                        said[name] = str(error)
                        get_logger().warning("group_not_read", group=name, reason=said[name])
                    continue
                said.pop(name, None)
                with self._lock:
                    self._found |= {(name, p): found.offset for p, found in offsets.items()}
            self._ended.wait(EVERY_S)
        for reader in readers.values():
            reader.close()


@dataclass(frozen=True, slots=True)
class Moved:
    """One partition of a group.

    Args:
        place: where the group comes from.
        offset: the next one to read there.
        there: the same partition where the group goes to.
        to: the next offset to read there; None where it is not known.
        ahead: how many offsets the group is ahead of what was copied.
    """

    place: TopicPartition
    offset: int
    there: TopicPartition
    to: int | None
    ahead: int = 0

    def __str__(self) -> str:
        if self.to is None:
            return f"{self.place} {self.offset} -> {self.there}: {self.ahead} offsets not copied"
        if self.ahead:
            return (
                f"{self.place} {self.offset} -> {self.there} {self.to}; {self.ahead} offsets are "
                "not copied, and are read again when they are"
            )
        return f"{self.place} {self.offset} -> {self.there} {self.to}"


@dataclass(frozen=True, slots=True)
class GroupMove:
    """The offsets of a group, and what they become.

    Args:
        source: where the group comes from.
        target: where it goes to.
        is_last_known: whether the mirror has noted the offsets, and nobody was asked.
    """

    group: str
    source: str
    target: str
    moves: tuple[Moved, ...]
    is_last_known: bool

    def lines(self) -> Iterator[str]:
        """Say what is going to be set."""
        noted = ", as the mirror has noted them" if self.is_last_known else ""
        yield f"Group {self.group}, from {self.source} to {self.target}{noted}:"
        yield from (f"  {move}" for move in self.moves)

    def offsets(self) -> dict[TopicPartition, CommittedOffset]:
        """What is set.

        Raises:
            ResetRefusedError: the group has read what is not copied.
        """
        ahead = [move for move in self.moves if move.to is None]
        if ahead:
            raise ResetRefusedError(
                f"the group {self.group} has read {ahead[0].place} of {self.source} up to offset "
                f"{ahead[0].offset}, which is {ahead[0].ahead} offsets more than are copied: let "
                "the mirror go on until it has them, then try again. Nothing was set"
            )
        return {move.there: CommittedOffset(move.to) for move in self.moves if move.to is not None}


class Mover:
    """Plans the move of a group, and does it.

    Args:
        name: of the mirror.
        source: the mirror's source; None where it is gone.
        target: the mirror's target, which has the table.
        source_name: what people call the source.
        back: move a group of the target to the source.
    """

    def __init__(
        self, name: str, source: Side | None, target: Side, *, source_name: str, back: bool
    ) -> None:
        self._name = name
        self._source = source
        self._target = target
        self._names = (target.name, source_name) if back else (source_name, target.name)
        self._back = back

    def plan(self, group: str) -> GroupMove:
        """Find out what the offsets become.

        Raises:
            ResetRefusedError: the group has members, or nothing of it is known.
            StreamsError: a cluster does not say.
        """
        table = require_table(self._target, self._name)
        topics = {m.target if self._back else t: t for t, m in table.topics.items()}
        committed = self._committed(group, table, topics)
        if not committed:
            raise ResetRefusedError(
                f"the group {group} has no offsets of topics that mirror {self._name} copies "
                f"({', '.join(sorted(topics)) or 'none yet'}) at {self._names[0]}"
                + (
                    ""
                    if self._source is not None
                    else ", as far as the mirror has noted (--groups)"
                )
            )
        whole = {topics[place.topic] for place in committed}
        table = read_table(self._target, table_of(self._name), whole=whole)
        moves = [self._moved(table, topics, p, at) for p, at in sorted(committed.items())]
        return GroupMove(group, *self._names, tuple(moves), self._source is None)

    def carry_out(self, move: GroupMove) -> None:
        """Set the offsets.

        Raises:
            ResetRefusedError: the group has members where it goes to.
        """
        there = self._source if self._back else self._target
        assert there is not None
        _refuse_members(there, move.group)
        there.cluster.set_offsets(move.group, move.offsets())

    def _committed(
        self, group: str, table: Table, topics: Mapping[str, str]
    ) -> dict[TopicPartition, int]:
        if self._back and self._source is None:
            raise FatalClientError(f"{self._names[1]} does not answer, and a group cannot go there")
        side = self._target if self._back else self._source
        if side is None:
            noted = table.groups.get(group, {})
            return {place: offset for place, offset in noted.items() if place.topic in topics}
        _refuse_members(side, group)
        found = side.cluster.committed(group, decided=True)
        return {place: one.offset for place, one in found.items() if place.topic in topics}

    def _moved(
        self, table: Table, topics: Mapping[str, str], place: TopicPartition, offset: int
    ) -> Moved:
        number, source_topic = place.partition, topics[place.topic]
        source = TopicPartition(source_topic, number)
        target = TopicPartition(table.topics[source_topic].target, number)
        segments = table.segments(source)
        if self._back:
            to = translated([one.inverse for one in segments], offset) or 0
            return Moved(place, offset, source, to)
        copied = table.blocks[source].position if source in table.blocks else 0
        ahead = max(0, offset - copied)
        to = translated(segments, offset) or 0
        # A source that is gone brings nothing that could be waited for.
        return Moved(place, offset, target, None if ahead and self._source else to, ahead)


def _refuse_members(side: Side, group: str) -> None:
    state: GroupState = side.cluster.group_state(group)
    if state.members:
        raise ResetRefusedError(
            f"the group {group} of {side.name} has the members "
            f"{', '.join(map(str, state.members))}; stop them, or wait until their sessions end. "
            "Nothing was set"
        )
