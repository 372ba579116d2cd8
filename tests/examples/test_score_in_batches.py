"""examples/score_in_batches.py: payments are scored many at a time."""

from __future__ import annotations

from examples.score_in_batches import score_in_batches
from headrace.streams import TopologyTestDriver


def test_each_payment_gets_its_score() -> None:
    with TopologyTestDriver(score_in_batches(), commit="manual") as driver:
        payments = [("p1", {"cents": 950_000, "hour": 3}), ("p2", {"cents": 100, "hour": 12})]
        driver.input("payments-to-score").send_many(payments)
        driver.commit()
        assert driver.output("scores").as_dict() == {"p1": 0.9, "p2": 0.1}
