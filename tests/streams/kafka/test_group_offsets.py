"""Offsets of a group that are asked for from outside; the client is a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from headrace.streams.errors import FatalClientError
from headrace.streams.kafka import group_offsets
from headrace.streams.kafka.group_offsets import MemberlessGroup
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition

HERE, THERE = TopicPartition("in", 0), TopicPartition("in", 1)
NONE_COMMITTED = -1001
Answer = confluent_kafka.TopicPartition


class Passing(Answer):
    """A partition of an answer that is to be asked for again."""

    error = KafkaError(KafkaError.NOT_COORDINATOR)


class Refused(Answer):
    """One whose offset the group does not take."""

    error = KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE)


@dataclass
class Client:
    """As much of confluent_kafka's consumer as is asked here."""

    answers: list[list[Answer]]
    configs: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 0

    def committed(self, places: Sequence[Answer], timeout: float) -> list[Answer]:
        self.calls += 1
        return self.answers.pop(0)

    def commit(self, offsets: Sequence[Answer], asynchronous: bool) -> list[Answer]:
        return self.committed(offsets, 0)

    def poll(self, timeout: float) -> None:
        return None

    def close(self) -> None: ...


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> tuple[Client, MemberlessGroup]:
    client = Client([])

    def make(config: dict[str, Any], brokers: Any) -> Any:
        client.configs.append(config)
        return client

    monkeypatch.setattr(group_offsets, "new_consumer", make)
    monkeypatch.setattr(group_offsets, "_WAIT_S", 0.0)
    return client, MemberlessGroup({}, timeout_s=10, stopping=lambda: False)


def test_a_committed_offset_of_0_is_not_none(group: tuple[Client, MemberlessGroup]) -> None:
    client, offsets = group
    client.answers = [[Answer(*HERE, 0), Answer(*THERE, NONE_COMMITTED)]]
    assert offsets.committed_at("app", [HERE, THERE]) == {HERE: CommittedOffset(0)}


@pytest.mark.parametrize(
    ("decided", "level"), [(True, "read_committed"), (False, "read_uncommitted")]
)
def test_offsets_of_open_transactions_are_waited_for_where_that_is_asked(
    group: tuple[Client, MemberlessGroup], decided: bool, level: str
) -> None:
    client, offsets = group
    client.answers = [[Answer(*HERE, 5)]]
    offsets.committed_at("app", [HERE], decided=decided)
    assert [config["isolation.level"] for config in client.configs] == [level]


def test_a_partition_whose_answer_is_late_is_asked_for_again(
    group: tuple[Client, MemberlessGroup],
) -> None:
    """To take it for one without an offset would read it from its beginning."""
    client, offsets = group
    client.answers = [
        [Answer(*HERE, 5), Passing(*THERE, NONE_COMMITTED)],
        [Answer(*HERE, 5), Answer(*THERE, 7)],
    ]
    found = offsets.committed_at("app", [HERE, THERE])
    assert found == {HERE: CommittedOffset(5), THERE: CommittedOffset(7)}
    assert client.calls == 2


def test_offsets_that_a_group_refuses_are_not_set(group: tuple[Client, MemberlessGroup]) -> None:
    client, offsets = group
    client.answers = [[Answer(*HERE), Refused(*THERE)]]
    with pytest.raises(FatalClientError, match="cannot set the offsets of the group app"):
        offsets.set_offsets("app", {HERE: CommittedOffset(1), THERE: CommittedOffset(1)})
