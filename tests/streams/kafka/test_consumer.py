"""What the live consumer makes of a client's answers; the client is a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.errors import (
    FatalClientError,
    MissingTopicError,
    OffsetLostError,
    TaskMigratedError,
)
from headrace.streams.kafka.consumer import _NO_TOPIC, LiveConsumer, by_partition
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.testing.memory_worker import ManualClock

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
    listed: int = 0
    left: bool = False
    closed: bool = False
    unassigned: int = 0
    last_callback: str = ""
    """The one that its close runs."""
    poll_callback: str = ""
    """The one that a poll runs."""
    members: list[str] = field(default_factory=list)
    """What it is called by the group, one after the other."""
    handed_out: int = 0
    """The offset behind the last record that a poll has returned."""

    def subscribe(self, topics: Sequence[str], **callbacks: Callable[..., None]) -> None:
        self.topics, self.callbacks = topics, callbacks

    def incremental_assign(self, partitions: Sequence[Answer]) -> None: ...

    def incremental_unassign(self, partitions: Sequence[Answer]) -> None:
        assert not self.closed, "the client refuses it"
        self.unassigned += 1

    def memberid(self) -> str:
        return self.members.pop(0) if self.members else "member"

    def list_topics(self, timeout: float) -> None:
        self.listed += 1

    def unsubscribe(self) -> None:
        self.left = True

    def poll(self, timeout: float) -> Message | None:
        message = self.messages.pop(0) if self.messages else None
        self.handed_out = self.handed_out if message is None else (message.offset() or 0) + 1
        if self.poll_callback:
            self.callbacks[self.poll_callback](self, [Answer(*HERE)])
        return message

    def position(self, places: Sequence[Answer]) -> list[Answer]:
        return [Answer(*HERE, self.handed_out)]

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

    def close(self) -> None:
        if self.last_callback:
            self.callbacks[self.last_callback](self, [Answer(*HERE)])
        self.closed = True


class Bench:
    """A consumer and the clients that it has made."""

    def __init__(self, **config: Any) -> None:
        self.clients: list[Client] = []
        self.said: list[str] = []
        self.committed: dict[TopicPartition, int] = {}
        """What a commit in the last callback would say."""
        self.clock = ManualClock(0)
        self.consumer = LiveConsumer(config, timeout_s=10, clock=self.clock, make_client=self.make)

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
        self.committed = dict(self.consumer.positions(partitions))

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


@pytest.mark.parametrize(
    ("callback", "told"),
    [("on_assign", "assigned"), ("on_revoke", "revoked"), ("on_lost", "lost")],
)
def test_what_a_replaced_client_says_at_its_end_is_not_believed(callback: str, told: str) -> None:
    """Its partitions are dropped already, and may be the new client's by then."""
    bench = Bench()
    bench.consumer.subscribe(["in"], bench)
    bench.client.last_callback = callback
    bench.consumer.rejoin()
    assert [client.closed for client in bench.clients] == [True, False]
    assert bench.said == []
    bench.client.callbacks[callback](bench.client, [Answer(*HERE)])
    assert bench.said == [told]


@pytest.mark.parametrize(
    ("callback", "heard"), [("on_revoke", "on_revoked"), ("on_lost", "on_lost")]
)
def test_a_revocation_is_answered_though_its_listener_fails(callback: str, heard: str) -> None:
    """The client's own answer raises what is no exception: nobody could catch it."""

    class Failing(Bench):
        def fail(self, partitions: Any) -> None:
            raise FatalClientError("what the last commit says")

    bench = Failing()
    setattr(bench, heard, bench.fail)
    bench.consumer.subscribe(["in"], bench)
    with pytest.raises(FatalClientError, match="what the last commit says"):
        bench.client.callbacks[callback](bench.client, [Answer(*HERE)])
    assert bench.client.unassigned == 1


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


def test_a_client_that_has_no_membership_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It joins just now, and would end the process."""
    bench = Bench()
    bench.consumer.subscribe(["in"], bench)
    monkeypatch.setattr(bench.client, "memberid", lambda: "")
    bench.consumer.ask_for_rebalance()
    assert list(bench.client.topics) == ["in"]


def test_a_commit_is_repeated_until_no_partition_is_refused() -> None:
    bench = Bench()
    bench.client.answers = [[Answer(*HERE), Refused(*THERE)], [Answer(*HERE), Answer(*THERE)]]
    bench.consumer.commit({HERE: CommittedOffset(1), THERE: CommittedOffset(1)})
    assert bench.client.commits == 2


def test_a_commit_amid_a_rebalance_is_made_again_in_the_next_generation() -> None:
    """Else all since the last commit would be processed again, and its results come twice."""
    bench = Bench()
    bench.client.answers = [[Stale(*HERE)], [Stale(*HERE)], [Answer(*HERE)]]
    bench.consumer.commit({HERE: CommittedOffset(1)})
    assert bench.client.commits == 3


def test_a_commit_that_no_generation_takes_is_given_up() -> None:
    bench = Bench(**{"session.timeout.ms": 5_000})
    bench.client.answers = [[Stale(*HERE)]] * 1000
    with pytest.raises(TaskMigratedError):
        bench.consumer.commit({HERE: CommittedOffset(1)})
    assert 5 < bench.clock.monotonic_s() < 7


def test_a_commit_waits_until_the_session_of_one_that_is_gone_has_ended() -> None:
    """Till then the group begins no generation, and who joins again belongs to none."""
    bench = Bench(**{"session.timeout.ms": 5_000})
    bench.client.answers = [*([[Stale(*HERE)]] * 50), [Answer(*HERE)]]
    bench.consumer.commit({HERE: CommittedOffset(1)})
    assert bench.client.commits == 51


def test_a_client_that_closes_has_no_membership(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    def gone() -> None:
        raise RuntimeError("Consumer group metadata not available")

    monkeypatch.setattr(bench.client, "consumer_group_metadata", gone, raising=False)
    assert bench.consumer.group_metadata() is None


def test_a_commit_of_a_lost_membership_is_not_made_again() -> None:
    """Another member may have the partitions by now."""
    bench = Bench()
    bench.client.answers = [[Stale(*HERE)], [Answer(*HERE)]]
    bench.client.members = ["member", "another"]
    with pytest.raises(TaskMigratedError):
        bench.consumer.commit({HERE: CommittedOffset(1)})
    assert bench.client.commits == 1


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION])
def test_offsets_beyond_the_log_are_lost(code: int) -> None:
    bench = Bench()
    error = KafkaError(code, "offset 7 is out of range")
    bench.client.messages = [Message(topic="in", partition=0, error=error)]
    with pytest.raises(OffsetLostError, match=r"in-0.*out of range"):
        bench.consumer.poll(100, 0)


def record(partition: int, offset: int) -> Message:
    return Message(topic="in", partition=partition, offset=offset)


@pytest.mark.parametrize("wait_s", [0, 1])
def test_a_poll_parts_records_by_partition_and_keeps_their_order(wait_s: float) -> None:
    bench = Bench()
    places = [(0, 5), (1, 7), (0, 6), (0, 9), (1, 8)]
    bench.client.messages = [record(*place) for place in places]
    if wait_s:
        consume, bench.client.consume = bench.client.consume, lambda *_: []  # type: ignore[method-assign]

        def poll(timeout: float) -> Message:
            bench.client.consume = consume  # type: ignore[method-assign]
            return bench.client.messages.pop(0)

        bench.client.poll = poll  # type: ignore[method-assign]
    found = bench.consumer.poll(100, wait_s)
    offsets = {place: [message.offset() for message in batch] for place, batch in found.items()}
    assert offsets == {HERE: [5, 6, 9], THERE: [7, 8]}


def test_an_error_that_passes_takes_no_record_with_it() -> None:
    bench = Bench()
    passing = Message(error=KafkaError(KafkaError._TRANSPORT))
    bench.client.messages = [record(0, 5), passing, record(0, 6)]
    (batch,) = bench.consumer.poll(100, 0).values()
    assert [message.offset() for message in batch] == [5, 6]
    bench.client.messages = [passing]
    assert bench.consumer.poll(100, 0) == {}


def test_a_commit_is_not_repeated_for_ever() -> None:
    bench = Bench()
    bench.client.answers = [[Refused(*HERE)]] * 1000
    with pytest.raises(FatalClientError, match="offset commit"):
        bench.consumer.commit({HERE: CommittedOffset(1)})
    assert 10 < bench.clock.monotonic_s() < 11


@pytest.mark.parametrize("leave", [True, False])
def test_a_closed_client_is_asked_for_nothing_more(leave: bool) -> None:
    """Tasks are let go of after it."""
    bench = Bench()
    bench.consumer.subscribe(["in"], bench)
    bench.consumer.close(leave=leave)
    bench.consumer.remove([HERE])
    assert (bench.client.left, bench.client.closed) == (leave, True)


def test_new_partitions_are_heard_of_by_an_answer_about_all_topics() -> None:
    bench = Bench()
    assert bench.consumer.refresh_metadata()
    assert bench.client.listed == 1

    def list_topics(timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    bench.client.list_topics = list_topics  # type: ignore[method-assign]
    assert not bench.consumer.refresh_metadata()


def test_a_client_that_cannot_be_asked_is_done() -> None:
    bench = Bench()

    def committed(partitions: Any, timeout: float) -> Any:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "no"))

    bench.client.committed = committed  # type: ignore[method-assign]
    with pytest.raises(FatalClientError):
        bench.consumer.committed([HERE], 1)


def test_a_record_that_comes_while_one_leaves_is_not_passed_over() -> None:
    """The last callback commits, and nobody has processed that record: no position is known."""
    bench = Bench()
    bench.consumer.subscribe(["in"], bench)
    bench.client.poll_callback = "on_revoke"
    bench.client.messages = [Message(topic=HERE.topic, partition=HERE.partition, offset=725)]
    bench.consumer.close(leave=True)
    assert bench.client.handed_out == 726, "it came while one left"
    assert bench.said == ["revoked"]
    assert bench.committed == {}


@pytest.mark.parametrize("callback", ["on_assign", "on_revoke", "on_lost"])
@pytest.mark.parametrize("leave", [True, False])
def test_nobody_is_told_what_a_client_calls_back_in_its_own_close(
    callback: str, leave: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group's thread may end in the midst of it; who asks for anything then waits for ever."""
    bench = Bench()
    bench.consumer.subscribe(["in"], bench)
    close = bench.client.close

    def closing() -> None:
        monkeypatch.setattr(bench.client, "memberid", lambda: pytest.fail("never answered"))
        bench.client.last_callback = callback
        close()

    monkeypatch.setattr(bench.client, "close", closing)
    bench.consumer.close(leave=leave)
    assert bench.said == []
    assert bench.client.unassigned == (callback != "on_assign"), "the client would do it itself"


@dataclass
class Listed:
    """What a client answers that is asked for topics."""

    topics: dict[str, Any]


@pytest.mark.parametrize("code", [KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART])
@pytest.mark.parametrize("known_at_s", [0.0, 1.0])
def test_a_topic_that_a_broker_does_not_know_yet_is_read_anew(code: int, known_at_s: float) -> None:
    """One that was made a moment ago; it was said that it does not exist any more."""
    bench = Bench()
    bench.consumer.subscribe(["in"], bench)
    begun_s = bench.clock.monotonic_s()

    def list_topics(topic: str, timeout: float) -> Listed:
        known = bench.clock.monotonic_s() - begun_s >= known_at_s
        return Listed({topic: SimpleNamespace(partitions={0: None} if known else {})})

    bench.client.list_topics = list_topics  # type: ignore[assignment, method-assign]
    pattern = Message(topic=_NO_TOPIC, error=KafkaError(KafkaError._UNKNOWN_TOPIC))
    gone = Message(topic="in", partition=0, error=KafkaError(code))
    bench.client.messages = [pattern, gone]
    with pytest.raises(TaskMigratedError, match="in-0 exists, but a broker did not know it yet"):
        bench.consumer.poll(10, 0)


@pytest.mark.parametrize("answer", [Listed({}), Listed({"in": SimpleNamespace(partitions={1: 1})})])
def test_a_topic_that_stays_away_is_gone(answer: Listed) -> None:
    bench = Bench()
    bench.consumer.subscribe(["in"], bench)
    bench.client.list_topics = lambda topic, timeout: answer  # type: ignore[assignment, method-assign, misc]
    error = KafkaError(KafkaError._UNKNOWN_PARTITION)
    pattern = Message(topic=_NO_TOPIC, error=KafkaError(KafkaError._UNKNOWN_TOPIC))
    bench.client.messages = [pattern, Message(topic="in", partition=0, error=error)]
    with pytest.raises(MissingTopicError, match="in-0 no longer exists"):
        bench.consumer.poll(10, 0)
    assert bench.clock.monotonic_s() < 5


@given(places=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), min_size=1))
def test_each_partition_has_its_records_in_their_order(places: list[tuple[str, int]]) -> None:
    messages = [
        Message(topic=topic, partition=partition, offset=offset)
        for (topic, partition), offset in zip(places, count(), strict=False)
    ]
    found = by_partition(messages, {})
    assert {(place.topic, place.partition) for place in found} == set(places)
    for place, records in found.items():
        assert [r.offset() for r in records] == [
            offset for offset, one in enumerate(places) if one == (place.topic, place.partition)
        ]
