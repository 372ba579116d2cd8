"""What is served over real HTTP, to whom, and what becomes of those who ask wrongly."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from headrace import KafkaStreams, StreamsBuilder
from headrace.streams.errors import ConfigError
from headrace.streams.metrics.snapshots import ApplicationSnapshot, HealthSnapshot
from headrace.streams.testing.memory_worker import EventLog
from headrace.streams.web import open_web
from headrace.streams_web import server as patience
from headrace.streams_web.metrics import METRICS
from headrace.streams_web.server import HttpServer
from tests.support.snapshots import application_snapshot

TOKEN = "a-token-of-some-length"


class Scene:
    """A board that the test changes, served on a free port."""

    def __init__(self, **options: Any) -> None:
        self.now_s = 101.0
        self.health = health(application_snapshot(workers=2, tasks=3))
        self.log = EventLog()
        address = options.pop("address", "0")
        self.server = HttpServer(
            lambda: self.health, address, log=self.log, monotonic_s=lambda: self.now_s, **options
        )

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        request = urllib.request.Request(self.server.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text, code, kind = answer.read(), answer.status, answer.headers["Content-Type"]
        except urllib.error.HTTPError as error:
            with error:
                text, code, kind = error.read(), error.code, error.headers["Content-Type"]
        return code, json.loads(text) if "json" in kind else text.decode()


def health(snapshot: ApplicationSnapshot, **others: Any) -> HealthSnapshot:
    known: dict[str, Any] = {"turned_s": 101.0, "is_loaded": True, "has_failed": False}
    return HealthSnapshot(snapshot=snapshot, **(known | others))


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    with scene.server:
        yield scene


def test_metrics_are_what_prometheus_reads(scene: Scene) -> None:
    code, text = scene.get("/metrics")
    assert code == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for metric in METRICS:
        name = metric.sample if metric.kind == "info" else metric.name
        family = families[name]
        assert family.type == {"info": "gauge"}.get(metric.kind, metric.kind)
        assert family.documentation == metric.help
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
    (running,) = families["headrace_app_workers_running"].samples
    assert running.value == 2
    lags = families["headrace_task_input_lag_records"].samples
    assert [sample.value for sample in lags] == [10.0] * 6
    commits = families["headrace_worker_commit_latency_seconds"].samples
    of_first = [
        s.value for s in commits if s.name.endswith("_bucket") and s.labels["worker"] == "0"
    ]
    assert of_first == sorted(of_first)
    assert of_first[-1] == 3


def test_labels_that_say_anything_are_read_as_they_are(scene: Scene) -> None:
    odd = 'a"b\\c\nd ü {x="y"}'
    scene.health = health(replace(application_snapshot(), application=odd))
    families = text_string_to_metric_families(scene.get("/metrics")[1])
    (info,) = (s for family in families for s in family.samples if s.name == "headrace_app_info")
    assert info.labels["application"] == odd


def test_a_worker_that_has_told_nothing_leaves_the_others_their_metrics(scene: Scene) -> None:
    snapshot = scene.health.snapshot
    silent = replace(snapshot.workers[0], snapshot=None, state="starting")
    scene.health = health(replace(snapshot, workers=(silent, snapshot.workers[1])))
    families = text_string_to_metric_families(scene.get("/metrics")[1])
    samples = [s for family in families for s in family.samples]
    assert {s.labels["worker"] for s in samples if s.name == "headrace_task_running"} == {"1"}
    states = {(s.labels["worker"], s.labels["state"]) for s in samples if "state" in s.labels}
    assert states == {("0", "starting"), ("1", "running")}


def test_the_api_has_what_its_description_says(scene: Scene) -> None:
    code, described = scene.get("/api/openapi.json")
    assert (code, described["openapi"]) == (200, "3.1.0")
    schemas = described["components"]["schemas"]
    read = [path for path, how in described["paths"].items() if "get" in how]
    for path in (path for path in read if path.startswith("/api/")):
        code, answer = scene.get(path)
        assert code == 200
        content = described["paths"][path]["get"]["responses"]["200"]["content"]
        fits(answer, content["application/json"]["schema"], schemas)
    code, lag = scene.get("/api/lag")
    assert [(one["worker"], one["task"], one["lag"]) for one in lag][:2] == [
        (0, "0_0", 10),
        (0, "0_1", 10),
    ]
    _, application = scene.get("/api/application")
    assert (application["tasks"], application["tasks_running"], application["lag"]) == (6, 6, 60)
    assert application["tasks_with_unknown_lag"] == 0
    assert application["report_age_seconds"] == 1.0


def test_a_lag_that_is_unknown_is_null_and_counted(scene: Scene) -> None:
    snapshot = scene.health.snapshot
    first, second = snapshot.workers
    assert first.snapshot is not None
    waiting, *others = first.snapshot.tasks
    told = (replace(waiting, state="waiting", inputs=()), *others)
    view = replace(first, snapshot=replace(first.snapshot, tasks=told))
    scene.health = health(replace(snapshot, workers=(view, second)))
    lag = scene.get("/api/lag")[1]
    assert [(one["task"], one["lag"], one["input"]) for one in lag][:1] == [("0_0", None, None)]
    assert len(lag) == 6
    application = scene.get("/api/application")[1]
    assert (application["tasks_with_unknown_lag"], application["lag"]) == (1, 50)


def test_what_is_told_of_tasks_is_as_old_as_the_oldest_word(scene: Scene) -> None:
    snapshot = scene.health.snapshot
    first, second = snapshot.workers
    assert second.snapshot is not None
    fresh = replace(second, snapshot=replace(second.snapshot, at_s=101.0))
    scene.health = health(replace(snapshot, workers=(first, fresh)))
    scene.now_s = 113.8
    assert scene.get("/api/application")[1]["report_age_seconds"] == 13.8
    scene.health = health(replace(snapshot, workers=(replace(first, snapshot=None), fresh)))
    assert scene.get("/api/application")[1]["report_age_seconds"] == 12.8
    scene.health = health(replace(snapshot, workers=()))
    assert scene.get("/api/application")[1]["report_age_seconds"] is None


def test_a_silent_worker_is_told_as_silent_and_without_rates(scene: Scene) -> None:
    scene.health = health(application_snapshot(workers=2, restored_per_s=7.5))
    (told, _) = scene.get("/api/snapshot")[1]["workers"]
    assert (told["state"], told["snapshot"]["restored_per_s"]) == ("running", 7.5)
    scene.now_s = 200.0
    (told, _) = scene.get("/api/snapshot")[1]["workers"]
    assert (told["state"], told["snapshot"]["restored_per_s"]) == ("unresponsive", 0)


def test_tasks_of_a_silent_worker_are_not_told_as_running(scene: Scene) -> None:
    snapshot = scene.health.snapshot
    first, second = snapshot.workers
    assert first.snapshot is not None
    assert second.snapshot is not None
    fresh = replace(second, snapshot=replace(second.snapshot, at_s=140.0))
    scene.health = health(replace(snapshot, workers=(first, fresh)))

    def seen() -> tuple[list[str], list[str], int, list[float]]:
        tasks = [told["task"]["state"] for told in scene.get("/api/tasks")[1]]
        workers = scene.get("/api/snapshot")[1]["workers"]
        snapshot = [task["state"] for worker in workers for task in worker["snapshot"]["tasks"]]
        families = list(text_string_to_metric_families(scene.get("/metrics")[1]))
        samples = [s for family in families for s in family.samples]
        running = [s.value for s in samples if s.name == "headrace_task_running"]
        return tasks, snapshot, scene.get("/api/application")[1]["tasks_running"], running

    scene.now_s = 110.0
    assert seen() == (["running"] * 6, ["running"] * 6, 6, [1] * 6)
    scene.now_s = 140.0
    states = ["unresponsive"] * 3 + ["running"] * 3
    assert seen() == (states, states, 3, [0, 0, 0, 1, 1, 1])
    assert [told["task"]["state_s"] for told in scene.get("/api/tasks")[1]][:3] == [40.0] * 3
    assert [len(told["task"]["inputs"]) for told in scene.get("/api/tasks")[1]] == [1] * 6


def test_tasks_that_another_worker_took_from_a_frozen_one_are_told_once(scene: Scene) -> None:
    snapshot = scene.health.snapshot
    frozen, second = snapshot.workers
    assert frozen.snapshot is not None
    assert second.snapshot is not None
    took = tuple(replace(task, state_s=5.0) for task in frozen.snapshot.tasks)
    told = replace(second.snapshot, at_s=160.0, tasks=(*took, *second.snapshot.tasks))
    scene.health = health(replace(snapshot, workers=(frozen, replace(second, snapshot=told))))
    scene.now_s = 160.0
    application = scene.get("/api/application")[1]
    assert (application["tasks"], application["tasks_running"], application["lag"]) == (6, 6, 60)
    assert application["report_age_seconds"] == 0.0
    for path in ("/api/tasks", "/api/lag"):
        assert [one["worker"] for one in scene.get(path)[1]] == [1] * 6
    (_, plain) = scene.get("/api/snapshot")
    assert [len(view["snapshot"]["tasks"]) for view in plain["workers"]] == [0, 6]
    families = list(text_string_to_metric_families(scene.get("/metrics")[1]))
    samples = [s for family in families for s in family.samples]
    for name in ("headrace_task_running", "headrace_task_input_lag_records"):
        found = [s.labels["task"] for s in samples if s.name == name]
        assert len(found) == len(set(found)) == 6
    ages = [s.value for s in samples if s.name == "headrace_worker_report_age_seconds"]
    assert ages == [60.0, 0.0]
    assert scene.get("/health/ready")[0] == 200


def test_a_worker_that_is_frozen_does_not_count_as_running(scene: Scene) -> None:
    snapshot = scene.health.snapshot
    first, second = snapshot.workers
    assert second.snapshot is not None
    fresh = replace(second, snapshot=replace(second.snapshot, at_s=110.0))
    scene.health = health(replace(snapshot, workers=(first, fresh)))

    def seen() -> tuple[set[tuple[str, str]], float, list[str]]:
        families = list(text_string_to_metric_families(scene.get("/metrics")[1]))
        samples = [s for family in families for s in family.samples]
        states = [s.labels for s in samples if s.name == "headrace_worker_state"]
        (running,) = (s.value for s in samples if s.name == "headrace_app_workers_running")
        told = [worker["state"] for worker in scene.get("/api/workers")[1]]
        return {(one["worker"], one["state"]) for one in states}, running, told

    scene.now_s = 110.0
    assert seen() == ({("0", "running"), ("1", "running")}, 2.0, ["running", "running"])
    scene.now_s = 110.5
    assert seen() == ({("0", "unresponsive"), ("1", "running")}, 1.0, ["unresponsive", "running"])
    connecting = replace(first, state="connecting")
    scene.health = health(replace(snapshot, workers=(connecting, fresh)))
    scene.now_s = 111.0
    assert seen() == ({("0", "connecting"), ("1", "running")}, 1.0, ["connecting", "running"])


def fits(answer: Any, schema: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Compare by the few words of JSON Schema that msgspec uses here."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        kinds = [one.get("type", "object") for one in schema["anyOf"]]
        assert kind_of(answer) in kinds or (kind_of(answer) == "integer" and "number" in kinds)
        return
    kind = schema.get("type")
    assert kind in (None, kind_of(answer)) or (kind, kind_of(answer)) == ("number", "integer")
    if kind == "object" and "properties" in schema:
        assert set(schema["required"]) <= answer.keys() <= set(schema["properties"])
        for name, value in answer.items():
            fits(value, schema["properties"][name], schemas)
    if kind == "array":
        for one in answer:
            fits(one, schema.get("items") or {}, schemas)


def kind_of(answer: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return "null" if answer is None else kinds.get(type(answer), "object")


# -- the level of the log ----------------------------------------------------------------------


class Levels(Scene):
    """A scene whose log can be changed."""

    def __init__(self, **options: Any) -> None:
        self.levels: list[str] = []
        super().__init__(set_level=self._set, **options)

    def _set(self, level: str) -> str:
        if level == "error":
            raise TimeoutError
        self.levels.append(level)
        return f"as {level}"

    def post(self, body: bytes, **headers: str) -> tuple[int, Any]:
        url = self.server.url.replace("0.0.0.0", "127.0.0.1") + "/api/log-level"
        known = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(url, data=body, headers=known, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


DEBUG = b'{"level": "debug"}'


def test_the_level_of_the_log_is_changed_as_the_description_says() -> None:
    scene = Levels()
    with scene.server:
        assert scene.post(DEBUG) == (200, {"message": "as debug"})
        kind = {"Content-Type": "application/json; charset=utf-8"}
        assert scene.post(b'{"level": "warning"}', **kind)[0] == 200
        assert scene.levels == ["debug", "warning"]
        described = scene.get("/api/openapi.json")[1]["paths"]["/api/log-level"]["post"]
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        assert schema["properties"]["level"]["enum"] == ["debug", "info", "warning", "error"]
        assert {"200", "400", "403", "415", "503"} == described["responses"].keys()
        assert scene.get("/api/log-level")[0] == 405


def test_a_level_that_is_asked_for_wrongly_changes_nothing() -> None:
    scene = Levels()
    with scene.server:
        for body in (b"", b"debug", b"[]", b'{"level": "loud"}', b'{"level": ["debug"]}', b"\xff",
                     b'{"level": "debug", "for": "5m"}'):  # fmt: skip
            code, said = scene.post(body)
            assert (code, list(said)) == (400, ["error"])
            assert "debug, info, warning, error" in said["error"]
        assert scene.post(DEBUG + b" " * 2_000)[0] == 400
        # A page of another site may have a browser send this, unasked.
        assert scene.post(DEBUG, **{"Content-Type": "text/plain"})[0] == 415
        code, said = scene.post(b'{"level": "error"}')
        assert (code, said["error"]) == (
            503,
            "the application does not answer, because it may be stopping",
        )
    assert scene.levels == []


def test_who_changes_the_level_has_the_token_or_is_on_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    scene = Levels(token_file=file, address="0.0.0.0:0")
    with scene.server:
        assert scene.post(DEBUG)[0] == 401
        assert scene.post(DEBUG, Authorization="Bearer wrong")[0] == 401
        assert scene.post(DEBUG, Authorization=f"Bearer {TOKEN}")[0] == 200
    scene = Levels(is_open=True, address="0.0.0.0:0")
    with scene.server:
        code, said = scene.post(DEBUG)
        assert (code, scene.levels) == (403, [])
        assert "--http-token-file" in said["error"]


def test_an_embedded_application_changes_the_level_of_logging() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    app = KafkaStreams(
        builder.build(), {"application.id": "copy", "bootstrap.servers": "localhost:1"}
    )
    logger = logging.getLogger("headrace")
    before = logger.level
    try:
        with app.serve(port=0) as server:
            request = urllib.request.Request(
                server.url + "/api/log-level",
                data=b'{"level": "error"}',
                headers={"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                said = json.load(answer)["message"]
        assert said == "events of level error and above are logged"
        assert logger.level == logging.ERROR
    finally:
        logger.setLevel(before)


# -- bad input ---------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_said(scene: Scene) -> None:
    with pytest.raises(ConfigError, match=r"cannot be served on: Address already in use. Choose"):
        Scene(address=str(scene.server.address.port))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 70, "192.0.2.1"])
def test_a_host_that_is_unknown_or_not_here_is_said(host: str) -> None:
    with pytest.raises(ConfigError, match=r"no host|cannot be served on"):
        Scene(address=f"{host}:0", is_open=True)


@pytest.mark.parametrize(
    "address", ["", "http", "1.2.3.4", "localhost:", ":-1", "70000", "a:b:c", "٣"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"an address must be \[HOST:\]PORT"):
        Scene(address=address)


def test_what_others_can_reach_is_guarded_or_said_to_be_open(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--http-token-file FILE, or .* --http-open"):
        Scene(address="0.0.0.0:0")
    with Scene(address="0.0.0.0:0", is_open=True).server as server:
        assert server.address.port


def test_who_has_no_token_is_refused_but_for_health(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    scene = Scene(token_file=file)
    with scene.server:
        for path in ("/metrics", "/api/snapshot", "/", "/nowhere", "/health/../metrics"):
            code, said = scene.get(path)
            assert (code, said) == (401, {"error": "send the token: Authorization: Bearer TOKEN"})
            code, wrong = scene.get(path, Authorization="Bearer wrong")
            assert (code, wrong["error"][:19]) == (401, "the token is wrong:")
            assert scene.get(path, Authorization=f"Basic {TOKEN}") == (401, said)
        assert scene.get("/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert scene.get("/nowhere", Authorization=f"Bearer {TOKEN}")[0] == 404
        assert scene.get("/health/live") == (200, {"ok": True})
    assert TOKEN not in str(scene.log.events)


def test_what_is_not_there_is_said_in_json(scene: Scene) -> None:
    for path in ("/api", "/api/nowhere", "/nowhere"):
        code, said = scene.get(path)
        assert (code, "/api/openapi.json" in said["error"]) == (404, True)
    code, said = scene.get("/api/stores/counts/a")
    assert (code, "--queries" in said["error"]) == (404, True)
    assert scene.get("/api/log-level") == (405, {"error": "Method Not Allowed"})


@pytest.mark.parametrize("host", ["shop.example", "shop.example:80", "192.0.2.7", "localhost.x"])
def test_on_this_machine_alone_a_request_for_another_host_is_refused(
    scene: Scene, tmp_path: Path, host: str
) -> None:
    """A page in a browser here may have its own name lead to this address."""
    code, said = scene.get("/api/snapshot", Host=host)
    assert code == 421
    assert f"{host!r} is another host. Use localhost" in said["error"]
    assert scene.get("/health/live", Host=host)[0] == 200
    for own in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80"):
        assert scene.get("/metrics", Host=own)[0] == 200
    file = tmp_path / "token"
    file.write_text(TOKEN)
    for options in ({"token_file": file}, {"is_open": True}):
        with (other := Scene(**options)).server:
            asked = {"Host": host, "Authorization": f"Bearer {TOKEN}"}
            assert other.get("/metrics", **asked)[0] == 200


@pytest.mark.parametrize("text", ["", "short", "with some blanks in it", "ümläüte-und-mehr-davon"])
def test_a_token_that_is_weak_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(ConfigError, match="openssl rand") as refused:
        Scene(token_file=file)
    assert not text or text not in str(refused.value)


def test_a_token_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"token in .*nowhere cannot be read"):
        Scene(token_file=tmp_path / "nowhere")


def test_while_it_starts_the_answer_is_503_with_the_progress(scene: Scene) -> None:
    snapshot = scene.health.snapshot
    silent = replace(snapshot.workers[0], snapshot=None, state="starting")
    scene.health = health(replace(snapshot, workers=(silent,)), is_loaded=False)
    progress = {"worker": 0, "state": "starting", "tasks": 0, "running": 0, "restore_remaining": 0}
    for path in ("/health/startup", "/health/ready", "/api/tasks"):
        code, said = scene.get(path)
        assert code == 503
        assert "the application is not loaded yet" in said["reasons"]
        assert said["workers"] == [progress]
    assert scene.get("/health/live")[0] == 200
    assert scene.get("/metrics")[0] == 200


@pytest.mark.parametrize("within", ["", "30", "-3s", "3 weeks", "1e3s", "s" * 10_000])
def test_a_span_that_is_none_is_refused(scene: Scene, within: str) -> None:
    code, said = scene.get(f"/health/ready?within={within.replace(' ', '%20')}")
    assert code == 400
    assert "such as 30s" in said["error"]


def test_what_is_no_http_is_refused_and_nobody_suffers(scene: Scene) -> None:
    for rubbish in (
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
        b"\r\n" * 99,
    ):
        with socket.create_connection(("127.0.0.1", scene.server.address.port)) as client:
            client.sendall(rubbish)
    assert scene.get("/health/live")[0] == 200
    assert scene.get("/metrics", Accept="application/nonsense")[0] == 200


def test_a_thousand_slow_clients_keep_nobody_out(scene: Scene) -> None:
    """They connect and send a part of a request; the ones that came first have to go."""
    clients = []
    try:
        for number in range(1_000):
            client = socket.create_connection(("127.0.0.1", scene.server.address.port), timeout=30)
            client.sendall(b"GET /metrics HTTP/1.1\r\n"[: number % 20])
            clients.append(client)
            if number % 250 == 249:
                assert scene.get("/health/live")[0] == 200
        assert scene.get("/metrics")[0] == 200
        open_ones = threads_and_connections(scene)
        assert open_ones <= patience.CONNECTIONS_MAX
    finally:
        for client in clients:
            client.close()


def threads_and_connections(scene: Scene) -> int:
    return len(scene.server._server.server_state.connections)


def test_who_sends_no_request_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "REQUEST_S", 0.05)
    scene = Scene()
    with scene.server:
        with socket.create_connection(("127.0.0.1", scene.server.address.port)) as client:
            client.settimeout(60)
            client.sendall(b"GET /metrics HTT")
            with suppress(ConnectionResetError):
                assert client.recv(100) == b""
        assert scene.get("/health/live")[0] == 200


def test_who_reads_no_answer_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LIFE_S", 0.2)
    scene = Scene()
    scene.health = health(application_snapshot(workers=8, tasks=64))
    with (
        scene.server,
        socket.create_connection(("127.0.0.1", scene.server.address.port)) as client,
    ):
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        end_s = time.monotonic() + 60
        while threads_and_connections(scene) and time.monotonic() < end_s:
            time.sleep(0.02)
        assert not threads_and_connections(scene)


def test_many_who_ask_at_once_all_get_an_answer(scene: Scene) -> None:
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(scene.get("/metrics")[0])) for _ in range(30)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert codes == [200] * 30


def test_a_server_that_is_closed_gives_its_port_back() -> None:
    scene = Scene()
    scene.server.close()
    Scene(address=str(scene.server.address.port)).server.close()
    assert [event["event"] for event in scene.log.events] == ["web_started"]


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")

    monkeypatch.setattr("headrace.streams.web.import_module", refuse)
    with pytest.raises(ConfigError, match=r"requires uvicorn; run: pip install 'headrace\[web\]'"):
        open_web(lambda: health(application_snapshot()), "0", log=EventLog())


def test_what_uvicorn_says_of_its_start_stays_out_of_the_programs_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = logging.getLogger("uvicorn.error")
    with caplog.at_level(logging.INFO):
        scene = Scene()
        try:
            assert scene.get("/health/live")[0] == 200
            own.info("of another server of the program")
        finally:
            scene.server.close()
    assert [r.getMessage() for r in caplog.records] == ["of another server of the program"]


def test_whoever_is_not_asked_looks_at_the_clock_once_a_second(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The date of answers goes on, and little else is done."""
    looks: list[float] = []
    on_tick = uvicorn.Server.on_tick

    async def counted(server: uvicorn.Server, counter: int) -> bool:
        looks.append(time.monotonic())
        return await on_tick(server, counter)

    monkeypatch.setattr(uvicorn.Server, "on_tick", counted)
    dates: set[str] = set()
    begun_s = time.monotonic()
    while len(dates) < 3:
        assert time.monotonic() < begun_s + 60
        with urllib.request.urlopen(f"{scene.server.url}/health/live", timeout=60) as answer:
            dates.add(answer.headers["Date"])
        time.sleep(0.1)
    assert 2 <= len(looks) <= 2 + (time.monotonic() - begun_s)
