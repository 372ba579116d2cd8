"""Scoring in batches: a model that scores many payments in each call estimates their risk of fraud.

It shows `map_batches` with frames of pandas; the model here is three lines of arithmetic.

    headrace topics create payments-to-score scores
    headrace run examples.score_in_batches:app

It reads and writes one topic each. Keys are text, values are JSON:

    payments-to-score  payment  {"cents": 950000, "hour": 3}
    scores             payment  0.9
"""

from __future__ import annotations

from typing import Any

from headrace import KafkaStreams, StreamsBuilder, Topology, serdes

SETTINGS = {
    "application.id": "score-in-batches",
    "bootstrap.servers": "localhost:9092",
    "processing.guarantee": "exactly_once_v2",
}


class Model:
    """Model, created once per worker; load a real model here."""

    def predict(self, payments: Any) -> Any:
        """Return the scores of a frame with a row for each payment."""
        at_night = (payments["hour"] < 6).astype(float)
        large = (payments["cents"] > 500_000).astype(float)
        return (0.1 + 0.3 * at_night + 0.5 * large).round(2)


def score_in_batches(payments: str = "payments-to-score", scores: str = "scores") -> Topology:
    """Build the topology; the arguments are topics."""
    builder = StreamsBuilder()
    (
        builder.stream(payments, key=serdes.string, value=serdes.json)
        .map_batches(Model().predict, as_="pandas", max_records=512, name="score")
        .to(scores, key=serdes.string, value=serdes.double)
    )
    return builder.build()


def app() -> KafkaStreams:
    """Return the application for `headrace run`."""
    return KafkaStreams(score_in_batches(), SETTINGS)
