"""In which order a worker that starts begins to read."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.streams.testing.memory_clients import MemoryConsumer
from tests.support.topologies import word_count


def test_inputs_are_read_before_topics_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker answers a client's first question late where no topic in it has a record."""
    read: list[str] = []
    add = MemoryConsumer.add

    def noted(consumer: MemoryConsumer, offsets: Mapping[TopicPartition, int]) -> None:
        read.extend(place.topic for place in offsets)
        add(consumer, offsets)

    monkeypatch.setattr(MemoryConsumer, "add", noted)
    # A group names partitions in the order of their topics' names.
    with TopologyTestDriver(word_count(), {"application.id": "app"}) as driver:
        driver.run()
    assert list(dict.fromkeys(read)) == ["lines", "app-by-word-repartition"]
