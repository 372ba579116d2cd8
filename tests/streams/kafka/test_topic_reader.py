"""Reading topics to their ends: a client of which nothing comes is replaced, and that is said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from structlog.testing import capture_logs

from headrace.streams.kafka import topic_reader
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.kafka.topic_reader import TopicReader

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)


def message(place: TopicPartition, offset: int, *, is_end: bool = False) -> Any:
    error = KafkaError(KafkaError._PARTITION_EOF) if is_end else None
    return Message(topic=place.topic, partition=place.partition, offset=offset, error=error)


class Client:
    """Gives its messages, and then nothing more."""

    def __init__(self, *messages: Any) -> None:
        self.messages = list(messages)
        self.assigned: dict[TopicPartition, int] = {}
        self.is_closed = False

    def assign(self, places: list[Any]) -> None:
        self.assigned = {TopicPartition(p.topic, p.partition): p.offset for p in places}

    def poll(self, _: float) -> Any:
        return self.messages.pop(0) if self.messages else None

    def consume(self, _: int, __: float) -> list[Any]:
        return []

    def list_topics(self, topic: str, **_: Any) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

    def close(self) -> None:
        self.is_closed = True


def test_a_client_of_which_nothing_comes_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on behind what was read, and only where something is left."""
    silent = Client(message(HERE, 5), message(HERE, 6), message(THERE, 9, is_end=True))
    other = Client(message(HERE, 8), message(HERE, 10, is_end=True))
    made = [silent, other]
    monkeypatch.setattr(topic_reader, "new_consumer", lambda *_: made.pop(0))
    monkeypatch.setattr(topic_reader, "_SILENT_S", 0.05)
    reader = TopicReader({"bootstrap.servers": "nowhere:1"})
    with capture_logs() as events:
        found = [m.offset() for m in reader.read({HERE: 5, THERE: 2}, {HERE: 10, THERE: 9})]
    assert found == [5, 6, 8]
    assert silent.assigned == {HERE: 5, THERE: 2}
    assert silent.is_closed
    assert other.assigned == {HERE: 7}
    assert [event["event"] for event in events] == ["topic_not_read"]
    assert events[0]["waited_for"] == {"t-0": 7}
