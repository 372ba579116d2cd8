"""What the admin client makes of answers that are none."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from headrace.streams.errors import FatalClientError
from headrace.streams.kafka.admin import _CONFIGS, LiveAdmin
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import TopicDescription, TopicPartition

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
NO_OFFSET = -1001
"""What librdkafka answers, without an error, for a partition whose leader is away."""


class Quiet:
    """A client that has nothing to say besides its answers."""

    def poll(self, _: float) -> None:
        pass


class Answers(Quiet):
    """A client that gives its offsets in turn."""

    def __init__(self, *rounds: Mapping[int, int]) -> None:
        self.asked: list[list[int]] = []
        self._rounds = list(rounds)

    def list_offsets(self, wanted: Mapping[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        self.asked.append([place.partition for place in wanted])
        offsets = self._rounds.pop(0) if len(self._rounds) > 1 else self._rounds[0]
        futures: dict[Any, Future[Any]] = {place: Future() for place in wanted}
        for place, future in futures.items():
            future.set_result(SimpleNamespace(offset=offsets[place.partition]))
        return futures


def admin(
    monkeypatch: pytest.MonkeyPatch,
    *clients: Answers | Stale | Silent | Hasty | Mute,
    timeout_s: float = 30,
) -> LiveAdmin:
    """An admin that gets these clients one after the other, and then the last one again."""
    made = list(clients)
    monkeypatch.setattr(
        "headrace.streams.kafka.admin.new_admin",
        lambda *_: made.pop(0) if len(made) > 1 else made[0],
    )
    return LiveAdmin({"bootstrap.servers": "nowhere:1"}, timeout_s=timeout_s)


@pytest.mark.slow
def test_what_was_asked_of_a_client_that_another_thread_replaced_is_asked_again() -> None:
    """The client goes with its last reference, and with it the answers that are still to come."""
    nowhere = LiveAdmin({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=3)
    other = LiveAdmin({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=1)
    replaced = Timer(0.5, lambda: vars(nowhere).update(_client=vars(other)["_client"]))
    replaced.start()
    with pytest.raises(FatalClientError, match=r"for \d s.*raise task\.timeout\.ms"):
        nowhere.describe(["in"])
    replaced.join()


def test_an_offset_that_is_none_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for the end of a changelog, it would prove good local rows wrong."""
    client = Answers({0: NO_OFFSET, 1: 7}, {0: NO_OFFSET}, {0: 5})
    assert admin(monkeypatch, client).end_offsets([HERE, THERE]) == {HERE: 5, THERE: 7}
    assert client.asked == [[0, 1], [0], [0]]


def test_a_client_that_knows_no_leader_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can go on saying so for minutes after there is one."""
    ignorant, knowing = Answers({0: NO_OFFSET}), Answers({0: 5})
    assert admin(monkeypatch, ignorant, knowing).end_offsets([HERE]) == {HERE: 5}
    assert ignorant.asked == [[0]]


def test_offsets_that_never_come_are_an_error_and_no_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = admin(monkeypatch, Answers({0: NO_OFFSET}), timeout_s=0.2)
    with pytest.raises(FatalClientError, match="cannot find the start of t-0"):
        asked.start_offsets([HERE])


def test_no_offset_of_a_time_is_told_from_no_record_since_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Taken for "no record since", it would have a backfill read to the end of the partition."""
    client = Answers({0: NO_OFFSET, 1: -1}, {0: 5})
    assert admin(monkeypatch, client).offsets_at([HERE, THERE], 17) == {HERE: 5, THERE: None}
    assert client.asked == [[0, 1], [0]]


class Stale(Quiet):
    """A client that believes in a leader of earlier on, whatever one asks it."""

    code = KafkaError.FENCED_LEADER_EPOCH

    def list_offsets(self, wanted: Mapping[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        futures: dict[Any, Future[Any]] = {place: Future() for place in wanted}
        for future in futures.values():
            future.set_exception(KafkaException(KafkaError(self.code)))
        return futures


class Silent(Quiet):
    """A client that waits for a controller for as long as it may."""

    def list_offsets(self, wanted: Mapping[Any, Any], **options: Any) -> dict[Any, Future[Any]]:
        futures: dict[Any, Future[Any]] = {place: Future() for place in wanted}
        late = KafkaException(KafkaError(KafkaError._TIMED_OUT, "waiting for controller"))
        for future in futures.values():
            Timer(options["request_timeout"], future.set_exception, [late]).start()
        return futures


def test_a_client_that_waits_in_vain_leaves_time_for_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert admin(monkeypatch, Silent(), Answers({0: 5}), timeout_s=2).end_offsets([HERE]) == {
        HERE: 5
    }


class Hasty(Quiet):
    """A client whose requests time out, and that keeps the timeouts that it was given."""

    def __init__(self) -> None:
        self.timeouts_s: list[float] = []

    def list_offsets(self, wanted: Mapping[Any, Any], **options: Any) -> dict[Any, Future[Any]]:
        self.timeouts_s.append(options["request_timeout"])
        futures: dict[Any, Future[Any]] = {place: Future() for place in wanted}
        for future in futures.values():
            future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return futures


def test_the_first_requests_are_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks start after a failed leader only when offsets and topics are known."""
    clients = [Hasty() for _ in range(4)]
    asked = admin(monkeypatch, *clients, Answers({0: 5}))
    assert asked.end_offsets([HERE]) == {HERE: 5}
    assert [client.timeouts_s for client in clients] == [[1.5], [3.0], [5.0], [5.0]]


class Mute(Quiet):
    """A client that never answers, not even that the time of its request is over."""

    def list_offsets(self, wanted: Mapping[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        return {place: Future() for place in wanted}

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, Future[Any]]:
        return {one: Future() for one in resources}

    def describe_cluster(self, **_: Any) -> Future[Any]:
        return _done(SimpleNamespace(nodes=[SimpleNamespace(id=number) for number in range(16)]))

    def list_topics(self, **_: Any) -> Any:
        return SimpleNamespace(brokers=[1])


def test_a_client_that_never_answers_is_replaced_however_much_it_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All answers are awaited together: one after the other they would take minutes."""
    places = [TopicPartition("t", number) for number in range(16)]
    offsets = {place.partition: 5 for place in places}
    begun = time.monotonic()
    asked = admin(monkeypatch, Mute(), Answers(offsets), timeout_s=3)
    assert asked.end_offsets(places) == dict.fromkeys(places, 5)
    assert time.monotonic() - begun < 16


def test_configs_of_many_brokers_that_never_answer_end_as_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = time.monotonic()
    with pytest.raises(FatalClientError, match="cannot read x of the brokers: no answer within"):
        admin(monkeypatch, Mute(), timeout_s=3).broker_configs("x")
    assert time.monotonic() - begun < 16


def test_a_transaction_timeout_that_no_broker_tells_is_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.streams.kafka.admin.new_admin", lambda *_: Mute())
    normaliser = GroupAdmin({"bootstrap.servers": "nowhere:1"}, timeout_s=3)
    assert normaliser.transaction_timeout_max_ms() == 15 * 60 * 1000


def test_a_client_with_an_old_leader_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never learns of the new one: each of its requests carries the leader's old epoch."""
    asked = admin(monkeypatch, Stale(), Stale(), Answers({0: 5}))
    assert asked.end_offsets([HERE]) == {HERE: 5}


class Leaderless(Stale):
    """A client that knows of no leader, and never looks for one again."""

    code = KafkaError._NOENT

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        return {HERE.topic: _done(SimpleNamespace(partitions=[0], topic_id="t"))}


def test_a_client_that_finds_no_leaders_at_all_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It answers so at once from what it has heard, after there are leaders too."""
    asked = admin(monkeypatch, Leaderless(), Answers({0: 5}))
    assert asked.end_offsets([HERE]) == {HERE: 5}


class Configs(Quiet):
    """A client of topics that exist, whose configs are asked for."""

    def __init__(self, *rounds: Mapping[str, int | None]) -> None:
        self._rounds = list(rounds)
        self.asked: list[list[str]] = []

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        return {name: _done(SimpleNamespace(partitions=[0], topic_id=name)) for name in ("a", "b")}

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, Future[Any]]:
        codes = self._rounds.pop(0) if len(self._rounds) > 1 else self._rounds[0]
        self.asked.append([one.name for one in resources])
        return {one: _answer(codes[one.name]) for one in resources}


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def _answer(code: int | None) -> Future[Any]:
    if code is None:
        return _done({"cleanup.policy": SimpleNamespace(value="delete")})
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


KNOWN = {"a": None, "b": None}
UNHEARD_OF = {"a": None, "b": KafkaError.UNKNOWN_TOPIC_OR_PART}
DENIED_TOO = {"a": KafkaError.TOPIC_AUTHORIZATION_FAILED, "b": KafkaError.UNKNOWN_TOPIC_OR_PART}


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.streams.kafka.admin._CONFIGS_AGAIN_S", 0.0)


def test_configs_of_a_topic_that_a_broker_has_not_heard_of_yet_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says so of a topic that was made a moment ago, which is no missing right."""
    client: Any = Configs(UNHEARD_OF, KNOWN)
    with capture_logs() as logs:
        facts = admin(monkeypatch, client).describe(["a", "b"])
    assert facts["b"].config == {"cleanup.policy": "delete"}
    assert client.asked == [["a", "b"], ["b"]]
    assert logs == []


def test_no_answer_about_configs_is_told_from_a_missing_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = admin(monkeypatch, Configs(DENIED_TOO))  # type: ignore[arg-type]
    with capture_logs() as logs:
        facts = [asked.describe(["a", "b"]) for _ in range(2)]
    assert [one["a"].config for one in facts] == [{}, {}]
    assert [(e["event"], e["topics"]) for e in logs] == [
        ("topic_configs_unknown", ["a"]),
        ("topic_configs_unknown", ["b"]),
    ]
    assert "lacks the right DescribeConfigs" in logs[0]["reason"]
    assert "lacks the right" not in logs[1]["reason"]
    assert "Unknown topic or partition" in logs[1]["reason"]


def test_every_config_that_is_compared_is_asked_for() -> None:
    """A config that is left out looks as if the broker did not know it, and nothing is compared."""
    read: set[str] = set()

    class Recording(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return default

    facts = TopicDescription("t", 1, "id", Recording())
    for name, member in vars(TopicDescription).items():
        if isinstance(member, property):
            getattr(facts, name)
    assert read == set(_CONFIGS)
