"""W1, the word count: each sentence is eight records in a repartition topic and eight updates."""

from __future__ import annotations

from collections import Counter

from benchmarks.jobs.job import Dataset, Expected, Job, Record, topic
from benchmarks.jobs.shape import START_MS, Ranges, Shape
from headrace import serdes
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology

WORDS_PER_SENTENCE = 8


def sentences(shape: Shape) -> Dataset:
    """Generate sentences of eight words."""
    rng = shape.generator()
    words = [f"{rng.choice('bcdfgklmnprst')}{rng.choice('aeiou')}{i:x}" for i in range(shape.keys)]
    drawn = [words[n] for n in shape.draw_keys(rng, shape.records * WORDS_PER_SENTENCE)]
    rows: list[Record] = [
        (None, " ".join(drawn[i : i + WORDS_PER_SENTENCE]).encode(), START_MS + i)
        for i in range(0, len(drawn), WORDS_PER_SENTENCE)
    ]
    last = {word.encode(): n.to_bytes(8, "big") for word, n in Counter(drawn).items()}
    return Dataset({"in": rows}, Expected(last, len(drawn)))


def word_count(source: str, output: str) -> Topology:
    """Count words: sentences to words, words through a repartition topic to counts."""
    builder = StreamsBuilder()
    (
        builder.stream(topic(source, "in"), value=serdes.string)
        .flat_map_values(str.split)
        .group_by(lambda _, w: w, key=serdes.string, value=serdes.string, name="by-word")
        .count(store="counts")
        .to_stream()
        .to(output)
    )
    return builder.build()


JOBS = (
    Job(
        "words",
        "W1 word count",
        sentences,
        word_count,
        (
            Shape("many", 200_000, 200_000),
            Shape("zipf", 200_000, 10_000, skew=1.0),
        ),
        Ranges(200_000, (100, 500_000)),
        kind="words",
    ),
)
