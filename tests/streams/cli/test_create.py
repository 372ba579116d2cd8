"""Which topics `headrace topics create --app` makes."""

from __future__ import annotations

from headrace.streams.app import KafkaStreams
from headrace.streams.cli.known_topics import Known
from headrace.streams.cli.topics import _of_application
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
    assert with_letters.own["dead"] == "writes"
    assert with_letters.full_name("dead") == "dead"
    form = with_letters.form("dead", None, None)
    assert (form.key.deserialize(b"k"), form.value.deserialize(b"v")) == (b"k", b"v")


def test_topics_that_are_tables_alone_are_known() -> None:
    builder = StreamsBuilder()
    builder.table("cards", store="cards")
    builder.table("changes").to_stream().to("loud")
    builder.stream("read-so").to_table(store="read-so")
    builder.stream("rekeyed").select_key(lambda _, v: v).to_table(store="rekeyed")
    both = builder.stream("both")
    both.to("elsewhere")
    both.to_table(store="both")
    goods = builder.global_table("goods")
    builder.stream("orders").join(goods, max, key_mapper=lambda key, _: key).to("out")
    settings = {"application.id": "shop", "bootstrap.servers": "nowhere:1"}
    known = Known.by(KafkaStreams(builder.build(), settings))
    assert known.tables == {"cards", "changes", "read-so", "goods"}
