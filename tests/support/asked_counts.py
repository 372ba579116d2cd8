"""Clients that ask for the counts of a run while its workers are killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from typing import Any

from confluent_kafka import Message, Producer

from tests.support.processes import wait_until
from tests.support.supervised import Counted, Run

KEYS = [f"key-{n:02d}" for n in range(20)]


class Asked:
    """The stores of a run, over HTTP."""

    def __init__(self, run: Run) -> None:
        self._url = run.wait_for("web_started")[0]["url"]

    def get(self, path: str, keys: list[str] | None = None) -> tuple[int, Any]:
        data = None if keys is None else json.dumps({"keys": keys}).encode()
        try:
            with urllib.request.urlopen(f"{self._url}/api/stores/counts/{path}", data, 60) as found:
                return found.status, json.load(found)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def counts(self) -> dict[str, int] | None:
        """The counts of all keys; None while they cannot be read."""
        code, found = self.get("get", KEYS)
        assert code in (200, 503), found
        if code == 503:
            return None
        return {row["key"]: row["value"] for row in found["rows"] if row is not None}

    def states(self) -> set[str]:
        """What the tasks do that the store's rows are from."""
        _, found = self.get("range?limit=7")
        return {place["state"] for place in found.get("positions", ())}


class Client(threading.Thread):
    """Asks all the time, and notes what went back and what was no answer."""

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self._asked = asked
        self._over = threading.Event()
        self.wrong: list[object] = []
        self.answers = 0

    def run(self) -> None:
        last: dict[str, int] = {}
        while not self._over.is_set():
            try:
                found = self._asked.counts()
            except Exception as error:  # whatever it is, it is no answer
                self.wrong.append(error)
                return
            if found is None:
                continue
            self.answers += 1
            self.wrong += [(key, last[key], found.get(key)) for key in last
                           if found.get(key, 0) < last[key]]  # fmt: skip
            last = found

    def stop(self) -> None:
        self._over.set()
        self.join()


def assert_counts_never_go_back(app: Counted, run: Run, asked: Asked) -> dict[str, int]:
    """Kill both workers under clients; returns the counts at the end."""
    app.write(400)
    run.wait_running(2)
    clients = [Client(asked) for _ in range(2)]
    for client in clients:
        client.start()
    for index in (0, 1):
        os.kill(run.pid(index), signal.SIGKILL)
        app.write(400)
        app.wait_counted(run)
    expected = {key.decode(): count for key, count in app.expected.items()}
    wait_until(lambda: asked.counts() == expected, what="all counts")
    for client in clients:
        client.stop()
        assert client.wrong == []
        assert client.answers > 5
    wait_until(lambda: asked.states() == {"running"}, what="all tasks to run")
    code, found = asked.get("range?limit=7")
    assert (code, [row["key"] for row in found["rows"]]) == (200, KEYS[:7])
    assert max(place["age_ms"] for place in found["positions"]) < 30_000
    return expected


def assert_own_writes_are_seen(app: Counted, asked: Asked, expected: dict[str, int]) -> None:
    producer = Producer({"bootstrap.servers": app.bootstrap, "partitioner": "murmur2_random"})
    written: list[Message] = []
    for key in KEYS[:5]:
        producer.produce(
            app.input, b"x", key.encode(), on_delivery=lambda _, done: written.append(done)
        )
        producer.flush(60)
        app.expected[key.encode()] += 1
        expected[key] += 1
        at = f"{app.input}-{written[-1].partition()}:{written[-1].offset()}"
        code, found = asked.get(f"{key}?min_position={at}&wait=30s")
        assert (code, found["value"]) == (200, expected[key])
