"""Changes of a store: each once and in order, from the end, the beginning or any position."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace import KafkaStreams, Materialized, StreamsBuilder, serdes
from headrace.streams.errors import FatalClientError, StreamsError
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.queries import feeds, subscription
from headrace.streams.queries import feeds as feeds_module
from headrace.streams.queries.change import DecodedChange, positions_of
from headrace.streams.queries.errors import (
    NoChangelogError,
    NoSuchStoreError,
    NotReadableError,
    PositionGoneError,
    TooManyFollowersError,
    WrongQueryError,
)
from headrace.streams.queries.feeds import Feeds, Start
from headrace.streams.queries.subscription import TURN_RECORDS, ChangeSubscription
from headrace.streams.testing.local_cluster import Transaction
from headrace.streams.testing.memory_cluster import MemoryCluster
from tests.support.feeds import Follower, MemoryFeeds, bare
from tests.support.processes import wait_until

CHANGELOG = "app-counts-changelog"


def one(number: int) -> bytes:
    return serdes.long.serialize(number)


class Scene:
    """An application that counts in two partitions, without its workers."""

    def __init__(self, path: Path, **options: object) -> None:
        builder = StreamsBuilder()
        words = builder.stream("words", key=serdes.string, value=serdes.string)
        words.group_by_key().count(store="counts").to_stream().to("out")
        loose = Materialized("loose", logged=False)
        words.group_by_key().count(store=loose).to_stream().to("out")
        settings = {
            "application.id": "app", "bootstrap.servers": "nowhere:1", "state.dir": str(path)
        }  # fmt: skip
        self.queries = KafkaStreams(builder.build(), settings).queries()
        self.memory = MemoryFeeds(MemoryCluster(partitions=2))
        self.memory.cluster.create(CHANGELOG)
        self.feeds = Feeds(self.queries, connect=lambda _: self.memory, **options)  # type: ignore[arg-type]

    def write(
        self,
        *records: tuple[int, str, int | None],
        committed: bool | None = True,
    ) -> None:
        rows = [(p, k.encode(), None if n is None else one(n)) for p, k, n in records]
        self.memory.write(CHANGELOG, *rows, committed=committed)

    def follow(self, start: Start | None = None, *, key: bytes | None = None) -> Follower:
        return Follower(self.feeds, "counts", start, key=key)

    def close(self) -> None:
        self.feeds.close()
        self.queries.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


BEGINNING = Start("beginning")


def at(text: str) -> Start:
    return Start("positions", positions_of(text))


def test_what_is_committed_is_told_from_now_on(scene: Scene) -> None:
    scene.write((0, "before", 1))
    follower = scene.follow()
    scene.write((0, "a", 1), (1, "b", 1), (0, "a", 2))
    scene.write((0, "a", None))
    changes = follower.changes(4)
    assert [one for one in bare(changes) if one[0] == "a"] == [("a", 1), ("a", 2), ("a", None)]
    assert [one["deleted"] for one in changes if one["key"] == "a"] == [False, False, True]
    assert {one["partition"] for one in changes if one["key"] == "b"} == {1}
    first = next(one for one in changes if one["key"] == "a")
    assert first == {
        "key": "a", "value": 1, "deleted": False, "timestamp": 0, "partition": 0, "offset": 2,
    }  # fmt: skip
    assert follower.named("position") == [{"position": "0:2,1:0"}]


def test_what_was_aborted_is_never_told(scene: Scene) -> None:
    scene.write((0, "a", 1), committed=False)
    scene.write((0, "a", 2))
    follower = scene.follow(BEGINNING)
    assert bare(follower.changes(1)) == [("a", 2)]
    scene.write((0, "a", 3), committed=False)
    scene.write((0, "b", 1), committed=None)
    scene.write((1, "c", 1))
    assert bare(follower.changes(2)) == [("a", 2), ("c", 1)]


def test_any_position_has_just_what_follows(scene: Scene) -> None:
    """Whoever comes back with the last id is told what he was not told, and nothing twice."""
    random = Random(3)
    count = 0
    for number in range(30):
        records = [(random.randrange(2), f"k{random.randrange(4)}", number) for _ in range(3)]
        is_committed = random.random() < 0.7
        scene.write(
            *records,
            committed=is_committed,
        )
        count += 3 * is_committed
    whole = scene.follow(BEGINNING)
    changes, ids = whole.changes(count), whole.positions()
    for index in (0, 1, count // 2, count - 2, count - 1):
        back = scene.follow(at(str(ids[index])))
        rest = back.changes(count - 1 - index)
        for partition in (0, 1):
            mine = [one for one in changes[index + 1 :] if one["partition"] == partition]
            assert [one for one in rest if one["partition"] == partition] == mine
        back.leave()


def test_those_who_catch_up_make_what_they_tell_one_at_a_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the loop of the server that they are in would wait for all of them."""
    at_work: set[int] = set()
    most, paused = [], []

    class Watched(DecodedChange):
        def __init__(self, *args: Any) -> None:
            at_work.add(threading.get_ident())
            most.append(len(at_work))
            super().__init__(*args)

    def pause(seconds: float) -> None:
        """Nobody begins before that, so that others have the processor."""
        paused.append(seconds)
        at_work.discard(threading.get_ident())

    monkeypatch.setattr(feeds, "DecodedChange", Watched)
    monkeypatch.setattr(subscription, "_pause", pause)
    scene.write(*((n % 2, f"k{n}", n) for n in range(300)))
    followers = [scene.follow(BEGINNING) for _ in range(8)]
    for follower in followers:
        assert len(follower.changes(300)) == 300
    assert len(most) == 8 * 300
    assert set(most) == {1}
    assert len(paused) >= 8 * 300 // TURN_RECORDS


def test_what_waits_is_taken_in_pieces() -> None:
    follower = ChangeSubscription(None, lambda: None)
    for number in range(10):
        follower.emit("row", b"%d" % number * 400)
    taken = []
    while some := follower.take(1_000)[0]:
        taken.append(len(some))
    assert taken == [2] * 5


def test_those_who_come_while_it_goes_on_miss_nothing(scene: Scene) -> None:
    """They catch up alone and join the reader of all, under what is written all the while."""
    over = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        # Not as fast as it can: on a busy machine nobody would come to the end of that.
        while not over.wait(0.002):
            scene.write((0, "a", written), (1, "b", written))
            written += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        followers = [scene.follow(BEGINNING)]
        for _ in range(6):
            wait_until(lambda: len(followers[0].named("change")) > 50, what="changes")
            followers.append(scene.follow(BEGINNING))
    finally:
        over.set()
        thread.join()
    for follower in followers:
        changes = follower.changes(2 * written)
        for key in ("a", "b"):
            assert [value for k, value in bare(changes) if k == key] == list(range(written))


def test_one_key_is_followed_alone_and_its_position_moves_on(scene: Scene) -> None:
    follower = scene.follow(key=b"a")
    scene.write((0, "a", 1), (0, "ab", 1), (1, "b", 1))
    assert bare(follower.changes(1)) == [("a", 1)]
    wait_until(lambda: follower.subscription.take()[1] == "0:3,1:2", what="a position behind all")


def test_all_share_one_reader_which_ends_with_the_last(scene: Scene) -> None:
    followers = [scene.follow() for _ in range(5)]
    scene.write((0, "a", 1))
    for follower in followers:
        follower.changes(1)
    assert scene.memory.made == 1
    for follower in followers[1:]:
        follower.leave()
    scene.write((0, "a", 2))
    followers[0].changes(2)
    assert len(scene.memory.open) == 1
    followers[0].leave()
    wait_until(lambda: not scene.memory.open, what="no reader")
    again = scene.follow()
    scene.write((0, "a", 3))
    assert bare(again.changes(1)) == [("a", 3)]


def test_what_retention_has_deleted_is_said(scene: Scene) -> None:
    scene.write((0, "a", 1), (0, "a", 2))
    scene.memory.cluster.delete_before(TopicPartition(CHANGELOG, 0), 2)
    with pytest.raises(PositionGoneError, match=r"changelog-0 has offsets from 2 to 3, and offset"):
        scene.follow(at("0:1,1:0"))
    with pytest.raises(PositionGoneError, match=r"was re-created. Start again with the rows"):
        scene.follow(at("0:99"))
    with pytest.raises(WrongQueryError, match=r"partition 7 of .* does not exist. Use 0 to 1"):
        scene.follow(at("7:0"))
    assert scene.feeds._followers == {}
    scene.follow(at("0:2")).leave()


def test_markers_of_transactions_without_records_are_not_taken_for_compaction(
    scene: Scene,
) -> None:
    """A worker that is killed leaves such: it had said that it would write to a partition."""
    scene.write((0, "a", 1))
    log = scene.memory.cluster.log(TopicPartition(CHANGELOG, 0))
    for _ in range(3):
        with scene.memory.lock:
            empty = Transaction()
            log.open[empty] = log.end
            log.mark(empty)
    scene.write((0, "a", 2), (0, "a", 3))
    follower = scene.follow(at("0:0,1:0"))
    assert bare(follower.changes(3)) == [("a", 1), ("a", 2), ("a", 3)]
    assert follower.named("compacted") == []


def test_what_compaction_has_taken_is_said_once(scene: Scene) -> None:
    for number in range(4):
        scene.write((0, "a", number), (0, "b", number))
    scene.write((0, "a", 7), (0, "a", 8), (0, "a", 9), committed=False)
    scene.write((0, "c", 1))
    whole = scene.follow(at("0:0"))
    assert len(whole.changes(9)) == 9
    # Markers and aborted records are no loss.
    assert whole.named("compacted") == []
    scene.memory.compact(TopicPartition(CHANGELOG, 0))
    less = scene.follow(at("0:0"))
    assert [key for key, _ in bare(less.changes(2))] == ["b", "c"]
    (said,) = less.named("compacted")
    assert (said["partition"], said["from"]) == (0, 0)
    assert "compaction has removed changes" in said["reason"]
    assert [event.name for event in less.told][:2] == ["position", "compacted"]
    # From the beginning there is what there is.
    asked = scene.follow(BEGINNING)
    asked.changes(2)
    assert asked.named("compacted") == []


def test_brokers_that_are_away_are_not_taken_for_compaction(scene: Scene) -> None:
    scene.memory.mute_polls = 50
    scene.write((0, "a", 1))
    scene.write(*((0, "a", number) for number in range(9)), committed=False)
    scene.write((0, "a", 2))
    follower = scene.follow(at("0:0"))
    assert bare(follower.changes(2)) == [("a", 1), ("a", 2)]
    assert follower.named("compacted") == []


def test_who_leaves_while_brokers_are_away_ends_his_reader(scene: Scene) -> None:
    scene.memory.mute_polls = 1 << 60
    scene.write((0, "a", 1))
    scene.write(*((0, "a", number) for number in range(9)), committed=False)
    scene.write((0, "a", 2))
    follower = scene.follow(at("0:0"))
    wait_until(lambda: len(scene.memory.open) == 3, what="one who looks for what is missing")
    follower.leave()
    wait_until(lambda: not scene.memory.open, what="no reader")
    assert follower.named("compacted") == []


def test_who_leaves_while_something_is_looked_for_ends_it_in_peace(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """More may be missing behind the same place, which is looked at no more."""
    scene.memory.mute_polls = 1 << 60
    scene.write((0, "a", 1))
    scene.write(*((0, "a", number) for number in range(9)), committed=False)
    scene.write((0, "a", 2))
    # Behind the last change, too, there is what may be missing.
    scene.write(*((0, "a", number) for number in range(9)), committed=False)
    follower = scene.follow(at("0:0"))
    wait_until(lambda: len(scene.memory.open) == 3, what="one who looks for what is missing")
    follower.leave()
    wait_until(lambda: not scene.memory.open, what="no reader")
    assert caplog.text == ""


def test_who_does_not_read_is_let_go_and_the_others_go_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        feeds_module,
        "ChangeSubscription",
        lambda key, wake: ChangeSubscription(key, wake, events_max=10),
    )
    slow = scene.follow()
    monkeypatch.undo()
    quick = scene.follow()
    for number in range(30):
        scene.write((0, "a", number))
    assert len(quick.changes(30)) == 30
    assert "too slowly. Continue from the last position" in slow.closed()
    told = [value for _, value in bare(slow.named("change"))]
    assert told == list(range(len(told)))
    rest = scene.follow(at(str(slow.positions()[-1])))
    found = bare(rest.changes(30 - len(told)))
    assert [value for _, value in found] == list(range(len(told), 30))


@pytest.mark.slow
def test_who_catches_up_is_waited_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        feeds_module,
        "ChangeSubscription",
        lambda key, wake: ChangeSubscription(key, wake, events_max=5, max_wait_s=60),
    )
    scene.write(*((0, "a", number) for number in range(100)))
    follower = scene.follow(BEGINNING)
    assert [value for _, value in bare(follower.changes(100))] == list(range(100))


def test_who_catches_up_and_reads_nothing_is_let_go(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        feeds_module,
        "ChangeSubscription",
        lambda key, wake: ChangeSubscription(key, wake, bytes_max=100, max_wait_s=0.05),
    )
    scene.write(*((0, "a", number) for number in range(100)))
    follower = scene.follow(BEGINNING)
    wait_until(lambda: follower.subscription.is_over, what="the end")
    assert "too slowly" in follower.closed()
    follower.leave()
    wait_until(lambda: not scene.memory.open, what="no reader")


def test_a_reader_that_fails_says_why_and_the_next_one_reads(scene: Scene) -> None:
    followers = [scene.follow(), scene.follow()]
    scene.memory.failure = FatalClientError("the brokers are gone")
    for follower in followers:
        assert follower.closed() == "the changes cannot be read: the brokers are gone"
    scene.memory.failure = None
    again = scene.follow()
    scene.write((1, "b", 1))
    assert bare(again.changes(1)) == [("b", 1)]


@pytest.mark.parametrize("start", [Start(), Start("beginning")])
def test_what_the_client_refuses_is_said_with_the_store_and_its_text(
    scene: Scene, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    scene.memory.failure = KafkaException(KafkaError(KafkaError._INVALID_ARG, "no such place"))
    scene.write((0, "a", 1))
    follower = scene.follow(start)
    why = "the Kafka client reports: no such place"
    assert follower.closed() == f"the changes cannot be read: {why}"
    # The fields of an event are attributes of its record.
    said = {(f["store"], f["topic"], f["reason"]) for f in map(vars, caplog.records)}
    assert said == {("counts", CHANGELOG, why)}


def test_what_a_serde_refuses_is_told_with_the_reason(scene: Scene) -> None:
    follower = scene.follow()
    scene.memory.write(CHANGELOG, (0, b"a", b"no long"), (0, b"\xff", one(1)))
    first, second = follower.changes(2)
    assert first["value"] == {"base64": "bm8gbG9uZw=="}
    assert first["error"].startswith("long: ")
    assert second["key"] == {"base64": "/w=="}


def test_stores_that_cannot_be_followed_are_said_to_be(scene: Scene) -> None:
    with pytest.raises(NoChangelogError, match="'loose' has no changelog"):
        Follower(scene.feeds, "loose")
    with pytest.raises(NoSuchStoreError, match="Use a store that it has: counts, loose"):
        Follower(scene.feeds, "none")
    scene.memory.cluster.delete(CHANGELOG)
    with pytest.raises(NotReadableError, match="app-counts-changelog, with the changes"):
        scene.follow()


@pytest.mark.parametrize("text", ["", "x", "0", "0:", ":1", "0:1;1:2", "0:-1", "0:" + "9" * 30])
def test_positions_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(WrongQueryError, match="a position must be PARTITION:OFFSET"):
        positions_of(text)


def test_no_more_than_so_many_catch_up_at_a_time(scene: Scene) -> None:
    scene.write((0, "a", 1))
    for _ in range(feeds_module.CATCHING_UP_MAX):
        scene.feeds._catching_up.acquire()
    said = "8 change feeds are reading older changes, which is the maximum. Retry"
    with pytest.raises(TooManyFollowersError, match=said):
        scene.follow(BEGINNING)
    at_the_end = scene.follow()
    scene.write((0, "a", 2))
    assert bare(at_the_end.changes(1)) == [("a", 2)]
    scene.feeds._catching_up.release()
    assert len(scene.follow(BEGINNING).changes(2)) == 2


def test_no_more_than_so_many_follow(tmp_path: Path) -> None:
    scene = Scene(tmp_path, followers_max=3)
    followers = [scene.follow() for _ in range(3)]
    with pytest.raises(TooManyFollowersError, match="3 clients follow changes on this host"):
        scene.follow()
    followers[0].leave()
    scene.follow()
    scene.close()
    assert followers[1].closed() == "the server of the changes stops"
    with pytest.raises(StreamsError, match="stops"):
        scene.follow()
    assert scene.memory.open == []
