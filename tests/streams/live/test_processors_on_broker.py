"""A processor with stores and a punctuator on a real broker, killed at steps of its commits."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.topology import Processor, ProcessorContext, Record, Topology, serdes
from tests.support import kafka
from tests.support.live import live, settings_of
from tests.support.processes import running, wait_until
from tests.support.processor_app import TICK_MS, topology
from tests.support.topics import Topics

MODULE = "tests.support.processor_app"
BEGIN = 1_700_000_000_000
RECORDS = 1_500
KEYS = [b"key-%d" % (number * 7 % 5) for number in range(RECORDS)]


def expected() -> dict[str, list[int]]:
    """The values of each key of the output, in order: what no crash may change."""
    values: dict[str, list[int]] = defaultdict(list)
    counts: Counter[Any] = Counter()
    due, ticks = 0, 0
    for number, raw in enumerate(KEYS):
        key, time = raw.decode(), BEGIN + number
        window = f"{key}@{time - time % 50}"
        for name in (key, window):
            counts[name] += 1
            values[name].append(counts[name])
        if time >= due:
            ticks += 1
            values[f"tick@{time}"].append(ticks)
            due = time - time % TICK_MS + TICK_MS
    return dict(values)


def found(bootstrap: str, topic: str) -> dict[str, list[int]]:
    values: dict[str, list[int]] = defaultdict(list)
    for record in kafka.read(bootstrap, topic):
        assert record.key is not None
        assert record.value is not None
        values[record.key.decode()].append(serdes.long.deserialize(record.value))
    return dict(values)


@pytest.mark.broker
@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(True, id="state-kept"),
        pytest.param(False, id="state-lost", marks=pytest.mark.long),
    ],
)
def test_counts_windows_and_ticks_are_exact_when_a_worker_is_killed_in_its_commits(
    topics: Topics, tmp_path: Path, keep: bool
) -> None:
    source, sink = topics.create("in"), topics.create("out")
    settings = {
        "application.id": topics.name("app"),
        "bootstrap.servers": topics.bootstrap,
        "processing.guarantee": "exactly_once_v2",
        "state.dir": str(tmp_path / "state"),
        "worker.id": "w",
        "commit.interval.ms": 0,
        "max.poll.records": 100,
        "consumer.session.timeout.ms": 6_000,
    }
    kafka.write(topics.bootstrap, source, [(key, b"x") for key in KEYS], timestamp=BEGIN)
    plan: dict[str, Any] = {"settings": settings, "input": source, "output": sink}
    for number, step in enumerate(("changelogs_written", "transaction_committed")):
        dying = {**plan, "die_at": step, "die_on": 3}
        with running(dying, tmp_path / f"log-{number}", MODULE) as process:
            assert process.wait() == -signal.SIGKILL, process.text()[-4000:]
        if not keep:
            settings["state.dir"] = str(tmp_path / f"state-{number}")
    whole = expected()
    with running(plan, tmp_path / "log", MODULE) as process:
        wait_until(
            lambda: not process.running or len(found(topics.bootstrap, sink)) >= len(whole),
            what="all of the output",
        )
        process.stop()
    assert found(topics.bootstrap, sink) == whole


@pytest.mark.broker
def test_a_punctuator_of_the_clock_runs_without_any_record(topics: Topics, tmp_path: Path) -> None:
    class Tick(Processor[Any, Any, str, int]):
        def init(self, context: ProcessorContext[str, int]) -> None:
            super().init(context)
            context.schedule(timedelta(milliseconds=50), self.tick, kind="wall_clock")

        def tick(self, now: int) -> None:
            self.context.forward(Record("tick", now, now))

    source, sink = topics.create("in"), topics.create("out")
    ticking = (
        Topology()
        .add_source("read", source, key=serdes.string, value=serdes.string)
        .add_processor("tick", Tick, "read")
        .add_sink("write", sink, "tick", key=serdes.string, value=serdes.long)
    )

    settings = settings_of(topics, tmp_path)
    for _ in range(2):
        with live(ticking, settings) as app:
            app.wait(lambda: len(app.commits) >= 5, what="commits without a record")
    times = found(topics.bootstrap, sink)["tick"]
    assert len(times) >= 8
    assert times == sorted(set(times))


def test_the_topology_on_the_broker_is_one_sub_topology() -> None:
    (sub,) = topology("in", "out").sub_topologies
    assert [store.name for store in sub.stores] == ["counts", "windows"]
