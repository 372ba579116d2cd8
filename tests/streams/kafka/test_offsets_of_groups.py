"""An admin client that asks the wrong broker for a group's offsets ends the process: none does."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.admin import LiveAdmin
from headrace.streams.kafka.group_admin import GroupAdmin, RetryingAdmin
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition

HERE = TopicPartition("t", 0)
ROOT = Path(__file__).parents[3]


class Moving:
    """A client of a cluster whose group has no coordinator at first."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def poll(self, _: float) -> None:
        pass

    def describe_consumer_groups(self, groups: list[str], **_: Any) -> dict[str, Future[Any]]:
        self.asked.append("group")
        future: Future[Any] = Future()
        if self.asked.count("group") == 1:
            future.set_exception(KafkaException(KafkaError(KafkaError.NOT_COORDINATOR)))
        else:
            state = confluent_kafka.ConsumerGroupState.DEAD
            future.set_result(SimpleNamespace(members=[], state=state))
        return dict.fromkeys(groups, future)

    def alter_consumer_group_offsets(self, asked: list[Any], **_: Any) -> dict[str, Future[Any]]:
        self.asked.append("set")
        moved = KafkaError(KafkaError.NOT_COORDINATOR) if self.asked.count("set") == 1 else None
        future: Future[Any] = Future()
        place = SimpleNamespace(topic="t", partition=0, error=moved)
        future.set_result(SimpleNamespace(topic_partitions=[place]))
        return {one.group_id: future for one in asked}

    def list_consumer_group_offsets(self, asked: list[Any], **_: Any) -> dict[str, Future[Any]]:
        self.asked.append("offsets")
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(topic_partitions=[]))
        return {one.group_id: future for one in asked}


def test_a_command_asks_once_the_coordinator_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Moving()
    monkeypatch.setattr("headrace.streams.kafka.admin.new_admin", lambda *_: client)
    admin = GroupAdmin({"bootstrap.servers": "nowhere:1"}, timeout_s=30)
    assert admin.committed("g", decided=False) == {}
    assert client.asked == ["group", "group", "offsets"]
    assert admin.undecided_offsets("g", [HERE]) == []
    assert client.asked[3:] == ["group", "offsets"]


def test_offsets_are_set_again_where_the_coordinator_has_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Moving()
    monkeypatch.setattr("headrace.streams.kafka.admin.new_admin", lambda *_: client)
    admin = GroupAdmin({"bootstrap.servers": "nowhere:1"}, timeout_s=30)
    admin.set_offsets("g", {HERE: CommittedOffset(7, "")})
    assert client.asked == ["set", "set"]


def test_a_worker_asks_through_a_consumer_and_one_for_all_questions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[str, list[list[TopicPartition]]]] = []

    class Reader:
        def __init__(self, _: Any, group: str, *, brokers: Any) -> None:
            made.append((group, []))

        def committed(self, places: Any) -> dict[TopicPartition, CommittedOffset]:
            made[-1][1].append(list(places))
            return {HERE: CommittedOffset(7, "")}

    monkeypatch.setattr("headrace.streams.kafka.admin.OpenGroup", Reader)
    admin = LiveAdmin({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=1)
    assert admin.committed_offsets("g", [HERE]) == {HERE: CommittedOffset(7)}
    assert admin.committed_offsets("g", [HERE]) == {HERE: CommittedOffset(7)}
    assert made == [("g", [[HERE], [HERE]])]


def test_nothing_else_asks_an_admin_client_for_offsets_of_a_group() -> None:
    named = [
        path.relative_to(ROOT).as_posix()
        for top in ("streams", "streams_web", "spark_bridge")
        for path in (ROOT / top).rglob("*.py")
        if "list_consumer_group_offsets" in path.read_text()
    ]
    assert named == ["streams/kafka/group_admin.py"]


def test_who_looks_at_a_group_all_the_time_does_not_have_it_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That ends the process where the connection to the coordinator is lost meanwhile."""
    tops = ("streams", "streams_web", "spark_bridge")
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for top in tops
        for path in (ROOT / top).rglob("*.py")
    }
    describing = {name for name, text in texts.items() if "describe_consumer_groups" in text}
    assert describing == {"streams/kafka/group_admin.py"}
    looping = ("streams/queries", "streams/feeds", "streams_web", "streams/cli/top.py",
               "streams/cli/lag.py", "streams/worker", "streams/upkeep")  # fmt: skip
    assert not [n for n, text in texts.items() if n.startswith(looping) and "GroupAdmin(" in text]
    look = RetryingAdmin({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=1)
    monkeypatch.setattr(
        type(look._client), "describe_consumer_groups", lambda *_, **__: pytest.fail("described")
    )
    for ask in (look.group_state, look.assigned):
        with pytest.raises(
            FatalClientError, match=r"cannot describe the group g: .*try again later"
        ):
            ask("g")


def test_what_a_command_looks_for_is_asked_again_while_a_broker_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look = RetryingAdmin({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=30)
    answer = {HERE: CommittedOffset(7)}
    said: list[Any] = [FatalClientError("not now"), FatalClientError("not now"), answer]

    def committed(*_: Any) -> Any:
        answer = said.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(LiveAdmin, "committed_offsets", committed)
    assert look.committed_offsets("g", iter([HERE])) == answer
    assert said == []
