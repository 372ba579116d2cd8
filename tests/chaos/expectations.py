"""What the outputs must be: a recount of the inputs in plain Python, and of nothing else.

An order counts when its transaction was committed and the group's offset is beyond it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from tests.chaos.history import History, Log, Place


class Order(NamedTuple):
    """An order as it lies in its partition."""

    n: int
    key: bytes
    amount: int
    region: bytes
    partition: int
    offset: int
    value: bytes
    timestamp: int


class Payment(NamedTuple):
    """A payment as it lies in its partition."""

    number: int
    key: bytes
    timestamp: int


class Total(NamedTuple):
    """What an aggregate holds."""

    number: int
    sum: int
    last: int


class Change(NamedTuple):
    """What tells a change of the table from every other one."""

    value: bytes | None
    timestamp: int


ByKey = Mapping[bytes, Sequence[Order]]


@dataclass(slots=True)
class Expected:
    """What follows from the inputs.

    Args:
        orders: those that count, in the order of each partition.
        by_account: the same, by partition and key.
        by_region: the same, by region; they come from several partitions.
        changes: the changes of the table that count, by partition and key; the deletion of what
            is not there is none.
        payments: those that count, in the order of each partition.
        known: every committed order by its number.
        pending: numbers of committed orders at or beyond the group's offset.
        aborted: numbers of orders that were not committed.
        pending_changes: changes of the table at or beyond the group's offset.
        aborted_changes: changes that were not committed.
        aborted_payments: numbers of payments that were not committed.
        pending_payments: numbers of committed payments at or beyond the group's offset.
    """

    orders: dict[int, list[Order]] = field(default_factory=lambda: defaultdict(list))
    by_account: dict[int, dict[bytes, list[Order]]] = field(default_factory=dict)
    by_region: dict[bytes, list[Order]] = field(default_factory=lambda: defaultdict(list))
    changes: dict[int, dict[bytes, list[Change]]] = field(default_factory=dict)
    payments: dict[int, list[Payment]] = field(default_factory=lambda: defaultdict(list))
    known: dict[int, Order] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    pending_changes: set[Change] = field(default_factory=set)
    aborted_changes: set[Change] = field(default_factory=set)
    aborted_payments: set[int] = field(default_factory=set)
    pending_payments: set[int] = field(default_factory=set)

    def marks(self, partition: int) -> list[Order]:
        """The orders of a partition that go to the changes."""
        return [order for order in self.orders[partition] if order.n % 10 == 0]


def recount(history: History) -> Expected:
    """Say what the outputs of a history must be."""
    expected = Expected()
    for partition, log in history.of("orders").items():
        _orders(expected, partition, log, _offset(history, Place("orders", partition)))
    for partition, log in history.of("accounts").items():
        _changes(expected, partition, log, _offset(history, Place("accounts", partition)))
    for partition, log in history.of("payments").items():
        _payments(expected, partition, log, _offset(history, Place("payments", partition)))
    # A producer may try again with the same numbers.
    expected.aborted -= expected.known.keys()
    for accounts in expected.changes.values():
        for changes in accounts.values():
            expected.aborted_changes.difference_update(changes)
    return expected


def _offset(history: History, place: Place) -> int:
    found = history.committed.get(place)
    return 0 if found is None else found.offset


def _orders(expected: Expected, partition: int, log: Log, offset: int) -> None:
    accounts: dict[bytes, list[Order]] = defaultdict(list)
    for record in log:
        assert record.key is not None
        assert record.value is not None
        if not record.committed:
            expected.aborted.add(orjson.loads(record.value)["n"])
            continue
        order = _order(partition, record.offset, record.key, record.value, record.timestamp)
        expected.known[order.n] = order
        if record.offset >= offset:
            expected.pending.add(order.n)
            continue
        expected.orders[partition].append(order)
        expected.by_region[order.region].append(order)
        accounts[order.key].append(order)
    expected.by_account[partition] = dict(accounts)


def _order(partition: int, offset: int, key: bytes, value: bytes, timestamp: int) -> Order:
    fields = orjson.loads(value)
    return Order(
        fields["n"],
        key,
        fields["amount"],
        fields["region"].encode(),
        partition,
        offset,
        value,
        timestamp,
    )


def _changes(expected: Expected, partition: int, log: Log, offset: int) -> None:
    changes: dict[bytes, list[Change]] = defaultdict(list)
    for record in log:
        assert record.key is not None
        change = Change(record.value, record.timestamp)
        if not record.committed:
            expected.aborted_changes.add(change)
        elif record.offset < offset:
            before = changes[record.key]
            # Nothing comes of the deletion of a row that is not there.
            if record.value is not None or (before and before[-1].value is not None):
                before.append(change)
        else:
            expected.pending_changes.add(change)
    expected.changes[partition] = {key: found for key, found in changes.items() if found}


def _payments(expected: Expected, partition: int, log: Log, offset: int) -> None:
    for record in log:
        assert record.key is not None
        assert record.value is not None
        number = orjson.loads(record.value)["payment"]
        if not record.committed:
            expected.aborted_payments.add(number)
        elif record.offset < offset:
            payment = Payment(number, record.key, record.timestamp)
            expected.payments[partition].append(payment)
        else:
            expected.pending_payments.add(number)


def running(orders: Iterable[Order]) -> Iterator[Total]:
    """The aggregate after each order.

    >>> order = Order(n=7, key=b"k", amount=5, region=b"r", partition=0, offset=0, value=b"",
    ...               timestamp=0)
    >>> list(running([order, order._replace(n=9)]))
    [Total(number=1, sum=5, last=7), Total(number=2, sum=10, last=9)]
    """
    total = 0
    for number, order in enumerate(orders, 1):
        total += order.amount
        yield Total(number, total, order.n)


def read_total(value: bytes | None) -> Total:
    """Decode what the application wrote; what cannot be an aggregate reads as one of nothing."""
    try:
        fields = orjson.loads(value or b"")
        return Total(fields["count"], fields["sum"], fields["last"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Total(-1, -1, -1)


def read_count(value: bytes | None) -> int:
    """Decode a count: Java's Long.

    >>> read_count(bytes([0, 0, 0, 0, 0, 0, 1, 0]))
    256
    """
    if value is None or len(value) != 8:
        return -1
    return int.from_bytes(value, "big", signed=True)
