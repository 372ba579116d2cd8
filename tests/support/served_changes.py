"""Changes of a store on a cluster in memory, over real HTTP; and a client that reads them."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from headrace import KafkaStreams, Materialized, StreamsBuilder, serdes
from headrace.streams.metrics.snapshots import HealthSnapshot
from headrace.streams.queries import feeds
from headrace.streams.testing.memory_cluster import MemoryCluster
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import HttpServer
from tests.support.feeds import MemoryFeeds
from tests.support.snapshots import application_snapshot

CHANGELOG = "app-counts-changelog"


class Listener:
    """A client that reads events."""

    def __init__(self, port: int, path: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.request("GET", f"/api/stores/{path}", headers=headers)
        self.answer = self._connection.getresponse()
        self.last_id: str | None = None

    def next(self) -> tuple[str, Any]:
        """The next event; a comment is ("", None)."""
        name, data = "", None
        while line := self.answer.readline().decode().rstrip("\n"):
            field, _, text = line.partition(": ")
            if field == "id":
                self.last_id = text
            elif field == "event":
                name = text
            elif field == "data":
                data = json.loads(text)
            elif field == "retry":
                name = "retry"
        return name, data

    def changes(self, count: int) -> list[Any]:
        """So many changes."""
        found: list[Any] = []
        while len(found) < count:
            name, data = self.next()
            assert name in ("retry", "position", "change", ""), (name, data)
            found += [data] if name == "change" else []
        return found

    def until(self, name: str) -> Any:
        """The next event with a name."""
        while True:
            found, data = self.next()
            if found == name:
                return data

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


class ServedChanges:
    """A store whose changes are served."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, **options: Any) -> None:
        builder = StreamsBuilder()
        words = builder.stream("words", key=serdes.string, value=serdes.string)
        words.group_by_key().count(store="counts").to_stream().to("out")
        loose = Materialized("loose", logged=False)
        words.group_by_key().count(store=loose).to_stream().to("out")
        settings = {
            "application.id": "app", "bootstrap.servers": "nowhere:1", "state.dir": str(path)
        }  # fmt: skip
        self.queries = KafkaStreams(builder.build(), settings).queries()
        self.memory = MemoryFeeds(MemoryCluster(partitions=2))
        self.memory.cluster.create(CHANGELOG)
        monkeypatch.setattr(feeds, "LiveCluster", lambda _: self.memory)
        health = HealthSnapshot(
            snapshot=application_snapshot(), turned_s=1.0, is_loaded=True, has_failed=False
        )
        self._health = health
        self._options = options
        self.server = self._served("0")

    def _served(self, at: str) -> HttpServer:
        return HttpServer(
            lambda: self._health, at, log=EventLog(), queries=lambda: self.queries, **self._options
        )

    def serve_again(self) -> None:
        """Serve at the same address, as a host that was started anew."""
        self.server = self._served(str(self.server.address.port))

    def write(self, *records: tuple[int, str, int]) -> None:
        rows = [(p, key.encode(), serdes.long.serialize(n)) for p, key, n in records]
        self.memory.write(CHANGELOG, *rows)

    def listen(self, path: str = "counts/changes", **headers: str) -> Listener:
        return Listener(self.server.address.port, path, **headers)

    def refused(self, path: str, **headers: str) -> tuple[int, str]:
        asked = urllib.request.Request(f"{self.server.url}/api/stores/{path}", headers=headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=60)
        with refused.value as answer:
            return answer.code, json.load(answer)["error"]

    def close(self) -> None:
        self.server.close()
        self.queries.close()
