"""Histories as a faultless application would leave them, made in memory, to be damaged in tests.

Transactions commit and abort on the way, markers take offsets, and the partitions' tasks take turns
at random. Written apart from the checker: values are encoded here, and decoded there.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from zlib import crc32

import orjson

from tests.chaos.application import (
    BY_TIER,
    INPUTS,
    OUTPUTS,
    PARTITIONS,
    REPARTITION,
    REPARTITIONS,
    STORES,
)
from tests.chaos.asked import Asked
from tests.chaos.history import (
    Committed,
    History,
    Log,
    Marker,
    Observations,
    Place,
    Record,
    StoreDump,
    digest,
)
from tests.chaos.inputs import Batch
from tests.chaos.perfect_answers import perfect_asked
from tests.chaos.perfect_windows import PerfectJoin, PerfectTally, PerfectWindows, tier_changes

T = TypeVar("T")
Row = tuple[int, bytes]
Write = tuple[Place, bytes, "bytes | None", int]


@dataclass(slots=True)
class Draft:
    """A history that can still be changed."""

    logs: dict[Place, list[Record]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[Place, int] = field(default_factory=lambda: defaultdict(int))
    stable_ends: dict[Place, int] = field(default_factory=dict)
    starts: dict[Place, int] = field(default_factory=dict)
    changelogs: dict[Place, list[Record]] = field(default_factory=lambda: defaultdict(list))
    committed: dict[Place, int] = field(default_factory=dict)
    rows: dict[Place, dict[bytes, Row]] = field(default_factory=lambda: defaultdict(dict))
    positions: dict[Place, int] = field(default_factory=dict)
    markers: dict[Place, bool] = field(default_factory=dict)
    observed: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)
    asked: Asked | None = None

    def add(self, place: Place, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Write one more record that is committed."""
        record = Record(self.ends[place], key, value, timestamp)
        self.logs[place].append(record)
        self.ends[place] += 1

    def purge(self, place: Place, offset: int) -> None:
        """Delete the records of a log before an offset."""
        self.starts[place] = offset
        self.logs[place] = [record for record in self.logs[place] if record.offset >= offset]

    def copy(self) -> Draft:
        """A draft of its own: records and rows never change, what holds them does."""
        return replace(
            self,
            logs=_copied(self.logs, list),
            ends=self.ends.copy(),
            stable_ends=dict(self.stable_ends),
            starts=dict(self.starts),
            changelogs=_copied(self.changelogs, list),
            committed=dict(self.committed),
            rows=_copied(self.rows, dict),
            positions=dict(self.positions),
            markers=dict(self.markers),
            observed={place: list(seen) for place, seen in self.observed.items()},
        )

    def observe(self) -> None:
        """Let a reader see what there is, and a marker be written everywhere."""
        for place, records in self.logs.items():
            if place.topic in OUTPUTS:
                self.markers[place] = True
                self.observed[place] = [
                    (r.offset, digest(r.key, r.value, r.timestamp)) for r in records if r.committed
                ]

    def history(self) -> History:
        """What the checker is given."""
        return History(
            logs={place: self._log(place) for place in self.logs},
            changelogs={
                place: Log(records, end=self.ends[_changelog(place)])
                for place, records in self.changelogs.items()
            },
            committed={place: Committed(offset) for place, offset in self.committed.items()},
            stores=tuple(
                StoreDump(p.topic, p.partition, f"dir/{p.partition}", position, self.rows[p])
                for p, position in self.positions.items()
            ),
            markers={
                place: Marker(self.ends[place], is_read) for place, is_read in self.markers.items()
            },
            observed={place: _observations(seen) for place, seen in self.observed.items()},
            asked=self.asked,
        )

    def _log(self, place: Place) -> Log:
        end = self.ends[place]
        stable_end = self.stable_ends.get(place, end)
        start = self.starts.get(place, 0)
        return Log(self.logs[place], start=start, end=end, stable_end=stable_end)


def _copied(parts: dict[Place, T], kind: Callable[..., T]) -> dict[Place, T]:
    return defaultdict(kind, {place: kind(part) for place, part in parts.items()})


def _changelog(place: Place) -> Place:
    return Place(f"{place.topic}-changelog", place.partition)


def _observations(seen: Iterable[tuple[int, int]]) -> Observations:
    observations = Observations()
    for offset, known_by in seen:
        observations.see(offset, known_by)
    return observations


class PerfectRun:
    """Runs the application over an input, without a fault."""

    def __init__(self, batches: Iterable[Batch], *, seed: int = 0, caches: bool = False) -> None:
        self.draft = Draft()
        self._seed = seed
        self._rng = random.Random(seed)
        self._caches = caches
        self._totals: dict[Place, dict[bytes, dict[str, int]]] = defaultdict(dict)
        self._done: dict[Place, int] = defaultdict(int)
        self._tiers: dict[bytes, dict[str, int]] = {}
        self._windows = [PerfectWindows() for _ in range(PARTITIONS)]
        self._joins = [PerfectJoin() for _ in range(PARTITIONS)]
        self._tallies = [PerfectTally(partition) for partition in range(PARTITIONS)]
        for topic in (*INPUTS, *OUTPUTS, *REPARTITIONS):
            for partition in range(PARTITIONS):
                self.draft.logs[Place(topic, partition)] = []
        for store in STORES:
            for partition in range(PARTITIONS):
                self.draft.changelogs[Place(store, partition)] = []
                self.draft.positions[Place(store, partition)] = 0
        for batch in batches:
            self._write_input(batch)

    def finish(self) -> Draft:
        """Run until everything is processed."""
        while any([self._turn(*task) for task in self._tasks()]):  # noqa: C419 - all of them
            pass
        self.draft.observe()
        self.draft.asked = perfect_asked(self.draft.changelogs, self._seed)
        return self.draft

    def turns(self, count: int) -> Draft:
        """Run some transactions only."""
        for _ in range(count):
            self._turn(*self._tasks()[0])
        self.draft.observe()
        return self.draft

    def _tasks(self) -> list[tuple[int, int]]:
        tasks = [(sub, partition) for sub in (0, 1, 2) for partition in range(PARTITIONS)]
        self._rng.shuffle(tasks)
        return tasks

    def _write_input(self, batch: Batch) -> None:
        is_committed = batch.outcome == "committed"
        writes = [
            (Place(r.topic, crc32(r.key) % PARTITIONS), r.key, r.value, r.timestamp)
            for r in batch.records
        ]
        self._transaction(writes, is_committed=is_committed)

    def _transaction(self, writes: Iterable[Write], *, is_committed: bool) -> None:
        draft, touched = self.draft, set()
        for place, key, value, timestamp in writes:
            record = Record(draft.ends[place], key, value, timestamp, is_committed)
            if place.topic.endswith("-changelog"):
                store = place.topic.removesuffix("-changelog")
                draft.changelogs[Place(store, place.partition)].append(record)
            else:
                draft.logs[place].append(record)
            draft.ends[place] += 1
            touched.add(place)
        for place in touched:  # the marker
            draft.ends[place] += 1

    def _turn(self, sub: int, partition: int) -> bool:
        """One transaction of a task; whether there was anything to do."""
        topics = (tuple(INPUTS), (REPARTITION,), (BY_TIER,))[sub]
        places = [Place(topic, partition) for topic in topics]
        queues: list[tuple[str, deque[Record]]] = []
        ends = {}
        for place in places:
            log = self.draft.logs[place]
            start = self._done[place]
            end = min(len(log), start + self._rng.randrange(1, 60))
            queues.append((place.topic, deque(r for r in log[start:end] if r.committed)))
            ends[place] = end
        if all(ends[place] == self._done[place] for place in places):
            return False
        task = _Task(self, partition)
        while queues := [(topic, queue) for topic, queue in queues if queue]:
            topic, queue = min(queues, key=lambda one: one[1][0].timestamp)
            task.process(topic, queue.popleft())
        writes = task.writes()
        if self._rng.random() < 0.2:
            self._transaction(writes, is_committed=False)
        self._transaction(writes, is_committed=True)
        self._finish_turn(task, ends)
        return True

    def _finish_turn(self, task: _Task, ends: dict[Place, int]) -> None:
        draft = self.draft
        for place, totals in task.totals.items():
            self._totals[place].update(totals)
        for (store, key), (value, timestamp) in task.rows.items():
            place = Place(store, task.partition)
            if value is None:
                draft.rows[place].pop(key, None)
            else:
                draft.rows[place][key] = (timestamp, value)
            draft.positions[place] = draft.changelogs[place][-1].offset + 1
        for place, end in ends.items():
            self._done[place] = end
            log = draft.logs[place]
            is_all = end == len(log)
            # As a consumer's position is: behind the markers, once nothing else comes.
            draft.committed[place] = draft.ends[place] if is_all else log[end].offset


class _Task:
    """What one task does in one transaction."""

    def __init__(self, run: PerfectRun, partition: int) -> None:
        self._run = run
        self.partition = partition
        self.totals: dict[Place, dict[bytes, dict[str, int]]] = defaultdict(dict)
        self.rows: dict[tuple[str, bytes], tuple[bytes | None, int]] = {}
        self._writes: list[Write] = []
        self._held: dict[tuple[str, bytes], tuple[bytes | None, int]] = {}

    def process(self, topic: str, record: Record) -> None:
        """Take one record."""
        key, value, timestamp = record.key, record.value, record.timestamp
        assert key is not None
        if topic == "accounts":
            self._change(key, value, timestamp)
        else:
            assert value is not None
            fields = orjson.loads(value)
            if topic == "orders":
                self._order(key, value, fields, timestamp)
            elif topic == "payments":
                join = self._run._joins[self.partition]
                join.take_payment(self, key, fields["payment"], timestamp)
            elif topic == BY_TIER:
                self._tier(key, fields, timestamp)
            else:
                self._fold("regions", "region-totals", key, fields, timestamp)
        if topic in INPUTS:
            self._run._tallies[self.partition].pass_time(self, timestamp)

    def _change(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        old, _ = self._present("accounts", key)
        if old is None and value is None:
            return
        self._row("accounts", "account-changes", key, value, timestamp)
        self._row("accounts", "order-limits", key, value, timestamp)
        if not self._run._caches:
            self._tell_tiers(old, value, timestamp)

    def _tell_tiers(self, old: bytes | None, new: bytes | None, timestamp: int) -> None:
        for tier, change in tier_changes(old, new):
            place = Place(BY_TIER, crc32(tier) % PARTITIONS)
            self._writes.append((place, tier, orjson.dumps(change), timestamp))

    def _tier(self, tier: bytes, change: dict[str, Any], timestamp: int) -> None:
        total = self._run._tiers.setdefault(tier, {"joined": 0, "left": 0, "limits": 0})
        if change["old"] is not None:
            total["left"] += 1
            total["limits"] -= change["old"]
        if change["new"] is not None:
            total["joined"] += 1
            total["limits"] += change["new"]
        self._row("tiers", "tier-totals", tier, orjson.dumps(total), timestamp)

    def _order(self, key: bytes, value: bytes, order: dict[str, Any], timestamp: int) -> None:
        run, n = self._run, order["n"]
        run._windows[self.partition].take(self, key, timestamp)
        row, _ = self._present("accounts", key)
        met = None if row is None else orjson.loads(row)["change"]
        self._write("order-limits", key, orjson.dumps({"n": n, "row": met}), timestamp)
        run._joins[self.partition].take_order(self, key, n, timestamp)
        run._tallies[self.partition].take_order(self, n)
        self._write("echo", key, value, timestamp)
        if order["n"] % 10 == 0:
            self._write("account-changes", key, value, timestamp)
        total = self._fold("totals", "account-totals", key, order, timestamp)
        count = total["count"].to_bytes(8, "big")
        self._row("counts", "account-counts", key, count, self._time("counts", key, timestamp))
        region = order["region"].encode()
        place = Place(REPARTITION, crc32(region) % PARTITIONS)
        self._writes.append((place, region, value, timestamp))

    def keep(self, store: str, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Change a row."""
        self.rows[store, key] = (value, timestamp)

    def tell(self, topic: str, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Write a result at once."""
        if topic == "tallies":
            self._writes.append((Place(topic, crc32(key) % PARTITIONS), key, value, timestamp))
        else:
            self._write(topic, key, value, timestamp)

    def hold(self, topic: str, key: bytes, value: bytes | None, timestamp: int) -> None:
        """Write a result at once, or at the commit where there are caches."""
        if self._run._caches:
            self._held[topic, key] = (value, timestamp)
        else:
            self._write(topic, key, value, timestamp)

    def _present(self, store: str, key: bytes) -> tuple[bytes | None, int]:
        """A row as it is now."""
        if (store, key) in self.rows:
            return self.rows[store, key]
        row = self._run.draft.rows[Place(store, self.partition)].get(key)
        return (None, -1) if row is None else (row[1], row[0])

    def writes(self) -> list[Write]:
        """Everything that is committed together."""
        if self._run._caches:
            for (store, key), (value, timestamp) in self.rows.items():
                if store == "accounts":
                    row = self._run.draft.rows[Place(store, self.partition)].get(key)
                    self._tell_tiers(None if row is None else row[1], value, timestamp)
        held = [
            (Place(topic, self.partition), key, value, timestamp)
            for (topic, key), (value, timestamp) in self._held.items()
        ]
        rows = [
            (Place(f"{store}-changelog", self.partition), key, value, timestamp)
            for (store, key), (value, timestamp) in self.rows.items()
        ]
        return [*self._writes, *held, *rows]

    def _fold(
        self, store: str, topic: str, key: bytes, order: dict[str, Any], timestamp: int
    ) -> dict[str, int]:
        place = Place(store, self.partition)
        total = self.totals[place].get(key) or self._run._totals[place].get(key)
        total = total or {"count": 0, "last": -1, "sum": 0}
        total = {
            "count": total["count"] + 1,
            "last": order["n"],
            "sum": total["sum"] + order["amount"],
        }
        self.totals[place][key] = total
        self._row(store, topic, key, orjson.dumps(total), self._time(store, key, timestamp))
        return total

    def _time(self, store: str, key: bytes, timestamp: int) -> int:
        row = self._run.draft.rows[Place(store, self.partition)].get(key)
        _, newer = self.rows.get((store, key), (None, -1))
        return max(timestamp, newer, -1 if row is None else row[0])

    def _row(self, store: str, topic: str, key: bytes, value: bytes | None, timestamp: int) -> None:
        self.rows[store, key] = (value, timestamp)
        if not self._run._caches:
            self._write(topic, key, value, timestamp)
            return
        row = self._run.draft.rows[Place(store, self.partition)].get(key)
        self._held.pop((topic, key), None)
        if value is not None or row is not None:
            self._held[topic, key] = (value, timestamp)

    def _write(self, topic: str, key: bytes, value: bytes | None, timestamp: int) -> None:
        self._writes.append((Place(topic, self.partition), key, value, timestamp))
