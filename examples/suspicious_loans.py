"""Suspicious loan payments: which are far from the usual, or too close together?

It shows a join of a stream with itself: each payment is compared with the payments of the same
loan in the forty days before it. The timestamp is the time in the payment.

    headrace topics create loan-payments suspicious-payments
    headrace run examples.suspicious_loans:app

It reads the first topic and writes the second. Keys are text, values are JSON:

    loan-payments        loan  {"id": "p7", "cents": 25000, "at": "2024-05-01T12:00:00Z"}
    suspicious-payments  loan  {"payment": "p7", "before": "p6", "reason": "too close together"}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from headrace import JoinWindows, KafkaStreams, StreamsBuilder, Topology, event_time, serdes

FORTY_DAYS_BEFORE = JoinWindows(before=timedelta(days=40), grace=timedelta(days=1))
TOO_CLOSE = timedelta(hours=1)
SETTINGS = {
    "application.id": "suspicious-loans",
    "bootstrap.servers": "localhost:9092",
    "processing.guarantee": "exactly_once_v2",
}


@dataclass(frozen=True, order=True)
class Payment:
    at: datetime
    id: str
    cents: int


@dataclass(frozen=True)
class Suspicion:
    payment: str
    before: str
    reason: str


def suspicions(pair: tuple[Payment, Payment]) -> Iterator[Suspicion]:
    payment, before = pair
    if payment <= before:
        return  # each record matches itself too, and two with the same time match twice
    if payment.at - before.at < TOO_CLOSE:
        yield Suspicion(payment.id, before.id, "too close together")
    if not before.cents <= 2 * payment.cents <= 4 * before.cents:
        yield Suspicion(payment.id, before.id, "far from the usual")


def suspicious_loans(
    loan_payments: str = "loan-payments", suspicious_payments: str = "suspicious-payments"
) -> Topology:
    """Build the topology; the arguments are topics."""
    builder = StreamsBuilder()
    payments = builder.stream(
        loan_payments,
        key=serdes.string,
        value=serdes.json_of(Payment),
        timestamps=event_time("at", on_invalid="drop"),
    )
    pairs = payments.join(
        payments, lambda payment, before: (payment, before), FORTY_DAYS_BEFORE, store="payments"
    )
    pairs.flat_map_values(suspicions).to(suspicious_payments, value=serdes.json_of(Suspicion))
    return builder.build()


def app() -> KafkaStreams:
    """Return the application for `headrace run`."""
    return KafkaStreams(suspicious_loans(), SETTINGS)
