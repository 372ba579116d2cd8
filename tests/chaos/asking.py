"""Asks for stores and follows changes while things fail, and writes down what it is told.

python -m tests.chaos.asking '{"urls": [...], "seed": 1, "directory": "..."}'

Each client has a connection of its own to all hosts, and asks one question after the other. Two
followers begin with the first change; one has its connection cut all the time, the other begins
anew with its last position, at another host. They end where nothing more is told.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from headrace.streams.client.changes import Changes
from headrace.streams.client.query_client import Parameters, QueryClient
from headrace.streams.client.stores import ANY, Connection, RemoteStore, connect
from headrace.streams.queries.errors import NotReadableError, QueryError
from tests.chaos.asked import Answer, AnsweredPlace, AnsweredRow, Question
from tests.chaos.load import ACCOUNTS, REGIONS
from tests.chaos.query_hosts import ANSWERS, REFUSED

PAUSE_S = 0.03
TIMEOUT_S = 30.0
PAGE_ROWS = 60
KEYS = 25
CUT_S = (1.0, 5.0)
QUIET_S = 2.0
"""A follower who was told nothing for so long has been told all, once the input has ended."""
OF_ACCOUNTS = ("counts", "totals", "accounts")


class RecordingClient(QueryClient):
    """Keeps the last answer, as it was sent, and the places that it named."""

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(urls, token=None, timeout_s=TIMEOUT_S)
        self.found: dict[str, Any] | None = None
        self.places: list[Mapping[str, Any]] = []

    def ask(
        self, store: str | None, path: str, given: Parameters, body: bytes | None = None
    ) -> dict[str, Any] | None:
        """Ask for something."""
        self.found = super().ask(store, path, given, body)
        return self.found

    def _remember(self, store: str, places: Any) -> None:
        self.places = [*places]
        super()._remember(store, self.places)


class Client(threading.Thread):
    """Asks one question after the other."""

    def __init__(self, name: str, urls: Sequence[str], seed: str, out: Lines) -> None:
        super().__init__(name=name)
        self._choose = random.Random(seed)
        self._client = RecordingClient(urls)
        self._connection = Connection(self._client)
        self._out = out
        self._asks: list[Callable[[], Answer]] = [
            self._key, self._keys, self._range, self._prefix, self._windows, self._sessions
        ]  # fmt: skip
        self.over = threading.Event()
        self.refused = 0

    def run(self) -> None:
        """Ask until it is over."""
        while not self.over.wait(PAUSE_S):
            ask = self._choose.choice(self._asks)
            at_s = time.time()
            try:
                answer = ask()
            except NotReadableError:
                self.refused += 1
                continue
            except Exception as error:  # whatever it is: no client deserves it
                said = f"{ask.__name__}: {type(error).__name__}: {error}"
                answer = Answer(self.name, at_s, "?", "key", error=said)
            self._out.write(answer.line())
        self._connection.close()

    def _store(self, name: str) -> RemoteStore[Any, Any]:
        return self._connection.store(name, key_type=ANY, value_type=ANY)

    def _account(self) -> str:
        return f"account-{self._choose.randrange(ACCOUNTS + 5):06d}"

    def _answer(
        self, at_s: float, store: str, question: Question, keys: Sequence[Any], rows: Sequence[Any]
    ) -> Answer:
        places = (
            AnsweredPlace(p["partition"], p["offset"], p["host"], p["max_offset"])
            for p in self._client.places
        )
        made = (
            None
            if row is None
            else AnsweredRow(row["partition"], row["key"], row["value"], row["timestamp"])
            for row in rows
        )
        is_whole = (self._client.found or {}).get("after") is None
        return Answer(
            self.name, at_s, store, question, tuple(keys), tuple(made), tuple(places), is_whole
        )

    def _key(self) -> Answer:
        store, key = self._choose.choice(OF_ACCOUNTS), self._account()
        if self._choose.random() < 0.3:
            store, key = "regions", f"region-{self._choose.randrange(REGIONS):02d}"
        at_s = time.time()
        self._store(store).find(key)
        return self._answer(at_s, store, "key", [key], [self._client.found])

    def _keys(self) -> Answer:
        store, keys = self._choose.choice(OF_ACCOUNTS), [self._account() for _ in range(KEYS)]
        at_s = time.time()
        self._store(store).get_many(keys)
        return self._answer(at_s, store, "keys", keys, (self._client.found or {})["rows"])

    def _range(self) -> Answer:
        store, low, high = self._choose.choice(OF_ACCOUNTS), *sorted([self._account()] * 2)
        high = max(high, self._account())
        at_s = time.time()
        [*self._store(store).range(low, high, limit=PAGE_ROWS)]
        return self._answer(at_s, store, "range", [low, high], (self._client.found or {})["rows"])

    def _prefix(self) -> Answer:
        store, prefix = self._choose.choice((("regions", "region-"), ("tiers", "tier-")))
        at_s = time.time()
        [*self._store(store).prefix_scan(prefix, limit=PAGE_ROWS)]
        rows = (self._client.found or {})["rows"]
        return self._answer(at_s, store, "range", [prefix, prefix + "\x7f"], rows)

    def _windows(self) -> Answer:
        at_s, now_ms = time.time(), time.time_ns() // 1_000_000
        begin = now_ms - self._choose.randrange(20_000)
        [*self._store("windows").fetch_all(begin, now_ms, limit=PAGE_ROWS)]
        return self._answer(at_s, "windows", "windows", [], (self._client.found or {})["rows"])

    def _sessions(self) -> Answer:
        at_s, key = time.time(), self._account()
        [*self._store("sessions").fetch(key)]
        return self._answer(at_s, "sessions", "windows", [], (self._client.found or {})["rows"])


class Follower(threading.Thread):
    """Follows the changes of a store, or of a key, from the first on.

    Args:
        is_anew: whether it begins anew with its last position, instead of being cut.
    """

    def __init__(
        self, name: str, urls: Sequence[str], seed: str, key: str | None, out: Lines, *,
        is_anew: bool,
    ) -> None:  # fmt: skip
        super().__init__(name=name)
        self._urls = [*urls]
        self._choose = random.Random(seed)
        self._key = key
        self._out = out
        self._is_anew = is_anew
        self._following: Changes[Any, Any] | None = None
        self._told_s = time.monotonic()
        self._is_over = False
        self.over = threading.Event()
        out.write(json.dumps([name, "totals", key]))
        self._cutter = threading.Thread(target=self._cut, daemon=True)

    def run(self) -> None:
        """Follow until nothing more is told."""
        self._cutter.start()
        position: str | None = None
        while not self._is_over:
            self._choose.shuffle(self._urls)
            try:
                with connect(self._urls) as application:
                    totals: RemoteStore[Any, Any] = application.store("totals")
                    if position is None:
                        self._following = totals.changes(self._key, start="beginning")
                    else:
                        self._following = totals.changes(self._key, position=position)
                        self._out.write(json.dumps(["resumed", position]))
                    position = self._follow(self._following) or position
            except NotReadableError as error:
                position = self._position(position)
                print(f"{self.name}: {error}", flush=True)
                time.sleep(0.2)
            except QueryError as error:
                self._out.write(json.dumps(["error", f"{type(error).__name__}: {error}"]))
                return

    def _position(self, before: str | None) -> str | None:
        following = self._following
        return (following.position if following is not None else None) or before

    def _follow(self, changes: Changes[Any, Any]) -> str | None:
        """Write down what is told until it is cut; returns where to go on."""
        for change in changes:
            self._told_s = time.monotonic()
            line = ["change", change.partition, change.offset, change.key, change.value]
            self._out.write(json.dumps([*line, change.timestamp]))
        for gap in changes.compacted:
            self._out.write(json.dumps(["error", f"compacted: {gap}"]))
        return changes.position

    def _cut(self) -> None:
        while not self.over.wait(self._choose.uniform(*CUT_S)):
            following = self._following
            if following is None:
                continue
            stream = following._stream
            if self._is_anew:
                following.close()
            elif stream is not None:
                stream.cut()
                self._out.write(json.dumps(["resumed", None]))
        while time.monotonic() - self._told_s < QUIET_S:
            time.sleep(0.1)
        self._is_over = True
        if self._following is not None:
            self._following.close()


class Lines:
    """A file of lines that several threads write."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w")
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        """Write a line."""
        with self._lock:
            self._file.write(line + "\n")

    def close(self) -> None:
        """Have all of it on disk."""
        with self._lock:
            self._file.close()


def main(plan: dict[str, Any]) -> int:
    """Ask until told to stop."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    directory, urls, seed = Path(plan["directory"]), plan["urls"], plan["seed"]
    lines = Lines(directory / ANSWERS)
    clients = [
        Client(f"client-{n}", urls[::-1] if n % 2 else urls, f"client-{seed}-{n}", lines)
        for n in range(3)
    ]
    told = [Lines(directory / f"followed-{which}.jsonl") for which in ("store", "key")]
    followers = [
        Follower("of-store", urls, f"store-{seed}", None, told[0], is_anew=False),
        Follower("of-key", urls, f"key-{seed}", "account-000001", told[1], is_anew=True),
    ]
    threads: list[Client | Follower] = [*clients, *followers]
    for thread in threads:
        thread.start()
    over.wait()
    for thread in threads:
        thread.over.set()
    give_up_s = time.monotonic() + 25.0
    for thread in threads:
        thread.join(max(0.1, give_up_s - time.monotonic()))
    late = [thread.name for thread in threads if thread.is_alive()]
    (directory / REFUSED).write_text(json.dumps(sum(client.refused for client in clients)))
    for out in (lines, *told):
        out.close()
    if late:
        print("not over in time:", ", ".join(late), flush=True)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
