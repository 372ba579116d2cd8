"""`headrace run` on a real cluster: workers share, fall, rise, and end together."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from headrace.streams.supervisor.exit_codes import ExitCode
from tests.support import kafka
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.supervised import Counted, Run, is_alive
from tests.support.topics import Topics

pytestmark = pytest.mark.slow


def _has_left(bootstrap: str, group: str) -> bool:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    return bool(found.state == confluent_kafka.ConsumerGroupState.EMPTY)


def test_workers_share_the_partitions_and_leave_the_group_on_sigterm(
    topics: Topics, tmp_path: Path
) -> None:
    """With a worker.id, each worker's identity is that and its index."""
    app = Counted(topics, tmp_path, worker_id="pod-7")
    with app.running(2) as run:
        run.wait_running(2)
        app.write()
        app.wait_counted(run)
        assert kafka.members(app.bootstrap, app.group) == {"pod-7-0", "pod-7-1"}
        wait_until(
            lambda: (
                {e["worker_index"]: e.get("tasks") for e in run.events("status_reported")}
                == {0: 2, 1: 2}
            ),
            what="each worker reports two tasks",
        )
        run.signal(signal.SIGTERM)
        assert run.wait() == ExitCode.STOPPED
        ended = run.events("worker_ended")
        assert sorted((e["worker_index"], e["exit_code"]) for e in ended) == [(0, 0), (1, 0)]
        assert len(run.events("worker_started")) == 2
        assert {e["new"] for e in run.events("state_changed")} >= {"not running"}
    assert _has_left(app.bootstrap, app.group)
    app.check_exact()


def test_a_killed_worker_comes_back_as_the_same_member_and_the_counts_are_exact(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path)
    with app.running(2) as run:
        run.wait_running(2)
        before = kafka.members(app.bootstrap, app.group)
        for _ in range(2):
            app.write()
            killed = run.pid(1)
            os.kill(killed, signal.SIGKILL)
            app.write()
            wait_until(lambda killed=killed: run.pid(1) != killed, what="a new process")
            app.wait_counted(run)
        assert kafka.members(app.bootstrap, app.group) == before
        assert len(run.identity(1)) == 1
        crashes = run.events("worker_crashed")
        assert [(e["worker_index"], e["outcome"]) for e in crashes] == [
            (1, "killed by SIGKILL")
        ] * 2
        assert run.events("worker_started")[-1]["worker_index"] == 1
        run.signal(signal.SIGTERM)
        assert run.wait() == ExitCode.STOPPED
    app.check_exact()


def test_a_worker_whose_process_does_not_run_is_killed_when_the_group_has_removed_it(
    topics: Topics, tmp_path: Path
) -> None:
    """As librdkafka's deadlocks leave it: calls of the client wait, and hold Python's lock."""
    app = Counted(topics, tmp_path, **{"consumer.max.poll.interval.ms": 8_000})
    with app.running(1) as run:
        run.wait_running(1)
        app.write()
        frozen = run.pid(0)
        app.expected[b"key-00"] += 1
        app.write_one(b"freeze")
        run.wait_for("worker_unresponsive", worker_index=0, pid=frozen)
        run.wait_for("worker_killed", worker_index=0, pid=frozen)
        app.write()
        app.wait_counted(run)
        assert run.pid(0) != frozen
        run.signal(signal.SIGTERM)
        assert run.wait() == ExitCode.STOPPED
    app.check_exact()


def test_a_poison_record_stops_all_workers_and_none_is_started_again(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path)
    with app.running(2, "--set", "poll.ms=100") as run:
        run.wait_running(2)
        app.write()
        app.wait_counted(run)
        app.write_one(b"poison")
        assert run.wait() == ExitCode.RECORD
        assert len(run.events("worker_started")) == 2, run.events("worker_crashed")
        (failed,) = run.events("application_failed")
        assert failed["error"] == "RecordError"
        assert f"{app.input}-" in failed["reason"]
        assert "offset" in failed["reason"]
        assert "--app my_app:app --set poll.ms=100" in failed["reason"]
        (located,) = run.events("failure_located")
        assert any("my_app.py" in place and place.endswith(" step") for place in located["places"])
        assert "a secret of the record" not in run.text()
        (by_supervisor,) = run.events("worker_failed")
        assert by_supervisor["exit_code"] == ExitCode.RECORD
        assert [e["exit_code"] for e in run.events("worker_ended")] == [0]
    assert _has_left(app.bootstrap, app.group)
    app.check_exact()


def test_a_missing_topic_is_said_and_nothing_is_started_again(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path)
    text = (tmp_path / "my_app.py").read_text()
    (tmp_path / "my_app.py").write_text(text.replace(app.input, "no-such-topic"))
    with app.running(1) as run:
        assert run.wait() == ExitCode.TOPICS
        (failed,) = run.events("application_failed")
        assert "no-such-topic" in failed["reason"]
        assert len(run.events("worker_started")) == 1


def test_ctrl_c_in_the_terminal_closes_cleanly_though_workers_get_it_too(
    topics: Topics, tmp_path: Path
) -> None:
    """The terminal sends it to the whole process group; here the workers get it twice besides."""
    app = Counted(topics, tmp_path)
    with app.running(2, "--on-stop=stay") as run:
        run.wait_running(2)
        app.write()
        app.wait_counted(run)
        assert all(os.getpgid(pid) == pid for pid in run.pids())
        os.killpg(run.process.pid, signal.SIGINT)
        for pid in run.pids():
            for _ in range(2):
                os.kill(pid, signal.SIGINT)
        assert run.wait() == ExitCode.STOPPED
        assert [e["exit_code"] for e in run.events("worker_ended")] == [0, 0]
        assert run.events("worker_killed") == []
    assert not _has_left(app.bootstrap, app.group)
    app.check_exact()


def test_workers_close_cleanly_when_the_supervisor_is_killed(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path)
    with app.running(2) as run:
        run.wait_running(2)
        app.write()
        app.wait_counted(run)
        run.signal(signal.SIGKILL)
        run.wait()
        wait_until(lambda: not any(map(is_alive, run.pids())), what="no worker is left")
        assert len(run.events("supervisor_lost")) == 2
        ended = [e for e in run.events("state_changed") if e["new"] == "not running"]
        assert len(ended) == 2
    assert _has_left(app.bootstrap, app.group)
    app.check_exact()


def test_a_supervisor_that_is_stopped_delays_no_worker(topics: Topics, tmp_path: Path) -> None:
    """Nobody reads the reports then; the workers go on as before."""
    app = Counted(topics, tmp_path)
    with app.running(1) as run:
        run.wait_running(1)
        run.signal(signal.SIGSTOP)
        for _ in range(3):
            app.write()
            app.wait_counted(run)
        run.signal(signal.SIGCONT)
        run.signal(signal.SIGTERM)
        assert run.wait() == ExitCode.STOPPED
    app.check_exact()


def _hang(app: Counted, run: Run) -> None:
    run.wait_running(1)
    app.write_one(b"hang")
    wait_until(lambda: "hanging" in run.text(), what="the user's function hangs")


def test_a_worker_that_does_not_close_in_time_is_killed(topics: Topics, tmp_path: Path) -> None:
    app = Counted(topics, tmp_path, partitions=1)
    with app.running(1, "--set", "shutdown.timeout.ms=1000") as run:
        _hang(app, run)
        run.signal(signal.SIGTERM)
        assert run.wait() == ExitCode.STOP_TIMEOUT
        (killed,) = run.events("worker_killed")
        assert (killed["worker_index"], killed["pid"]) == (0, run.pid(0))
        assert "shutdown.timeout.ms" in killed["reason"]


def test_a_worker_without_a_supervisor_that_does_not_close_in_time_ends_itself(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path, partitions=1)
    with app.running(1, "--set", "shutdown.timeout.ms=1000") as run:
        _hang(app, run)
        run.signal(signal.SIGKILL)
        run.wait()
        wait_until(lambda: not is_alive(run.pid(0)), what="no worker is left")
        assert len(run.events("supervisor_lost")) == 1
