"""`headrace run --http`: the supervisor serves whatever its workers do, and says what is wrong."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.streams.supervisor.exit_codes import ExitCode
from headrace.streams_web.server import CONNECTIONS_MAX
from tests.support.processes import wait_until
from tests.support.supervised import Run

pytestmark = pytest.mark.slow

APP = """
from headrace.streams import KafkaStreams
from headrace.topology import StreamsBuilder

builder = StreamsBuilder()
builder.stream("in").to("out")
SETTINGS = {"application.id": "a", "bootstrap.servers": "localhost:1", "state.dir": "state"}
app = KafkaStreams(builder.build(), SETTINGS)
"""
SLOW = (
    """
import os, time
while not os.path.exists("go"):
    time.sleep(0.05)
"""
    + APP
)


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Save an application and run it; no process is left afterwards."""
    runs: list[Run] = []

    def save_and_run(code: str, *arguments: str) -> Run:
        (tmp_path / "my_app.py").write_text(code)
        runs.append(Run(tmp_path, "my_app:app", *arguments))
        return runs[-1]

    yield save_and_run
    (tmp_path / "go").touch()
    for run in runs:
        run.process.kill()
        run.process.wait()


def get(url: str | urllib.request.Request) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
            return answer.status, json.loads(text) if text.startswith("{") else text
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_it_lives_while_it_starts_and_while_no_broker_answers(start: Start, tmp_path: Path) -> None:
    run = start(SLOW, "--http", "0", "--workers", "2")
    url = run.wait_for("web_started")[0]["url"]
    assert get(f"{url}/health/startup")[0] == 503

    def states() -> list[str]:
        workers = get(f"{url}/health/startup")[1]["workers"]
        return [worker["state"] for worker in workers]

    wait_until(lambda: states() == ["starting", "waiting"])
    assert get(f"{url}/health/live") == (200, {"ok": True})
    assert get(f"{url}/api/tasks")[0] == 503
    (tmp_path / "go").touch()
    wait_until(lambda: get(f"{url}/health/startup")[0] == 200)
    wait_until(lambda: "brokers_not_reached" in run.text())
    assert get(f"{url}/health/live") == (200, {"ok": True})
    code, said = get(f"{url}/health/ready")
    assert code == 503
    assert "worker 0 is connecting: brokers are not reached" in said["reasons"]
    code, text = get(f"{url}/metrics")
    assert code == 200
    assert 'headrace_worker_state{worker="0",state="connecting"} 1' in text
    assert 'application="a"' in text
    asked = urllib.request.Request(
        f"{url}/api/log-level",
        data=b'{"level": "error"}',
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert json.load(answer) == {"message": "events of level error and above are logged"}
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == ExitCode.STOPPED
    assert "workers_stopping" not in run.text()  # it is no error
    with pytest.raises(urllib.error.URLError):
        get(f"{url}/health/live")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--http", "no-such-host.invalid:0", "--http-open"], "there is no host"),
        (["--http", "0.0.0.0:0"], "other machines can reach 0.0.0.0:0"),
        (["--http", "nonsense"], "an address must be [HOST:]PORT"),
        (["--http", "0", "--http-token-file", "nowhere"], "cannot be read"),
        (["--http-open"], "require --http"),
    ],
)
def test_what_is_wrong_is_said_before_a_worker_starts(
    start: Start, arguments: list[str], said: str
) -> None:
    run = start(APP, *arguments)
    assert run.wait() == ExitCode.USAGE
    assert said in run.text()
    assert ("Usage:" in run.text()) == ("--http" not in arguments)
    assert "worker_started" not in run.text()
    assert "supervisor_started" not in run.text()
    assert "Traceback" not in run.text()


def test_a_port_that_is_taken_is_said(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = start(APP, "--http", str(port))
        assert run.wait() == ExitCode.USAGE
    assert f"127.0.0.1:{port} cannot be served on: Address already in use" in run.text()
    assert "Usage:" not in run.text()
    assert "supervisor_started" not in run.text()


def test_whoever_asks_wrongly_gets_a_clear_answer_and_harms_nobody(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("a-token-of-some-length")
    run = start(APP, "--http", "0", "--http-token-file", "token")
    url = run.wait_for("web_started")[0]["url"]
    wait_until(lambda: get(f"{url}/health/startup")[0] == 200)
    port = int(url.rpartition(":")[2])
    clients: list[socket.socket] = []
    try:
        for number in range(1_000):
            clients.append(socket.create_connection(("127.0.0.1", port), timeout=60))
            clients[-1].sendall(b"GET /metrics HTTP/1.1\r\n"[: number % 20])
        assert get(f"{url}/health/live") == (200, {"ok": True})
        found = psutil.Process(run.process.pid).net_connections()
        open_ones = [one for one in found if one.status == psutil.CONN_ESTABLISHED]
        assert len(open_ones) <= CONNECTIONS_MAX + 1
    finally:
        for client in clients:
            client.close()
    for token, said in (
        ("", "send the token"),
        ("Bearer ", "send the token"),
        ("Bearer wrong", "the token is wrong"),
        ("Bearer a-token-of-some-length-and-more", "the token is wrong"),
    ):
        asked = urllib.request.Request(f"{url}/metrics", headers={"Authorization": token})
        code, answer = get(asked)
        assert (code, answer["error"].partition(":")[0]) == (401, said)
    right = {"Authorization": "Bearer a-token-of-some-length"}
    assert get(urllib.request.Request(f"{url}/metrics", headers=right))[0] == 200
    assert "a-token-of-some-length" not in run.text()
    assert not run.events("worker_crashed")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == ExitCode.STOPPED


def test_a_request_for_another_host_is_refused_where_no_token_is_asked_for(start: Start) -> None:
    run = start(APP, "--http", "0")
    url = run.wait_for("web_started")[0]["url"]
    code, said = get(urllib.request.Request(f"{url}/metrics", headers={"Host": "shop.example"}))
    assert code == 421
    assert "'shop.example' is another host. Use localhost" in said["error"]
    assert get(f"{url.replace('127.0.0.1', 'localhost')}/health/live")[0] == 200
