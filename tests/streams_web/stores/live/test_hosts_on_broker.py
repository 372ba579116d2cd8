"""Stores over several hosts on a real cluster: separate files, ports and supervisors, one group."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import connect
from headrace.streams.client.stores import RemoteStore
from headrace.streams.queries.errors import QueryError
from tests.support.processes import wait_until
from tests.support.supervised import Counted, Run
from tests.support.topics import Topics

pytestmark = pytest.mark.slow
KEYS = [f"key-{n:02d}" for n in range(20)]


def url_of(run: Run) -> str:
    return str(run.wait_for("web_started")[0]["url"])


class Client(threading.Thread):
    """Asks two hosts all the time, and notes what went back or was never committed."""

    def __init__(self, urls: list[str], most: Mapping[bytes, int]) -> None:
        super().__init__()
        self._application = connect(urls, timeout=timedelta(seconds=60))
        self._most = most
        self._over = threading.Event()
        self.wrong: list[object] = []
        self.answers = 0

    def run(self) -> None:
        store = self._application.store("counts", value_type=int)
        last = dict.fromkeys(KEYS, 0)
        while not self._over.is_set():
            try:
                found = store.get_many(KEYS)
            except Exception as error:  # whatever it is, it is no answer
                self.wrong.append(error)
                return
            for key, value in zip(KEYS, found, strict=True):
                # Each count up to the last one is committed once.
                if not last[key] <= (value or 0) <= self._most[key.encode()]:
                    self.wrong.append((key, last[key], value))
                last[key] = value or 0
            self.answers += 1

    def stop(self) -> None:
        self._over.set()
        self.join()
        self._application.close()


@pytest.mark.faults
def test_hosts_answer_for_each_other_while_one_comes_and_one_is_killed(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path)
    given = ("--http=0", "--queries", "--set")
    with (
        app.running(1, *given, f"state.dir={tmp_path / 'one'}", log="log1") as one,
        app.running(1, *given, f"state.dir={tmp_path / 'two'}", log="log2") as two,
    ):
        app.write(400)
        for run in (one, two):
            run.wait_running(1)
        client = Client([url_of(one), url_of(two)], app.expected)
        wait_hosts(url_of(one), {url_of(one), url_of(two)})
        client.start()
        with app.running(1, *given, f"state.dir={tmp_path / 'three'}", log="log3") as three:
            three.wait_running(1)
            wait_hosts(url_of(one), {url_of(run) for run in (one, two, three)})
            app.write(400)
            app.wait_counted(one)
            for pid in (two.process.pid, two.pid(0)):  # the host is gone, with all that it has
                os.kill(pid, signal.SIGKILL)
            app.write(400)
            app.wait_counted(one)
            expected = {key.decode(): count for key, count in app.expected.items()}
            rest = {url_of(one), url_of(three)}
            wait_hosts(url_of(one), rest)
            client.stop()
            assert client.wrong == []
            assert client.answers > 5
            check_answers(rest, expected)


def wait_hosts(url: str, hosts: set[str]) -> None:
    """Wait until so many hosts have all partitions, as one of them says."""
    with connect(url, timeout=timedelta(seconds=1), never_back=False) as application:

        def found() -> bool:
            try:
                positions = application.store("counts").describe()["positions"]
            except QueryError:
                return False
            has = {f"http://{position['host']}" for position in positions}
            return has == hosts and {position["partition"] for position in positions} == {
                0,
                1,
                2,
                3,
            }

        wait_until(found, what=f"partitions at {hosts}")


def states(store: RemoteStore[str, int]) -> set[str]:
    """What the tasks do; one that has just moved waits for what the cluster says."""
    return {position["state"] for position in store.describe()["positions"]}


def check_answers(urls: set[str], expected: Mapping[str, Any]) -> None:
    """Whoever is asked, and however: all counts, each from the host that has it."""
    owners = set()
    for url in urls:
        with connect(url) as application:
            store = application.store("counts", key_type=str, value_type=int)
            wait_until(lambda store=store: store.get_many(KEYS) == [expected[k] for k in KEYS])
            assert {row.key: row.value for row in store.all()} == expected
            assert [row.key for row in store.range("key-03", "key-12")] == KEYS[3:13]
            assert store.count() == len(expected)
            assert {key: store[key] for key in KEYS[:5]} == {key: expected[key] for key in KEYS[:5]}
            wait_until(lambda store=store: states(store) == {"running"}, what="all tasks run")
            positions = store.describe()["positions"]
            owners.add(
                tuple(sorted((position["partition"], position["host"]) for position in positions))
            )
    assert len(owners) == 1  # all hosts name the same
