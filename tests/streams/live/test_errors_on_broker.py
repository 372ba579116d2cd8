"""Handlers, dead letters, extractors and the order among inputs, on a real broker."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.errors import AbortableError, MissingTopicError
from headrace.topology import StreamsBuilder, Topology, serdes, timestamps
from tests.support import kafka
from tests.support.live import Live, live, settings_of
from tests.support.processes import wait_until
from tests.support.topics import Topics

STAGES = ("deserialization", "processing", "production")
CONTINUE = {f"{stage}.exception.handler": "continue" for stage in STAGES}
PREFIX = "__streams.errors."


def divided(source: str, sink: str) -> Topology:
    """Twelve divided by each number; a three cannot be written."""
    builder = StreamsBuilder()
    numbers = builder.stream(source, key=serdes.string, value=serdes.json, name="read")
    results = numbers.map_values(lambda n: 12 // n, name="divide")
    results.map_values(lambda n: {n} if n == 3 else n).to(sink, name="write")
    return builder.build()


def merged(a: str, b: str, sink: str, **source: Any) -> Topology:
    builder = StreamsBuilder()
    first, second = (
        builder.stream(topic, key=serdes.string, value=serdes.string, **source) for topic in (a, b)
    )
    first.merge(second).to(sink)
    return builder.build()


def values(topics: Topics, topic: str, **options: Any) -> list[bytes | None]:
    return [record.value for record in kafka.read(topics.bootstrap, topic, **options)]


class Aborts:
    """A probe that aborts the first commits of records, once some of these are on the broker."""

    def __init__(self, count: int, arrived: Callable[[], int]) -> None:
        self.left = count
        self._arrived = arrived
        self._seen = 0
        self._has_begun = False

    def __call__(self, step: str) -> None:
        # The first commit is of where the task begins, and sends nothing.
        self._has_begun = self._has_begun or step == "transaction_committed"
        if step == "offsets_sent" and self._has_begun and self.left:
            self.left -= 1
            wait_until(lambda: self._arrived() > self._seen, what="records of this transaction")
            self._seen = self._arrived()
            raise AbortableError("the test says so")


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_bad_records_become_dead_letters_and_all_others_are_processed(
    guarantee: str, topics: Topics, tmp_path: Path
) -> None:
    source, sink, dead = (topics.create(prefix) for prefix in ("in", "out", "dead"))
    records = [b"1", b"0", b"2", b"no json", b"4", b"6"]
    kafka.write(topics.bootstrap, source, [(b"k", value) for value in records])
    settings = {
        **settings_of(topics, tmp_path, processing_guarantee=guarantee, max_poll_records=2),
        **CONTINUE,
        "errors.dead.letter.queue.topic.name": dead,
    }
    with live(divided(source, sink), settings) as app:
        app.wait_processed(len(records))
    assert values(topics, sink) == [b"12", b"6", b"2"]
    letters = kafka.read(topics.bootstrap, dead)
    assert [letter.value for letter in letters] == [b"0", b"no json", b"4"]
    for letter, offset, error in zip(
        letters,
        (b"1", b"3", b"4"),
        (
            b"ZeroDivisionError",
            b"headrace.topology.errors.SerdeError",
            b"headrace.topology.errors.SerdeError",
        ),
        strict=True,
    ):
        headers = dict(letter.headers or [])
        assert headers[PREFIX + "exception"] == error
        assert headers[PREFIX + "topic"] == source.encode()
        assert (headers[PREFIX + "partition"], headers[PREFIX + "offset"]) == (b"0", offset)
        assert b"Traceback" in (headers[PREFIX + "stacktrace"] or b"")
        assert letter.timestamp == 1_700_000_000_000 + int(offset)


@pytest.mark.parametrize("size", [600_000, 899_000])
def test_an_error_that_quotes_a_large_value_becomes_a_dead_letter(
    size: int, topics: Topics, tmp_path: Path
) -> None:
    """Incompressible, and for a topic that takes less than the others."""
    source, sink = topics.create("in"), topics.create("out")
    dead = topics.create("dead", config={"max.message.bytes": "900000"})
    value = random.Random(size).randbytes(size // 2).hex().encode()

    def fail(text: str) -> str:
        raise ValueError(text)

    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string, value=serdes.string).map_values(fail).to(sink)
    settings = {
        **settings_of(topics, tmp_path),
        **CONTINUE,
        "errors.dead.letter.queue.topic.name": dead,
        "producer.compression.type": "none",
    }
    kafka.write(topics.bootstrap, source, [(b"k", value), (b"k", value)])
    with live(builder.build(), settings) as app:
        app.wait_processed(2)
    letters = kafka.read(topics.bootstrap, dead)
    assert [letter.value for letter in letters] == [value, value]
    messages = [dict(one.headers or [])[PREFIX + "message"] or b"" for one in letters]
    assert all(message.endswith(b"left out]") for message in messages)


def test_a_step_writes_dead_letters_with_its_reason(topics: Topics, tmp_path: Path) -> None:
    source, sink, dead = (topics.create(prefix) for prefix in ("in", "out", "dead"))
    builder = StreamsBuilder()
    numbers = builder.stream(source, key=serdes.string, value=serdes.json)
    numbers.filter(lambda _, n: n % 2 == 1).to_dead_letters(lambda key, n: f"{key}: {n} is odd")
    numbers.filter(lambda _, n: n % 2 == 0).to(sink)
    settings = {**settings_of(topics, tmp_path), "errors.dead.letter.queue.topic.name": dead}
    kafka.write(topics.bootstrap, source, [(b"k", b"%d" % n) for n in range(6)])
    aborts = Aborts(1, lambda: len(values(topics, dead, isolation="read_uncommitted")))
    with live(builder.build(), settings, probe=aborts) as app:
        app.wait_processed(6)
    letters = kafka.read(topics.bootstrap, dead)
    assert [letter.value for letter in letters] == [b"1", b"3", b"5"]
    reasons = [dict(letter.headers or [])[PREFIX + "message"] for letter in letters]
    assert reasons == [b"k: 1 is odd", b"k: 3 is odd", b"k: 5 is odd"]
    assert values(topics, sink) == [b"0", b"2", b"4"]


def test_no_dead_letter_of_an_aborted_transaction_is_visible(
    topics: Topics, tmp_path: Path
) -> None:
    source, sink, dead = (topics.create(prefix) for prefix in ("in", "out", "dead"))
    kafka.write(topics.bootstrap, source, [(b"k", b"%d" % (n % 2)) for n in range(20)])
    settings = {
        **settings_of(topics, tmp_path, max_poll_records=5),
        **CONTINUE,
        "errors.dead.letter.queue.topic.name": dead,
    }
    aborts = Aborts(2, lambda: len(values(topics, dead, isolation="read_uncommitted")))
    with live(divided(source, sink), settings, probe=aborts) as app:
        app.wait_processed(20)
    assert values(topics, dead) == [b"0"] * 10
    assert values(topics, sink) == [b"12"] * 10
    assert len(values(topics, dead, isolation="read_uncommitted")) > 10


def test_a_dead_letter_topic_that_does_not_exist_is_met_at_the_start(
    topics: Topics, tmp_path: Path
) -> None:
    """Not at the first bad record, which may come months later."""
    source, sink, dead = topics.create("in"), topics.create("out"), topics.name("dead")
    settings = {
        **settings_of(topics, tmp_path),
        **CONTINUE,
        "errors.dead.letter.queue.topic.name": dead,
    }
    error = Live(divided(source, sink), settings).failure()
    assert isinstance(error, MissingTopicError)
    assert f"the dead-letter topic {dead} does not exist; create it" in str(error)


def test_records_without_a_timestamp_can_be_left_out(topics: Topics, tmp_path: Path) -> None:
    source, other, sink = (topics.create(prefix) for prefix in ("in", "other", "out"))
    for value, timestamp in ((b"1", 5), (b"2", -1), (b"3", 7)):
        kafka.write(topics.bootstrap, source, [(b"k", value)], timestamp=timestamp)
    topology = merged(source, other, sink, timestamps=timestamps.log_and_skip_on_invalid_timestamp)
    with live(topology, settings_of(topics, tmp_path)) as app:
        app.wait_processed(3)
    assert values(topics, sink) == [b"1", b"3"]


@pytest.mark.parametrize("extractor", [None, lambda record, _: int(record.value)])
def test_records_that_are_there_are_processed_in_the_order_of_their_times(
    extractor: Any, topics: Topics, tmp_path: Path
) -> None:
    """Traps 2 and 3: nothing of one input is processed while nothing is known of the other."""
    a, b, sink = (topics.create(prefix) for prefix in ("a", "b", "out"))
    for topic, first in ((a, 0), (b, 1)):
        for begin in range(first, 400, 2):
            moment = begin + 1 if extractor is None else 1000 - begin
            kafka.write(topics.bootstrap, topic, [(b"k", b"%d" % begin)], timestamp=moment)
    settings = settings_of(topics, tmp_path, max_poll_records=50)
    with live(merged(a, b, sink, timestamps=extractor), settings) as app:
        app.wait_processed(400)
    assert [int(value or b"") for value in values(topics, sink)] == list(range(400))


def test_an_idle_input_is_waited_for(topics: Topics, tmp_path: Path) -> None:
    """Trap 3: what comes within max.task.idle.ms goes first by its timestamp."""
    a, b, sink = (topics.create(prefix) for prefix in ("a", "b", "out"))
    settings = settings_of(topics, tmp_path, max_task_idle_ms=600_000)
    with live(merged(a, b, sink), settings) as app:
        app.wait_running()
        kafka.write(topics.bootstrap, b, [(b"k", b"2")], timestamp=2)
        kafka.write(topics.bootstrap, a, [(b"k", b"1")], timestamp=1)
        kafka.write(topics.bootstrap, a, [(b"k", b"3")], timestamp=3)
        app.wait_processed(2)
    assert values(topics, sink) == [b"1", b"2"]


def test_a_source_begins_where_it_says(topics: Topics, tmp_path: Path) -> None:
    """Only where nothing was committed; what the application writes itself is read whole."""
    old, new, sink = (topics.create(prefix) for prefix in ("old", "new", "out"))
    for topic in (old, new):
        kafka.write(topics.bootstrap, topic, [(b"k", b"before")])
    builder = StreamsBuilder()
    text = {"key": serdes.string, "value": serdes.string}
    first = builder.stream(old, offset_reset="earliest", **text)
    second = builder.stream(new, **text)
    first.merge(second).repartition(name="again").to(sink)
    settings = {
        **settings_of(topics, tmp_path),
        "consumer.auto.offset.reset": "latest",
        "max.task.idle.ms": -1,
    }
    with live(builder.build(), settings) as app:
        app.wait(lambda: len(values(topics, sink)) == 1, what="the old topic's record")
        kafka.write(topics.bootstrap, new, [(b"k", b"after")])
        app.wait(lambda: len(values(topics, sink)) == 2, what="the new topic's record")
    assert values(topics, sink) == [b"before", b"after"]
