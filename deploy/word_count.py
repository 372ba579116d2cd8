# deploy/word_count.py
"""Count the words of sentences."""

from headrace import KafkaStreams, StreamsBuilder, serdes

builder = StreamsBuilder()
sentences = builder.stream("sentences", key=serdes.string, value=serdes.string)
words = sentences.flat_map_values(str.split)
by_word = words.group_by(lambda _, word: word, key=serdes.string, name="by-word")
by_word.count(store="counts").to_stream().to("word-counts")


def app() -> KafkaStreams:
    return KafkaStreams(
        builder.build(),
        {"application.id": "word-count", "processing.guarantee": "exactly_once_v2"},
    )
