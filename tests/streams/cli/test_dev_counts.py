"""`headrace dev` takes topics as they are, unless it is told how many partitions they have."""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import ClusterMetadata

from headrace.streams.cli.dev import FileWatcher
from headrace.streams.cli.known_topics import Known
from headrace.streams.cli.main import main


class Child:
    """A command that is remembered, and that failed."""

    asked: list[tuple[str, ...]] = []

    def __init__(self, *arguments: str, print_line: Any) -> None:
        self.asked.append(arguments)

    def wait(self) -> int:
        return 1

    def stop(self) -> None:
        """It has ended."""


class Shop:
    """An application of two topics."""

    own = {"there": "reads", "new": "writes"}
    tables: frozenset[str] = frozenset()
    config = SimpleNamespace(errors_dead_letter_queue_topic_name=None)

    def reach(self) -> dict[str, Any]:
        return {}


class Admin:
    """A cluster with one topic of two partitions."""

    def __init__(self) -> None:
        self.made: dict[str, int] = {}

    def list_topics(self, timeout: float) -> ClusterMetadata:
        found = ClusterMetadata()
        topic = type("Topic", (), {"partitions": {0: None, 1: None}})()
        found.topics = {"there": topic}
        return found

    def create_topics(self, wanted: list[Any]) -> dict[str, Any]:
        self.made = {topic.topic: topic.num_partitions for topic in wanted}
        done = type("Done", (), {"result": lambda self, timeout: None})()
        return dict.fromkeys(self.made, done)


# The packages have commands of these names too.
dev = importlib.import_module("headrace.streams.cli.dev")
create = importlib.import_module("headrace.streams.cli.topics")


@pytest.mark.slow
@pytest.mark.parametrize(("given", "code", "made"), [(None, 0, {"new": 4}), (3, 1, {})])
def test_without_partitions_topics_stay_as_they_are(
    given: int | None,
    code: int,
    made: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The very command that it runs is run here."""
    monkeypatch.setattr(dev, "Child", Child)
    Child.asked.clear()
    with ExitStack() as children:
        dev.DevSession("shops:app", "file", given, FileWatcher([tmp_path]), None)._start(children)
    (line,) = Child.asked
    admin = Admin()
    monkeypatch.setattr(create, "new_admin", lambda *_: admin)
    monkeypatch.setattr(Known, "of", lambda *_: Shop())
    done = CliRunner().invoke(main, line[: line.index("--config")])
    assert (done.exit_code, admin.made) == (code, made), done.output
