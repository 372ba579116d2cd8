"""`headrace lag` and `headrace tasks` beside an application at work on a real broker."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.streams.cli.main import main
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.processes import wait_until
from tests.support.topics import Topics

APP = """
from headrace import KafkaStreams, StreamsBuilder, serdes
builder = StreamsBuilder()
(
    builder.stream({lines!r}, value=serdes.string)
    .flat_map_values(str.split)
    .group_by(lambda _, word: word, key=serdes.string, name="by-word")
    .count(store="counts").to_stream().to({counts!r})
)
app = KafkaStreams(builder.build(), {settings!r})
"""


class Words:
    """A word count of three partitions: two sub-topologies, six tasks."""

    def __init__(self, topics: Topics, directory: Path) -> None:
        self.bootstrap = topics.bootstrap
        self.lines = topics.create("lines", partitions=3)
        self.counts = topics.create("counts", partitions=3)
        self.settings = settings_of(topics, directory)
        text = APP.format(lines=self.lines, counts=self.counts, settings=self.settings)
        self.file = directory / f"app_{uuid.uuid4().hex}.py"
        self.file.write_text(text)
        names: dict[str, Any] = {}
        exec(text, names)  # the same application, to run it here
        self.topology = names["app"].topology

    def command(self, name: str, *arguments: str) -> Result:
        return CliRunner().invoke(main, [name, f"{self.file}:app", *arguments])

    def asked(self, name: str, *arguments: str) -> dict[str, Any]:
        done = self.command(name, "--json", *arguments)
        assert done.exit_code == 0, done.output
        # The application's log goes to standard output, too, as it runs in this process.
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.fixture
def words(topics: Topics, tmp_path: Path) -> Words:
    return Words(topics, tmp_path)


def test_before_the_first_start_all_is_to_be_read(words: Words) -> None:
    kafka.write(words.bootstrap, words.lines, [(None, b"a b")] * 30)
    found = words.asked("lag")
    assert (found["state"], found["workers"], found["lag"]) == ("dead", [], 30)
    assert {one["topic"] for one in found["inputs"]} == {words.lines}
    assert found["missing_topics"] == [f"{words.settings['application.id']}-by-word-repartition"]
    assert all(one["committed"] is None for one in found["inputs"])


def test_workers_at_work_have_all_tasks_and_come_to_no_lag(words: Words) -> None:
    kafka.write(words.bootstrap, words.lines, [(None, b"a b")] * 30)
    with live(words.topology, words.settings) as app:
        app.wait(lambda: words.asked("lag")["lag"] == 0, what="no lag")
        found = words.asked("tasks")
        assert found["state"] == "stable"
        assert [one["task"] for one in found["tasks"]] == [
            f"{sub}_{p}" for sub in range(2) for p in range(3)
        ]
        assert {one["worker"] for one in found["tasks"]} == set(found["workers"])
        shown = words.command("tasks").output
        assert "stable, 1 worker" in shown
        assert "Nobody has" not in shown
        by_topic = words.command("lag").output
        assert f"{words.lines}" in by_topic
        assert by_topic.splitlines()[-1] == "Lag: 0"
    inputs = words.asked("lag")["inputs"]
    assert {one["internal"] for one in inputs} == {True, False}
    assert sum(one["committed"] for one in inputs if not one["internal"]) == 30


def test_a_stopped_application_falls_behind_and_scripts_can_tell(words: Words) -> None:
    with live(words.topology, words.settings) as app:
        kafka.write(words.bootstrap, words.lines, [(None, b"a b")] * 30)
        app.wait(lambda: words.asked("lag")["lag"] == 0, what="no lag")
    kafka.write(words.bootstrap, words.lines, [(None, b"a b")] * 7)
    wait_until(lambda: words.asked("lag")["lag"] == 7, what="a lag of 7")
    assert words.command("lag", "--above", "7").exit_code == 0
    assert words.command("lag", "--above", "6").exit_code == 1
    shown = words.command("lag", "--partitions").output
    lags = [line.split()[-1] for line in shown.splitlines() if f"{words.lines}-" in line]
    assert sum(map(int, lags)) == 7
