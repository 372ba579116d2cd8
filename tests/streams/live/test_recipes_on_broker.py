"""Recipes that need a real Kafka."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from headrace import KafkaStreams
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.processes import wait_until
from tests.support.recipes import blocks, renamed, scope_of
from tests.support.topics import Topics


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def test_any_of_several_hosts_answers_for_all_keys(
    topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = topics.create("words", partitions=4), topics.create("counts")
    names = {'"words"': f'"{source}"', '"word-counts"': f'"{output}"'}
    topology = scope_of("several-hosts", names=names)["word_count"]()
    shared = settings_of(topics, tmp_path)
    ports = [free_port(), free_port()]
    one, two = (
        {**shared, "state.dir": str(tmp_path / name), "worker.id": name,
         "application.server": f"127.0.0.1:{port}"}
        for name, port in zip(("one", "two"), ports, strict=True)
    )  # fmt: skip
    words = [b"to", b"be", b"or", b"not", b"to", b"be"]
    kafka.write(topics.bootstrap, source, [(word, b"") for word in words])
    with live(topology, one) as first, live(topology, two) as second:
        apps = (first.app, second.app)
        first.wait(lambda: [len(app.tasks()) for app in apps] == [2, 2], what="2 tasks each")
        hosts = [app.serve(port, queries=True) for app, port in zip(apps, ports, strict=True)]
        first.wait(lambda: first.processed + second.processed >= len(words), what="all words")
        (code,) = blocks("several-hosts", "python")
        urls = {"http://10.0.0.7:9464": hosts[0].url, "http://10.0.0.8:9464": hosts[1].url}
        exec(renamed(code, urls), {"token": None})
        for host in hosts:
            host.close()
    assert capsys.readouterr().out == blocks("several-hosts", "text")[0]


def test_the_web_service_starts_again_with_its_state(topics: Topics, tmp_path: Path) -> None:
    source, output = topics.create("words"), topics.create("counts")
    service = scope_of("web-service")["service"]
    names = {'"words"': f'"{source}"', '"word-counts"': f'"{output}"'}
    topology = scope_of("several-hosts", names=names)["word_count"]()
    settings = settings_of(topics, tmp_path)
    kafka.write(topics.bootstrap, source, [(b"tea", b""), (b"tea", b"")])
    app = service(lambda: KafkaStreams(topology, settings))
    for _ in range(2):
        with TestClient(app) as client:
            wait_until(lambda: client.get("/ready").status_code == 200, what="ready")
            wait_until(
                lambda: client.get("/counts/tea").json() == {"count": 2},
                what="two",
            )
