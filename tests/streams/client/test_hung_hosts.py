"""Hosts that take connections and answer nothing: the next one is asked in time."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from headrace import Materialized, StreamsBuilder, Topology, connect, connect_async, serdes
from headrace.streams.client import query_client
from headrace.streams.queries.errors import NotReadableError, UnreachedHostError
from headrace.streams.queries.query_queue import (
    StateQueryRequest,
    StateQueryResponse,
    UnansweredError,
    unresponsive,
)
from tests.support.hosts import Hosts
from tests.support.hung import HungHost
from tests.support.served_changes import ServedChanges

PATIENCE = timedelta(seconds=2)
BEGUN = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\nretry: 1\n\n"
)


def topology() -> Topology:
    builder = StreamsBuilder()
    words = builder.stream("words", key=serdes.string, value=serdes.string)
    words.group_by_key().count(store="counts").to_stream().to("out")
    builder.table("held", key=serdes.string, store=Materialized("held", kind="memory"))
    return builder.build()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path, topology(), [{0}, {1}])
    made.send("words", *((f"k{n}", "v") for n in range(9)))
    yield made
    made.close()


@pytest.fixture
def hung() -> Iterator[HungHost]:
    with HungHost() as made:
        yield made


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedChanges]:
    made = ServedChanges(monkeypatch, tmp_path)
    yield made
    made.close()


def test_the_next_host_answers_where_one_hangs(hosts: Hosts, hung: HungHost) -> None:
    with connect([hung.url, hosts.hosts[0].server.url], timeout=PATIENCE) as application:
        counts = application.store("counts")
        assert [counts.get(f"k{n}") for n in range(9)] == [1] * 9
        assert len([*counts.all()]) == 9
    assert hung.connections == 1  # it is remembered


def test_one_that_hung_is_asked_again_where_the_others_are_gone(
    hosts: Hosts, hung: HungHost
) -> None:
    with connect([hung.url, hosts.hosts[0].server.url], timeout=PATIENCE) as application:
        assert application.store("counts").get("k1") == 1
        hosts.hosts[0].server.close()
        with pytest.raises(UnreachedHostError):
            application.store("counts").get("k1")
    assert hung.connections > 1


def test_the_next_host_answers_those_who_await(hosts: Hosts, hung: HungHost) -> None:
    async def ask() -> list[int | None]:
        urls = [hung.url, hosts.hosts[0].server.url]
        async with connect_async(urls, timeout=PATIENCE) as application:
            counts = application.store("counts", value_type=int)
            return [await counts.get("k1"), await counts.count()]

    assert asyncio.run(ask()) == [1, 9]


def test_where_all_hang_it_is_said(hung: HungHost) -> None:
    with (
        HungHost() as other,
        connect([hung.url, other.url], timeout=timedelta(milliseconds=200)) as application,
        pytest.raises(UnreachedHostError, match="does not answer"),
    ):
        application.store("counts").get("k")
    assert other.connections >= 1


@pytest.mark.parametrize(
    ("scheme", "says", "said"),
    [
        ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "Use http://"),
        ("http", b"SSH-2.0-OpenSSH_9.2\r\n", "Use https://"),
    ],
)
def test_what_waiting_does_not_cure_is_said_at_once(scheme: str, says: bytes, said: str) -> None:
    with (
        HungHost(says=says) as other,
        connect(f"{scheme}{other.url[4:]}", timeout=PATIENCE) as application,
    ):
        with pytest.raises(UnreachedHostError, match=said):
            application.store("counts").get("k")
        with pytest.raises(UnreachedHostError, match=said):
            next(application.store("counts").changes())
        assert other.connections == 2  # once for each


@pytest.mark.parametrize(
    ("code", "is_final"),
    [(socket.EAI_NONAME, True), (socket.EAI_NODATA, True), (socket.EAI_AGAIN, False)],
)
def test_a_name_that_nobody_has_is_said_at_once(
    code: int, is_final: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-up is a stand-in, as what there is to ask differs from machine to machine."""
    asked = []

    def look_up(*_: object, **__: object) -> None:
        asked.append(code)
        raise socket.gaierror(code, "not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with (
        connect("http://nobody.invalid:1", timeout=timedelta(milliseconds=300)) as application,
        pytest.raises(UnreachedHostError, match="Correct its name"),
    ):
        application.store("counts").get("k")
    assert (len(asked) == 1) is is_final


def test_where_nothing_listens_the_address_may_be_wrong() -> None:
    with HungHost() as gone:
        url = gone.url
    with (
        connect(url, timeout=timedelta(milliseconds=100)) as application,
        pytest.raises(UnreachedHostError, match=r"Start the host, .*correct its address"),
    ):
        application.store("counts").get("k")


def test_the_next_host_answers_where_one_is_none(hosts: Hosts) -> None:
    with (
        HungHost(says=b"SSH-2.0-OpenSSH_9.2\r\n") as other,
        connect([other.url, hosts.hosts[0].server.url], timeout=PATIENCE) as application,
    ):
        assert application.store("counts").get("k1") == 1


def test_changes_come_from_the_next_host_where_one_hangs(
    scene: ServedChanges, hung: HungHost
) -> None:
    scene.write((0, "a", 1), (0, "a", 2))
    with (
        connect([hung.url, scene.server.url], timeout=PATIENCE) as application,
        application.store("counts").changes(start="beginning") as changes,
    ):
        assert [next(changes).value, next(changes).value] == [1, 2]
        stream = changes._stream
        assert stream is not None
        stream.cut()
        scene.write((0, "a", 3))
        assert next(changes).value == 3
    assert hung.connections == 1


@pytest.mark.parametrize("patience_ms", [100, 5_000])
def test_changes_go_on_at_the_next_host_where_one_hangs_under_them(
    scene: ServedChanges, monkeypatch: pytest.MonkeyPatch, patience_ms: int
) -> None:
    """Its silence is noticed later than the patience lasts."""
    monkeypatch.setattr(query_client, "STREAM_TIMEOUT_S", 0.5)
    scene.write((0, "a", 1))
    patience = timedelta(milliseconds=patience_ms)
    with (
        HungHost(says=BEGUN) as stopped,
        connect([stopped.url, scene.server.url], timeout=patience) as application,
        application.store("counts").changes(start="beginning") as changes,
    ):
        assert next(changes).value == 1
        # A patience shorter than the silence may end at the second host of a busy machine, too.
        assert stopped.connections == 1 or patience_ms < 500


def test_a_host_that_asks_a_silent_one_says_which_it_is(hosts: Hosts) -> None:
    """Within the patience of the client, which else would hear nothing of the one that it asks."""
    first, second = hosts.hosts
    port = second.server.address.port
    second.server.close()
    with (
        HungHost(port) as stopped,
        connect(first.server.url, timeout=timedelta(milliseconds=600)) as application,
    ):
        counts = application.store("counts")
        with pytest.raises(NotReadableError) as refused:
            counts.count()
        assert f"host {stopped.url} does not answer" in str(refused.value)
        assert "partition 1 of store 'counts' cannot be read" in str(refused.value)


def test_a_silent_host_is_waited_for_once(hosts: Hosts) -> None:
    """Nobody else has its partition, so another try would only take as long again."""
    first, second = hosts.hosts
    port = second.server.address.port
    second.server.close()
    with HungHost(port) as stopped:
        code, found = first.get("/counts/count", **{query_client.TIME_LIMIT: "500"})
        assert (code, found["host"]) == (503, second.endpoint)
        assert stopped.connections == 1


@pytest.mark.parametrize("asked", [[0, 1], [1]])
def test_what_a_host_says_of_its_worker_is_told_and_not_that_it_is_silent(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    """The last questions have less time than it takes the host to say so."""

    def stand_still(_: StateQueryRequest, __: float) -> StateQueryResponse:
        time.sleep(1.0)
        raise UnansweredError(unresponsive(1.0))

    monkeypatch.setattr(query_client, "WAIT_MAX_S", 0.2)
    first, second = hosts.hosts
    for host in (first, second):
        host.queries._workers = lambda: {0: stand_still}
    urls = [hosts.hosts[n].server.url for n in asked]
    with connect(urls, timeout=timedelta(seconds=3.5)) as application:
        with pytest.raises(NotReadableError, match=r"worker did not answer within 1 s") as refused:
            application.store("held").get("k")
        assert not isinstance(refused.value, UnreachedHostError)
        assert not application._client._unresponsive_s  # they have answered, so none comes last


def test_a_silent_host_is_not_waited_for_longer_than_was_said(hung: HungHost) -> None:
    since_s = time.monotonic()
    with (
        connect(hung.url, timeout=timedelta(seconds=2.5)) as application,
        pytest.raises(UnreachedHostError),
    ):
        application.store("counts").get("k")
    assert 2.4 < time.monotonic() - since_s < 4.4
