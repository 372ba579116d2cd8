"""What comes of orders and the payments near them in time, in plain Python."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.chaos.expectations import Order, Payment


class Joined(NamedTuple):
    """An order with a payment, or with none."""

    n: int
    payment: int | None


@dataclass(frozen=True, slots=True)
class Joins:
    """What comes of a join of orders with payments near them in time.

    Args:
        pairs: every order with every payment that it meets, whichever comes first.
        alone: those that were told to have met none; in the end they have.
        unsettled: those that have met none, and still may.
    """

    pairs: list[Joined]
    alone: list[Joined]
    unsettled: list[Order]


def join_payments(
    orders: Sequence[Order],
    payments: Iterable[Payment],
    *,
    before_ms: int,
    after_ms: int,
    grace_ms: int,
) -> Joins:
    """Join the orders of a partition with its payments, of which none is ever forgotten.

    Args:
        orders: of one partition.
        payments: of the same partition.
        before_ms: how far before an order its payments may lie.
        after_ms: how far after it.
        grace_ms: how long after that an order still waits.
    """
    paid: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    time = max((order.timestamp for order in orders), default=-1)
    for payment in payments:
        paid[payment.key].append((payment.timestamp, payment.number))
        time = max(time, payment.timestamp)
    for of_key in paid.values():
        of_key.sort()
    joins = Joins([], [], [])
    for order in orders:
        low, high = order.timestamp - before_ms, order.timestamp + after_ms
        met = _between(paid.get(order.key, []), low, high)
        joins.pairs.extend(Joined(order.n, number) for number in met)
        if met:
            continue
        if high + grace_ms < time:
            joins.alone.append(Joined(order.n, None))
        else:
            joins.unsettled.append(order)
    return joins


def _between(times: Sequence[tuple[int, int]], low: int, high: int) -> list[int]:
    first, last = bisect_left(times, (low, -1)), bisect_left(times, (high + 1, -1))
    return [number for _, number in times[first:last]]
