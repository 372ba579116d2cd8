"""Exactly-once: what lies between the sub-topologies, and what the second one makes of it.

Orders of several partitions meet here, in an order that the input does not say: each partition's
own order is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.chaos.application import REPARTITION
from tests.chaos.check_outputs import check_figures, number_of, text
from tests.chaos.expectations import Expected, Order, Total, read_total
from tests.chaos.history import History, Place
from tests.chaos.sequences import OrderJudge, Seen, by_key, compare
from tests.chaos.verdict import Findings


def check_repartition(history: History, judge: OrderJudge) -> None:
    """Between the sub-topologies each order is once, in the order of its source partition."""
    logs = history.of(REPARTITION)
    is_whole = all(log.start == 0 for log in logs.values()) and bool(logs)
    known = judge.expected.known
    places: dict[int, dict[int, list[tuple[int, object]]]] = {}
    for partition, log in logs.items():
        read = history.committed.get(Place(REPARTITION, partition))
        by_source: dict[int, list[tuple[int, object]]] = defaultdict(list)
        for record in log.read_committed():
            n = number_of(record.value)
            order = known.get(n) if isinstance(n, int) else None
            by_source[-1 if order is None else order.partition].append((record.offset, n))
            if isinstance(n, int) and (read is None or record.offset >= read.offset):
                judge.unread.add(n)
        places[partition] = by_source
    judge.sees_repartition = is_whole
    _judge_repartition(judge, places)


def _judge_repartition(
    judge: OrderJudge, places: dict[int, dict[int, list[tuple[int, object]]]]
) -> None:
    seen: set[object] = set()
    for partition, by_source in places.items():
        place = Place(REPARTITION, partition)
        for source, numbers in by_source.items():
            here = {n for _, n in numbers}
            wanted = [order.n for order in judge.expected.orders.get(source, []) if order.n in here]
            judge.judge(place, compare(numbers, wanted, caches=False))
            for offset, n in numbers:
                if n in seen:
                    detail = f"order {n} is in another partition too"
                    judge.findings.add("doubled", f"{place}@{offset}", detail)
            seen |= here
    if not judge.sees_repartition:
        return
    for order in (order for orders in judge.expected.orders.values() for order in orders):
        if order.n not in seen:
            judge.missing.setdefault(order.n, set()).add(REPARTITION)
            source_place = f"orders-{order.partition}@{order.offset}"
            judge.findings.add("lost", REPARTITION, f"order {order.n} of {source_place}")


def check_regions(history: History, judge: OrderJudge, *, caches: bool) -> None:
    """Each order is once in the sequence of its region, whatever the order of partitions."""
    homes: dict[bytes | None, Place] = {}
    expected = judge.expected.by_region
    for partition, log in sorted(history.of("region-totals").items()):
        place = Place("region-totals", partition)
        for region, seen in by_key(log).items():
            if region in homes:
                detail = f"{text(region)} is in {homes[region]} too"
                judge.findings.add("out_of_sequence", f"{place}@{seen[0].offset}", detail)
                continue
            homes[region] = place
            orders = expected.get(region, []) if region is not None else []
            _check_region(place, region, seen, orders, judge, caches=caches)
    for region, orders in expected.items():
        if region not in homes:
            _check_region(Place("region-totals", -1), region, [], orders, judge, caches=caches)


def _check_region(
    place: Place,
    region: bytes | None,
    seen: Sequence[Seen],
    all_orders: Sequence[Order],
    judge: OrderJudge,
    *,
    caches: bool,
) -> None:
    orders = [order for order in all_orders if order.n not in judge.unread]
    found = [(one.offset, read_total(one.value)) for one in seen]
    what = f" for {text(region)}"
    is_sound = True
    for numbers, wanted in _by_source(found, orders, judge.expected):
        differences = compare(numbers, wanted, caches=False)
        if caches:
            differences.missing.clear()
        is_sound &= judge.judge(place, differences, what)
    if caches or not is_sound:
        # What is missing, or there again, would make all figures after it look wrong.
        _check_rising(place, found, orders, judge.findings, what)
        return
    known, total = judge.expected.known, 0
    for number, (offset, figures) in enumerate(found, 1):
        order = known.get(figures.last)
        total += 0 if order is None else order.amount
        right = Total(number, total, figures.last)
        if figures != right:
            check_figures(judge.findings, f"{place}@{offset}", figures, right)
            break  # the rest would be wrong by the same


def _by_source(
    found: Sequence[tuple[int, Total]], orders: Sequence[Order], expected: Expected
) -> Iterator[tuple[list[tuple[int, int]], list[int]]]:
    """Yield what was found and what is wanted of each partition of orders; -1 for no partition."""
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    wanted: dict[int, list[int]] = defaultdict(list)
    for offset, total in found:
        order = expected.known.get(total.last)
        seen[-1 if order is None else order.partition].append((offset, total.last))
    for order in orders:
        wanted[order.partition].append(order.n)
    for source in seen.keys() | wanted.keys():
        yield seen[source], wanted[source]


def _check_rising(
    place: Place,
    found: Sequence[tuple[int, Total]],
    orders: Sequence[Order],
    findings: Findings,
    what: str,
) -> None:
    highest = 0
    for offset, total in found:
        if total.number <= highest:
            detail = f"{total} does not rise{what}"
            findings.add("out_of_sequence", f"{place}@{offset}", detail)
        highest = max(highest, total.number)
    last = found[-1] if found else (-1, Total(0, 0, -1))
    right = Total(len(orders), sum(order.amount for order in orders), last[1].last)
    check_figures(findings, f"{place}@{last[0]}", last[1], right)
