"""The local state of the global tables of one process: rows, and how far they follow their topics.

Each table has two stores, written in one batch: its rows, and the next offset of each partition.
Nothing is built on a table unless both have a position, of one topic. A bulk load leaves RocksDB's
log out, so offsets are written only after its rows were made durable. A kill at any moment
therefore has records applied again, which changes nothing, and none left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.state.spec import StoreSpec
from headrace.state.store import CommittedStore, Delta, LastRecord, Position
from headrace.streams.local.task_home import TaskHome
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.seams.clients import TopicPartition
from headrace.topology.processors.store import Store


@dataclass(frozen=True, slots=True)
class Followed:
    """How far the rows of a table follow its topic.

    Args:
        offsets: the next offset of each partition.
        wall_ms: when the rows were last known to have everything; deletions after it may be
            missing.
        last: the last record of each partition that is in the rows, where it is known.
    """

    topic_id: str
    offsets: Mapping[TopicPartition, int]
    wall_ms: int
    last: Mapping[TopicPartition, LastRecord] = field(default_factory=dict)


def stores_of_tables(plans: Iterable[GlobalPlan]) -> list[Store]:
    """The stores that the local state of these tables has."""
    return [
        Store(StoreSpec(name, kind=plan.store.kind, logged=False, cached=False))
        for plan in plans
        for name in _names(plan)
    ]


def _names(plan: GlobalPlan) -> tuple[str, str]:
    """The stores of rows and of offsets."""
    return f"r-{plan.store.name}", f"o-{plan.store.name}"


class GlobalState:
    """See the module."""

    def __init__(self, home: TaskHome) -> None:
        self._home = home

    def rows(self, plan: GlobalPlan) -> CommittedStore:
        """The rows of a table, by the bytes of their keys, behind their timestamps."""
        return self._home.state.store(_names(plan)[0])

    def position(self, plan: GlobalPlan) -> Position | None:
        """How far the rows of a table are written; None where nothing can be built on them."""
        return self._home.state.position(_names(plan)[0])

    def followed(self, plan: GlobalPlan) -> Followed | None:
        """How far the rows of a table follow its topic; None where nothing can be built on them."""
        rows, offsets = (self._home.state.position(name) for name in _names(plan))
        if rows is None or offsets is None or rows.topic_id != offsets.topic_id:
            return None
        places, last = {}, {}
        for key, value in self._home.state.store(_names(plan)[1]).scan():
            place = TopicPartition(plan.topic, int(key))
            # Older releases write the offset alone.
            places[place], *record = map(int, value.split())
            if record:
                last[place] = LastRecord(*record)
        return Followed(rows.topic_id, places, min(rows.wall_ms, offsets.wall_ms), last)

    def drop(self, plan: GlobalPlan) -> None:
        """Empty a table."""
        for name in _names(plan):
            self._home.state.drop_store(name)

    def write(self, plan: GlobalPlan, rows: Delta, followed: Followed) -> None:
        """Write rows, one a key, and how far they reach, together."""
        self._home.state.write(*_written(plan, rows, followed))

    def begin_load(self) -> None:
        """Begin to write rows without saying how far they reach; empties new tables."""
        self._home.state.begin_restore()

    def load(self, plan: GlobalPlan, rows: Delta) -> None:
        """Write rows in the order of their records."""
        self._home.state.restore({_names(plan)[0]: rows})

    def end_load(self, followed: Sequence[tuple[GlobalPlan, Followed]]) -> None:
        """Make durable what was loaded, and then say how far it reaches."""
        positions = {_names(plan)[0]: _position(reached) for plan, reached in followed}
        self._home.state.end_restore(positions)
        for plan, reached in followed:
            self.write(plan, [], reached)

    def close(self, *, wipe: bool = False) -> None:
        """Close the files; `wipe` removes what is broken."""
        if wipe:
            self._home.wipe()
        self._home.close()


def _written(
    plan: GlobalPlan, rows: Delta, followed: Followed
) -> tuple[dict[str, Delta], dict[str, Position]]:
    row_store, offset_store = _names(plan)
    offsets = [
        (b"%d" % place.partition, b" ".join(b"%d" % n for n in (at, *followed.last.get(place, ()))))
        for place, at in followed.offsets.items()
    ]
    position = _position(followed)
    return {row_store: rows, offset_store: offsets}, dict.fromkeys(_names(plan), position)


def _position(followed: Followed) -> Position:
    return Position(followed.topic_id, sum(followed.offsets.values()), 0, followed.wall_ms)
