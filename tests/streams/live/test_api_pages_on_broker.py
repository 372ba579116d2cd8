"""The Python blocks of docs/api that need a real Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.topology import StreamsBuilder, serdes
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.processes import ROOT
from tests.support.recipes import blocks, renamed
from tests.support.topics import Topics


def _run(page: str, names: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run the Python blocks of a page and compare what they print with its text blocks."""
    path = ROOT / "docs" / "api" / f"{page}.md"
    code = "".join(blocks(path, "python"))
    scope: dict[str, Any] = {"__name__": f"api_{page}"}
    exec(compile(renamed(code, names), path, "exec"), scope)
    assert capsys.readouterr().out == "".join(blocks(path, "text"))


def test_the_page_of_the_application(
    topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, loud, application = topics.create("lines"), topics.create("loud"), topics.name("loud")
    kafka.write(topics.bootstrap, lines, [(None, b"to be"), (None, b"or not")])
    names = {
        '"lines"': f'"{lines}"',
        '"loud-lines"': f'"{loud}"',
        '"loud"': f'"{application}"',
        '"localhost:9092"': f'"{topics.bootstrap}", "state.dir": "{tmp_path}"',
    }
    _run("application", names, capsys)


def test_the_page_of_queries(
    topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = topics.create("words")
    builder = StreamsBuilder()
    words = builder.stream(source, key=serdes.string, value=serdes.string)
    words.group_by_key().count(store="counts")
    settings = {**settings_of(topics, tmp_path), "commit.interval.ms": 0}
    with live(builder.build(), settings) as running:
        running.wait(lambda: len(running.app.tasks()) == 1, what="a task")
        for number, word in enumerate((b"to", b"be", b"to"), start=1):
            kafka.write(topics.bootstrap, source, [(word, b"")])
            running.wait_processed(number)
        server = running.app.serve(0, queries=True)
        _run("queries", {"http://localhost:9464": server.url}, capsys)
        server.close()


def test_the_page_of_sources(topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    topic, name = topics.create("numbers"), topics.name("feed")
    names = {
        'topic="numbers"': f'topic="{topic}"',
        "feed-numbers": name,
        "localhost:9092": topics.bootstrap,
    }
    _run("sources", names, capsys)


@pytest.mark.broker
def test_the_page_of_test_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run("testing", {'"broker"': repr(str(tmp_path / "broker"))}, capsys)
