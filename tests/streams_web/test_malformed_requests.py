"""Malformed requests over real HTTP: each has an answer, and none of them is code 500."""

from __future__ import annotations

import http.client
import json
import random
import string
from collections.abc import Iterator
from contextlib import closing

import pytest

from headrace.streams.queries.errors import NotReadableError
from headrace.streams.queries.feeds import Feeds
from headrace.streams_web.server import HttpServer
from tests.streams_web.stores.test_pages import Scene

REQUESTS = 1_500
DEEP = 3_000
URL_MAX = 60_000
"""The HTTP library ends connections on which longer ones come."""
PATHS = (
    "/health/ready",
    "/metrics",
    "/api/lag",
    "/api/stores",
    "/api/hot-keys",
    *(f"/api/stores/{store}" for store in ("counts", "windows", "prices", "ids", "held", "none")),
)
WORDS = ("", "/get", "/range", "/prefix", "/count", "/changes", "/k1", "/k1/changes", "/%00")
PARAMETERS = (
    "key", "from", "to", "limit", "after", "reverse", "prefix", "min_position", "wait", "max_age",
    "route", "partial", "json_keys", "as_of", "exact", "within", "position", "snapshot",
    "partitions", "of", "left", "piece", "piece_of", "other",
)  # fmt: skip
VALUES = (
    "", "k1", "true", "TRUE", "0", "-1", "7", "9" * 400, "1e999", "9" * 400 + "h", "1" * 5_000,
    "NaN", "Infinity", "null", "[" * DEEP, '{"a":' * DEEP, '"\\ud800"', '"\\u0000"', "\0",
    "%ff%fe", "0:1", "0:" + "9" * 18, "0:" + "9" * 19, "none-0:1", "words-0:999999", "0:1,",
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-02-30", "5s", "0s", "٣", "x.y",
    "AAAA.0", "AAAA." + "1" * 5_000, "AAAA.-1", "=.0", "zz", "0,1", "99", "proxy", "redirect",
    "none", "end", "beginning", "a" * 20_000, "[1,2]", "{}", "1.5",
)  # fmt: skip
BODIES = (
    b"", b"{", b"[" * DEEP, b'{"keys": ' + b"[" * DEEP, b'{"keys": {}}', b'{"keys": [null]}',
    b'{"keys": ["\\ud800"]}', b'{"keys": [1e999, NaN]}', b'{"keys": ["k1", "k1", 7, {}, []]}',
    b'{"keys": ["' + b"a" * 100_000 + b'"]}', b"\xff\xfe", b"\0", b'"level"', b"[]",
    b'{"level": []}', b"[" * 1_000, b'{"keys": [' + b"9" * 5_000 + b"]}", b'{"keys": [], "x": 1}',
    b'{"keys": [' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"]}",
)  # fmt: skip
HEADERS = (
    {},
    {"Host": "[::1"},
    {"Host": "localhost:" + "9" * 400},
    {"Headrace-Patience-Ms": "9" * 30},
    {"Headrace-Asked-By": "\xff"},
    {"Last-Event-Id": "\xff" * 30},
    {"Last-Event-Id": "0:" + "9" * 30},
    {"Authorization": "\xff"},
    {"Accept": "\xff"},
    {"Content-Type": "application/json"},
    {"Content-Type": "\xff"},
)


def escaped(text: str) -> str:
    """Text as part of a URL; what is escaped already stays as it is."""
    plain = string.ascii_letters + string.digits + "%.-_"
    return "".join(c if c in plain else "".join(f"%{b:02X}" for b in c.encode()) for c in text)


def ask(
    server: HttpServer, method: str, target: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, bytes]:
    """Send a request as it is; returns the code, and the body unless it lasts."""
    with closing(http.client.HTTPConnection(server.address.host, server.address.port, 60)) as at:
        at.request(method, target, body, headers)
        answer = at.getresponse()
        lasts = answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        return answer.status, b"" if lasts else answer.read()


def refuse_to_follow(*_: object, **__: object) -> None:
    """Answer a question about changes that was read to its end."""
    raise NotReadableError("there are no brokers")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    scene = Scene(tmp_path_factory.mktemp("state"), set_level=lambda level: f"set {level}")
    scene.send("words", *((f"k{n}", "") for n in range(20)))
    scene.send("ids", (7, {"a": 1}))
    scene.send("prices", ("k1", 1.5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Feeds, "follow", refuse_to_follow)  # there are no brokers to read from
        yield scene.server
    scene.close()


def random_request(choose: random.Random) -> tuple[str, str, bytes | None, dict[str, str]]:
    """A request of which each part is taken from what is malformed, large or meant otherwise."""
    path = choose.choice(PATHS)
    if path.startswith("/api/stores/"):
        path += choose.choice(WORDS)
    names = [choose.choice(PARAMETERS) for _ in range(choose.randrange(4))]
    if names and choose.random() < 0.2:
        names.append(names[0])
    given = "&".join(f"{name}={escaped(choose.choice(VALUES))}" for name in names)
    method, body = choose.choice((("GET", None), ("GET", None), ("HEAD", None), ("PUT", b"x")))
    if path.endswith("/get") or choose.random() < 0.05:
        method, body = "POST", choose.choice(BODIES)
        path = path if path.endswith("/get") else "/api/log-level"
    return method, f"{path}?{given}", body, choose.choice(HEADERS)


def test_no_request_is_answered_with_500(
    served: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    choose = random.Random(19)
    codes = set()
    for _ in range(REQUESTS):
        method, target, body, headers = random_request(choose)
        if len(target) > URL_MAX:
            continue
        code, answer = ask(served, method, target, body, headers)
        codes.add(code)
        shown = f"{method} {target[:300]} {(body or b'')[:80]!r} {headers}: {code} {answer[:300]!r}"
        assert code != 500, shown
        assert b"Traceback" not in answer, shown
        if code == 400 and answer.startswith(b"{"):
            assert json.loads(answer)["error"], shown
    assert {200, 400, 404, 405} <= codes
    assert not [r for r in caplog.records if r.exc_info], caplog.text


@pytest.mark.parametrize(
    ("target", "body", "said"),
    [
        ("/api/stores/ids/get?key=" + "[" * DEEP, None, "nested too deeply"),
        ("/api/stores/counts/get?json_keys=true&key=" + "[" * DEEP, None, "nested too deeply"),
        ("/api/stores/counts/get", b'{"keys": ' + b"[" * DEEP, "nested too deeply"),
        ("/api/stores/counts/get?key=k1&wait=" + "9" * 400 + "h", None, "wait is"),
        ("/health/ready?within=" + "9" * 400 + "h", None, "within is"),
        ("/api/stores/counts/get?key=k1&key=k2", None, "more than once"),
        ("/api/stores/counts/changes?from=end&from=end", None, "more than once"),
        ("/api/stores/counts/range?piece=true&partitions=0&piece_of=zz", None, "piece_of must be"),
    ],
)
def test_what_is_wrong_is_named(
    served: HttpServer, target: str, body: bytes | None, said: str
) -> None:
    path, _, given = target.partition("?")
    method = "GET" if body is None else "POST"
    code, answer = ask(served, method, f"{path}?{given.replace('[', '%5B')}", body, {})
    assert (code, said in json.loads(answer)["error"]) == (400, True), answer


def test_a_deeply_nested_log_level_is_refused(served: HttpServer) -> None:
    kind = {"Content-Type": "application/json"}
    code, answer = ask(served, "POST", "/api/log-level", b"[" * 1_000, kind)
    assert (code, "level" in json.loads(answer)["error"]) == (400, True), answer
