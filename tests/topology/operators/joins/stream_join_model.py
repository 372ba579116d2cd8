"""A join of two streams, slow and plain: all records in lists, searched from the front each time.

With `as_kafka` it does what Kafka Streams 4.3.1 does differently, so that it can itself be compared
with what that printed (tests/golden/kafka_streams_joins).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["inner", "left", "outer"]
Side = Literal["left", "right"]
Result = tuple[str | None, str, int]
NEVER = 2**62


class Kept(NamedTuple):
    time: int
    key: str
    value: str
    number: int


@dataclass
class StreamJoinModel:
    kind: Kind
    before: int
    after: int
    grace: int
    drops_late_match: bool = False
    as_kafka: bool = False
    kept: dict[Side, list[Kept]] = field(default_factory=lambda: {"left": [], "right": []})
    waiting: list[tuple[Side, Kept]] = field(default_factory=list)
    side_time: dict[Side, int] = field(default_factory=lambda: {"left": -1, "right": -1})
    time: int = -1
    late: dict[Side, list[tuple[str, str, int]]] = field(
        default_factory=lambda: {"left": [], "right": []}
    )
    numbers: int = 0
    least: int = NEVER
    """Only as Kafka: what it takes for the time of the first record that waits."""

    def take(self, side: Side, key: str | None, value: str | None, time: int) -> list[Result]:
        """What comes of a record."""
        results: list[Result] = []
        advances = time > self.time
        self.time = max(self.time, time)
        if advances and not self.as_kafka:
            results += self.closed()
        if value is None:
            return results
        if key is None:
            return results + ([(None, self.pair(side, value, None), time)] * self.outer(side))
        if self.as_kafka and time == self.time:
            results += self.closed_as_kafka(side)
        other: Side = "right" if side == "left" else "left"
        self.numbers += 1
        record = Kept(time, key, value, self.numbers)
        near = [m for m in self.kept[other] if self.matches(side, record, m)]
        matches = sorted(near, key=lambda match: (match.time, match.number))
        for match in matches:
            results.append((key, self.pair(side, value, match.value), max(time, match.time)))
            self.waiting = [w for w in self.waiting if w != (other, match)]
        told = not matches and self.outer(side) and self.waits_in_vain(side, time)
        if told:
            results.append((key, self.pair(side, value, None), time))
        elif not matches and self.outer(side):
            self.waiting.append((side, record))
            self.least = min(self.least, time)
        if not (told and self.drops_late_match):
            self.keep(side, record)
        return results

    def keep(self, side: Side, record: Kept) -> None:
        self.side_time[side] = max(self.side_time[side], record.time)
        if record.time >= self.horizon(side):
            self.kept[side].append(record)
        else:
            self.late[side].append((record.key, record.value, record.time))

    def horizon(self, side: Side) -> int:
        retention = self.before + self.after + self.grace
        # Kafka lets go of a record a moment before the last one in time could match it.
        return self.side_time[side] - retention + (1 if self.as_kafka else 0)

    def matches(self, side: Side, record: Kept, other: Kept) -> bool:
        after, before = self.reach(side), self.reach("left" if side == "right" else "right")
        is_near = record.time - before <= other.time <= record.time + after
        is_there = other.time >= self.horizon("right" if side == "left" else "left")
        return other.key == record.key and is_near and is_there

    def reach(self, side: Side) -> int:
        """How far after a record of this side its matches may lie."""
        return self.after if side == "left" else self.before

    def outer(self, side: Side) -> bool:
        return self.kind == "outer" or (self.kind == "left" and side == "left")

    def waits_in_vain(self, side: Side, time: int) -> bool:
        if self.as_kafka:
            # It leaves the grace period out where a record comes late, and ends nothing before 0.
            return max(0, time + self.reach(side)) < self.time
        return time + self.reach(side) + self.grace < self.time

    def closed(self) -> list[Result]:
        results: list[Result] = []
        for side, record in sorted(self.waiting, key=by_time):
            if record.time + self.reach(side) + self.grace < self.time:
                results.append((record.key, self.pair(side, record.value, None), record.time))
                self.waiting.remove((side, record))
                # One that came too late to be kept may have waited all the same.
                if self.drops_late_match and record in self.kept[side]:
                    self.kept[side].remove(record)
        return results

    def closed_as_kafka(self, side: Side) -> list[Result]:
        """It looks only where a record is joined, and asks first with the reach of its side."""
        if self.kind == "inner" or self.least + self.reach(side) + self.grace >= self.time:
            return []
        results: list[Result] = []
        is_open: set[Side] = set()
        last: tuple[int, Side, str] | None = None
        self.least = NEVER
        for where, record in sorted(self.waiting, key=by_time):
            if last != (record.time, where, record.key) and len(is_open) == 2:
                self.least = record.time
                break
            self.least, last = record.time, (record.time, where, record.key)
            if record.time + self.reach(where) + self.grace >= self.time:
                is_open.add(where)
                continue
            results.append((record.key, self.pair(where, record.value, None), record.time))
            self.waiting.remove((where, record))
        return results

    @staticmethod
    def pair(side: Side, value: str, other: str | None) -> str:
        left, right = (value, other) if side == "left" else (other, value)
        return f"{left}+{right}"


def by_time(waiting: tuple[Side, Kept]) -> tuple[int, int, str, int]:
    side, record = waiting
    return record.time, 1 if side == "left" else 0, record.key, record.number
