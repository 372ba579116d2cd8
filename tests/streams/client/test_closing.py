"""Closing a connection ends whatever is under way over it, whichever thread or task waits."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import connect, connect_async
from headrace.streams.client.stores import Connection
from headrace.streams.client.stores_async import AsyncConnection
from headrace.streams.queries.errors import ClosedConnectionError
from tests.support.processes import wait_until
from tests.support.served_changes import ServedChanges

LONG = timedelta(hours=1)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedChanges]:
    made = ServedChanges(monkeypatch, tmp_path)
    yield made
    made.close()


class Silent:
    """A host that takes what is asked, and answers nothing."""

    def __init__(self) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self.asked: list[bytes] = []
        self._held: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                one, _ = self._door.accept()
            except OSError:
                return
            self._held.append(one)
            self.asked.append(one.recv(10_000))

    def close(self) -> None:
        self._door.close()
        for one in self._held:
            one.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    made = Silent()
    yield made
    made.close()


def client_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("headrace-client")]


CALLS: dict[str, Callable[[Any], Any]] = {
    "get": lambda store: store.get("k"),
    "get_many": lambda store: store.get_many(["k"]),
    "count": lambda store: store.count(),
    "stores": lambda store: store.describe(),
    "range": lambda store: list(store.range(None, None)),
    "changes": lambda store: list(store.changes()),
}


def in_thread(application: Connection, call: Callable[[Any], Any]) -> tuple[threading.Thread, Any]:
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            call(application.store("counts"))
        except ClosedConnectionError as error:
            raised.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread, raised


@pytest.mark.parametrize("name", CALLS)
def test_closing_ends_what_waits_for_an_answer_in_another_thread(silent: Silent, name: str) -> None:
    application = connect(silent.url, timeout=LONG)
    thread, raised = in_thread(application, CALLS[name])
    wait_until(lambda: bool(silent.asked), what="a question")
    application.close()
    wait_until(lambda: not thread.is_alive(), what="its end")
    assert len(raised) == (name != "changes")


def is_connecting(port: int) -> bool:
    """Whether somebody waits for a connection to be taken, as the kernel tells it."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return any(row[2].endswith(f":{port:04X}") and row[3] == "02" for row in rows)


def test_closing_ends_what_waits_for_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.streams.client.http.CONNECT_S", 3_600.0)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as dead,
        socket.create_connection(dead.getsockname()),  # there is room for this one alone
    ):
        port = dead.getsockname()[1]
        application = connect(f"http://127.0.0.1:{port}", timeout=LONG)
        thread, raised = in_thread(application, CALLS["get"])
        wait_until(lambda: is_connecting(port), what="a connection that nobody takes")
        application.close()
        wait_until(lambda: not thread.is_alive(), what="its end")
        assert len(raised) == 1


def test_closing_ends_what_is_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.streams.client.query_client.RETRY_MAX_S", 3_600.0)
    monkeypatch.setattr("headrace.streams.client.query_client.RETRY_MIN_S", 3_600.0)
    application = connect("http://127.0.0.1:1", timeout=3 * LONG)
    thread, raised = in_thread(application, CALLS["get"])
    application.close()
    wait_until(lambda: not thread.is_alive(), what="its end")
    assert "Open a new" in str(raised[0])


def test_closing_ends_changes_that_another_thread_goes_through(scene: ServedChanges) -> None:
    scene.write((0, "a", 1))
    application = connect(scene.server.url)
    thread, raised = in_thread(application, lambda store: list(store.changes(start="beginning")))
    wait_until(lambda: bool(scene.memory.open), what="its reader")
    application.close()
    wait_until(lambda: not thread.is_alive(), what="its end")
    assert raised == []
    wait_until(lambda: not scene.memory.open, what="no reader")


def test_changes_end_while_their_host_is_looked_for() -> None:
    with connect("http://127.0.0.1:1", timeout=LONG) as application:
        changes = application.store("counts").changes()
        thread = threading.Thread(target=lambda: list(changes), daemon=True)
        thread.start()
        changes.close()
        wait_until(lambda: not thread.is_alive(), what="its end")


def test_what_was_closed_is_not_asked(scene: ServedChanges) -> None:
    application = connect(scene.server.url)
    application.close()
    for call in CALLS.values():
        with pytest.raises(ClosedConnectionError, match=r"is closed. Open a new"):
            call(application.store("counts"))


def test_leaving_the_block_ends_changes_that_were_cancelled(scene: ServedChanges) -> None:
    async def follow() -> None:
        async with connect_async(scene.server.url) as application:
            changes = application.store("counts").changes("nobody")
            waiting = asyncio.create_task(anext(changes))
            await asyncio.to_thread(wait_until, lambda: bool(scene.memory.open), what="its reader")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        kept.append(changes)  # as a traceback keeps it

    kept: list[Any] = []
    asyncio.run(follow())
    wait_until(lambda: not scene.memory.open, what="no reader")


def test_changes_that_nobody_holds_end_without_being_closed(scene: ServedChanges) -> None:
    async def first(application: AsyncConnection) -> None:
        async for _ in application.store("counts").changes("nobody"):
            return

    async def follow() -> None:
        application = connect_async(scene.server.url)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first(application), 0.2)
        gc.collect()
        await asyncio.to_thread(wait_until, lambda: not scene.memory.open, what="no reader")
        await application.close()

    asyncio.run(follow())
    wait_until(lambda: not client_threads(), what="no thread")


def test_tasks_that_wait_are_refused_and_not_cancelled(silent: Silent) -> None:
    """More than are asked at once: some of them have no thread yet."""

    async def ask() -> list[Any]:
        async with connect_async(silent.url, timeout=LONG) as application:
            store = application.store("counts")
            waiting = [asyncio.create_task(store.get(f"k{n}")) for n in range(20)]
            await asyncio.to_thread(wait_until, lambda: len(silent.asked) >= 16, what="questions")
        found = await asyncio.gather(*waiting, return_exceptions=True)
        found += await asyncio.gather(store.get("k"), return_exceptions=True)
        return found

    assert {type(error) for error in asyncio.run(ask())} == {ClosedConnectionError}
    wait_until(lambda: not client_threads(), what="no thread")
