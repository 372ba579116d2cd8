"""Changes on a real cluster: each committed one once, whatever befalls workers and clients."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support import kafka
from tests.support.processes import wait_until
from tests.support.supervised import Counted, Run
from tests.support.topics import Topics

pytestmark = pytest.mark.slow
CHANGES_OF_ONE = 15


class Listener(threading.Thread):
    """Listens from the beginning on; comes back after some changes, with its last id."""

    def __init__(self, url: str, path: str) -> None:
        super().__init__(daemon=True)
        self._host = urlsplit(url).netloc
        self._path = f"/api/stores/{path}"
        self._last: str | None = None
        self.changes: list[dict[str, Any]] = []
        self.others: Counter[str] = Counter()
        self.times = 0
        self.wrong: list[object] = []

    def run(self) -> None:
        try:
            while True:
                self.times += 1
                self._listen()
        except Exception as error:
            self.wrong.append(error)

    def _listen(self) -> None:
        connection = http.client.HTTPConnection(self._host, timeout=120)
        headers = {} if self._last is None else {"Last-Event-ID": self._last}
        connection.request("GET", self._path, headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        left = CHANGES_OF_ONE
        name = where = None
        while left:
            line = answer.readline().decode()
            assert line, "it ended"
            field, _, text = line.rstrip("\n").partition(": ")
            if field == "id":
                where = text
            elif field == "event":
                name = text
            elif field == "data" and name == "change":
                self.changes.append(json.loads(text))
                self._last = where
                left -= 1
            elif not field:
                self.others[str(name)] += 1
                name = None
        connection.close()


@pytest.mark.faults
def test_each_committed_change_is_told_once_while_workers_are_killed(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path, partitions=2)
    with app.running(2, "--http=0", "--queries") as run:
        app.write(200)
        run.wait_running(2)
        url = run.wait_for("web_started")[0]["url"]
        listener = Listener(url, "counts/changes?from=beginning")
        listener.start()
        for index in (0, 1):
            os.kill(run.pid(index), signal.SIGKILL)
            app.write(400)
            app.wait_counted(run)
        changelog = f"{app.group}-counts-changelog"
        committed = [
            (one.partition, one.offset, key_of(one), one.value)
            for one in kafka.read(app.bootstrap, changelog)
        ]
        assert len(committed) > 3 * CHANGES_OF_ONE
        wait_until(lambda: len(listener.changes) >= len(committed) or bool(listener.wrong),
                   what="all changes")  # fmt: skip
        assert_told_once(listener, committed, app)
        assert_snapshot_goes_on(run, url, app)
        run.signal(signal.SIGTERM)
        assert run.wait() == ExitCode.STOPPED
    app.check_exact()


def key_of(record: kafka.Record) -> str:
    assert record.key is not None
    return record.key.decode()


def assert_told_once(listener: Listener, committed: list[Any], app: Counted) -> None:
    assert listener.wrong == []
    assert listener.times > 3
    assert listener.others["compacted"] == 0
    for partition in (0, 1):
        told = [
            (one["offset"], one["key"], one["value"])
            for one in listener.changes
            if one["partition"] == partition
        ]
        written = [
            (offset, key, int.from_bytes(value, "big"))
            for place, offset, key, value in committed
            if place == partition
        ]
        assert told == sorted(written)
    last = {one["key"]: one["value"] for one in listener.changes}
    assert last == {key.decode(): count for key, count in app.expected.items()}


def assert_snapshot_goes_on(run: Run, url: str, app: Counted) -> None:
    """The rows and the changes behind them have no gap and nothing twice."""
    host = urlsplit(url).netloc
    connection = http.client.HTTPConnection(host, timeout=120)
    connection.request("GET", "/api/stores/counts/key-03/changes?snapshot=true")
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    before = app.expected[b"key-03"]
    app.write(100)
    found: list[int] = []
    while not found or found[-1] != app.expected[b"key-03"]:
        line = answer.readline().decode()
        assert line, run.text()[-3000:]
        if line.startswith('data: {"key":'):
            found.append(json.loads(line.removeprefix("data: "))["value"])
    assert found[0] == before
    assert found == sorted(set(found))
    connection.close()
