"""examples/suspicious_loans.py: payments of one loan that do not go together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from examples.suspicious_loans import Payment, Suspicion, suspicious_loans
from headrace.streams import TopologyTestDriver

MAY = datetime(2024, 5, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
FAR, CLOSE = "far from the usual", "too close together"


def suspicions(*payments: tuple[str, Payment]) -> list[tuple[str | None, Suspicion | None]]:
    with TopologyTestDriver(suspicious_loans()) as driver:
        for loan, payment in payments:
            driver.input("loan-payments").send(loan, payment)
        return [(r.key, r.value) for r in driver.output("suspicious-payments").read_all()]


def paid(payment: str, cents: int, after: timedelta) -> Payment:
    return Payment(MAY + after, payment, cents)


def test_payments_like_the_usual_ones_are_not_suspicious() -> None:
    assert not suspicions(
        ("loan", paid("p1", 100, 0 * DAY)),
        ("loan", paid("p2", 200, 30 * DAY)),
        ("loan", paid("p3", 100, 60 * DAY)),
    )


def test_a_payment_of_less_than_half_or_more_than_twice_the_one_before_is() -> None:
    assert suspicions(
        ("loan", paid("p1", 100, 0 * DAY)),
        ("loan", paid("p2", 201, 30 * DAY)),
        ("loan", paid("p3", 100, 60 * DAY)),
    ) == [("loan", Suspicion("p2", "p1", FAR)), ("loan", Suspicion("p3", "p2", FAR))]


def test_payments_within_an_hour_are_once_for_each_pair() -> None:
    """One payment may be suspicious for two reasons, and no pair is told twice."""
    assert suspicions(
        ("loan", paid("p1", 100, 0 * HOUR)),
        ("loan", paid("p2", 900, 0 * HOUR)),
        ("loan", paid("p3", 900, 1 * HOUR)),
    ) == [
        ("loan", Suspicion("p2", "p1", CLOSE)),
        ("loan", Suspicion("p2", "p1", FAR)),
        ("loan", Suspicion("p3", "p1", FAR)),
    ]


def test_payments_of_other_loans_or_of_long_ago_say_nothing() -> None:
    assert not suspicions(
        ("loan", paid("p1", 100, 0 * DAY)),
        ("other", paid("p2", 900, 0 * DAY)),
        ("loan", paid("p3", 900, 40 * DAY + timedelta(milliseconds=1))),
    )


def test_payments_that_come_out_of_order_are_compared_by_the_time_they_were_made() -> None:
    assert suspicions(
        ("loan", paid("p2", 900, DAY)),
        ("loan", paid("p1", 100, 0 * DAY)),
    ) == [("loan", Suspicion("p2", "p1", FAR))]
