"""Exactly-once: each output against the recount, record by record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from tests.chaos.expectations import Change, Order, Total, read_count, read_total, running
from tests.chaos.history import History, Place, Record
from tests.chaos.sequences import OrderJudge, Seen, by_key, compare, each_key, is_subsequence
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
        accounts = judge.expected.by_account.get(partition, {})
        check_counted(
            Place("account-counts", partition), by_key(log), accounts, judge, caches=caches
        )


def check_counted(
    place: Place,
    found_of: Mapping[bytes | None, list[Seen]],
    orders_of: Mapping[bytes, Sequence[Order]],
    judge: OrderJudge,
    *,
    caches: bool,
) -> None:
    """The counts of each key are 1, 2, 3 … up to its number of orders."""
    for key, seen, orders in each_key(found_of, orders_of):
        counts = [read_count(one.value) for one in seen]
        if _is_right(counts, range(1, len(orders) + 1), caches=caches):
            continue
        found = [
            (one.offset, orders[count - 1].n if 0 < count <= len(orders) else f"count {count}")
            for one, count in zip(seen, counts, strict=True)
        ]
        wanted = [order.n for order in orders]
        judge.judge(place, compare(found, wanted, caches=caches), f" for {text(key)}")


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
            judge.judge(place, differences, f" for {text(key)}")
            right = {total.last: total for total in wanted}
            for (offset, last), total in zip(found, totals, strict=True):
                if last in right:
                    check_figures(judge.findings, f"{place}@{offset}", total, right[last])


def _is_right(found: Sequence[object], wanted: Sequence[object], *, caches: bool) -> bool:
    if not caches:
        return list(found) == list(wanted)
    if not found or not wanted:
        return not found and not wanted
    return found[-1] == wanted[-1] and is_subsequence(found, wanted)


def check_figures(findings: Findings, where: str, found: Total, right: Total) -> None:
    """Note it when an aggregate holds more or less than it should."""
    if found.number > right.number:
        findings.add("doubled", where, f"{found} holds too much; right is {right}")
    elif found != right:
        findings.add("lost", where, f"{found} holds too little; right is {right}")


def check_changes(history: History, judge: OrderJudge, topic: str, *, caches: bool) -> None:
    """Each change of the table comes out, in the order of its key."""
    expected = judge.expected
    for partition, log in history.of(topic).items():
        place = Place(topic, partition)
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
    """Leave out the changes that a cache may drop: rows created and deleted between two commits.

    Deletions have no number, so those of one key in one millisecond are equal. The last of them
    is the right one to end with: all that may come before an earlier one may come before it.
    """
    if not wanted or wanted[-1].value is not None:
        return wanted
    if not found:
        return []
    if found[-1].value is None and found[-1] in wanted:
        return wanted[: len(wanted) - wanted[::-1].index(found[-1])]
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
    name = text(key)
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


def text(key: bytes | None) -> str:
    """A key for a message."""
    return "no key" if key is None else repr(key.decode(errors="replace"))
