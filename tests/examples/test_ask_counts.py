"""examples/ask_counts.py: word counts asked for over HTTP while they are counted."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from urllib.error import HTTPError

import pytest

from examples import ask_counts
from examples.word_count import word_count
from headrace import KafkaStreams, TopologyTestDriver
from headrace.streams.queries import feeds, replicas
from tests.support.feeds import MemoryFeeds


class Counting:
    """A word count that is served."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(replicas, "UPDATE_EVERY_MAX_S", 0.0)
        settings = {
            "application.id": "word-count", "bootstrap.servers": "nowhere:1",
            "state.dir": str(path), "processing.guarantee": "exactly_once_v2",
        }  # fmt: skip
        self._driver = TopologyTestDriver(
            word_count(), settings, state_dir=path, commit="manual",
            now=time.time_ns() // 1_000_000,
        )  # fmt: skip
        self.memory = MemoryFeeds(self._driver.cluster)
        monkeypatch.setattr(feeds, "LiveCluster", lambda _: self.memory)
        self._app = KafkaStreams(word_count(), settings)
        self.server = self._app.serve(port=0, queries=True)

    def send(self, *sentences: str) -> None:
        with self.memory.lock:
            for sentence in sentences:
                self._driver.input("sentences").send(None, sentence)
            self._driver.commit()

    def close(self) -> None:
        self.server.close()
        self._app.queries().close()
        self._driver.close()


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    made = Counting(tmp_path, monkeypatch)
    # A task that has not begun has nothing to be asked for.
    made.send("one two three four five six seven eight nine ten eleven twelve thirteen")
    made.send("a rose is a rose", "a daisy is not")
    yield made
    made.close()


def test_counts_are_asked_for(counting: Counting) -> None:
    found = ask_counts.counts(counting.server.url, ["a", "rose", "none"])
    assert found == {"a": 3, "rose": 2}


def test_changes_follow_the_count_as_it_is(counting: Counting) -> None:
    changes = ask_counts.changes(counting.server.url, "rose")
    assert next(changes)["value"] == 2
    counting.send("rose")
    counting.send("a rose")
    assert [change["value"] for change in islice(changes, 2)] == [3, 4]


def test_a_store_that_is_not_there_is_no_reason_to_go_on(counting: Counting) -> None:
    with pytest.raises(HTTPError, match="404"):
        next(ask_counts.changes(counting.server.url + "/nowhere", "rose"))


def test_it_is_short() -> None:
    assert len(inspect.getsource(ask_counts).splitlines()) <= 60
