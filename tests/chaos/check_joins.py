"""Exactly-once: orders with the rows of their accounts, and with the payments near them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import orjson

from tests.chaos.application import PAID_AFTER_MS, PAID_BEFORE_MS, PAID_GRACE_MS
from tests.chaos.check_outputs import is_change, text
from tests.chaos.expectations import Change, Expected
from tests.chaos.history import History, Place, Record
from tests.chaos.joining import Joined, Joins, join_payments
from tests.chaos.sequences import OrderJudge, compare
from tests.chaos.verdict import Findings, Kind


def recount_joins(expected: Expected, partition: int) -> Joins:
    """Join the orders of a partition with its payments."""
    return join_payments(
        expected.orders[partition],
        expected.payments[partition],
        before_ms=PAID_BEFORE_MS,
        after_ms=PAID_AFTER_MS,
        grace_ms=PAID_GRACE_MS,
    )


def read_joined(value: bytes | None) -> Joined:
    """Decode a result; what is none reads as that of no order."""
    try:
        fields = orjson.loads(value or b"")
        return Joined(fields["n"], fields["payment"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Joined(-1, None)


def check_limits(history: History, judge: OrderJudge, *, caches: bool) -> None:
    """Each order is there once, in order, with the row that its account had before it."""
    for partition, log in history.of("order-limits").items():
        place = Place("order-limits", partition)
        joined = [r for r in log.read_committed() if not is_change(r.value)]
        numbers = [(record.offset, _field(record, "n")) for record in joined]
        wanted = [order.n for order in judge.expected.orders[partition]]
        judge.judge(place, compare(numbers, wanted, caches=False))
        if caches:
            _check_versions(place, joined, judge.expected.changes.get(partition, {}), judge)
        else:
            _check_rows(place, list(log.read_committed()), judge.findings)


def _check_rows(place: Place, records: Sequence[Record], findings: Findings) -> None:
    rows: dict[bytes | None, object] = {}
    for record in records:
        if is_change(record.value):
            rows[record.key] = None if record.value is None else _field(record, "change")
            continue
        row, right = _field(record, "row"), rows.get(record.key)
        if row != right:
            detail = f"an order of {text(record.key)} met row {row}; right is {right}"
            kind: Kind = "lost" if row is None else "out_of_sequence"
            findings.add(kind, f"{place}@{record.offset}", detail)


def _check_versions(
    place: Place,
    records: Sequence[Record],
    changes: Mapping[bytes, Sequence[Change]],
    judge: OrderJudge,
) -> None:
    """Rows come out later than orders meet them: each is one that the account had at some time."""
    for record in records:
        known = [None, *(_number(change) for change in changes.get(record.key or b"", ()))]
        if _field(record, "row") not in known:
            detail = f"an order of {text(record.key)} met {_field(record, 'row')}, which is no row"
            judge.findings.add("out_of_sequence", f"{place}@{record.offset}", detail)


def _number(change: Change) -> object:
    return None if change.value is None else orjson.loads(change.value)["change"]


def _field(record: Record, name: str) -> object:
    try:
        return orjson.loads(record.value or b"")[name]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return record.value


def check_payments(history: History, judge: OrderJudge) -> None:
    """Each order is there once with each payment that it meets, or once alone, if it meets none.

    An order that meets a payment may have been alone before: whether it was depends on which topic
    was read first. So may one that is not settled yet.
    """
    for partition, log in history.of("order-payments").items():
        place = Place("order-payments", partition)
        joins = recount_joins(judge.expected, partition)
        found = [(record.offset, read_joined(record.value)) for record in log.read_committed()]
        paid = {pair.n for pair in joins.pairs}
        early = [(offset, one) for offset, one in found if one.payment is None and one.n in paid]
        rest = [(o, one) for o, one in found if one.payment is not None or one.n not in paid]
        _judge_joined(place, rest, [*joins.pairs, *joins.alone], judge)
        _check_early(place, early, rest, judge.findings)


def _judge_joined(
    place: Place,
    found: Sequence[tuple[int, Joined]],
    wanted: Sequence[Joined],
    judge: OrderJudge,
) -> None:
    """Whatever the order: that of an order and a payment is not said by their own topics."""
    add = judge.findings.add
    differences = compare(found, wanted, caches=False)
    for one in differences.missing:
        assert isinstance(one, Joined)
        add("lost", str(place), f"{one} is not there")
        judge.missing.setdefault(one.n, set()).add(place.topic)
    for offset, one in differences.again:
        add("doubled", f"{place}@{offset}", f"{one} is there again")
    for offset, one in differences.unknown:
        assert isinstance(one, Joined)
        add(*_unexpected(one, judge, f"{place}@{offset}"))


def _unexpected(one: Joined, judge: OrderJudge, where: str) -> tuple[Kind, str, str]:
    expected = judge.expected
    if one.n in expected.aborted or one.payment in expected.aborted_payments:
        return "aborted_read", where, f"{one} was never committed"
    if one.n in expected.pending or one.payment in expected.pending_payments:
        return "torn_transaction", where, f"{one} is at or beyond the committed offset"
    return "doubled", where, f"there is one too many: {one} should not be"


def _check_early(
    place: Place,
    early: Sequence[tuple[int, Joined]],
    pairs: Sequence[tuple[int, Joined]],
    findings: Findings,
) -> None:
    first: dict[int, int] = {}
    for offset, one in pairs:
        first.setdefault(one.n, offset)
    seen: set[int] = set()
    for offset, one in early:
        if one.n in seen:
            findings.add("doubled", f"{place}@{offset}", f"order {one.n} is alone again")
        elif first.get(one.n, offset) < offset:
            detail = f"order {one.n} is alone after it has met a payment"
            findings.add("out_of_sequence", f"{place}@{offset}", detail)
        seen.add(one.n)


def unsettled(joins: Joins) -> Iterator[tuple[int, bytes]]:
    """Time and key of the orders that wait for a payment still."""
    return ((order.timestamp, order.key) for order in joins.unsettled)
