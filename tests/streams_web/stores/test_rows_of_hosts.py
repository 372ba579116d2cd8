"""Changes behind the rows of all hosts: each row once, and each change that is not in them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace import SessionWindows, StreamsBuilder, TimeWindows, Topology, connect, serdes
from headrace.streams.cli.main import main
from headrace.streams.client.changes import Change, Changes
from headrace.streams.queries import feeds, locator, queries, replicas, scan
from headrace.streams.queries.errors import NotReadableError
from headrace.streams.queries.readers import StoreReader
from headrace.streams_web.stores import local, routing
from tests.support.feeds import MemoryFeeds
from tests.support.hosts import Hosts

KEYS = [f"k{n:02d}" for n in range(30)]


def topology() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    grouped = words.group_by_key()
    grouped.count(store="counts").to_stream().to("out")
    windows = grouped.windowed_by(TimeWindows(size=timedelta(seconds=10), grace=timedelta(days=1)))
    windows.count(store="windows").to_stream().to("windows-out")
    sessions = grouped.windowed_by(
        SessionWindows(inactivity_gap=timedelta(seconds=5), grace=timedelta(days=1))
    )
    sessions.count(store="sessions").to_stream().to("sessions-out")
    return builder.build()


class Scene:
    """Three hosts, and the cluster that has the changes of all partitions."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.hosts = Hosts(path, topology(), [{0, 3}, {1}, {2}])
        self.memory = MemoryFeeds(self.hosts.driver.cluster)
        patch.setattr(feeds, "LiveCluster", lambda _: self.memory)
        urls = [host.server.url for host in self.hosts.hosts]
        self.application = connect(urls, timeout=timedelta(seconds=5))

    def send(self, *keys: str, timestamp: int = 7) -> None:
        with self.memory.lock:
            self.hosts.send("words", *((key, "") for key in keys), timestamp=timestamp)

    def close(self) -> None:
        self.application.close()
        self.hosts.close()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(replicas, "UPDATE_EVERY_MAX_S", 0.0)
    monkeypatch.setattr(replicas, "UPDATE_EVERY_S", 0.0)
    monkeypatch.setattr(locator, "PAUSE_S", 0.0)
    monkeypatch.setattr(local, "SURE_S", 0.0)
    monkeypatch.setattr(queries, "REPORTS_MAX_AGE_S", -1.0)
    made = Scene(tmp_path, monkeypatch)
    yield made
    made.close()


def taken(changes: Changes[Any, Any], count: int) -> list[Change[Any, Any]]:
    return [one for _, one in zip(range(count), changes, strict=False)]


def test_the_rows_of_all_hosts_come_first(scene: Scene) -> None:
    scene.send(*KEYS)
    with scene.application.store("counts").changes(snapshot=True) as changes:
        rows = taken(changes, len(KEYS))
        assert sorted((row.key, row.value) for row in rows) == [(key, 1) for key in KEYS]
        assert all(row.is_row and row.position is None for row in rows)
        assert {row.partition for row in rows} == {0, 1, 2, 3}
        scene.send("k03")
        change = next(changes)
        assert (change.key, change.value, change.is_row) == ("k03", 2, False)
        assert change.position is not None


def test_each_change_is_told_once_behind_the_rows_of_hosts_between_which_tasks_move(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits between pieces, and a partition whose next piece is on another host."""
    monkeypatch.setattr(scan, "PIECE_ROWS", 3)
    scene.send(*KEYS)
    given = [{0, 3}, {1}, {2}]
    next_piece = StoreReader.next_piece
    asked = 0

    def slowly(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        scene.send(*KEYS)
        found = next_piece(*arguments)
        for number, host in enumerate(scene.hosts.hosts):
            scene.hosts.give(host, given[(number + asked) % 3])
        return found

    monkeypatch.setattr(StoreReader, "next_piece", slowly)
    told: dict[str, list[int]] = {}
    with scene.application.store("counts").changes(snapshot=True) as changes:
        for change in changes:
            told.setdefault(change.key, []).append(change.value)
            with scene.memory.lock:
                last = int(scene.hosts.driver.store("counts")["k00"])
            if len(told) == len(KEYS) and all(counts[-1] == last for counts in told.values()):
                break
    assert last > 10
    assert len(told) == len(KEYS)
    for counts in told.values():
        assert counts == list(range(counts[0], last + 1))
    assert len({counts[0] for counts in told.values()}) > 3


def test_the_row_of_one_key_comes_first_from_wherever_it_is(scene: Scene) -> None:
    scene.send("k01", "k02")
    scene.send("k01")
    with scene.application.store("counts").changes("k01", snapshot=True) as changes:
        assert [(row.key, row.value) for row in taken(changes, 1)] == [("k01", 2)]
        scene.send("k01", "k02")
        change = next(changes)
        assert (change.key, change.value, change.is_row) == ("k01", 3, False)


def test_windows_of_a_key_and_sessions_come_first(scene: Scene) -> None:
    for timestamp in (1_000, 12_000):
        scene.send("k01", "k02", timestamp=timestamp)
    for name in ("windows", "sessions"):
        with scene.application.store(name).changes("k01", snapshot=True) as changes:
            rows = taken(changes, 2)
            assert [(row.key.key, row.value) for row in rows] == [("k01", 1), ("k01", 1)]
        with scene.application.store(name).changes(snapshot=True) as changes:
            assert len({(row.key.key, row.key.window) for row in taken(changes, 4)}) == 4


def test_a_partition_that_nobody_has_is_said(scene: Scene) -> None:
    scene.send(*KEYS)
    scene.hosts.give(scene.hosts.hosts[2], set())
    scene.application._client.timeout_s = 0.2
    with (
        scene.application.store("counts").changes(snapshot=True) as changes,
        pytest.raises(NotReadableError, match="no host that serves stores has partition 2"),
    ):
        next(changes)


@pytest.mark.parametrize("comes_again", [True, False])
def test_a_task_that_moves_while_rows_are_told_is_waited_for_but_not_for_ever(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, comes_again: bool
) -> None:
    scene.send(*KEYS)
    monkeypatch.setattr(routing, "PATIENCE_S", 60.0 if comes_again else 0.1)
    moved = threading.Event()
    next_piece = StoreReader.next_piece

    def moves(*arguments: Any) -> Any:
        found = next_piece(*arguments)
        if found[0].partition == 1:
            scene.hosts.give(scene.hosts.hosts[2], set())
            moved.set()
        return found

    monkeypatch.setattr(StoreReader, "next_piece", moves)
    with scene.application.store("counts").changes(snapshot=True) as changes:
        found = [next(changes)]
        assert moved.wait(60)
        if comes_again:
            scene.hosts.give(scene.hosts.hosts[0], {0, 2, 3})
            found += taken(changes, len(KEYS) - 1)
            assert sorted(row.key for row in found) == KEYS
            return
        with pytest.raises(NotReadableError, match="are incomplete and have no position"):
            taken(changes, len(KEYS))


def test_the_command_follows_an_application_that_runs(scene: Scene) -> None:
    scene.send("k01", "k02")
    url = ("--url", scene.hosts.hosts[1].server.url)

    def watched(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["store", "watch", *arguments])

    found = watched("counts", "--snapshot", "--max", "2", *url)
    assert found.exit_code == 0, found.output
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert sorted((row["key"], row["value"]) for row in rows) == [("k01", 1), ("k02", 1)]
    scene.send("k01")
    begin = ("--from", "beginning", "--with-position")
    found = watched("counts", "k01", "--max", "2", *begin, *url)
    changes = [json.loads(line) for line in found.stdout.splitlines()]
    assert [change["value"] for change in changes] == [1, 2]
    position = changes[0]["position"]
    found = watched("counts", "k01", "--max", "1", "--from", position, *url)
    assert json.loads(found.stdout)["value"] == 2
    for arguments, said in (
        (("counts",), "--app or --url is required, and not both."),
        (("none", *url), "Use a store that it has: counts, sessions, windows"),
        (
            ("counts", "--from", "0:99999", *url),
            "the position is wrong, or the topic was re-created",
        ),
        (("counts", "--from", "then", *url), "a position must be PARTITION:OFFSET"),
    ):
        found = watched(*arguments)
        assert found.exit_code != 0
        assert said in found.stderr
