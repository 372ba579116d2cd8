"""Changes of every kind of store, and the rows that are told before them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    KafkaStreams,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    TopologyTestDriver,
    serdes,
)
from headrace.streams.queries import replicas, scan
from headrace.streams.queries.errors import (
    NotReadableError,
    StoreInMemoryError,
    WrongQueryError,
)
from headrace.streams.queries.feeds import Feeds, Start
from headrace.streams.queries.initial_rows import InitialRows
from headrace.streams.queries.readers import Piece, StoreReader
from tests.support.feeds import Follower, MemoryFeeds, bare
from tests.support.processes import wait_until

SETTINGS = {"application.id": "app", "processing.guarantee": "exactly_once_v2",
            "bootstrap.servers": "nowhere:1"}  # fmt: skip
SECONDS = timedelta(seconds=10)
DAY = timedelta(days=1)
ROWS = Start("rows")
BEGINNING = Start("beginning")


@pytest.fixture(autouse=True)
def follows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed is read at once, and not some time later."""
    monkeypatch.setattr(replicas, "UPDATE_EVERY_MAX_S", 0.0)


def built() -> Any:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    grouped = words.group_by_key()
    grouped.count(store="counts").to_stream().to("out")
    windows = TimeWindows(size=SECONDS, grace=DAY)
    grouped.windowed_by(windows).count(store="windows").to_stream().to("windows-out")
    sessions = SessionWindows(inactivity_gap=SECONDS, grace=DAY)
    grouped.windowed_by(sessions).count(store="sessions").to_stream().to("sessions-out")
    builder.table(
        "prices", key=serdes.string, value=serdes.json, store=Materialized("prices", history=DAY)
    )
    builder.table("named", key=serdes.string, value=serdes.string, store="named")
    held = Materialized("held", kind="memory")
    builder.table("held", key=serdes.string, value=serdes.string, store=held)
    builder.global_table("lands", key=serdes.string, value=serdes.string, store="lands")
    return builder.build()


class Scene:
    """An application that runs on a cluster in memory, its rows on disk."""

    def __init__(self, path: Path, **settings: object) -> None:
        topology = built()
        given = {**SETTINGS, "state.dir": str(path), **settings}
        self.driver = TopologyTestDriver(
            topology,
            given,
            state_dir=path,
            partitions=2,
            commit="manual",
            now=time.time_ns() // 1_000_000,
        )
        self.queries = KafkaStreams(topology, given).queries()
        self.memory = MemoryFeeds(self.driver.cluster)
        self.feeds = Feeds(self.queries, connect=lambda _: self.memory)

    def send(self, topic: str, *records: tuple[Any, Any], timestamp: int = 7) -> None:
        with self.memory.lock:
            for key, value in records:
                self.driver.input(topic).send(key, value, timestamp=timestamp)
            self.driver.commit()

    def follow(self, store: str, start: Start, **more: Any) -> Follower:
        return Follower(self.feeds, store, start, **more)


@contextmanager
def running(path: Path, **settings: object) -> Iterator[Scene]:
    made = Scene(path, **settings)
    yield made
    made.feeds.close()
    made.queries.close()
    made.driver.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with running(tmp_path) as made:
        yield made


def has_rows(*followers: Follower) -> None:
    """Wait until they were told the rows; what is committed later is a change."""
    for follower in followers:
        wait_until(lambda one=follower: bool(one.named("position")), what="a position")  # type: ignore[misc]


def test_windows_and_sessions_are_told_with_their_times(scene: Scene) -> None:
    windows = scene.follow("windows", BEGINNING, key=b"a")
    sessions = scene.follow("sessions", BEGINNING, key=b"a")
    scene.send("words", ("a", ""), ("ab", ""), timestamp=12_000)
    scene.send("words", ("a", ""), timestamp=15_000)
    found = windows.changes(2)
    window = {"start_ms": 10_000, "end_ms": 20_000}
    assert bare(found) == [({"key": "a", "window": window}, n) for n in (1, 2)]
    assert [one["timestamp"] for one in found] == [12_000, 15_000]
    wait_until(lambda: len(sessions.named("change")) == 3, what="the session that grew")
    grown = {(one["key"]["window"]["end_ms"], one["value"]) for one in sessions.named("change")}
    # What it was before is deleted.
    assert grown == {(12_000, 1), (12_000, None), (15_000, 2)}


def test_versions_are_told_with_the_times_since_when_they_hold(scene: Scene) -> None:
    follower = scene.follow("prices", BEGINNING)
    scene.send("prices", ("tea", 3), timestamp=10)
    scene.send("prices", ("tea", None), timestamp=30)
    # One that came late.
    scene.send("prices", ("tea", {"cents": 2}), timestamp=20)
    found = [(one["value"], one["timestamp"]) for one in follower.changes(4)]
    # The version behind it is written again, as it is where the late one ends.
    assert found == [(3, 10), (None, 30), ({"cents": 2}, 20), (None, 30)]


def test_rows_in_memory_and_global_tables_have_changes_too(scene: Scene) -> None:
    held, lands = scene.follow("held", BEGINNING), scene.follow("lands", BEGINNING)
    scene.send("held", ("k", "v"))
    scene.send("held", ("k", None))
    scene.send("lands", ("fr", "France"))
    assert bare(held.changes(2))[-1] == ("k", None)
    assert bare(lands.changes(1)) == [("fr", "France")]
    with pytest.raises(StoreInMemoryError):
        scene.follow("held", ROWS)
    with pytest.raises(WrongQueryError, match="is a global table, whose changes are the records"):
        scene.follow("lands", ROWS)


def test_a_table_whose_topic_is_its_changelog_has_changes(tmp_path: Path) -> None:
    with running(tmp_path, **{"topology.optimization": "reuse.ktable.source.topics"}) as scene:
        scene.send("named", ("k", "v"))
        follower = scene.follow("named", ROWS)
        has_rows(follower)
        scene.send("named", ("k", None), ("l", "w"))
        assert bare(follower.changes(2)) in (
            [("k", None), ("l", "w")],
            [("l", "w"), ("k", None)],
        )
        assert bare(follower.named("row")) == [("k", "v")]
        assert follower.named("change")[0]["partition"] in (0, 1)


def test_rows_come_first_and_changes_that_are_not_in_them_after(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits between the pieces of the rows: each count follows the one that was told before."""
    monkeypatch.setattr(scan, "PIECE_ROWS", 3)
    keys = [f"k{number:02d}" for number in range(20)]
    words = [(key, "") for key in keys]
    scene.send("words", *words)
    pieces = StoreReader.pieces

    def slowly(*arguments: Any) -> Iterator[Piece[Any]]:
        for piece in pieces(*arguments):
            yield piece
            scene.send("words", *words)

    monkeypatch.setattr(StoreReader, "pieces", slowly)
    follower = scene.follow("counts", ROWS)
    wait_until(lambda: bool(follower.named("position")), what="a position")
    scene.send("words", *words)
    last = int(scene.driver.store("counts")["k00"])
    assert last > 8

    def told() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for key, value in bare(follower.named("row", "change")):
            found.setdefault(key, []).append(value)
        return found

    wait_until(lambda: all(one[-1] == last for one in told().values()), what="all changes")
    for counts in told().values():
        assert counts == list(range(counts[0], last + 1))
    assert min(counts[0] for counts in told().values()) == 1
    names = [event.name for event in follower.told]
    assert names[: len(keys)] == ["row"] * len(keys)
    # Nobody can resume before all that is in the rows has passed.
    where = names.index("position")
    assert {event.position for event in follower.told[:where]} == {None}
    assert all(event.position is not None for event in follower.told[where:])


def test_the_rows_of_one_key_come_first(scene: Scene) -> None:
    scene.send("words", ("a", ""), ("b", ""), timestamp=1_000)
    scene.send("words", ("a", ""), timestamp=12_000)
    counts, windows = (scene.follow(store, ROWS, key=b"a") for store in ("counts", "windows"))
    has_rows(counts, windows)
    scene.send("words", ("a", ""), ("b", ""), timestamp=13_000)
    assert bare(counts.changes(1)) == [("a", 3)]
    assert bare(counts.named("row")) == [("a", 2)]
    assert [value for _, value in bare(windows.changes(1))] == [2]
    assert [value for _, value in bare(windows.named("row"))] == [1, 1]


def test_rows_that_are_not_here_are_said_to_be(scene: Scene) -> None:
    with pytest.raises(NotReadableError, match="this host has no rows of store 'counts'"):
        scene.follow("counts", ROWS)
    scene.send("words", ("a", ""))
    reader = scene.queries.reader("counts")
    with pytest.raises(NotReadableError, match="no rows of partition 5 of store 'counts'"):
        reader.require_all({0, 5})
    follower = scene.follow("counts", ROWS)
    follower.leave()


def test_what_cannot_be_read_ends_it_with_the_reason(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> bool:
        raise NotReadableError("it is moving; retry")

    scene.send("words", ("a", ""))
    monkeypatch.setattr(InitialRows, "emit", fail)
    assert scene.follow("counts", ROWS).closed() == "it is moving; retry"
