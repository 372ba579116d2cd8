from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from headrace.streams.kafka.denials import denial
from tests.support.generated_pages import acls

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def test_the_page_has_this_very_table() -> None:
    assert acls() in PAGE.read_text(), "run python -m tests.support.generated_pages acls"


@pytest.mark.parametrize(
    "said",
    [
        "S/1: orders.eu-1((null))[0](Broker: Topic authorization failed) (after 284ms)",
        "S/1: fine[3](Success), orders.eu-1[0](Broker: Topic authorization failed)",
    ],
)
def test_offsets_that_are_denied_name_the_topic_that_may_not_be_read(said: str) -> None:
    """Nobody lacks the right to write then, though that is what a producer is denied mostly."""
    text = f"Failed to commit offsets to transaction on broker {said}"
    error = denial(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, text), {}, topic="out")
    assert (error.right, error.resource) == ("Read", "the topic orders.eu-1")


def test_a_denied_write_names_the_topic_that_only_the_text_has() -> None:
    text = (
        "ProduceRequest for orders.eu-1 [0] with 3 message(s) failed: Broker: Topic authorization "
        "failed (broker 1 PID{Id:5,Epoch:0}, base seq 68): current transaction must be aborted"
    )
    error = denial(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, text), {})
    assert (error.right, error.resource) == ("Write", "the topic orders.eu-1")
