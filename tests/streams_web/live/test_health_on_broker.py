"""Whatever befalls an application on a cluster, it lives; it says why it is not ready, till it is.

Who killed it for a long restore, a storm of rebalances or brokers that are away would have it begin
again, and wait longer.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from headrace.streams.devbroker import DevBroker
from headrace.streams.devbroker.cluster import choose_base
from headrace.streams.supervisor.exit_codes import ExitCode
from tests.streams.supervisor.live.test_scale_on_broker import headrace
from tests.support.patience import PATIENCE_S
from tests.support.processes import wait_until
from tests.support.served import Probes, Served
from tests.support.supervised import Counted, Run
from tests.support.topics import Topics
from tests.support.warm import await_coordinators

pytestmark = pytest.mark.slow

SLOW = """
import os

class Slow:
    def on_restore_start(self, place, store, begin, end): ...
    def on_batch_restored(self, place, store, offset, count):
        until = time.monotonic() + {seconds}
        while time.monotonic() < until and not os.path.exists({seen!r}):
            time.sleep(0.02)
    def on_restore_end(self, place, store, total): ...

app = KafkaStreams(builder.build(), restore_listener=Slow(), settings="""
SLOW_S = float(os.environ.get("HEADRACE_TEST_SLOW_RESTORE_S", "2"))
"""How long the slowed restore takes at least; a whole run of the tests has no time for minutes."""
MORE_S = 28
"""How much longer it takes at most, where it was not seen to go on by then."""
BATCHES = 80
"""A worker tells how far it is each half second, on a busy machine each four: each time less."""


def stop(run: Run) -> None:
    run.signal(signal.SIGTERM)
    assert run.wait() == ExitCode.STOPPED


def check_lived(probes: Probes) -> None:
    assert len(probes.lives) > 10
    assert set(probes.lives) == {200}


def restores_left(probes: Probes) -> list[int]:
    """What was left to restore, each time that it was asked for."""
    workers = [said["workers"][0] for code, said in list(probes.readies) if code == 503]
    return [one["restore_remaining"] for one in workers if one["restore_remaining"]]


def test_it_lives_and_says_how_far_it_is_while_a_restore_takes_long(
    topics: Topics, tmp_path: Path
) -> None:
    app = Counted(topics, tmp_path, partitions=1, restore_batch_records=25, commit_interval_ms=100)
    with app.running(1) as run:
        run.wait_running(1)
        app.write(25 * BATCHES, keys=1_000)
        app.wait_counted(run)
        stop(run)
    shutil.rmtree(tmp_path / "state")
    file = tmp_path / "my_app.py"
    code = file.read_text()
    seen = tmp_path / "seen"
    slow = SLOW.format(seconds=(SLOW_S + MORE_S) / BATCHES, seen=str(seen))
    slow = code.replace("app = KafkaStreams(builder.build(), ", slow)
    assert slow != code
    file.write_text(slow)
    with app.running(1, "--http=0", log="log2") as run:
        served = Served(run)
        with served.probed() as probes:
            slow_until = time.monotonic() + SLOW_S

            def is_seen() -> bool:
                is_told = len(set(restores_left(probes))) > 2 and len(probes.lives) > 10
                return probes.is_ready or (is_told and time.monotonic() > slow_until)

            wait_until(is_seen, what="how far it is", seconds=PATIENCE_S + 2 * SLOW_S)
            seen.touch()
            wait_until(lambda: probes.is_ready, what="ready")
        check_lived(probes)
        assert "worker 0 is rebalancing; not running: 0_0" in probes.reasons
        left = restores_left(probes)
        assert left == sorted(left, reverse=True)
        assert len(set(left)) > 2
        restored = run.wait_for("task_restored")
        assert restored[0]["records"] >= 25 * BATCHES // 2
        assert not run.events("worker_crashed")
        assert not run.events("partitions_lost")
        stop(run)


@pytest.mark.faults
def test_it_lives_in_a_storm_of_rebalances(topics: Topics, tmp_path: Path) -> None:
    """Each second workers join, leave, and one is killed."""
    app = Counted(topics, tmp_path)
    ended = threading.Event()

    def load() -> None:
        while not ended.wait(0.2):
            app.write(100)

    with app.running(1, "--http=0") as run:
        served = Served(run)
        run.wait_running(1)
        loader = threading.Thread(target=load)
        with served.probed() as probes:
            loader.start()
            try:
                wait_until(lambda: probes.is_ready, what="ready before the storm")
                for workers in (3, 1, 2, 3, 1):
                    headrace("scale", str(workers), f"--state-dir={tmp_path / 'state'}")
                    ended.wait(0.7)
                os.kill(run.pid(0), signal.SIGKILL)
            finally:
                ended.set()
                loader.join()
            before = len(probes.readies)
            run.wait_for("worker_crashed")
            app.wait_counted(run)
            wait_until(
                lambda: len(probes.readies) > before + 1 and probes.is_ready, what="ready again"
            )
        check_lived(probes)
        assert any(reason.startswith("worker 1 is") for reason in probes.reasons)
        assert any(reason.startswith("worker 0 is") for reason in probes.reasons)
        stop(run)
    app.check_exact()


@pytest.mark.long  # it starts a broker of its own, twice
def test_it_lives_while_brokers_are_away_and_is_ready_when_they_are_back(tmp_path: Path) -> None:
    with DevBroker(tmp_path / "broker", port=choose_base(1)) as broker:
        await_coordinators(broker.bootstrap)
        app = Counted(Topics(broker.bootstrap), tmp_path)
        with app.running(2, "--http=0") as run:
            served = Served(run)
            run.wait_running(2)
            app.write()
            with served.probed() as probes:
                wait_until(lambda: probes.is_ready, what="ready before")
                broker.kill(1)
                away = "worker 0 is connecting: brokers are not reached"
                wait_until(lambda: away in probes.reasons, what="the reason")
                # Longer than nothing: a probe that fails a few times has a process killed.
                wait_until(lambda: probes.reasons.count(away) > 10, what="some more probes")
                assert not probes.is_ready
                broker.start()
                wait_until(lambda: probes.is_ready, what="ready again")
            check_lived(probes)
            app.write()
            app.wait_counted(run)
            assert not run.events("worker_crashed")
            stop(run)
        app.check_exact()
