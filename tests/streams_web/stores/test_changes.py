"""Changes over real HTTP: server-sent events, to whom, from where, and until when."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.streams.queries.feeds import Feeds
from headrace.streams.queries.subscription import ChangeSubscription
from headrace.streams_web import server
from headrace.streams_web.stores import pages
from tests.support.processes import wait_until
from tests.support.served_changes import ServedChanges as Scene

TOKEN = "a-token-of-some-length"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(monkeypatch, tmp_path)
    yield made
    made.close()


def test_changes_are_told_as_they_are_committed(scene: Scene) -> None:
    with closing(scene.listen()) as listener:
        assert listener.answer.status == 200
        assert listener.answer.headers["Content-Type"].startswith("text/event-stream")
        assert listener.answer.headers["Cache-Control"] == "no-store"
        assert listener.until("position") == {"position": "0:0,1:0"}
        scene.write((0, "a\n<b>", 1))
        (change,) = listener.changes(1)
        assert (change["key"], change["value"], change["offset"]) == ("a\n<b>", 1, 0)
        assert listener.last_id == "0:1,1:0"


@pytest.mark.parametrize("by", ["header", "parameter"])
def test_a_client_that_comes_back_goes_on_where_it_was(scene: Scene, by: str) -> None:
    scene.write((0, "a", 1), (0, "a", 2), (0, "a", 3))
    with closing(scene.listen("counts/changes?from=beginning")) as listener:
        listener.changes(2)
        last = str(listener.last_id)
    scene.write((0, "a", 4))
    path, headers = "counts/changes?from=beginning", {"Last-Event-ID": last}
    if by == "parameter":
        path, headers = f"counts/changes?position={last}", {}
    with closing(scene.listen(path, **headers)) as again:
        assert [change["value"] for change in again.changes(2)] == [3, 4]


def test_who_reads_fast_leaves_the_loop_to_others(scene: Scene) -> None:
    async def turns() -> tuple[int, int]:
        follower = ChangeSubscription(None, lambda: None)
        for _ in range(100):
            follower.emit("row", b'"' + b"x" * pages.PIECE_BYTES + b'"')
        follower.close("it is all")
        pieces, turned = 0, 0

        async def others() -> None:
            nonlocal turned
            while True:
                turned += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        answer = pages._Changes(Feeds(scene.queries), follower, asyncio.Event(), "counts")
        async for _ in answer.body_iterator:
            pieces += 1
        other.cancel()
        return pieces, turned

    pieces, turned = asyncio.run(turns())
    assert pieces > 100
    assert turned >= 100


def test_one_key_is_listened_to(scene: Scene) -> None:
    scene.write((0, "a/b", 1), (0, "c", 1))
    for path in ("counts/a%2Fb/changes?from=beginning", "counts/changes?from=beginning&key=a/b"):
        with closing(scene.listen(path)) as listener:
            assert [change["key"] for change in listener.changes(1)] == ["a/b"]


def test_silence_is_filled_and_the_position_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "ALIVE_EVERY_S", 0.05)
    with closing(scene.listen("counts/x/changes")) as listener:
        scene.write((0, "a", 1))
        wait_until(lambda: listener.next() == ("", None) and listener.last_id == "0:2,1:0",
                   what="a position behind what is of no interest")  # fmt: skip


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("none/changes", 404, "app has no store 'none'. Use a store that it has: counts, loose"),
        ("loose/changes", 501, "has no changelog"),
        ("counts/changes?from=then", 400, "from must be beginning or end"),
        ("counts/changes?snapshot=yes", 400, "snapshot must be true or false"),
        ("counts/changes?snapshot=true&from=end", 400, "snapshot=true, from= and position= excl"),
        ("counts/changes?position=x", 400, "a position must be PARTITION:OFFSET"),
        (
            "counts/changes?position=0:99",
            410,
            "the position is wrong, or the topic was re-created. Start",
        ),
        ("counts/changes?snapshot=true", 503, "this host has no rows of store 'counts'"),
    ],
)
def test_what_cannot_be_listened_to_is_said(scene: Scene, path: str, code: int, said: str) -> None:
    found = scene.refused(path)
    assert found[0] == code
    assert said in found[1]


def test_who_comes_back_is_told_too_what_is_wrong(scene: Scene) -> None:
    for path, said in (
        ("counts/changes?from=then", "from must be beginning or end"),
        ("counts/changes?position=x", "a position must be PARTITION:OFFSET"),
    ):
        code, found = scene.refused(path, **{"Last-Event-ID": "0:0,1:0"})
        assert code == 400
        assert said in found


def test_the_reader_ends_when_the_last_client_has_gone(scene: Scene) -> None:
    listeners = [scene.listen() for _ in range(3)]
    for listener in listeners:
        listener.until("position")
    assert len(scene.memory.open) == 1
    for listener in listeners:
        listener.close()
    wait_until(lambda: not scene.memory.open, what="no reader")


def test_a_client_that_never_reads_is_let_go(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "UNREAD_S", 0.2)
    with socket.create_connection(("127.0.0.1", scene.server.address.port)) as client:
        client.sendall(b"GET /api/stores/counts/changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: bool(scene.memory.open), what="its reader")
        # More than the buffers of the connection and the queue behind it hold.
        large = "x" * 100_000
        for number in range(200):
            scene.write((0, large, number))
        wait_until(lambda: not scene.memory.open, what="no reader")
    with closing(scene.listen()) as listener:
        listener.until("position")


def test_listening_lasts_longer_than_other_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LIFE_S", 0.1)
    monkeypatch.setattr(pages, "ALIVE_EVERY_S", 0.05)
    scene = Scene(monkeypatch, tmp_path)
    with closing(scene.listen()) as listener:
        for _ in range(10):
            listener.next()
        scene.write((0, "a", 1))
        listener.changes(1)
    scene.close()


def test_others_who_are_too_many_go_before_those_who_listen(scene: Scene) -> None:
    with closing(scene.listen()) as listener:
        listener.until("position")
        others = []
        for _ in range(2 * server.CONNECTIONS_MAX):
            other = http.client.HTTPConnection("127.0.0.1", scene.server.address.port, timeout=60)
            other.request("GET", "/health/live")
            other.getresponse().read()
            others.append(other)
        scene.write((0, "a", 1))
        listener.changes(1)
        for other in others:
            other.close()


def test_a_server_that_closes_says_so(scene: Scene) -> None:
    with closing(scene.listen()) as listener:
        listener.until("position")
        scene.server.close()
        assert listener.until("closed") == {"reason": "the server of the changes stops"}
        assert listener.answer.readline() == b""


def test_the_token_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    scene = Scene(monkeypatch, tmp_path, token_file=file)
    assert scene.refused("counts/changes")[0] == 401
    with closing(scene.listen(Authorization=f"Bearer {TOKEN}")) as listener:
        listener.until("position")
    scene.close()
