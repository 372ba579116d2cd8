"""`headrace lag` and `headrace tasks` beside an application at work on a real broker."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient

from headrace.streams.cli.main import main
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.patience import PATIENCE_S
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
        return CliRunner().invoke(main, [*name.split(), f"{self.file}:app", *arguments])

    def asked(self, name: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = self.command(name, "--json", *arguments)
        assert done.exit_code == code, done.output
        # The application's log goes to standard output, too, as it runs in this process.
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def rename_input(self) -> str:
        """Have the application read a topic that is not there; returns its name."""
        gone = f"{self.lines}-mistyped"
        self.file.write_text(self.file.read_text().replace(repr(self.lines), repr(gone)))
        return gone

    def delete(self, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([topic])[topic].result(timeout=PATIENCE_S)
        wait_until(
            lambda: topic not in admin.list_topics(timeout=PATIENCE_S).topics, what="its end"
        )


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
    shown = words.command("lag")
    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (0, "Lag: 30")
    assert "-by-word-repartition does not exist yet; the next start creates" in shown.stdout


LOOKS = [("lag",), ("lag", "--above", "5"), ("tasks",), ("top", "--times", "1"), ("offsets list",)]


@pytest.mark.parametrize("look", LOOKS, ids=" ".join)
def test_a_look_at_an_input_that_is_not_there_ends_with_the_code_of_missing_topics(
    words: Words, look: tuple[str, ...]
) -> None:
    words.lines = words.rename_input()
    shown = words.command(*look)
    assert shown.exit_code == 4
    assert words.lines in shown.stdout
    assert f"topics do not exist, so their lag is unknown ({words.lines})." in shown.stderr
    assert "Lag: 0" not in shown.stdout


def test_documents_of_an_input_that_is_not_there_have_no_lag(words: Words) -> None:
    words.lines = words.rename_input()
    for look in ("lag", "tasks"):
        found = words.asked(look, code=4)
        assert (found["lag"], words.lines in found["missing_topics"]) == (None, True)


def test_an_internal_topic_that_was_deleted_is_missing_too(words: Words) -> None:
    kafka.write(words.bootstrap, words.lines, [(None, b"a b")] * 3)
    with live(words.topology, words.settings) as app:
        app.wait(lambda: words.asked("lag")["lag"] == 0, what="no lag")
    words.delete(f"{words.settings['application.id']}-by-word-repartition")
    found = words.asked("lag", code=4)
    assert found["missing_topics"] == [f"{words.settings['application.id']}-by-word-repartition"]


@pytest.mark.parametrize("look", LOOKS, ids=" ".join)
def test_an_internal_topic_that_a_reset_has_deleted_is_made_by_the_next_start(
    words: Words, look: tuple[str, ...]
) -> None:
    kafka.write(words.bootstrap, words.lines, [(None, b"a b")] * 3)
    with live(words.topology, words.settings) as app:
        app.wait(lambda: words.asked("lag")["lag"] == 0, what="no lag")
    done = words.command("reset", "--to", "end", "--yes")
    assert done.exit_code == 0, done.output
    shown = words.command(*look)
    assert shown.exit_code == 0, shown.output
    assert "-by-word-repartition" in shown.stdout


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


def test_unread_partial_aggregates_are_counted(words: Words) -> None:
    kafka.write(words.bootstrap, words.lines, [(None, b"a b a")] * 30)
    with live(words.topology, words.settings) as app:
        app.wait_running()
        wait_until(lambda: words.asked("lag")["lag"] <= 12, what="all is read")
    assert words.asked("lag", "--partial-aggregates")["partial_aggregates"] == 0
    topic = f"{words.settings['application.id']}-by-word-repartition"
    producer = confluent_kafka.Producer({"bootstrap.servers": words.bootstrap})
    for headers in ([("headrace.partial", b"count")], [("trace", b"1")], None):
        producer.produce(topic, bytes(8), b"a", partition=0, headers=headers)
    assert producer.flush(PATIENCE_S) == 0
    assert words.asked("lag", "--partial-aggregates", code=1)["partial_aggregates"] == 1
    done = words.command("lag", "--partial-aggregates")
    assert done.exit_code == 1
    assert done.output.endswith("Unread partial aggregates: 1\n")
