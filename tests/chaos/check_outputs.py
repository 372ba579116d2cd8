"""Exactly-once: each output against the recount, record by record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import orjson

from tests.chaos.application import REPARTITION
from tests.chaos.expectations import (
    Change,
    Expected,
    Order,
    Total,
    read_count,
    read_total,
    running,
)
from tests.chaos.history import History, Place, Record
from tests.chaos.sequences import (
    OrderJudge,
    Seen,
    by_key,
    compare,
    each_key,
    is_subsequence,
)
from tests.chaos.verdict import Findings


def number_of(value: bytes | None) -> object:
    """The number of an order in its own bytes; what is none reads as itself."""
    try:
        return orjson.loads(value or b"")["n"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return value


def is_change(value: bytes | None) -> bool:
    """Whether a record among the changes is of the table, and not an order."""
    return value is None or value.startswith(b'{"change":')


def check_echo(history: History, judge: OrderJudge) -> None:
    """Each order is there once, byte for byte, in the order of its partition."""
    for partition, log in history.of("echo").items():
        place = Place("echo", partition)
        orders = judge.expected.orders[partition]
        _check_copies(place, list(log.read_committed()), orders, judge)


def check_marks(history: History, judge: OrderJudge) -> None:
    """The same for every tenth order among the changes."""
    for partition, log in history.of("account-changes").items():
        place = Place("account-changes", partition)
        found = [record for record in log.read_committed() if not is_change(record.value)]
        _check_copies(place, found, judge.expected.marks(partition), judge)


def _check_copies(
    place: Place, found: Sequence[Record], orders: Sequence[Order], judge: OrderJudge
) -> None:
    if len(found) == len(orders) and all(map(_is_copy, found, orders)):
        return
    numbered = [(record.offset, number_of(record.value)) for record in found]
    judge.judge(place, compare(numbered, [order.n for order in orders], caches=False))
    for record, (_, n) in zip(found, numbered, strict=True):
        order = judge.expected.known.get(n) if isinstance(n, int) else None
        if order is not None and not _is_copy(record, order):
            detail = f"order {n} is there with another key, value or timestamp"
            judge.findings.add("lost", f"{place}@{record.offset}", detail)


def _is_copy(record: Record, order: Order) -> bool:
    return (
        record.value == order.value
        and record.key == order.key
        and record.timestamp == order.timestamp
    )


def check_counts(history: History, judge: OrderJudge, *, caches: bool) -> None:
    """The counts of each account are 1, 2, 3 … up to its number of orders."""
    for partition, log in history.of("account-counts").items():
        place = Place("account-counts", partition)
        accounts = judge.expected.by_account.get(partition, {})
        for key, seen, orders in each_key(by_key(log), accounts):
            counts = [read_count(one.value) for one in seen]
            if _is_right(counts, range(1, len(orders) + 1), caches=caches):
                continue
            found = [
                (one.offset, orders[count - 1].n if 0 < count <= len(orders) else f"count {count}")
                for one, count in zip(seen, counts, strict=True)
            ]
            wanted = [order.n for order in orders]
            judge.judge(place, compare(found, wanted, caches=caches), f" for {_text(key)}")


def check_totals(history: History, judge: OrderJudge, *, caches: bool) -> None:
    """The totals of each account are those of the recount, after every order."""
    for partition, log in history.of("account-totals").items():
        place = Place("account-totals", partition)
        accounts = judge.expected.by_account.get(partition, {})
        for key, seen, orders in each_key(by_key(log), accounts):
            totals = [read_total(one.value) for one in seen]
            wanted = list(running(orders))
            if _is_right(totals, wanted, caches=caches):
                continue
            found = [(one.offset, total.last) for one, total in zip(seen, totals, strict=True)]
            differences = compare(found, [order.n for order in orders], caches=caches)
            judge.judge(place, differences, f" for {_text(key)}")
            right = {total.last: total for total in wanted}
            for (offset, last), total in zip(found, totals, strict=True):
                if last in right:
                    _check_figures(judge.findings, f"{place}@{offset}", total, right[last])


def _is_right(found: Sequence[object], wanted: Sequence[object], *, caches: bool) -> bool:
    if not caches:
        return list(found) == list(wanted)
    if not found or not wanted:
        return not found and not wanted
    return found[-1] == wanted[-1] and is_subsequence(found, wanted)


def _check_figures(findings: Findings, where: str, found: Total, right: Total) -> None:
    if found.number > right.number:
        findings.add("doubled", where, f"{found} holds too much; right is {right}")
    elif found != right:
        findings.add("lost", where, f"{found} holds too little; right is {right}")


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
                detail = f"{_text(region)} is in {homes[region]} too"
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
    what = f" for {_text(region)}"
    for numbers, wanted in _by_source(found, orders, judge.expected):
        differences = compare(numbers, wanted, caches=False)
        if caches:
            differences.missing.clear()
        judge.judge(place, differences, what)
    if caches:
        _check_rising(place, found, orders, judge.findings, what)
        return
    known, total = judge.expected.known, 0
    for number, (offset, figures) in enumerate(found, 1):
        order = known.get(figures.last)
        total += 0 if order is None else order.amount
        right = Total(number, total, figures.last)
        if figures != right:
            _check_figures(judge.findings, f"{place}@{offset}", figures, right)
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
    _check_figures(findings, f"{place}@{last[0]}", last[1], right)


def check_changes(history: History, judge: OrderJudge, *, caches: bool) -> None:
    """Each change of the table comes out, in the order of its key."""
    expected = judge.expected
    for partition, log in history.of("account-changes").items():
        place = Place("account-changes", partition)
        accounts = expected.changes.get(partition, {})
        for key, mixed, wanted in each_key(by_key(log), accounts):
            seen = [one for one in mixed if is_change(one.value)]
            found = [(one.offset, Change(one.value, one.timestamp)) for one in seen]
            if caches:
                wanted = _without_deletions_of_nothing([change for _, change in found], wanted)
            if not _is_right([change for _, change in found], wanted, caches=caches):
                _judge_changes(place, key, found, wanted, judge, caches=caches)


def _without_deletions_of_nothing(
    found: Sequence[Change], wanted: Sequence[Change]
) -> Sequence[Change]:
    """Leave out what need not come: a row made and deleted between two commits is no change."""
    if not wanted or wanted[-1].value is not None:
        return wanted
    if not found:
        return []
    if found[-1].value is None and found[-1] in wanted:
        return wanted[: wanted.index(found[-1]) + 1]
    return wanted


def _judge_changes(
    place: Place,
    key: bytes | None,
    found: Sequence[tuple[int, Change]],
    wanted: Sequence[Change],
    judge: OrderJudge,
    *,
    caches: bool,
) -> None:
    add = judge.findings.add
    differences = compare(found, wanted, caches=caches)
    name = _text(key)
    for change in differences.missing:
        add("lost", str(place), f"{change} of {name} is not there")
        detail = f"the committed offset is beyond {change} of {name}, which is not in {place}"
        add("offset_without_output", f"accounts-{place.partition}", detail)
    for offset, change in differences.again:
        add("doubled", f"{place}@{offset}", f"{change} of {name} is there again")
    for offset, change in differences.disordered:
        add("out_of_sequence", f"{place}@{offset}", f"{change} of {name} comes too late")
    for offset, change in differences.unknown:
        where = f"{place}@{offset}"
        if change in judge.expected.aborted_changes:
            add("aborted_read", where, f"{change} of {name} was never committed")
        elif change in judge.expected.pending_changes:
            add("torn_transaction", where, f"{change} of {name} is beyond the committed offset")
        else:
            add("doubled", where, f"there is one too many: {change} of {name} is no input")


def _text(key: bytes | None) -> str:
    return "no key" if key is None else repr(key.decode(errors="replace"))
