"""`headrace top --url`: what workers tell over HTTP, and what is said where nobody does."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from headrace.streams.cli.top import ServedSnapshot, ServedTask, shown_served, top
from headrace.streams.metrics.snapshots import HealthSnapshot, SkewSnapshot, skew_of
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import HttpServer
from tests.support.snapshots import application_snapshot

TOKEN = "a-token-of-some-length"


def health() -> HealthSnapshot:
    snapshot = application_snapshot(workers=2, tasks=2)
    return HealthSnapshot(snapshot=snapshot, turned_s=101.0, is_loaded=True, has_failed=False)


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer(health, "0", log=EventLog(), monotonic_s=lambda: 103.0) as server:
        yield server


def asked(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(top, [*arguments, "--times=1"])
    return result.exit_code, result.output


def test_it_shows_what_a_running_application_tells(server: HttpServer) -> None:
    code, text = asked("--url", server.url)
    assert code == 0
    assert "shop: 2 workers (running), lag 40\n" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("0_")]
    assert rows[0] == ["0_0", "0", "running", "10", "2", "-", "3", "2023-11-14", "22:13:20"]
    assert "sub-topology 0: orders-0 (idle) is 1:00:00 behind orders-1" in text
    assert [row[1] for row in rows] == ["0", "0", "1", "1"]
    assert asked("--url", f"localhost:{server.address.port}")[0] == 0


def test_partitions_with_the_same_event_time_are_not_behind() -> None:
    def text(skew: SkewSnapshot | None) -> str:
        task = ServedTask("1_0", 0, "running", 0, 0.0, 5, 1.0, skew=skew)
        console = Console(file=io.StringIO(), record=True)
        console.print(
            shown_served(ServedSnapshot("shop", ("running",), (task,), 0.0), None, rows_max=9)
        )
        return console.export_text()

    assert " behind " not in text(skew_of({"a-0": 5, "b-0": 5})).replace("behind s", "")
    assert "a-0 is 0:00:01 behind b-0" in text(skew_of({"a-0": 5, "b-0": 1_005}))
    assert "a-0 has not been read yet, b-0 has" in text(skew_of({"a-0": -1, "b-0": 5}))


def test_a_lag_that_is_unknown_is_shown_as_unknown_and_first() -> None:
    snapshot = application_snapshot(workers=1, tasks=3)
    (view,) = snapshot.workers
    assert view.snapshot is not None
    known, waiting, unfetched = view.snapshot.tasks
    waiting = replace(waiting, state="waiting", inputs=())
    unfetched = replace(unfetched, inputs=(replace(unfetched.inputs[0], end=None),))
    told = replace(view.snapshot, tasks=(known, waiting, unfetched))
    partial = replace(health(), snapshot=replace(snapshot, workers=(replace(view, snapshot=told),)))
    with HttpServer(lambda: partial, "0", log=EventLog(), monotonic_s=lambda: 103.0) as server:
        code, text = asked("--url", server.url)
    assert code == 0
    assert "shop: 1 worker (running), lag 10 (unknown for 2 tasks)\n" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("0_")]
    assert [row[0] for row in rows] == ["0_1", "0_2", "0_0"]
    assert [row[3:5] for row in rows] == [["-", "-"], ["-", "-"], ["10", "2"]]


def test_the_token_is_sent_and_a_wrong_one_is_said(tmp_path: Path) -> None:
    file, wrong = tmp_path / "token", tmp_path / "wrong"
    file.write_text(f"{TOKEN}\n")
    wrong.write_text("another token of some length")
    log = EventLog()
    with HttpServer(health, "0", log=log, token_file=file, monotonic_s=lambda: 103.0) as server:
        assert asked("--url", server.url, "--http-token-file", str(file))[0] == 0
        for arguments, said in (
            ([], "send the token"),
            (["--http-token-file", str(wrong)], "the token is wrong"),
        ):
            code, text = asked("--url", server.url, *arguments)
            assert code == 1
            assert said in text
            assert "(401); name the file that holds it: --http-token-file FILE" in text
    code, text = asked("--url", "x", "--http-token-file", str(tmp_path / "nowhere"))
    assert code == 1
    assert "nowhere cannot be read" in text


def test_an_application_that_is_not_loaded_yet_says_so() -> None:
    starting = replace(health(), is_loaded=False)
    with HttpServer(lambda: starting, "0", log=EventLog(), monotonic_s=lambda: 103.0) as server:
        code, text = asked("--url", server.url)
    assert code == 1
    assert "the application is not loaded yet (503)" in text


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://", "ftp://localhost"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    code, text = asked("--url", url)
    assert code == 1
    assert "is not a URL. Write a URL such as http://localhost:9464" in text


def test_where_nobody_serves_that_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, text = asked("--url", f"http://127.0.0.1:{port}")
    assert code == 1
    assert "does not answer as `headrace run --http` does: " in text
    assert "refused" in text


@pytest.mark.parametrize(
    "arguments", [(), ("my_app:app", "--url", "x"), ("my_app:app", "--http-token-file", "x")]
)
def test_it_is_one_or_the_other(arguments: tuple[str, ...]) -> None:
    code, text = asked(*arguments)
    assert code == 2
    assert "--url" in text


def task(name: str = "0_0", *, worker: int = 0, committed: int = 0, ago: float = 0) -> ServedTask:
    return ServedTask(name, worker, "running", 5, 1.0, committed, ago)


def test_a_rate_is_that_of_what_was_told_then_and_now() -> None:
    before = ServedSnapshot("shop", ("running",), (task(committed=100, ago=1.0), task("0_1")), 10.0)
    seen = ServedSnapshot("shop", ("running",), (task(committed=300), task("0_1", worker=1)), 13.0)
    assert seen.rates(before) == {"0_0": 50.0}
    assert seen.rates(None) == {}
    assert before.rates(seen) == {}  # it has begun again
    out = io.StringIO()
    Console(file=out, width=120).print(shown_served(seen, before, rows_max=1))
    lines = out.getvalue().splitlines()
    assert lines[0] == "shop: 1 worker (running), lag 10, 50/s"
    assert lines[-1] == "and 1 task that is less far behind"
