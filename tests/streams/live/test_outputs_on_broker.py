"""Topics that are written and are not there: named within seconds, under both guarantees."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from headrace.streams.errors import MissingTopicError
from headrace.topology import StreamsBuilder, Topology, serdes
from tests.streams.worker.live.test_topic_watch_on_broker import delete
from tests.support import kafka
from tests.support.live import Live, live, settings_of
from tests.support.topics import Topics

GUARANTEES = pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])


def copy(source: str, sink: Any) -> Topology:
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string, value=serdes.string).to(sink)
    return builder.build()


def test_an_output_that_does_not_exist_is_named_before_anything_is_made(
    topics: Topics, tmp_path: Path
) -> None:
    source, sink = topics.create("in"), topics.create("out")
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.string)
    stream.group_by_key().count(store="counts").to_stream().to(f"{sink}s")
    settings = settings_of(topics, tmp_path)
    failure = Live(builder.build(), settings).failure()
    assert isinstance(failure, MissingTopicError)
    assert failure.topics == (f"{sink}s",)
    assert f"output topics that do not exist: {sink}s (did you mean {sink}?)" in str(failure)
    assert topics.partitions(f"{settings['application.id']}-counts-changelog") == 0
    assert topics.partitions(f"{sink}s") == 0


def test_a_dead_letter_topic_that_does_not_exist_is_named_with_the_one_meant(
    topics: Topics, tmp_path: Path
) -> None:
    source, sink, dead = topics.create("in"), topics.create("out"), topics.create("dead")
    settings = settings_of(topics, tmp_path) | {
        "errors.dead.letter.queue.topic.name": f"{dead}s",
        "deserialization.exception.handler": "continue",
    }
    failure = Live(copy(source, sink), settings).failure()
    assert isinstance(failure, MissingTopicError)
    assert f"{dead}s (did you mean {dead}?)" in str(failure)


@GUARANTEES
def test_a_topic_that_a_function_names_and_that_is_not_there_stops_the_application(
    guarantee: str, topics: Topics, tmp_path: Path
) -> None:
    """It was processed anew without end under exactly-once, and started anew otherwise."""
    source, sink = topics.create("in"), topics.create("out")
    topology = copy(source, lambda _, value: sink if value == "fine" else f"{sink}x")
    kafka.write(topics.bootstrap, source, [(b"k", b"fine"), (b"k", b"misspelt")])
    settings = settings_of(topics, tmp_path, processing_guarantee=guarantee)
    failure = Live(topology, settings).failure()
    assert isinstance(failure, MissingTopicError)
    assert failure.topics == (f"{sink}x",)
    assert f"{sink}x (did you mean {sink}?)" in str(failure)
    assert topics.partitions(f"{sink}x") == 0


@GUARANTEES
def test_an_output_that_is_deleted_stops_the_application(
    guarantee: str, topics: Topics, tmp_path: Path
) -> None:
    """No look at the topics is due. It repeated an abort each second."""
    source, sink = topics.create("in"), topics.create("out")
    settings = settings_of(topics, tmp_path, processing_guarantee=guarantee)
    kafka.write(topics.bootstrap, source, [(b"k", b"before")])
    with pytest.raises(MissingTopicError, match=f"were deleted: {sink}|topic {sink}, which"):
        delete_under(live(copy(source, sink), settings), topics, source, sink)


def delete_under(
    running: AbstractContextManager[Live], topics: Topics, source: str, sink: str
) -> None:
    with running as app:
        app.wait_processed(1)
        delete(topics, sink)
        kafka.write(topics.bootstrap, source, [(b"k", b"after")])
        app.wait(lambda: False, what="an error that stops the application")
