"""Exactly-once: what a processor tells at intervals, and what groups of a table come to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import orjson

from tests.chaos.application import BY_TIER, TIER
from tests.chaos.expectations import Change, Expected, Order
from tests.chaos.history import History, Place
from tests.chaos.sequences import OrderJudge, Seen, by_key
from tests.chaos.verdict import Findings, Kind


class TallyRow(NamedTuple):
    """Which tally it is, how many orders it counts, and the sum of their numbers."""

    number: int
    orders: int
    sum: int


@dataclass(slots=True)
class TierRow:
    """How many rows joined a tier and left it, and the sum of the limits that are there."""

    joined: int = 0
    left: int = 0
    limits: int = 0


def task_key(partition: int) -> bytes:
    """The key of a task's tallies, and of its row."""
    return b"task-%d" % partition


def read_tally(value: bytes | None) -> TallyRow:
    """Decode a tally; what is none reads as number -1."""
    try:
        fields = orjson.loads(value or b"")
        return TallyRow(fields["number"], fields["count"], fields["sum"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return TallyRow(-1, -1, -1)


def read_tier(value: bytes | None) -> TierRow:
    """Decode a tier; what is none reads as less than nothing."""
    try:
        fields = orjson.loads(value or b"")
        return TierRow(fields["joined"], fields["left"], fields["limits"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return TierRow(-1, -1, -1)


def check_tallies(history: History, judge: OrderJudge) -> None:
    """The tallies of a task, and what it has not told yet, are its orders: each in one of them."""
    found: dict[bytes | None, list[Seen]] = defaultdict(list)
    homes: dict[bytes | None, Place] = {}
    for partition, log in history.of("tallies").items():
        for key, seen in by_key(log).items():
            homes[key] = Place("tallies", partition)
            found[key] += seen
    rows = {
        partition: [read_tally(seen[-1].value) for seen in by_key(log).values()]
        for partition, log in history.changelog_of("tally").items()
    }
    for partition, orders in judge.expected.orders.items():
        key = task_key(partition)
        place = homes.get(key, Place("tallies", -1))
        told = [(one.offset, read_tally(one.value)) for one in found.get(key, ())]
        left = _check_told(place, told, orders, judge.findings)
        if left is not None:
            row = rows.get(partition) or [TallyRow(1, 0, 0)]
            _check_row(partition, row[0], len(told) + 1, left, judge.findings)


def _check_told(
    place: Place,
    told: Sequence[tuple[int, TallyRow]],
    orders: Sequence[Order],
    findings: Findings,
) -> Sequence[Order] | None:
    """What is not told yet; None where the tallies are not right."""
    done = 0
    for right, (offset, tally) in enumerate(told, 1):
        where = f"{place}@{offset}"
        if tally.number != right:
            kind: Kind = "lost" if tally.number > right else "doubled"
            findings.add(kind, where, f"tally {tally.number} comes where {right} should")
            return None
        own = orders[done : done + tally.orders]
        if tally.sum != sum(order.n for order in own):
            detail = f"tally {right} counts other orders than those from number {done} on"
            findings.add("lost", where, detail)
            findings.add("doubled", where, detail)
            return None
        done += tally.orders
    return orders[done:]


def _check_row(
    partition: int, row: TallyRow, number: int, left: Sequence[Order], findings: Findings
) -> None:
    right = TallyRow(number, len(left), sum(order.n for order in left))
    if row != right:
        place = Place("tally-changelog", partition)
        findings.add("changelog_mismatch", str(place), f"ends with {row}; right is {right}")
        kind: Kind = "doubled" if row.orders > right.orders else "lost"
        detail = f"{row.orders} orders are not told yet; right is {right.orders}"
        findings.add(kind, str(place), detail)


def recount_tiers(expected: Expected) -> dict[bytes, TierRow]:
    """What the tiers come to when all changes of accounts are processed."""
    tiers: dict[bytes, TierRow] = defaultdict(TierRow)
    for accounts in expected.changes.values():
        for changes in accounts.values():
            for before, after in pairwise([Change(None, 0), *changes]):
                if before.value is not None:
                    limit = orjson.loads(before.value)["limit"]
                    tiers[_tier(limit)].left += 1
                    tiers[_tier(limit)].limits -= limit
                if after.value is not None:
                    limit = orjson.loads(after.value)["limit"]
                    tiers[_tier(limit)].joined += 1
                    tiers[_tier(limit)].limits += limit
    return tiers


def _tier(limit: int) -> bytes:
    return b"tier-%d" % (limit // TIER)


def check_tiers(history: History, expected: Expected, findings: Findings, *, caches: bool) -> None:
    """Each change is added to its tier and taken away from the one before, once."""
    right = recount_tiers(expected)
    is_read = is_all_read(history)
    seen_tiers: dict[bytes | None, Place] = {}
    for partition, log in history.of("tier-totals").items():
        place = Place("tier-totals", partition)
        for tier, seen in by_key(log).items():
            if tier in seen_tiers:
                detail = f"{tier!r} is in {seen_tiers[tier]} too"
                findings.add("out_of_sequence", f"{place}@{seen[0].offset}", detail)
            seen_tiers[tier] = place
            rows = [(one.offset, read_tier(one.value)) for one in seen]
            _check_rising(place, rows, findings)
            if is_read and tier is not None:
                _check_last(place, *rows[-1], right.get(tier, TierRow()), findings, caches=caches)
    if is_read and not caches:
        for tier in right.keys() - seen_tiers.keys():
            findings.add("lost", "tier-totals", f"there is nothing of {tier!r}")


def _check_rising(place: Place, rows: Sequence[tuple[int, TierRow]], findings: Findings) -> None:
    for (_, before), (offset, after) in pairwise(rows):
        steps = after.joined - before.joined, after.left - before.left
        if min(steps) < 0 or max(steps) == 0:
            detail = f"{after} follows {before}"
            findings.add("out_of_sequence", f"{place}@{offset}", detail)


def _check_last(
    place: Place, offset: int, row: TierRow, right: TierRow, findings: Findings, *, caches: bool
) -> None:
    if is_same_tier(row, right, caches=caches):
        return
    more = row.joined > right.joined or row.left > right.left
    kind: Kind = "doubled" if more else "lost"
    findings.add(kind, f"{place}@{offset}", f"ends with {row}; right is {right}")


def is_same_tier(row: TierRow, right: TierRow, *, caches: bool) -> bool:
    """Whether a tier is right; behind caches those that came and went between commits may lack."""
    if not caches:
        return row == right
    return (row.joined - row.left, row.limits) == (right.joined - right.left, right.limits)


def is_all_read(history: History) -> bool:
    """Whether everything between accounts and tiers was read."""
    for partition, log in history.of(BY_TIER).items():
        committed = history.committed.get(Place(BY_TIER, partition))
        offset = 0 if committed is None else committed.offset
        if any(record.offset >= offset for record in log.read_committed()):
            return False
    return True
