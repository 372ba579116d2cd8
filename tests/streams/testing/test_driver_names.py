"""The driver refuses what brokers refuse: names of topics, and names that they take for one."""

from __future__ import annotations

import pytest

from headrace.streams.app import KafkaStreams
from headrace.streams.config.handlers import Continue, Failure
from headrace.streams.errors import RecordError
from headrace.streams.testing.driver import TopologyTestDriver
from headrace.topology import StreamsBuilder, Topology, TopologyError, serdes

ILLEGAL = ["two words", "..", ".", "", "ü", "x" * 250]


def to(topic: str, source: str = "in") -> Topology:
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string).to(topic)
    return builder.build()


@pytest.mark.parametrize("name", ILLEGAL)
def test_a_topic_that_a_function_names_must_be_legal(name: str) -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string).to(lambda key, value: name)
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(RecordError, match="not the name of a topic") as caught:
        driver.input("in").send("k", 1)
    assert caught.value.offset == 0


@pytest.mark.parametrize("name", ILLEGAL[:2])
def test_a_dead_letter_goes_to_a_legal_topic(name: str) -> None:
    def handler(failure: Failure) -> Continue:
        return Continue((failure.dead_letter(name),))

    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string).map_values(lambda value: 1 // value).to("out")
    settings = {"processing.exception.handler": handler}
    driver = TopologyTestDriver(builder.build(), settings)
    with pytest.raises(RecordError, match="topic is not a legal name"):
        driver.input("in").send("k", 0)


def test_names_that_differ_in_points_and_underscores_collide() -> None:
    """Brokers refuse to create the second one."""
    with pytest.raises(TopologyError, match=r"'a\.b' collides with topic 'a_b'|'a_b' collides"):
        TopologyTestDriver(to("a_b", "a.b"))


def test_settings_before_the_topology_are_named() -> None:
    settings = {"application.id": "x", "bootstrap.servers": "nowhere:1"}
    for make in (KafkaStreams, TopologyTestDriver):
        with pytest.raises(TopologyError, match="swap the two arguments"):
            make(settings, to("out"))  # type: ignore[arg-type]
