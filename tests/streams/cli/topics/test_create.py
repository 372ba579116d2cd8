"""Which topics `headrace topics create --app` makes."""

from __future__ import annotations

from headrace.streams.app import KafkaStreams
from headrace.streams.cli.topics.create import _of_application
from headrace.streams.cli.topics.known_topics import Known
from headrace.topology import StreamsBuilder


def test_the_topic_of_dead_letters_is_one_of_the_application_s() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    settings = {"application.id": "shop", "bootstrap.servers": "nowhere:1"}
    letters = {
        "errors.dead.letter.queue.topic.name": "dead",
        "processing.exception.handler": "continue",
    }
    plain = Known.by(KafkaStreams(builder.build(), settings))
    with_letters = Known.by(KafkaStreams(builder.build(), {**settings, **letters}))
    assert set(_of_application(plain)) == {"in", "out"}
    assert set(_of_application(with_letters)) == {"in", "out", "dead"}
