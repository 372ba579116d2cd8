"""Topics that are deleted while all of them are looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import pytest

from headrace.streams.cli.known_topics import Known
from headrace.streams.cli.topics import _listed
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import MissingTopicError
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import TopicPartition


class Admin:
    """A cluster whose topics go away, one with each question for where they begin."""

    def __init__(self, topics: Iterable[str], *, leaving: Iterable[str]) -> None:
        self._topics = list(topics)
        self._leaving = list(leaving)

    def partition_counts(self, names: Iterable[str]) -> Mapping[str, int]:
        return {name: 2 for name in names if name in self._topics}

    def start_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        if self._leaving:
            gone = self._leaving.pop()
            self._topics.remove(gone)
            raise MissingTopicError(f"topic {gone} is not there", topics=[gone])
        return dict.fromkeys(tps, 1)

    def stable_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 4)


def listed(admin: Admin) -> list[dict[str, Any]]:
    config = StreamsConfig.parse({"application.id": "any", "bootstrap.servers": "nowhere:1"})
    return _listed(Known(config), cast(GroupAdmin, admin), ["a", "b", "c"])


def test_topics_that_are_deleted_meanwhile_are_left_out() -> None:
    assert listed(Admin("abc", leaving="bc")) == [{"topic": "a", "partitions": 2, "records": 6}]


def test_a_topic_that_nobody_asked_for_is_no_reason_to_look_again() -> None:
    with pytest.raises(MissingTopicError, match="is not there"):
        listed(Admin("abcd", leaving="d"))
