"""W1, the word count: each sentence is eight records on their way and eight updates."""

from __future__ import annotations

import random
from collections import Counter

from benchmarks.jobs.job import SEED, START_MS, Expected, Job, Made, Record, topic
from headrace import serdes
from headrace.topology.dsl.builder import StreamsBuilder
from headrace.topology.topology import Topology

WORDS_PER_SENTENCE = 8
VOCABULARY = 10_000


def sentences(count: int) -> Made:
    """Make sentences of eight words, some of them much more frequent than others."""
    rng = random.Random(SEED)
    words = [f"{rng.choice('bcdfgklmnprst')}{rng.choice('aeiou')}{i:x}" for i in range(VOCABULARY)]
    weights = [1 / (rank + 10) for rank in range(VOCABULARY)]
    drawn = rng.choices(words, weights, k=count * WORDS_PER_SENTENCE)
    rows: list[Record] = [
        (None, " ".join(drawn[i : i + WORDS_PER_SENTENCE]).encode(), START_MS + i)
        for i in range(0, len(drawn), WORDS_PER_SENTENCE)
    ]
    last = {word.encode(): n.to_bytes(8, "big") for word, n in Counter(drawn).items()}
    return Made({"in": rows}, Expected(last, len(drawn)))


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


JOBS = (Job("words", "W1 word count", 200_000, sentences, word_count, kind="words"),)
