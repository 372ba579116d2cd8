"""What is served of an application on a real cluster is what it has done, whatever befalls it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from headrace import KafkaStreams, State, StreamsBuilder, serdes
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support import kafka
from tests.support.processes import wait_until
from tests.support.served import Probes, Served
from tests.support.supervised import Counted
from tests.support.topics import Topics

pytestmark = pytest.mark.slow


def test_figures_are_those_of_the_records_and_health_outlasts_a_stopped_worker(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path)
    with app.running(2, "--http=0") as run:
        served = Served(run)
        probes = Probes(served)
        probes.start()
        run.wait_running(2)
        app.write()
        app.wait_counted(run)
        wanted = sum(app.expected.values())
        wait_until(
            lambda: (
                served.metrics()["headrace_worker_committed_records_total"] == wanted
                and served.get("/api/application")[1]["lag"] <= 40  # markers count, too
            ),
            what="the figures of all records",
        )
        found = served.metrics()
        assert found["headrace_worker_process_records_total"] >= wanted
        assert found["headrace_task_committed_records_total"] == wanted
        assert found["headrace_task_running"] == 4
        wait_until(lambda: sent_to(served, app.output) >= wanted, what="what was sent")
        assert found["headrace_app_workers_running"] == 2
        assert found["headrace_record_e2e_latency_seconds_count"] > 0
        assert found["headrace_worker_memory_bytes"] > 1 << 20
        assert found["headrace_worker_cpu_seconds_total"] > 0
        assert sum(found[f"headrace_store_{n}_bytes"] for n in ("size", "cached")) > 0
        wait_until(lambda: served.get("/health/ready?within=60s")[0] == 200, what="ready")
        assert served.get("/health/ready")[0] == 200
        os.kill(run.pid(1), signal.SIGSTOP)
        wait_until(
            lambda: served.get("/api/workers")[1][1]["report_age_seconds"] > 2,
            what="an old snapshot",
        )
        begun_s = time.monotonic()
        assert served.metrics()["headrace_app_workers"] == 2
        assert time.monotonic() - begun_s < 20
        run.wait_for("worker_unresponsive", worker_index=1, level="warning")
        run.wait_for("status_reported", worker_index=1, state="unresponsive", records_per_s=0)
        os.kill(run.pid(1), signal.SIGKILL)
        wait_until(
            lambda: served.metrics()["headrace_worker_restarts_total"] == 1, what="a restart"
        )
        wait_until(lambda: served.get("/health/ready")[0] == 200, what="ready again")
        probes.stop()
        assert set(probes.lives) == {200}
        run.signal(signal.SIGTERM)
        assert run.wait() == ExitCode.STOPPED
    app.check_exact()


def sent_to(served: Served, topic: str) -> int:
    """The records that all workers have sent to a topic."""
    workers = served.get("/api/snapshot")[1]["workers"]
    return sum(view["snapshot"]["sent"].get(topic, 0) for view in workers)


def test_an_application_pauses_with_all_committed_and_goes_on(
    topics: Topics, tmp_path: Path
) -> None:
    read, written = topics.create("in", partitions=2), topics.create("out", partitions=2)
    builder = StreamsBuilder()
    stream = builder.stream(read, key=serdes.string, value=serdes.string)
    stream.map_values(str.upper, name="shout").to(written)
    states: list[State] = []
    app = KafkaStreams(
        builder.build(),
        {
            "application.id": topics.name("app"),
            "bootstrap.servers": topics.bootstrap,
            "processing.guarantee": "exactly_once_v2",
            "state.dir": str(tmp_path),
            "consumer.auto.offset.reset": "earliest",
        },
        state_listener=lambda new, old: states.append(new),
    )
    with app:
        app.start()
        wait_until(lambda: app.state is State.RUNNING, what="running")
        kafka.write(topics.bootstrap, read, [(b"k%d" % n, b"a") for n in range(50)])
        wait_until(lambda: len(kafka.read(topics.bootstrap, written)) == 50, what="results")
        app.pause()
        wait_until(lambda: app.state is State.PAUSED, what="paused")
        kafka.write(topics.bootstrap, read, [(b"k%d" % n, b"b") for n in range(50)])
        at_s = app.metrics().snapshots[0].at_s
        # Two snapshots later it has had all the time to process what it must not.
        wait_until(lambda: app.metrics().snapshots[0].at_s > at_s + 1, what="later snapshots")
        facts = app.metrics().snapshots[0]
        assert (facts.processed, facts.committed, facts.is_paused) == (50, 50, True)
        assert {task.state for task in app.tasks()} == {"running"}
        assert len(kafka.read(topics.bootstrap, written)) == 50
        app.resume()
        wait_until(lambda: len(kafka.read(topics.bootstrap, written)) == 100, what="the rest")
        assert app.state is State.RUNNING
        wait_until(lambda: app.metrics().snapshots[0].committed == 100, what="all counted")
        assert sum(one.committed for one in app.lags()) >= 100
    assert states.count(State.PAUSED) == 1
