"""A running `headrace run` is found by its state directory, and told what to do."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.streams.cli.main import main
from headrace.streams.supervisor.control_socket import (
    Command,
    ControlError,
    ControlServer,
    find_running,
    short_name,
)
from headrace.streams.supervisor.supervisor import CommandRefusedError


class Supervisor:
    """Does at once what it is asked for, and remembers it."""

    def __init__(self) -> None:
        self.done: list[object] = []

    def submit(self, command: Command) -> Future[str]:
        answer: Future[str] = Future()
        try:
            answer.set_result(command(self))  # type: ignore[arg-type]
        except CommandRefusedError as error:
            answer.set_exception(error)
        return answer

    def scale(self, workers: int) -> str:
        if workers == 13:
            raise CommandRefusedError("all workers are being stopped")
        self.done.append(workers)
        return f"{workers} it is"

    def change_log_level(self, level: str) -> str:
        self.done.append(level)
        return f"{level} it is"


class Log:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, /, **fields: Any) -> None:
        self.events.append((event, fields))

    info = error = warning


@contextmanager
def running(state_dir: Path, application: str = "shop") -> Iterator[Supervisor]:
    supervisor, log = Supervisor(), Log()
    door = ControlServer(supervisor.submit, log)
    door.open(state_dir / application)
    assert log.events == []
    try:
        yield supervisor
    finally:
        door.close()


def headrace(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, arguments)
    return done.exit_code, done.output


def test_a_command_finds_the_one_that_runs(tmp_path: Path) -> None:
    with running(tmp_path) as supervisor:
        directory = f"--state-dir={tmp_path}"
        assert headrace("scale", "3", directory) == (0, f"shop (process {os.getpid()}): 3 it is\n")
        assert headrace("log-level", "debug", directory)[0] == 0
    assert supervisor.done == [3, "debug"]


def test_the_environment_says_where_the_state_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path))
    with running(tmp_path):
        assert headrace("scale", "2")[0] == 0


def test_a_refusal_is_said_with_its_reason(tmp_path: Path) -> None:
    with running(tmp_path) as supervisor:
        code, said = headrace("scale", "13", f"--state-dir={tmp_path}")
    assert code == 1
    assert "all workers are being stopped" in said
    assert supervisor.done == []


def test_none_that_runs_is_said_with_where_was_looked(tmp_path: Path) -> None:
    code, said = headrace("scale", "2", f"--state-dir={tmp_path}")
    assert code == 1
    assert "no application is run" in said
    assert str(tmp_path) in said
    assert "--state-dir" in said
    code, said = headrace("scale", "2", f"--state-dir={tmp_path}", "--application=shopz")
    assert code == 1
    assert "no shopz is run by" in said


def test_of_several_one_has_to_be_named(tmp_path: Path) -> None:
    with running(tmp_path, "shop") as shop, running(tmp_path, "till") as till:
        directory = f"--state-dir={tmp_path}"
        code, said = headrace("scale", "2", directory)
        assert code == 1
        assert "several applications run here: shop (process" in said
        assert "--application" in said
        assert headrace("scale", "2", directory, "--application=till")[0] == 0
    assert (shop.done, till.done) == ([], [2])


def test_a_file_of_settings_says_where_and_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, file = tmp_path / "state", tmp_path / "till.toml"
    file.write_text(f'"application.id" = "till"\n"state.dir" = {json.dumps(str(state))}\n')
    with running(state, "shop") as shop, running(state, "till") as till:
        assert headrace("scale", "3", f"--config={file}")[0] == 0
        assert headrace("log-level", "debug", f"--config={file}", "--application=shop")[0] == 0
        monkeypatch.setenv("HEADRACE_STATE_DIR", str(state))
        assert headrace("scale", "4", "--set", "application.id=shop")[0] == 0
    assert (shop.done, till.done) == (["debug", 4], [3])


def test_the_same_application_twice_is_told_apart_by_process(tmp_path: Path) -> None:
    with running(tmp_path), running(tmp_path):
        with pytest.raises(ControlError, match="several"):
            find_running(tmp_path, process=os.getpid())
        with pytest.raises(ControlError, match="as process 1 by"):
            find_running(tmp_path, process=1)


def test_only_its_user_may_come_in(tmp_path: Path) -> None:
    with running(tmp_path):
        folder = tmp_path / "shop" / "control"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_socket_is_gone_with_its_process_and_a_dead_one_at_the_next_start(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "shop" / "control"
    with running(tmp_path):
        pass
    assert list(folder.iterdir()) == []
    dead = folder / "1-aaaaaa.sock"
    with socket.socket(socket.AF_UNIX) as left, short_name(dead) as name:
        left.bind(name)
    assert dead.exists()
    with pytest.raises(ControlError, match="no application"):
        find_running(tmp_path)
    with running(tmp_path) as supervisor:
        assert not dead.exists()
        assert find_running(tmp_path).send({"scale": 2}).endswith("2 it is")
    assert supervisor.done == [2]


def test_a_path_that_is_too_long_for_a_socket_is_none_here(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    with running(deep) as supervisor:
        find_running(deep).send({"scale": 2})
    assert supervisor.done == [2]


@pytest.mark.parametrize(
    "line",
    [b"\n", b"scale 3\n", b"[]\n", b'{"scale": "3"}\n', b'{"log_level": "loud"}\n', b"x" * 9_000],
)
def test_what_is_no_request_is_refused_and_the_next_one_is_heard(
    tmp_path: Path, line: bytes
) -> None:
    with running(tmp_path) as supervisor:
        found = find_running(tmp_path)
        with socket.socket(socket.AF_UNIX) as caller, short_name(found.path) as name:
            caller.connect(name)
            caller.sendall(line)
            with caller.makefile() as answers:
                assert "error" in json.loads(answers.readline())
        found.send({"scale": 2})
    assert supervisor.done == [2]


def test_a_directory_that_cannot_be_used_is_said_and_nothing_ends(tmp_path: Path) -> None:
    (tmp_path / "shop").write_text("a file")
    log = Log()
    door = ControlServer(Supervisor().submit, log)
    door.open(tmp_path / "shop")
    door.close()
    ((event, fields),) = log.events
    assert event == "control_unavailable"
    assert str(tmp_path) in fields["reason"]


def test_many_callers_are_heard_one_after_the_other(tmp_path: Path) -> None:
    with running(tmp_path) as supervisor:
        found = find_running(tmp_path)
        threads = [threading.Thread(target=found.send, args=({"scale": n},)) for n in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(supervisor.done) == list(range(1, 9))
