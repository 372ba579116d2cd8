"""Stores over real HTTP: what a question gives, and what becomes of those that are wrong."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    KafkaStreams,
    Materialized,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyTestDriver,
    serdes,
)
from headrace.streams.errors import ConfigError
from headrace.streams.metrics.snapshots import HealthSnapshot
from headrace.streams.queries import replicas
from headrace.streams.queries.errors import NotReadableError
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams_web.server import HttpServer
from headrace.streams_web.stores.local import WAITING_MAX, slot
from headrace.streams_web.stores.pages import StorePages
from tests.support.processes import wait_until
from tests.support.snapshots import application_snapshot

SETTINGS = {"application.id": "asked", "bootstrap.servers": "nowhere:1"}


def topology() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    grouped = words.group_by_key()
    grouped.count(store="counts").to_stream().to("out")
    windows = grouped.windowed_by(TimeWindows(size=timedelta(seconds=10), grace=timedelta(days=1)))
    windows.count(store="windows").to_stream().to("windows-out")
    prices = Materialized("prices", history=timedelta(days=1))
    builder.table("prices", key=serdes.string, value=serdes.json, store=prices)
    builder.table("ids", key=serdes.long, value=serdes.json, store="ids")
    held = Materialized("held", kind="memory")
    builder.table("held", key=serdes.string, value=serdes.string, store=held)
    return builder.build()


class Scene:
    """An application whose stores are served."""

    def __init__(self, path: Path, **options: Any) -> None:
        built = topology()
        settings = {**SETTINGS, "state.dir": str(path)}
        self.driver = TopologyTestDriver(
            built,
            settings,
            state_dir=path,
            partitions=2,
            commit="manual",
            now=time.time_ns() // 1_000_000,
        )
        self.queries = KafkaStreams(built, settings).queries()
        health = HealthSnapshot(
            snapshot=application_snapshot(), turned_s=1.0, is_loaded=True, has_failed=False
        )
        self.loaded: Any = lambda: self.queries
        self.server = HttpServer(
            lambda: health, "0", log=EventLog(), queries=lambda: self.loaded(), **options
        )

    def send(self, topic: str, *records: tuple[Any, Any], timestamp: int = 7) -> None:
        for key, value in records:
            self.driver.input(topic).send(key, value, timestamp=timestamp)
        self.driver.commit()

    def get(self, path: str, body: Any = None) -> tuple[int, Any]:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(self.server.url + path, data, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def close(self) -> None:
        self.server.close()
        self.queries.close()
        self.driver.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


@pytest.fixture(autouse=True)
def follows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed is read at once, and not some time later."""
    monkeypatch.setattr(replicas, "UPDATE_EVERY_MAX_S", 0.0)


def bare(row: Any) -> tuple[Any, Any]:
    return row["key"], row["value"]


def test_a_key_has_its_row_and_where_it_is_from(scene: Scene) -> None:
    scene.send("words", ("the", ""), ("the", ""), ("range", ""), ("a/b?ü", ""))
    code, found = scene.get("/api/stores/counts/the")
    assert (code, found["key"], found["value"], found["timestamp"]) == (200, "the", 2, 7)
    (position,) = found["positions"]
    assert position["partition"] == found["partition"]
    assert position["offset"] > 0
    assert position["age_ms"] < 60_000
    assert scene.get("/api/stores/counts/" + urllib.parse.quote("a/b?ü"))[1]["value"] == 1
    # What is a question of its own is asked for as a parameter.
    assert scene.get("/api/stores/counts/get?key=range")[1]["value"] == 1
    code, found = scene.get("/api/stores/counts/none")
    assert (code, found["error"]) == (404, "store 'counts' has no row of this key")
    assert {position["partition"] for position in found["positions"]} == {0, 1}


def test_many_keys_are_asked_for_at_once(scene: Scene) -> None:
    scene.send("words", *((f"k{n}", "") for n in range(20)))
    code, found = scene.get("/api/stores/counts/get", {"keys": ["none", "k7", "k3"]})
    assert code == 200
    first, *others = found["rows"]
    assert first is None
    assert [bare(row) for row in others] == [("k7", 1), ("k3", 1)]


def test_ranges_come_in_pages(scene: Scene) -> None:
    scene.send("words", *((f"k{n:02d}", "") for n in range(20)))
    keys, after = [], ""
    while True:
        query = f"from=k03&to=k17&limit=4{after}"
        code, found = scene.get(f"/api/stores/counts/range?{query}")
        assert code == 200
        keys.append([row["key"] for row in found["rows"]])
        if found["after"] is None:
            break
        after = "&after=" + urllib.parse.quote(found["after"])
    assert [len(page) for page in keys] == [4, 4, 4, 3]
    assert [key for page in keys for key in page] == [f"k{n:02d}" for n in range(3, 18)]
    found = scene.get("/api/stores/counts/range?reverse=true&limit=2")[1]
    assert [row["key"] for row in found["rows"]] == ["k19", "k18"]
    found = scene.get("/api/stores/counts/prefix?prefix=k1&limit=100")[1]
    assert len(found["rows"]) == 10
    found = scene.get("/api/stores/counts/count?exact=true")[1]
    assert (found["count"], found["exact"]) == (20, True)
    assert [position["partition"] for position in found["positions"]] == [0, 1]
    assert scene.get("/api/stores/counts/count")[1]["exact"] is False


def test_windows_are_asked_for_by_key_and_by_time(scene: Scene) -> None:
    for second in (1, 2, 11, 31):
        scene.send("words", ("a", ""), timestamp=1000 * second)
    found = scene.get("/api/stores/windows/a?from=0&to=1970-01-01T00:00:10Z")[1]
    rows = [(row["key"]["window"]["start_ms"], row["value"]) for row in found["rows"]]
    assert rows == [(0, 2), (10_000, 1)]
    assert found["rows"][0]["key"]["key"] == "a"
    found = scene.get("/api/stores/windows/range?from=10000&limit=1")[1]
    assert [row["key"]["window"]["start_ms"] for row in found["rows"]] == [10_000]
    assert found["after"] is not None


def test_versions_are_asked_for_as_of_a_time(scene: Scene) -> None:
    scene.send("prices", ("tea", 3), timestamp=10)
    scene.send("prices", ("tea", {"cents": 2}), timestamp=20)
    assert scene.get("/api/stores/prices/tea?as_of=15")[1]["value"] == 3
    assert scene.get("/api/stores/prices/tea")[1]["value"] == {"cents": 2}
    assert scene.get("/api/stores/prices/tea?as_of=5")[0] == 404


def test_keys_are_text_or_json(scene: Scene) -> None:
    scene.send("ids", (5, "five"))
    assert bare(scene.get("/api/stores/ids/5")[1]) == (5, "five")
    code, found = scene.get("/api/stores/ids/five")
    assert code == 400
    assert found["error"] == (
        "keys of store 'ids' use serde long: serde 'long' cannot encode a value of "
        "type str. Use an integer of at most 64 bits"
    )
    found = scene.get("/api/stores/counts/get?key=7&json_keys=true")[1]
    assert found["error"].endswith("cannot encode a value of type int. Use text")


def test_the_stores_are_listed(scene: Scene) -> None:
    scene.send("words", ("k", ""))
    code, found = scene.get("/api/stores")
    assert code == 200
    kinds = {store["name"]: (store["kind"], store["key"]) for store in found["stores"]}
    assert kinds == {
        "counts": ("key-value", "string"),
        "held": ("key-value", "string"),
        "ids": ("key-value", "long"),
        "prices": ("versioned", "string"),
        "windows": ("window", "time_windowed(string)"),
    }
    assert len(scene.get("/api/stores/counts")[1]["positions"]) == 2


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        (
            "/none",
            404,
            "asked has no store 'none'. Use a store that it has: counts, held, ids",
        ),
        ("/none/k", 404, "Use a store that it has: counts"),
        ("/counts/range?limit=0", 400, "limit must be a number from 1 to 10000"),
        ("/counts/range?limit=10001", 400, "limit must be a number from 1 to 10000"),
        ("/counts/range?limit=-1", 400, "limit must be a number"),
        ("/counts/range?limit=%D9%A3", 400, "limit must be a number"),
        ("/counts/range?limit=" + "9" * 5000, 400, "limit must be a number"),
        ("/counts/range?after=x", 400, "after is not the value of a previous page"),
        ("/counts/range?reverse=yes", 400, "reverse must be true or false"),
        ("/windows/range?from=then", 400, "from must be milliseconds since 1970 or a time such as"),
        ("/windows/range?reverse=true", 400, "without prefix and reverse"),
        ("/counts/k?as_of=5", 400, "has no versions"),
        ("/prices/range?as_of=5", 400, "the parameter 'as_of' is unknown. Use: after, from, json_"),
        ("/prices/count?as_of=5", 400, "the parameter 'as_of' is unknown. Use: exact, max"),
        ("/windows/k?as_of=5", 400, "has no versions. Leave out as_of"),
        ("/counts/k?frm=1", 400, "the parameter 'frm' is unknown. Use: after, as_of, "),
        ("/counts/k?key=l", 400, "the parameter 'key' is unknown"),
        ("/counts/range?frm=1", 400, "the parameter 'frm' is unknown"),
        ("/counts/prefix?prefix=k&frm=1", 400, "the parameter 'frm' is unknown"),
        ("/counts/prefix?prefix=k&from=1", 400, "prefix excludes from, to and reverse"),
        ("/counts?limit=5", 400, "the parameter 'limit' is unknown"),
        ("?limit=5", 400, "the parameter 'limit' is unknown. Use: no parameters"),
        (
            "/counts/changes?frm=1",
            400,
            "'frm' is unknown. Use: from, json_keys, key, pos",
        ),
        ("/counts/k/changes?key=l", 400, "the parameter 'key' is unknown"),
        ("/counts/k?min_position=wrds-0:1", 400, "do not read topic 'wrds' themselves. Use"),
        ("/counts/get", 400, "the key is missing"),
        ("/counts/prefix", 400, "the prefix is missing"),
        ("/counts/k?min_position=x", 400, "min_position must be PARTITION:OFFSET"),
        ("/counts/k?max_age=x", 400, "max_age must be a number and a unit"),
        ("/counts/k?partial=xyz", 400, "partial must be true or false, not 'xyz'"),
        ("/counts?partial=xyz", 400, "partial must be true or false, not 'xyz'"),
        ("/counts/k?wait=abc", 400, "wait must be a number and a unit"),
        ("/counts/k?wait=31s", 400, "wait= must be at most 30s"),
        ("/counts/count?wait=abc", 400, "wait must be a number and a unit"),
        ("/counts?max_age=x", 400, "max_age must be a number and a unit"),
        ("/counts/k?route=there", 400, "route must be proxy, redirect or none"),
        ("/counts/count?route=there", 400, "route must be proxy, redirect or none"),
        ("/counts/range?json_keys=yes", 400, "json_keys must be true or false"),
        ("/counts/k?limit=5", 400, "'counts' has a single row per key. Leave out limit"),
        ("/counts/get?key=k&from=5", 400, "'counts' has a single row per key. Leave out from"),
        ("/prices/k?to=5&after=x", 400, "'prices' has a single row per key. Leave out after, to"),
        ("/held/k", 501, "is in the memory of the workers"),
        ("/counts/k?max_age=0ms", 503, "Use max_age= to accept rows older than 0 s"),
        (
            "/counts/k?min_position=0:999999&wait=10ms",
            503,
            "has not reached the requested position",
        ),
    ],
)
def test_wrong_questions_are_told_what_is_wrong(
    scene: Scene, path: str, code: int, said: str
) -> None:
    scene.send("words", ("k", ""), ("l", ""))
    found = scene.get(f"/api/stores{path}")
    assert found[0] == code
    assert said in found[1]["error"]


def test_bodies_that_are_no_questions_are_refused(scene: Scene) -> None:
    for body in (b"", b"{", b"[]", b'{"keys": 5}', b'{"key": []}'):
        assert scene.get("/api/stores/counts/get", body)[0] == 400
    assert scene.get("/api/stores/counts/get", {"keys": ["k"] * 10_001})[0] == 400
    code, found = scene.get("/api/stores/counts/get", {"keys": ["k"], "max_age": "5s"})
    assert code == 400
    assert (
        "must not have a field 'max_age'. Send {\"keys\": [...]}, and everything" in found["error"]
    )
    assert scene.get("/api/stores/counts/get", {"keys": [None]})[0] == 400
    assert scene.get("/api/stores/counts/get", {"keys": ["k" * (5 << 20)]})[0] == 413
    assert scene.get("/api/stores/windows/get", {"keys": ["k"]})[0] == 400
    code, found = scene.get("/api/stores/prices/get?as_of=5", {"keys": ["k"]})
    assert code == 400
    assert "the parameter 'as_of' is unknown. Use: max_age" in found["error"]


def test_ones_own_write_is_waited_for(scene: Scene) -> None:
    scene.send("words", ("k", ""))
    found = scene.get("/api/stores/counts/k")[1]
    at = f"{found['partition']}:{found['positions'][0]['offset']}"
    code, found = scene.get(f"/api/stores/counts/k?min_position={at}&max_age=1h")
    assert (code, found["value"]) == (200, 1)


@pytest.mark.parametrize(
    "path",
    [
        "counts/k",
        "counts/none",
        "counts/range",
        "counts/prefix?prefix=k",
        "counts/count",
        "counts/count?exact=true",
    ],
)
def test_what_a_task_has_left_behind_is_given_where_that_is_asked_for(
    scene: Scene, path: str
) -> None:
    scene.send("words", ("k", ""), ("l", ""))
    code = scene.get(f"/api/stores/{path}")[0]
    assert code in (200, 404)
    here = scene.queries._local
    scene.queries._local = replace(here, now_ms=lambda: here.now_ms() + 61_000)
    refused, found = scene.get(f"/api/stores/{path}")
    assert refused == 503
    assert "no worker of this host has its task now" in found["error"]
    more = "&" if "?" in path else "?"
    assert scene.get(f"/api/stores/{path}{more}max_age=2h")[0] == code


def test_what_takes_long_leaves_threads_for_others(scene: Scene) -> None:
    scene.send("words", ("k", ""))
    late = "/api/stores/counts/k?min_position=0:999999&wait=3s"
    enough = threading.Event()

    def ask() -> None:
        while not enough.is_set():  # one alone may be answered before the last one asks
            scene.get(late)

    asking = [threading.Thread(target=ask) for _ in range(WAITING_MAX)]
    for thread in asking:
        thread.start()
    wait_until(
        lambda: "queries wait for positions" in scene.get(late.replace("3s", "0ms"))[1]["error"],
        what="all places taken",
    )
    assert scene.get("/api/stores/counts/k")[0] == 200
    enough.set()
    for thread in asking:
        thread.join()
    assert "queries wait" not in scene.get(late.replace("3s", "0ms"))[1]["error"]
    assert scene.get("/api/stores/counts/count?exact=true")[0] == 200
    counting = threading.Semaphore()
    with (
        slot(counting, "another count"),
        pytest.raises(NotReadableError, match=r"another count\. Retry later"),
        slot(counting, "another count"),
    ):
        raise AssertionError("two at once")


def test_an_application_that_cannot_be_loaded_is_said(scene: Scene) -> None:
    def refuse() -> Any:
        raise ConfigError("state.dir is empty")

    scene.loaded = refuse
    assert scene.get("/api/stores/counts/k") == (503, {"error": "state.dir is empty"})


def test_the_description_has_the_questions(scene: Scene) -> None:
    described = scene.get("/api/openapi.json")[1]
    paths = described["paths"]
    assert paths["/api/stores/{name}/{key}"]["get"]["responses"].keys() >= {"404", "503"}
    assert "PartitionPosition" in described["components"]["schemas"]
    routes = StorePages(lambda: None).routes()
    assert paths.keys() >= {route.path.replace(":path", "") for route in routes}


def test_stores_are_not_served_unless_that_is_asked_for() -> None:
    health = HealthSnapshot(
        snapshot=application_snapshot(), turned_s=1.0, is_loaded=True, has_failed=False
    )
    with HttpServer(lambda: health, "0", log=EventLog()) as server:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(server.url + "/api/stores", timeout=60)
        assert refused.value.code == 404
        refused.value.close()
        with urllib.request.urlopen(server.url + "/api/openapi.json", timeout=60) as answer:
            assert "/api/stores" not in json.load(answer)["paths"]
