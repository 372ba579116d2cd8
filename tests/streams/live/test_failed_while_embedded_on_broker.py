"""An application in another program's process: it fails where it is started, and reads say so."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.streams import KafkaStreams
from headrace.streams.app import State
from headrace.streams.errors import MissingTopicError, RecordError
from headrace.streams.queries.errors import ApplicationFailedError, QueryError
from headrace.topology import StreamsBuilder, TimeWindows, Topology, serdes
from headrace.topology.graph.materialized import Materialized
from tests.support import kafka
from tests.support.live import settings_of
from tests.support.processes import wait_until
from tests.support.topics import Topics

MINUTE = timedelta(minutes=1)


def _refuse_bad(value: str) -> str:
    if value == "bad":
        raise ValueError("a bad value")
    return value


def counted(source: str, *, in_memory: bool = False) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string, value=serdes.string)
    grouped = stream.map_values(_refuse_bad, name="check").group_by_key()
    grouped.count(store=Materialized("counts", kind="memory") if in_memory else "counts")
    grouped.windowed_by(TimeWindows(size=MINUTE)).count(store="per-minute")
    return builder.build()


def _asked(app: KafkaStreams) -> dict[str, Any]:
    counts, windows = app.store("counts"), app.store("per-minute")
    return {
        "get": lambda: counts.get("a"),
        "get_many": lambda: counts.get_many(["a", "b"]),
        "range": lambda: list(counts.range("a", "z")),
        "all": lambda: list(counts.all()),
        "count": counts.count,
        "positions": counts.positions,
        "windows": lambda: list(windows.fetch("a", 0, 2**60)),
        "all windows": lambda: list(windows.all()),
    }


@pytest.mark.parametrize("in_memory", [False, True], ids=["rocksdb", "memory"])
def test_every_read_of_a_failed_application_says_that_it_failed(
    topics: Topics, tmp_path: Path, in_memory: bool
) -> None:
    source = topics.create("in")
    app = KafkaStreams(counted(source, in_memory=in_memory), settings_of(topics, tmp_path))
    asked = _asked(app)  # handles from before the start
    kafka.write(topics.bootstrap, source, [(b"a", b"1")])
    app.start(wait=True)
    wait_until(lambda: app.store("counts").get("a") is not None, what="a is counted")
    with app.serve(0, queries=True) as server:
        kafka.write(topics.bootstrap, source, [(b"b", b"2"), (b"b", b"bad")])
        wait_until(lambda: app.state is State.ERROR, what="it fails")
        for name, ask in (asked | _asked(app)).items():
            with pytest.raises(ApplicationFailedError, match=r"has failed.*ValueError") as caught:
                ask()
            assert isinstance(caught.value.__cause__, RecordError), name
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{server.url}/api/stores/counts/get?key=b")
        said = json.loads(refused.value.read())
        assert refused.value.code == 503
        assert "has failed in this process" in json.dumps(said)
    with pytest.raises(RecordError):
        app.close()
    with pytest.raises(ApplicationFailedError):
        app.store("counts").get("a")


def test_a_failed_added_worker_is_a_failed_application(topics: Topics, tmp_path: Path) -> None:
    source = topics.create("in", partitions=2)
    app = KafkaStreams(counted(source), settings_of(topics, tmp_path))
    app.start(wait=True)
    assert app.add_worker() is not None
    kafka.write(topics.bootstrap, source, [(b"k%d" % n, b"bad") for n in range(20)])
    wait_until(lambda: app.state is State.ERROR, what="it fails")
    with pytest.raises(ApplicationFailedError):
        app.store("counts").get("a")
    with pytest.raises(RecordError):
        app.close()


def test_a_start_that_waits_raises_what_stops_it(topics: Topics, tmp_path: Path) -> None:
    missing = topics.name("missing")
    app = KafkaStreams(counted(missing), settings_of(topics, tmp_path))
    with pytest.raises(MissingTopicError, match=missing):
        app.start(wait=timedelta(minutes=5))
    app.close()  # it was raised already
    assert app.state is State.ERROR


def test_a_start_that_waits_returns_when_the_tasks_run(topics: Topics, tmp_path: Path) -> None:
    source = topics.create("in", partitions=2)
    with KafkaStreams(counted(source), settings_of(topics, tmp_path)) as app:
        app.start(wait=True)
        assert app.state is State.RUNNING
        assert app.store("counts").get("a") is None
    assert isinstance(app.store("counts").count(), int)  # a closed one has what it committed


def test_a_start_that_waits_too_long_says_for_what(topics: Topics, tmp_path: Path) -> None:
    settings = {**settings_of(topics, tmp_path), "bootstrap.servers": "localhost:1"}
    app = KafkaStreams(counted("in"), settings)
    with pytest.raises(TimeoutError, match=r"no broker of localhost:1 has answered yet"):
        app.start(wait=timedelta(milliseconds=300))
    assert app.state is State.CONNECTING
    app.close()
    with pytest.raises(QueryError):
        app.store("counts").get("a")
