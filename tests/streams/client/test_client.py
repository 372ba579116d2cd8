"""`headrace.connect`: the words of `app.store`, over HTTP and several hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    Materialized,
    StreamsBuilder,
    TimeWindows,
    Topology,
    Windowed,
    connect,
    connect_async,
    serdes,
)
from headrace.streams.client.stores import Connection
from headrace.streams.errors import ConfigError
from headrace.streams.queries import replicas
from headrace.streams.queries.errors import (
    NoSuchStoreError,
    NotReadableError,
    QueryError,
    StoreInMemoryError,
    UnknownTokenError,
    UnreachedHostError,
    WrongQueryError,
)
from tests.support.hosts import Hosts

KEYS = [f"k{n:02d}" for n in range(20)]

LONG = "x" * 200_000


@dataclass(frozen=True)
class Price:
    cents: int


def topology() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    grouped = words.group_by_key()
    grouped.count(store="counts").to_stream().to("out")
    windows = grouped.windowed_by(TimeWindows(size=timedelta(seconds=10), grace=timedelta(days=1)))
    windows.count(store="windows").to_stream().to("windows-out")
    prices = Materialized("prices", history=timedelta(days=1))
    builder.table("prices", key=serdes.string, value=serdes.json, store=prices)
    builder.table("documents", key=serdes.json, value=serdes.json, store="documents")
    pairs = serdes.json_of(tuple[str, int])
    builder.table("pairs", key=pairs, value=serdes.json, store="pairs")
    held = Materialized("held", kind="memory")
    builder.table("held", key=serdes.string, value=serdes.string, store=held)
    return builder.build()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    path = tmp_path_factory.mktemp("hosts")
    token = path / "token"
    token.write_text("0123456789abcdef")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas, "UPDATE_EVERY_MAX_S", 0.0)
        patch.setattr(replicas, "UPDATE_EVERY_S", 0.0)
        hosts = Hosts(path / "state", topology(), [{0}, {1}], token_file=token)
        for second in (1, 2, 11):
            hosts.send("words", *((key, "") for key in KEYS), timestamp=1000 * second)
        hosts.send("prices", ("tea", {"cents": 3}), timestamp=10)
        hosts.send("prices", ("tea", {"cents": 2}), timestamp=20)
        hosts.send("documents", ("7", "text"), (7, "number"), ({"a": [1]}, "object"))
        hosts.send("documents", (LONG, "long"))
        yield hosts
        hosts.close()


def connected(hosts: Hosts, **options: Any) -> Connection:
    urls = [host.server.url for host in hosts.hosts]
    return connect(urls, **{"token": "0123456789abcdef", **options})


@pytest.fixture
def application(hosts: Hosts) -> Iterator[Connection]:
    with connected(hosts) as application:
        yield application


def test_a_store_is_read_in_the_words_of_the_program(application: Connection) -> None:
    counts = application.store("counts", key_type=str, value_type=int)
    assert counts["k03"] == counts.get("k03") == 3
    assert (counts.get("none"), "k03" in counts, "none" in counts) == (None, True, False)
    with pytest.raises(KeyError):
        counts["none"]
    row = counts.find("k03")
    assert row is not None
    assert (row.key, row.timestamp) == ("k03", 11_000)
    assert counts.get_many(["k01", "none", "k02"]) == [3, None, 3]
    assert [row.key for row in counts.range("k03", "k05")] == ["k03", "k04", "k05"]
    assert [row.key for row in counts.range(None, "k05", reverse=True, limit=2)] == ["k05", "k04"]
    assert [row.key for row in counts.prefix_scan("k1", limit=3)] == ["k10", "k11", "k12"]
    assert [row.key for row in counts.all()] == KEYS
    assert counts.count() == 20
    assert counts.approximate_num_entries() >= 20
    assert {store["name"] for store in application.stores()} >= {"counts", "windows", "held"}


def test_ranges_come_page_by_page(application: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.streams.client.stores.PAGE_ROWS", 3)
    monkeypatch.setattr("headrace.streams.client.stores.KEYS_MAX", 3)
    counts = application.store("counts")
    assert [row.key for row in counts.all()] == KEYS
    assert [row.key for row in counts.range("k01", None, limit=7)] == KEYS[1:8]
    assert counts.get_many(KEYS) == [3] * 20


def test_windows_and_versions_are_read(application: Connection) -> None:
    windows = application.store("windows", key_type=str, value_type=int)
    found = [(row.key, row.value) for row in windows.fetch("k01")]
    assert [(key.key, key.window.start_ms, value) for key, value in found] == [
        ("k01", 0, 2), ("k01", 10_000, 1)
    ]  # fmt: skip
    assert isinstance(found[0][0], Windowed)
    end = datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC)
    assert [row.value for row in windows.fetch("k01", 0, end)] == [2]
    assert len([*windows.fetch_all(10_000)]) == len([*windows.all()]) - 20 == 20
    prices = application.store("prices", value_type=Price)
    assert (prices["tea"], prices.get("tea", as_of=15)) == (Price(2), Price(3))
    assert prices.get("tea", as_of=5) is None


def test_keys_are_what_they_are_and_no_text_that_looks_so(application: Connection) -> None:
    documents = application.store("documents")
    assert (documents["7"], documents[7], documents[{"a": [1]}]) == ("text", "number", "object")
    assert documents.get_many([7, "7"]) == ["number", "text"]


@pytest.mark.parametrize(
    ("ask", "kind", "said"),
    [
        (
            lambda a: a.store("count").get("k"),
            NoSuchStoreError,
            "Use a store that it has: counts, documents",
        ),
        (lambda a: a.store("counts").get(5), WrongQueryError, "use serde string"),
        (
            lambda a: [*a.store("pairs").prefix_scan(("u1",))],
            WrongQueryError,
            "for tuples and lists, use a range between two",
        ),
        (lambda a: a.store("counts").get(None), WrongQueryError, "a key must not be None"),
        (lambda a: a.store("windows").get("k01"), WrongQueryError, "Use fetch"),
        (lambda a: [*a.store("counts").fetch("k01")], WrongQueryError, "Use get"),
        (lambda a: [*a.store("counts").fetch("k01", 5)], WrongQueryError, "Use get"),
        (
            lambda a: a.store("counts", value_type=str)["k01"],
            QueryError,
            "does not match the types",
        ),
    ],
)
def test_what_is_wrong_is_an_error_of_its_own(
    application: Connection, ask: Any, kind: type[QueryError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        ask(application)


def test_a_store_in_memory_is_read_as_others_and_gone_with_its_workers(
    hosts: Hosts, application: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.send("held", ("k", "v"), ("l", "w"))
    held = application.store("held")
    assert (held["k"], held.get("none"), held.count()) == ("v", None, 2)
    assert [(row.key, row.value) for row in held.all()] == [("k", "v"), ("l", "w")]
    for host in hosts.hosts:
        monkeypatch.setattr(host.queries, "_workers", lambda: None)
    with pytest.raises(StoreInMemoryError, match="in the memory of the workers"):
        held.get("k")


def test_hosts_that_do_not_answer_are_said(hosts: Hosts) -> None:
    with (
        connected(hosts, token="wrong") as application,
        pytest.raises(UnknownTokenError, match="the token is wrong"),
    ):
        application.store("counts").get("k01")
    with pytest.raises(ConfigError, match="must be http://HOST:PORT"):
        connect("localhost:9464")
    with (
        connect("http://127.0.0.1:1", timeout=timedelta(milliseconds=200)) as application,
        pytest.raises(UnreachedHostError, match=r"127.0.0.1:1 does not answer"),
    ):
        application.store("counts").get("k01")
    url = hosts.hosts[0].server.url
    with connect(["http://127.0.0.1:1", url], token="0123456789abcdef") as application:
        assert application.store("counts").get("k01") == 3


def test_nobody_goes_back(hosts: Hosts, application: Connection) -> None:
    """What a host would answer that is behind what another one has answered is waited for."""
    counts = application.store("counts")
    assert counts["k01"] == 3
    client = application._client
    row = counts.find("k01")
    assert row is not None
    assert row.partition is not None
    at = client._reached["counts"][row.partition]
    assert at > 0
    client._reached["counts"][row.partition] = at + 1_000
    client.timeout_s = 0.2
    with pytest.raises(
        NotReadableError, match="an earlier answer was newer, and this host has not"
    ):
        counts.get("k01")
    application.forget()
    assert counts["k01"] == 3
    with connected(hosts, never_back=False) as other:
        assert other.store("counts")["k01"] == 3
        assert other._client._target("counts", "get", {}, 1.0).endswith("/get?")


def test_answers_are_awaited(hosts: Hosts) -> None:
    async def ask() -> Any:
        url = hosts.hosts[1].server.url
        async with connect_async(url, token="0123456789abcdef") as application:
            counts = application.store("counts", value_type=int)
            some = await asyncio.gather(*(counts.get(key) for key in KEYS))
            rows = [row.key async for row in counts.range("k03", "k05")]
            every = [row.key async for row in counts.all()]
            windows = [row.value async for row in application.store("windows").fetch("k01")]
            with pytest.raises(NoSuchStoreError):
                await application.store("count").get("k")
            return some, rows, every, windows, await counts.count(), await counts.get_many(["k01"])

    some, rows, every, windows, count, many = asyncio.run(ask())
    assert (some, rows, every) == ([3] * 20, ["k03", "k04", "k05"], KEYS)
    assert (windows, count, many) == ([2, 1], 20, [3])


def test_the_command_asks_an_application_that_runs(hosts: Hosts, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from headrace.streams.cli.main import main

    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    where = ("--url", hosts.hosts[0].server.url, "--http-token-file", str(token))

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["store", *arguments])

    assert '"value": 3' in run("get", "counts", "k01", *where, "--json").stdout
    assert run("get", "counts", "none", *where).exit_code == 1
    assert run("get", "nothing", "none", *where).exit_code == 2
    assert run("get", "counts", "none", *where[:2]).exit_code == 2  # without the token
    assert len(run("get", "windows", "k01", *where, "--json").stdout.splitlines()) == 2
    assert len(run("scan", "counts", "--limit", "7", *where, "--json").stdout.splitlines()) == 7
    assert len(run("export", "counts", *where).stdout.splitlines()) == 20
    text = run("list", *where).output
    assert "0,1" in next(line for line in text.splitlines() if line.startswith("counts"))
    assert "--app or --url is required, and not both." in run("list").stderr
    assert "Use a store that it has: counts" in run("get", "count", "k", *where).stderr
    found = run("scan", "counts", "--prefix", "k", "--reverse", *where)
    assert "prefix excludes from, to and reverse" in found.stderr


def test_a_key_that_is_too_long_for_an_address_is_found_all_the_same(hosts: Hosts) -> None:
    with connected(hosts) as app:
        documents = app.store("documents")
        row = documents.find(LONG)
        assert row is not None
        assert (row.key, row.value) == (LONG, "long")
        assert documents.get(LONG + "y") is None
        assert LONG in documents
        with pytest.raises(
            WrongQueryError, match=r"2\d\d,\d+ characters in its URL, and at most 60,000"
        ):
            next(documents.range(LONG, None))
