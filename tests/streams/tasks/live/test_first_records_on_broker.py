"""How soon a worker that starts has its first records."""

from __future__ import annotations

import time
from pathlib import Path

from headrace.topology import StreamsBuilder, serdes
from tests.support import kafka, oracle
from tests.support.live import live, settings_of
from tests.support.topics import Topics

LINES = ["a b a", "b", "c a"]
COUNTS = {b"a": 3, b"b": 2, b"c": 1}


def test_a_first_start_does_not_wait_for_the_topics_that_it_has_just_made(
    topics: Topics, tmp_path: Path
) -> None:
    """A broker answers a client's first question when a topic in it has a record, or late."""
    late_s = 30
    source, sink = topics.create("in"), topics.create("out")
    kafka.write(topics.bootstrap, source, [(None, line.encode()) for line in LINES])
    builder = StreamsBuilder()
    words = builder.stream(source, key=serdes.string, value=serdes.string)
    grouped = words.flat_map_values(str.split).group_by(
        lambda _, word: word, key=serdes.string, value=serdes.string, name="by-word"
    )
    grouped.count(store="counts").to_stream().to(sink)
    settings = settings_of(
        topics, tmp_path, consumer_fetch_wait_max_ms=late_s * 1000, commit_interval_ms=100
    )
    # The client names partitions in the order of their topics' names.
    assert settings["application.id"] < source
    with live(builder.build(), settings) as app:
        app.wait_running()
        begun_s = time.monotonic()
        app.wait(lambda: app.processed >= len(LINES), what="the lines are split")
        assert time.monotonic() - begun_s < late_s / 3
        app.wait(
            lambda: oracle.last_counts(kafka.read(topics.bootstrap, sink)) == COUNTS,
            what="the words are counted",
        )
