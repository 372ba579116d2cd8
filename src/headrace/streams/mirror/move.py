"""Move of a consumer group: its offsets are translated to the same records on the other cluster.

    group at the source ──► table: segments ──► group at the target
                   ◄── the other direction, with `back`

The table contains the position of each copied record, so the group continues at exactly the next
unread record.
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

_POLL_S = 2.0


class GroupWatch:
    """Positions of the source cluster's consumer groups, polled in a background thread."""

    def __init__(self, config: Mapping[str, Any], groups: Iterable[str]) -> None:
        self._config = config
        self._groups = tuple(groups)
        self._tps: tuple[TopicPartition, ...] = ()
        self._offsets: dict[tuple[str, TopicPartition], int] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-groups", daemon=True)

    def watch(self, tps: Iterable[TopicPartition]) -> None:
        """Set the partitions whose offsets are polled, and start polling."""
        self._tps = tuple(tps)
        if self._groups and not self._thread.is_alive():
            self._thread.start()

    def offsets(self) -> dict[tuple[str, TopicPartition], int]:
        with self._lock:
            return dict(self._offsets)

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(2 * _POLL_S)

    def _run(self) -> None:
        readers = {name: OpenGroup(self._config, name) for name in self._groups}
        logged: dict[str, str] = {}
        while not self._ended.is_set():
            for name, reader in readers.items():
                try:
                    offsets = reader.committed(self._tps)
                except StreamsError as error:
                    if logged.get(name) != str(error):
                        logged[name] = str(error)
                        get_logger().warning("group_not_read", group=name, reason=logged[name])
                    continue
                logged.pop(name, None)
                with self._lock:
                    self._offsets |= {(name, p): one.offset for p, one in offsets.items()}
            self._ended.wait(_POLL_S)
        for reader in readers.values():
            reader.close()


@dataclass(frozen=True, slots=True)
class Moved:
    """Partition of a group with its translated offset.

    Args:
        tp: the partition on the group's current cluster.
        offset: its next offset to read.
        target: the same partition on the new cluster.
        to: the next offset to read there; None if it is unknown.
        ahead: number of offsets that the group has read and that are not copied.
    """

    tp: TopicPartition
    offset: int
    target: TopicPartition
    to: int | None
    ahead: int = 0

    def __str__(self) -> str:
        moved = f"{self.tp} {self.offset} -> {self.target}"
        if self.to is None:
            return f"{moved}: {self.ahead} offsets not copied"
        if self.ahead:
            return f"{moved} {self.to}; {self.ahead} offsets are read again when they are copied"
        return f"{moved} {self.to}"


@dataclass(frozen=True, slots=True)
class GroupMove:
    """Translated offsets of a group.

    Args:
        source: name of the group's current cluster.
        target: name of its new cluster.
        is_last_known: whether the offsets are stored by the mirror, because the source is lost.
    """

    group: str
    source: str
    target: str
    moves: tuple[Moved, ...]
    is_last_known: bool

    def lines(self) -> Iterator[str]:
        stored = ", by the offsets in the mirror's table" if self.is_last_known else ""
        yield f"Group {self.group}, from {self.source} to {self.target}{stored}:"
        yield from (f"  {move}" for move in self.moves)

    def offsets(self) -> dict[TopicPartition, CommittedOffset]:
        """Raise ResetRefusedError if the group has read records that are not copied."""
        ahead = [move for move in self.moves if move.to is None]
        if ahead:
            raise ResetRefusedError(
                f"the group {self.group} has read {ahead[0].tp} of {self.source} up to offset "
                f"{ahead[0].offset}, which is {ahead[0].ahead} offsets more than are copied; "
                "nothing was set. Try again when the mirror has copied them."
            )
        return {move.target: CommittedOffset(move.to) for move in self.moves if move.to is not None}


class Mover:
    """Planner and executor of a group's move.

    Args:
        source: the mirror's source; None if it is lost.
        target: the mirror's target, which has the table.
        back: whether to move a group from the target to the source.
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
        """Translate the offsets of a group; nothing is changed."""
        table = require_table(self._target, self._name)
        topics = {m.target if self._back else t: t for t, m in table.topics.items()}
        committed = self._committed(group, table, topics)
        if not committed:
            where = "the mirror's table" if self._source is None else self._names[0]
            raise ResetRefusedError(
                f"the group {group} has no offsets of topics that mirror {self._name} copies "
                f"({', '.join(sorted(topics)) or 'none yet'}) in {where}. Correct the group, or "
                "name it in --groups of the mirror."
            )
        names = {topics[tp.topic] for tp in committed}
        table = read_table(self._target, table_of(self._name), all_segments_of=names)
        moves = [self._moved(table, topics, p, at) for p, at in sorted(committed.items())]
        return GroupMove(group, *self._names, tuple(moves), self._source is None)

    def carry_out(self, move: GroupMove) -> None:
        side = self._source if self._back else self._target
        assert side is not None
        _require_no_members(side, move.group)
        side.cluster.set_offsets(move.group, move.offsets())

    def _committed(
        self, group: str, table: Table, topics: Mapping[str, str]
    ) -> dict[TopicPartition, int]:
        if self._back and self._source is None:
            raise FatalClientError(
                f"{self._names[1]} does not answer, and groups are moved to it. Start its brokers."
            )
        side = self._target if self._back else self._source
        if side is None:
            noted = table.groups.get(group, {})
            return {tp: offset for tp, offset in noted.items() if tp.topic in topics}
        _require_no_members(side, group)
        offsets = side.cluster.committed(group, decided=True)
        return {tp: one.offset for tp, one in offsets.items() if tp.topic in topics}

    def _moved(
        self, table: Table, topics: Mapping[str, str], tp: TopicPartition, offset: int
    ) -> Moved:
        number, source_topic = tp.partition, topics[tp.topic]
        source = TopicPartition(source_topic, number)
        target = TopicPartition(table.topics[source_topic].target, number)
        segments = table.segments(source)
        if self._back:
            to = translated([one.inverse for one in segments], offset) or 0
            return Moved(tp, offset, source, to)
        copied = table.blocks[source].position if source in table.blocks else 0
        ahead = max(0, offset - copied)
        to = translated(segments, offset) or 0
        # A lost source delivers no more records, so waiting for them is pointless.
        return Moved(tp, offset, target, None if ahead and self._source else to, ahead)


def _require_no_members(side: Side, group: str) -> None:
    state: GroupState = side.cluster.group_state(group)
    if state.members:
        raise ResetRefusedError(
            f"the group {group} of {side.name} has the members "
            f"{', '.join(map(str, state.members))}; nothing was set. Stop them, or wait until "
            "their sessions end."
        )
