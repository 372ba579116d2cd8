"""Topics that change under a running application."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions

from headrace.streams import KafkaStreams
from headrace.streams.errors import MisconfiguredTopicError, MissingTopicError
from headrace.streams.plan.identity import TopicReplacedError
from headrace.topology import StreamsBuilder, serdes
from tests.support import kafka
from tests.support.counting import Counting
from tests.support.live import live, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.topics import Topics

OFTEN: dict[str, Any] = {"topics_check_interval_ms": 200}
NEWS_WITHIN_MS = 500
"""How soon clients hear of new partitions; it takes them five minutes otherwise."""


def delete(topics: Topics, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    admin.delete_topics([name])[name].result(PATIENCE_S)


def grow(topics: Topics, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    admin.create_partitions([NewPartitions(name, partitions)])[name].result(PATIENCE_S)
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


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_nothing_of_a_source_that_is_made_anew_is_committed(
    guarantee: str, topics: Topics, tmp_path: Path
) -> None:
    """The client goes over to it without a word: 300 records of 1,000 were passed over.

    No look at the topics is due: the commit notices it. The way out that keeps the state is gone.
    """
    counting = Counting(topics, tmp_path, processing_guarantee=guarantee)
    counting.write(300)

    def make_anew() -> None:
        delete(topics, counting.input)
        make_again(topics, counting.input)
        counting.write(1_000)

    with pytest.raises(TopicReplacedError, match=f"topic {counting.input} was deleted"):
        fail_after(counting, make_anew)
    assert counting.committed() == {}, "the broker forgets offsets of a topic that is deleted"
    kafka.set_committed(topics.bootstrap, counting.group, counting.input, {0: 0})
    if guarantee == "exactly_once_v2":
        counting.finish()
        counting.check_exact()


def make_again(topics: Topics, name: str) -> None:
    """Create a topic whose deletion may not be over yet."""
    while True:
        try:
            topics.create_named(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            time.sleep(0.02)
        else:
            return


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


def has_seen_to_orphans(app: KafkaStreams) -> bool:
    return app._worker is not None and app._worker._membership._check_at_s == math.inf


@pytest.mark.parametrize(
    "heard",
    [
        {"consumer_topic_metadata_refresh_interval_ms": NEWS_WITHIN_MS},
        OFTEN,
    ],
    ids=["by the client", "by a look at the topics"],
)
def test_a_source_without_state_grows_while_the_application_runs(
    heard: dict[str, Any], topics: Topics, tmp_path: Path
) -> None:
    """The new partitions become tasks, and what is in them already is read from its start.

    Trap 32: nothing needs a reset here. After a look the client must not take five minutes.
    """
    source, sink = topics.create("in"), topics.create("out")
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string, value=serdes.string).to(sink)
    settings = settings_of(topics, tmp_path, **heard)
    kafka.write(topics.bootstrap, source, [(b"key-%d" % n, b"before") for n in range(20)])
    with live(builder.build(), settings) as app:
        app.wait(lambda: len(kafka.read(topics.bootstrap, sink)) == 20, what="the old records")
        # Until then the worker looks for partitions that nobody has, whyever that is.
        app.wait(lambda: has_seen_to_orphans(app.app), what="all partitions have a member")
        grow(topics, source, 3)
        kafka.write(topics.bootstrap, source, [(b"key-%d" % n, b"after") for n in range(60)])
        app.wait(lambda: len(kafka.read(topics.bootstrap, sink)) == 80, what="the new records")
    assert max(map(len, app.assigned)) == 3
