"""Changes of stores that are elsewhere: each once, over cuts and hosts that go."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace import connect, connect_async
from headrace.streams.cli import store_sources, stores
from headrace.streams.cli.main import main
from headrace.streams.client.changes import Changes
from headrace.streams.client.stores import Connection
from headrace.streams.queries.errors import (
    NoSuchStoreError,
    NotReadableError,
    PositionGoneError,
    QueryError,
    WrongQueryError,
)
from tests.support.processes import wait_until
from tests.support.served_changes import ServedChanges


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedChanges]:
    made = ServedChanges(monkeypatch, tmp_path)
    yield made
    made.close()


@pytest.fixture
def application(scene: ServedChanges) -> Iterator[Connection]:
    with connect(scene.server.url, timeout=timedelta(seconds=5)) as made:
        yield made


def taken(changes: Changes[Any, Any], count: int) -> list[tuple[Any, Any, int]]:
    return [(one.key, one.value, one.offset) for _, one in zip(range(count), changes, strict=False)]


def test_changes_come_as_they_are_committed(scene: ServedChanges, application: Connection) -> None:
    scene.write((0, "a", 1), (1, "b", 1))
    counts = application.store("counts", key_type=str, value_type=int)
    with counts.changes(start="beginning") as changes:
        assert sorted(taken(changes, 2)) == [("a", 1, 0), ("b", 1, 0)]
        scene.write((0, "a", 2))
        change = next(changes)
        assert (change.key, change.value, change.partition, change.offset) == ("a", 2, 0, 2)
        assert not change.is_row
        assert str(change.position).startswith("0:3,1:")
    with counts.changes("a", position="0:2,1:0") as of_one:
        assert taken(of_one, 1) == [("a", 2, 2)]


def test_the_position_is_behind_what_was_taken(
    scene: ServedChanges, application: Connection
) -> None:
    scene.write(*((0, "a", number) for number in range(5)))
    counts = application.store("counts", value_type=int)
    with counts.changes(start="beginning") as changes:
        assert taken(changes, 2) == [("a", 0, 0), ("a", 1, 1)]
        position = changes.position
    with counts.changes(position=position) as changes:
        assert [value for _, value, _ in taken(changes, 3)] == [2, 3, 4]


def test_a_cut_loses_nothing_and_tells_nothing_twice(
    scene: ServedChanges, application: Connection
) -> None:
    """The host ends the connection at any moment; the client goes on behind what it has."""
    with application.store("counts", value_type=int).changes(start="beginning") as changes:
        for number in range(20):
            scene.write((number % 2, "a", number))
            assert next(changes).value == number
            stream = changes._stream
            assert stream is not None
            if number % 3 == 0:
                stream.cut()  # as where the connection is cut
    wait_until(lambda: not scene.memory.open, what="no reader")


def test_another_host_goes_on_where_one_was_silent(scene: ServedChanges) -> None:
    scene.write((0, "a", 1))
    with (
        connect(["http://127.0.0.1:1", scene.server.url]) as application,
        application.store("counts").changes(start="beginning") as changes,
    ):
        assert taken(changes, 1) == [("a", 1, 0)]


def test_what_cannot_be_followed_is_an_error_of_its_own(application: Connection) -> None:
    counts = application.store("counts")
    application._client.timeout_s = 0.2
    for changes, kind, said in (
        (application.store("none").changes(), NoSuchStoreError, "Use a store that it has: counts"),
        (application.store("loose").changes(), QueryError, "has no changelog"),
        (
            counts.changes(position="0:99"),
            PositionGoneError,
            "the position is wrong, or the topic was re-created",
        ),
        (counts.changes(7), WrongQueryError, "use serde string"),
        (counts.changes(snapshot=True), NotReadableError, "has no rows of store 'counts'"),
    ):
        with closing(changes), pytest.raises(kind, match=said):
            next(changes)
    with pytest.raises(WrongQueryError, match="snapshot=True, start= and position="):
        counts.changes(snapshot=True, start="beginning")


def test_where_nobody_answers_any_more_it_ends_with_the_reason(
    scene: ServedChanges, application: Connection
) -> None:
    scene.write((0, "a", 1))
    application._client.timeout_s = 0.3
    with application.store("counts").changes(start="beginning") as changes:
        next(changes)
        scene.server.close()
        with pytest.raises(NotReadableError, match=r"stops|does not answer"):
            next(changes)


def test_the_command_waits_for_a_host_that_had_begun_to_tell(
    scene: ServedChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is away: it goes on behind what it has printed."""
    monkeypatch.setattr(store_sources, "_TIMEOUT_S", 0.2)
    is_printed = threading.Event()
    add = stores._Watch._print

    def adds(lines: stores._Watch, line: str, position: str | None) -> bool:
        is_printed.set()
        return add(lines, line, position)

    monkeypatch.setattr(stores._Watch, "_print", adds)
    found: list[Any] = []
    asked = ["store", "watch", "counts", "--from", "beginning", "--max", "2", "--url"]
    url = scene.server.url
    watching = threading.Thread(
        target=lambda: found.append(CliRunner().invoke(main, [*asked, url]))
    )
    scene.write((0, "a", 1))
    watching.start()
    assert is_printed.wait(60)
    scene.server.close()
    time.sleep(1.0)
    assert watching.is_alive()
    scene.serve_again()
    scene.write((0, "a", 2))
    watching.join(60)
    assert found[0].exit_code == 0, found[0].output
    assert [json.loads(line)["value"] for line in found[0].stdout.splitlines()] == [1, 2]
    assert "Waiting to continue from 0:1" in found[0].stderr

    scene.server.close()
    never = CliRunner().invoke(main, [*asked, url])
    assert never.exit_code != 0
    assert "does not answer" in never.stderr


def test_closing_ends_whoever_waits(scene: ServedChanges, application: Connection) -> None:
    changes = application.store("counts").changes()
    over = threading.Event()

    def follow() -> None:
        assert list(changes) == []
        over.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    wait_until(lambda: bool(scene.memory.open), what="its reader")
    changes.close()
    assert over.wait(20)
    wait_until(lambda: not scene.memory.open, what="no reader")


def test_changes_are_awaited(scene: ServedChanges) -> None:
    scene.write((0, "a", 1), (0, "a", 2))

    async def follow() -> list[Any]:
        async with connect_async(scene.server.url) as application:
            counts = application.store("counts", value_type=int)
            async with counts.changes(start="beginning") as changes:
                found = [(await anext(changes)).value for _ in range(2)]
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(changes), 0.05)
                scene.write((0, "a", 3))
                return [*found, (await anext(changes)).value]

    assert asyncio.run(follow()) == [1, 2, 3]
    wait_until(lambda: not scene.memory.open, what="no reader")
