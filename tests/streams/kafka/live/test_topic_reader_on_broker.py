"""A topic that is deleted while it is read is said to be."""

from __future__ import annotations

from itertools import islice

import pytest

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import MissingTopicError
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.kafka.topic_reader import TopicReader
from tests.support import kafka
from tests.support.processes import wait_until
from tests.support.topics import Topics


def test_what_was_deleted_before_it_was_read_is_not_waited_for(topics: Topics) -> None:
    """The client itself says nothing of a topic that it has never seen."""
    others = Topics(topics.bootstrap)
    kept, gone = topics.create("kept"), others.create("gone")
    for name in (kept, gone):
        kafka.write(topics.bootstrap, name, [(b"k", b"v")] * 3)
    settings = {"application.id": "reads", "bootstrap.servers": topics.bootstrap}
    reader = TopicReader(StreamsConfig.parse(settings).restore_config())
    others.delete_all()
    wait_until(lambda: topics.partitions(gone) == 0, what="it is gone")
    places = [TopicPartition(name, 0) for name in (kept, gone)]
    asked = reader.read(dict.fromkeys(places, 0), dict.fromkeys(places, 3))
    try:
        assert [message.offset() for message in islice(asked, 3)] == [0, 1, 2]
        with pytest.raises(MissingTopicError, match=f"topic {gone} was deleted while it was read"):
            next(asked)
    finally:
        reader.close()
