"""An application does not write by itself to what its stores and repartitions keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import KafkaStreams, StreamsBuilder, TopologyTestDriver, serdes
from headrace.streams.errors import ConfigError
from headrace.topology.errors import TopologyError

TEXT = serdes.string


def settings(path: Path, **more: str) -> dict[str, str]:
    return {
        "application.id": "clash",
        "bootstrap.servers": "nowhere:1",
        "state.dir": str(path),
        **more,
    }


def builder(to: str) -> StreamsBuilder:
    made = StreamsBuilder()
    words = made.stream("words", key=TEXT, value=TEXT)
    words.to(to)
    by_value = words.group_by(lambda _, value: value, key=TEXT, name="by-value")
    by_value.count(store="x").to_stream().to("out")
    return made


@pytest.mark.parametrize(
    ("topic", "what"),
    [
        ("clash-x-changelog", "the changelog of store 'x' of this application"),
        ("clash-by-value-repartition", "a repartition topic of this application"),
    ],
)
def test_a_sink_that_writes_there_is_refused(tmp_path: Path, topic: str, what: str) -> None:
    topology = builder(topic).build()
    for start in (
        lambda: KafkaStreams(topology, settings(tmp_path)),
        lambda: TopologyTestDriver(topology, settings(tmp_path)),
    ):
        with pytest.raises(TopologyError, match=f"writes to topic '{topic}', which is {what}"):
            start()


@pytest.mark.parametrize("topic", ["clash-y-changelog", "other-x-changelog"])
def test_topics_that_sound_like_it_are_written(tmp_path: Path, topic: str) -> None:
    KafkaStreams(builder(topic).build(), settings(tmp_path))


LETTERS = "errors.dead.letter.queue.topic.name"


@pytest.mark.parametrize(
    ("topic", "what"),
    [
        ("clash-x-changelog", "which is the changelog of store 'x' of this application"),
        ("clash-by-value-repartition", "which is a repartition topic of this application"),
        ("words", "which the application reads, so a letter that fails creates letters endlessly"),
        ("names", "which the application reads"),
        ("countries", "which the application reads"),
    ],
)
def test_dead_letters_do_not_go_there(tmp_path: Path, topic: str, what: str) -> None:
    made = builder("elsewhere")
    made.table("names", key=TEXT, value=TEXT, store="names")
    made.global_table("countries", key=TEXT, value=TEXT, store="countries")
    built = made.build()
    more = {LETTERS: topic, "processing.exception.handler": "continue"}
    for start in (KafkaStreams, TopologyTestDriver):
        with pytest.raises(ConfigError, match=f"{LETTERS} is '{topic}', {what}"):
            start(built, settings(tmp_path, **more))


def test_dead_letters_may_go_to_an_output(tmp_path: Path) -> None:
    more = {LETTERS: "elsewhere", "processing.exception.handler": "continue"}
    KafkaStreams(builder("elsewhere").build(), settings(tmp_path, **more))
