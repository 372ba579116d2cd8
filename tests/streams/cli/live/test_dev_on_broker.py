"""`headrace dev` on a real broker: saves, mistakes, and one Ctrl-C for all."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support import kafka
from tests.support.patience import PATIENCE_S
from tests.support.processes import IMPORT_PATH, wait_until
from tests.support.topics import Topics

APP = """
from headrace import KafkaStreams, StreamsBuilder, serdes
from my_words import change
builder = StreamsBuilder()
builder.stream({words!r}, value=serdes.string).map_values(change).to({out!r})
app = KafkaStreams(builder.build(), {{
    "application.id": {id!r}, "bootstrap.servers": "localhost:1", "state.dir": "state",
    "commit.interval.ms": 50,
}})
"""


class Terminal:
    """A terminal in which `headrace dev` runs."""

    def __init__(self, home: Path, *options: str, environ: Mapping[str, str]) -> None:
        self.log = home / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "dev", "my_app:app", *options],
                cwd=home,
                env={
                    **os.environ,
                    "PYTHONPATH": IMPORT_PATH,
                    "PYTHONUNBUFFERED": "1",
                    **environ,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, said: str, times: int = 1) -> None:
        def is_said() -> bool:
            assert self.process.poll() is None, self.text()
            return self.text().count(said) >= times

        wait_until(is_said, what=f"{said}: {self.log}")

    def interrupt(self) -> int:
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE_S)
        ended = ("terminated", "zombie")  # nobody may be there to bury what the broker was
        left = [c for c in children if c.is_running() and c.status() not in ended]
        assert left == []
        return code


@contextmanager
def dev(home: Path, *options: str, environ: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    terminal = Terminal(home, *options, environ=environ or {})
    try:
        yield terminal
    finally:
        for child in (
            psutil.Process(terminal.process.pid).children(recursive=True)
            if (terminal.process.poll() is None)
            else ()
        ):
            child.kill()
        terminal.process.kill()
        terminal.process.wait()


def test_each_save_starts_it_again_and_a_mistake_is_shown(topics: Topics, tmp_path: Path) -> None:
    words, out = topics.name("words"), topics.name("out")
    app = APP.format(words=words, out=out, id=topics.name("app"))
    (tmp_path / "my_app.py").write_text(app)
    mine = tmp_path / "my_words.py"
    mine.write_text("change = str.upper\n")
    with dev(tmp_path, "--bootstrap-servers", topics.bootstrap, "--partitions", "2") as terminal:
        terminal.wait_for(f"Cluster: {topics.bootstrap} (from --bootstrap-servers)")
        terminal.wait_for("new=running")
        (page,) = set(re.findall(r"Dashboard: (\S+)", terminal.text()))
        with urllib.request.urlopen(f"{page}api/stores", timeout=PATIENCE_S) as answer:
            assert json.load(answer) == {"stores": []}
        assert (topics.partitions(words), topics.partitions(out)) == (2, 2)
        kafka.write(topics.bootstrap, words, [(None, b"first")])
        terminal.wait_for('"value":"FIRST"')
        mine.write_text("change = str.title(\n")
        terminal.wait_for("Saved: my_words.py. Restarting.")
        terminal.wait_for("SyntaxError: '(' was never closed")
        terminal.wait_for("Waiting for the next save.")
        assert "Traceback" not in terminal.text()
        kafka.write(topics.bootstrap, words, [(None, b"second")])
        mine.write_text("change = str.title\n")
        terminal.wait_for('"value":"Second"')
        assert set(re.findall(r"Dashboard: (\S+)", terminal.text())) == {page}
        assert terminal.interrupt() == 0
    assert terminal.text().endswith("Ended.\n")


@pytest.mark.slow
def test_without_a_cluster_one_is_started_here_and_stopped_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(APP.format(words="words", out="out", id="dev"))
    (tmp_path / "my_words.py").write_text("change = str.upper\n")
    with dev(tmp_path, "--dir", "kafka", "--port", "0") as terminal:
        terminal.wait_for("new=running")
        assert "Started: localhost:" in terminal.text()
        assert terminal.interrupt() == 0
    command = [sys.executable, "-m", "headrace", "broker", "status", "--dir", "kafka"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": IMPORT_PATH})  # fmt: skip
    assert done.returncode == 3, done.stdout


@pytest.mark.slow
def test_all_that_it_has_started_ends_where_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(APP.format(words="words", out="out", id="dev"))
    (tmp_path / "my_words.py").write_text("change = str.upper\n")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with dev(
        tmp_path, "--dir", "kafka", "--port", "0", environ={"TMPDIR": str(temporary)}
    ) as terminal:
        terminal.wait_for("new=running")
        started = psutil.Process(terminal.process.pid).children(recursive=True)
        (node,) = psutil_of_broker(tmp_path / "kafka")
        assert list(temporary.glob("headrace-dev-*/settings.toml"))
        terminal.process.kill()
        terminal.process.wait()
        wait_until(lambda: not [c for c in (*started, node) if is_there(c)], what="the end of all")
    assert not list(temporary.glob("headrace-dev-*"))


def psutil_of_broker(directory: Path) -> list[psutil.Process]:
    """The processes of the broker, which are nobody's children."""
    record = json.loads((directory / "broker.json").read_text())
    return [psutil.Process(node["process"]["pid"]) for node in record["nodes"]]


def is_there(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() not in ("terminated", "zombie")
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_the_broker_ends_where_it_is_killed_while_that_starts(tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(APP.format(words="words", out="out", id="dev"))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    record = tmp_path / "kafka/broker.json"
    with dev(
        tmp_path, "--dir", "kafka", "--port", "0", environ={"TMPDIR": str(temporary)}
    ) as terminal:
        wait_until(
            lambda: record.exists() and json.loads(record.read_text())["nodes"][0]["process"],
            what=f"a process of the broker: {terminal.log}",
        )
        started = psutil.Process(terminal.process.pid).children(recursive=True)
        (node,) = psutil_of_broker(tmp_path / "kafka")
        terminal.process.kill()
        terminal.process.wait()
        assert "Started: " not in terminal.text()
        wait_until(lambda: not [c for c in (*started, node) if is_there(c)], what="the end of all")
    assert not list(temporary.glob("headrace-dev-*"))
