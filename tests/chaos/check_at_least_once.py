"""At-least-once: nothing is lost; what is there more often is counted and allowed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.chaos.application import REPARTITION, STORES
from tests.chaos.check_joins import read_joined, recount_joins
from tests.chaos.check_outputs import is_change, number_of
from tests.chaos.check_tallies import TierRow, is_all_read, read_tally, read_tier, recount_tiers
from tests.chaos.check_windows import final_results, recount_windows
from tests.chaos.expectations import Change, Expected, Order, read_count, read_total
from tests.chaos.history import History, Place
from tests.chaos.sequences import Seen, by_key, each_key
from tests.chaos.verdict import Findings
from tests.chaos.windowing import time_key


def check_at_least_once(
    history: History, expected: Expected, findings: Findings, *, caches: bool
) -> None:
    """Judge the outputs and the changelogs."""
    orders = [order for of_one in expected.orders.values() for order in of_one]
    marks = [order for order in orders if order.n % 10 == 0]
    copies = (
        ("echo", orders, _numbers(history, "echo")),
        ("account-changes", marks, _numbers(history, "account-changes")),
    )
    joined = ("order-limits", orders, _numbers(history, "order-limits"))
    for topic, wanted, found in (*copies, joined):
        _check_numbers(topic, wanted, found, expected, findings)
    if all(log.start == 0 for log in history.of(REPARTITION).values()):
        found = _numbers(history, REPARTITION)
        _check_numbers(REPARTITION, orders, found, expected, findings)
    if not caches:
        for topic in ("account-totals", "region-totals"):
            _check_numbers(topic, orders, _lasts(history, topic), expected, findings)
    accounts = {k: len(o) for of_one in expected.by_account.values() for k, o in of_one.items()}
    regions = {region: len(of_one) for region, of_one in expected.by_region.items()}
    _check_most(history, "account-counts", accounts, findings)
    _check_most(history, "account-totals", accounts, findings)
    _check_most(history, "region-totals", regions, findings)
    for topic in ("account-changes", "order-limits"):
        _check_changes(history, topic, expected, findings, caches=caches)
    _check_windows(history, expected, findings)
    _check_payments(history, expected, findings)
    _check_tallies(history, orders, findings)
    if not caches and is_all_read(history):
        _check_tiers(history, expected, findings)
    numbers = {"counts": accounts, "totals": accounts, "regions": regions}
    _check_changelogs(history, expected, numbers, findings)


def _numbers(history: History, topic: str) -> Iterator[tuple[str, object]]:
    for partition, log in history.of(topic).items():
        for record in log.read_committed():
            if topic not in ("account-changes", "order-limits") or not is_change(record.value):
                yield f"{topic}-{partition}@{record.offset}", number_of(record.value)


def _lasts(history: History, topic: str) -> Iterator[tuple[str, object]]:
    for partition, log in history.of(topic).items():
        for record in log.read_committed():
            yield f"{topic}-{partition}@{record.offset}", read_total(record.value).last


def _check_numbers(
    topic: str,
    wanted: Iterable[Order],
    found: Iterable[tuple[str, object]],
    expected: Expected,
    findings: Findings,
) -> None:
    """Each order is there; again is counted, and aborted is wrong here too."""
    times: Counter[object] = Counter()
    for where, n in found:
        times[n] += 1
        if n in expected.aborted:
            findings.add("aborted_read", where, f"order {n} was never committed")
    findings.duplicate(topic, sum(times.values()) - len(times))
    for order in wanted:
        if order.n not in times:
            source = f"orders-{order.partition}@{order.offset}"
            detail = f"order {order.n} of {source} is not there"
            findings.add("lost", topic, detail)
            where = f"{topic}: the committed offset is beyond {source}"
            findings.add("offset_without_output", source, where)


_COUNTS = ("account-counts", "counts", "window-counts", "closed-counts", "session-counts")


def _value_of(topic: str, value: bytes | None) -> int:
    return read_count(value) if topic in _COUNTS else read_total(value).number


def _check_most(history: History, topic: str, wanted: dict[bytes, int], findings: Findings) -> None:
    """The largest number of each key is no smaller than the right one."""
    most: dict[bytes | None, int] = {}
    for log in history.of(topic).values():
        for key, seen in by_key(log).items():
            largest = max(_value_of(topic, one.value) for one in seen)
            most[key] = max(largest, most.get(key, 0))
    for key, number in wanted.items():
        reached = most.get(key, 0)
        if reached < number:
            findings.add("lost", topic, f"{key!r} comes to {reached}; right is {number}")
        findings.duplicate(topic, max(0, reached - number))


def _check_windows(history: History, expected: Expected, findings: Findings) -> None:
    """Each window comes to its count at least, and is there once it is closed."""
    wanted: dict[str, dict[bytes, int]] = defaultdict(dict)
    for recounted in recount_windows(expected).values():
        for span, orders in recounted.windows.counted.items():
            wanted["window-counts"][time_key(span)] = len(orders)
        for topic, final in final_results(recounted).items():
            wanted[topic] |= {key: count for key, (_, count) in final.items()}
    for topic, counts in wanted.items():
        _check_most(history, topic, counts, findings)


def _check_payments(history: History, expected: Expected, findings: Findings) -> None:
    """Each order is there with each payment that it meets, or alone."""
    for partition, log in history.of("order-payments").items():
        place = Place("order-payments", partition)
        joins = recount_joins(expected, partition)
        times = Counter(read_joined(record.value) for record in log.read_committed())
        findings.duplicate("order-payments", times.total() - len(times))
        for one in (*joins.pairs, *joins.alone):
            if one not in times:
                findings.add("lost", str(place), f"{one} is not there")
        for one in times:
            if one.n in expected.aborted or one.payment in expected.aborted_payments:
                findings.add("aborted_read", str(place), f"{one} was never committed")


def _check_tallies(history: History, orders: Sequence[Order], findings: Findings) -> None:
    """The tallies, and what is not told yet, are all orders at least."""
    told = [
        read_tally(record.value).orders
        for log in history.of("tallies").values()
        for record in log.read_committed()
    ]
    left = [
        read_tally(seen[-1].value).orders
        for log in history.changelog_of("tally").values()
        for seen in by_key(log).values()
    ]
    count = sum(told) + sum(left)
    if count < len(orders):
        findings.add("lost", "tallies", f"{count} orders are told; right is {len(orders)}")
    findings.duplicate("tallies", max(0, count - len(orders)))


def _check_tiers(history: History, expected: Expected, findings: Findings) -> None:
    """As many accounts joined and left each tier as there are changes, at least."""
    most: dict[bytes | None, TierRow] = defaultdict(TierRow)
    for log in history.of("tier-totals").values():
        for record in log.read_committed():
            row, known = read_tier(record.value), most[record.key]
            known.joined, known.left = max(known.joined, row.joined), max(known.left, row.left)
    for tier, right in recount_tiers(expected).items():
        found = most[tier]
        if found.joined < right.joined or found.left < right.left:
            findings.add("lost", "tier-totals", f"{tier!r} comes to {found}; right is {right}")
        again = found.joined + found.left - right.joined - right.left
        findings.duplicate("tier-totals", max(0, again))


def _check_changes(
    history: History, topic: str, expected: Expected, findings: Findings, *, caches: bool
) -> None:
    for partition, log in history.of(topic).items():
        place = Place(topic, partition)
        accounts = expected.changes.get(partition, {})
        for key, mixed, wanted in each_key(by_key(log), accounts):
            seen = [one for one in mixed if is_change(one.value)]
            changes = Counter(Change(one.value, one.timestamp) for one in seen)
            findings.duplicate(topic, changes.total() - len(changes))
            for change in _must(wanted, caches=caches):
                if change not in changes:
                    findings.add("lost", str(place), f"{change} of {key!r} is not there")
            for change in changes.keys() & expected.aborted_changes:
                findings.add("aborted_read", str(place), f"{change} of {key!r}")


def _must(wanted: Sequence[Change], *, caches: bool) -> Sequence[Change]:
    """The changes that must come out; with caches not the deletion of what was never there."""
    if not caches:
        return wanted
    return [change for change in wanted[-1:] if change.value is not None]


def _check_changelogs(
    history: History,
    expected: Expected,
    wanted: Mapping[str, Mapping[bytes, int]],
    findings: Findings,
) -> None:
    """Each row is there, and counts no less than its input."""
    for store in STORES:
        rows: dict[bytes | None, Seen] = {}
        for log in history.changelog_of(store).values():
            rows |= {key: seen[-1] for key, seen in by_key(log).items()}
        where = f"{store}-changelog"
        for key, right in wanted.get(store, {}).items():
            found = _value_of(store, rows[key].value) if key in rows else 0
            if found < right:
                detail = f"{key!r} ends with {found}; right is {right} or more"
                findings.add("changelog_mismatch", where, detail)
        if store == "accounts":
            _check_table(rows, expected, findings, where)


def _check_table(
    rows: Mapping[bytes | None, Seen], expected: Expected, findings: Findings, where: str
) -> None:
    for accounts in expected.changes.values():
        for key, changes in accounts.items():
            row = rows.get(key)
            last = None if row is None else Change(row.value, row.timestamp)
            is_deleted = changes[-1].value is None and (row is None or row.value is None)
            if last != changes[-1] and not is_deleted:
                detail = f"{key!r} ends with {last}; right is {changes[-1]}"
                findings.add("changelog_mismatch", where, detail)
