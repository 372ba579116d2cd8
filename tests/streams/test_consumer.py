"""What the live consumer makes of a client's answers; the client is a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from streams.clients import CommittedOffset, TopicPartition
from streams.consumer import LiveConsumer
from streams.errors import FatalClientError, OffsetLostError, TaskMigratedError
from streams.memory_worker import ManualClock

HERE, THERE = TopicPartition("in", 0), TopicPartition("in", 1)
NONE_COMMITTED = -1001
Answer = confluent_kafka.TopicPartition


class Refused(Answer):
    """A partition of an answer that bears an error."""

    error = KafkaError(KafkaError.NOT_COORDINATOR)


class Stale(Answer):
    """One that is refused for its membership."""

    error = KafkaError(KafkaError.ILLEGAL_GENERATION)


@dataclass
class Client:
    """As much of confluent_kafka's consumer as is asked here."""

    config: dict[str, Any]
    offsets: list[Answer] = field(default_factory=list)
    """The answer to `committed`."""
    answers: list[list[Answer]] = field(default_factory=list)
    """Those to `commit`, one after the other."""
    ends: tuple[int, int] | None = None
    messages: list[Message] = field(default_factory=list)
    topics: Sequence[str] = ()
    callbacks: dict[str, Callable[..., None]] = field(default_factory=dict)
    commits: int = 0

    def subscribe(self, topics: Sequence[str], **callbacks: Callable[..., None]) -> None:
        self.topics, self.callbacks = topics, callbacks

    def incremental_assign(self, partitions: Sequence[Answer]) -> None: ...

    def incremental_unassign(self, partitions: Sequence[Answer]) -> None: ...

    def committed(self, partitions: Sequence[Answer], timeout: float) -> list[Answer]:
        return self.offsets

    def commit(self, offsets: Sequence[Answer], asynchronous: bool) -> list[Answer]:
        assert not asynchronous
        self.commits += 1
        return self.answers.pop(0)

    def get_watermark_offsets(self, place: Answer, cached: bool) -> tuple[int, int] | None:
        assert cached
        return self.ends

    def consume(self, count: int, timeout: float) -> list[Message]:
        found, self.messages = self.messages[:count], self.messages[count:]
        return found

    def close(self) -> None: ...


class Bench:
    """A consumer and the clients that it has made."""

    def __init__(self, **config: Any) -> None:
        self.clients: list[Client] = []
        self.said: list[str] = []
        self.consumer = LiveConsumer(
            config, timeout_s=10, clock=ManualClock(0), make_client=self.make
        )

    @property
    def client(self) -> Client:
        return self.clients[-1]

    def make(self, config: dict[str, Any]) -> Any:
        self.clients.append(Client(config))
        return self.client

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.said.append("assigned")

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.said.append("revoked")

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.said.append("lost")


def test_a_committed_offset_of_0_is_not_none() -> None:
    bench = Bench()
    bench.client.offsets = [Answer(*HERE, 0), Answer(*THERE, NONE_COMMITTED)]
    found = bench.consumer.committed([HERE, THERE], 1)
    assert found == {HERE: CommittedOffset(0), THERE: None}


def test_an_offset_that_is_not_there_is_an_error_whatever_the_settings_say() -> None:
    """A silent reset to the end would leave records out."""
    bench = Bench(**{"auto.offset.reset": "latest"})
    bench.consumer.subscribe(["in"], bench)
    bench.consumer.rejoin()
    assert [client.config["auto.offset.reset"] for client in bench.clients] == ["error"] * 2


def test_offsets_are_unknown_while_one_partition_cannot_be_asked() -> None:
    bench = Bench()
    bench.client.offsets = [Answer(*HERE, 5), Refused(*THERE, NONE_COMMITTED)]
    assert bench.consumer.committed([HERE, THERE], 1) is None


@pytest.mark.parametrize(
    ("ends", "next_offset", "lag"),
    [
        ((0, 5), 4, 1),
        ((0, 5), 5, 0),
        ((0, 5), 7, 0),
        ((0, 0), 0, 0),
        (None, 0, None),
        ((NONE_COMMITTED, NONE_COMMITTED), 0, None),
    ],
)
def test_the_lag_counts_the_last_record(
    ends: tuple[int, int] | None, next_offset: int, lag: int | None
) -> None:
    """One record at the broker is waited for; an unknown end is no lag of zero."""
    bench = Bench()
    bench.client.ends = ends
    assert bench.consumer.lag(HERE, next_offset) == lag


@pytest.mark.parametrize(("callback", "told"), [("on_revoke", "revoked"), ("on_lost", "lost")])
def test_what_a_replaced_client_says_at_its_end_is_not_believed(callback: str, told: str) -> None:
    """Its partitions are dropped already, and may be the new client's by then."""
    bench = Bench()
    bench.consumer.subscribe(["in"], bench)
    bench.consumer.rejoin()
    old, new = bench.clients
    old.callbacks[callback](old, [Answer(*HERE)])
    assert bench.said == []
    new.callbacks[callback](new, [Answer(*HERE)])
    assert bench.said == [told]


def test_a_new_client_can_be_asked_for_a_rebalance_too() -> None:
    """Only a subscription that changes makes a client join again."""
    bench = Bench()
    bench.consumer.subscribe(["in"], bench)
    for _ in range(2):
        before = list(bench.client.topics)
        bench.consumer.ask_for_rebalance()
        assert list(bench.client.topics) != before
    bench.consumer.ask_for_rebalance()
    bench.consumer.rejoin()
    assert list(bench.client.topics) == ["in"]
    bench.consumer.ask_for_rebalance()
    assert list(bench.client.topics) != ["in"]


def test_a_commit_is_repeated_until_no_partition_is_refused() -> None:
    bench = Bench()
    bench.client.answers = [[Answer(*HERE), Refused(*THERE)], [Answer(*HERE), Answer(*THERE)]]
    bench.consumer.commit({HERE: CommittedOffset(1), THERE: CommittedOffset(1)})
    assert bench.client.commits == 2


def test_a_commit_of_a_stale_membership_is_not_repeated() -> None:
    bench = Bench()
    bench.client.answers = [[Stale(*HERE)]]
    with pytest.raises(TaskMigratedError):
        bench.consumer.commit({HERE: CommittedOffset(1)})
    assert bench.client.commits == 1


def test_offsets_beyond_the_log_are_lost() -> None:
    bench = Bench()
    error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "offset 7 is out of range")
    bench.client.messages = [Message(topic="in", partition=0, error=error)]
    with pytest.raises(OffsetLostError, match=r"in-0.*out of range"):
        bench.consumer.poll(100, 0)


def test_a_client_that_cannot_be_asked_is_done() -> None:
    bench = Bench()

    def committed(partitions: Any, timeout: float) -> Any:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "no"))

    bench.client.committed = committed  # type: ignore[method-assign]
    with pytest.raises(FatalClientError):
        bench.consumer.committed([HERE], 1)
