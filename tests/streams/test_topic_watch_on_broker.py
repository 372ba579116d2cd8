"""Topics that change under a running application."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from streams.errors import MisconfiguredTopicError, MissingTopicError
from tests.support import kafka
from tests.support.counting import Counting
from tests.support.live import live, settings_of
from tests.support.topics import Topics
from topology import StreamsBuilder, serdes

OFTEN: dict[str, Any] = {"topics_check_interval_ms": 200}
NEWS_WITHIN_MS = 500
"""How soon clients hear of new partitions; it takes them five minutes otherwise."""


def delete(topics: Topics, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    admin.delete_topics([name])[name].result(30)


def grow(topics: Topics, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    admin.create_partitions([NewPartitions(name, partitions)])[name].result(30)
    while topics.partitions(name) < partitions:
        time.sleep(0.05)


def fail_after(counting: Counting, change: Callable[[], None]) -> None:
    """Count everything, change the topics, and wait for the error that ends the application."""
    with counting.run() as app:
        counting.wait(app)
        change()
        app.wait(lambda: False, what="an error that stops the application")


def test_a_source_that_is_deleted_stops_the_application(topics: Topics, tmp_path: Path) -> None:
    counting = Counting(topics, tmp_path, **OFTEN)
    counting.write(20)
    with pytest.raises(MissingTopicError, match=counting.input):
        fail_after(counting, lambda: delete(topics, counting.input))
    counting.check_exact()


def test_a_changelog_that_is_deleted_stops_the_application(topics: Topics, tmp_path: Path) -> None:
    """Created anew by the next record it would lack every row of before."""
    counting = Counting(topics, tmp_path, **OFTEN)
    counting.write(20)
    with pytest.raises(MisconfiguredTopicError, match=f"{counting.changelog} were deleted"):
        fail_after(counting, lambda: delete(topics, counting.changelog))


def test_a_source_that_grows_past_its_state_stops_the_application(
    topics: Topics, tmp_path: Path
) -> None:
    """Equal keys would be in other partitions than their counts.

    Trap 32.
    """
    counting = Counting(
        topics, tmp_path, **OFTEN, consumer_topic_metadata_refresh_interval_ms=NEWS_WITHIN_MS
    )
    counting.write(20)
    with pytest.raises(MisconfiguredTopicError, match=counting.input):
        fail_after(counting, lambda: grow(topics, counting.input, 2))
    counting.check_exact()


def test_a_source_without_state_grows_while_the_application_runs(
    topics: Topics, tmp_path: Path
) -> None:
    """The new partitions become tasks, and what is in them already is read from its start.

    Trap 32: nothing needs a reset here.
    """
    source, sink = topics.create("in"), topics.create("out")
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string, value=serdes.string).to(sink)
    settings = settings_of(
        topics, tmp_path, consumer_topic_metadata_refresh_interval_ms=NEWS_WITHIN_MS
    )
    kafka.write(topics.bootstrap, source, [(b"key-%d" % n, b"before") for n in range(20)])
    with live(builder.build(), settings) as app:
        app.wait(lambda: len(kafka.read(topics.bootstrap, sink)) == 20, what="the old records")
        grow(topics, source, 3)
        kafka.write(topics.bootstrap, source, [(b"key-%d" % n, b"after") for n in range(60)])
        app.wait(lambda: len(kafka.read(topics.bootstrap, sink)) == 80, what="the new records")
    assert max(map(len, app.assigned)) == 3
